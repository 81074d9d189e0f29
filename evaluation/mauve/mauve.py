"""MAUVE between samples and references, as a module of `evaluate`."""

import datasets
import evaluate

from diffusers_text_nfdm.metrics import Judge, MauveSettings, mauve


DESCRIPTION = (
    "MAUVE between samples and references with the features of a causal language model, over several seeds of k-means."
)
INPUTS = """
Args:
    predictions: list of generated texts.
    references: as many real texts; they are a set, not pairs.
    judge: name, folder or .gguf file of the language model, 'smollm2', or a `diffusers_text_nfdm.metrics.Judge`.
    settings: a `diffusers_text_nfdm.metrics.MauveSettings`.
    batch_size: texts read at a time.
Returns:
    mauve, mauve_sd: mean and standard deviation over the seeds of k-means.
    mauve_by_seed: the values.
    settings: everything the value depends on.
"""
CITATION = """
@inproceedings{pillutla2021mauve,
  title = {MAUVE: Measuring the Gap Between Neural Text and Human Text using Divergence Frontiers},
  author = {Pillutla, Krishna and Swayamdipta, Swabha and Zellers, Rowan and Thickstun, John and Welleck, Sean and
  Choi, Yejin and
    Harchaoui, Zaid},
  booktitle = {Advances in Neural Information Processing Systems},
  year = {2021},
}
"""


@evaluate.utils.file_utils.add_start_docstrings(DESCRIPTION, INPUTS)
class Mauve(evaluate.Metric):
    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description=DESCRIPTION,
            citation=CITATION,
            inputs_description=INPUTS,
            features=datasets.Features(
                {"predictions": datasets.Value("string"), "references": datasets.Value("string")}
            ),
        )

    def _compute(
        self,
        predictions: list[str],
        references: list[str],
        judge: str | Judge = "gpt2-large",
        settings: MauveSettings | None = None,
        batch_size: int = 16,
    ) -> dict:
        if not isinstance(judge, Judge):
            judge = Judge.from_pretrained(judge, batch_size=batch_size)
        return mauve(predictions, references, judge, settings)
