"""Texts against the records that they tell, as a module of `evaluate`."""

import datasets
import evaluate

from diffusers_text_nfdm.metrics import against_references, slots_realised


DESCRIPTION = (
    "Share of the values of records, as in the E2E data, that texts tell, and of slots that they tell though the "
    "record has none; with references BLEU and ROUGE-L."
)
INPUTS = """
Args:
    predictions: list of texts.
    records: list of records, such as 'name[Aromi], area[riverside]', one for each text.
    reference_texts: list of lists of texts; without them there is no BLEU and ROUGE-L.
Returns:
    mentioned: share of the values that are told; mentioned_<slot> for each slot.
    complete: share of the texts that tell all values of their records.
    added: share of the slots that a record does not have of which its text tells a value.
    bleu, rouge_l: in percent.
"""
CITATION = """
@inproceedings{novikova2017e2e,
  title = {The {E2E} Dataset: New Challenges For End-to-End Generation},
  author = {Novikova, Jekaterina and Du{\\v{s}}ek, Ond{\\v{r}}ej and Rieser, Verena},
  booktitle = {Proceedings of SIGDIAL},
  year = {2017},
}
"""


@evaluate.utils.file_utils.add_start_docstrings(DESCRIPTION, INPUTS)
class RecordSlots(evaluate.Metric):
    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description=DESCRIPTION,
            citation=CITATION,
            inputs_description=INPUTS,
            features=datasets.Features({"predictions": datasets.Value("string"), "records": datasets.Value("string")}),
        )

    def _compute(
        self, predictions: list[str], records: list[str], reference_texts: list[list[str]] | None = None
    ) -> dict:
        scores = slots_realised(predictions, records)
        return scores if reference_texts is None else scores | against_references(predictions, reference_texts)
