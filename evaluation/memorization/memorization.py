"""Memorization of training texts, as a module of `evaluate`."""

import datasets
import evaluate

from diffusers_text_nfdm.metrics import memorization


DESCRIPTION = "Share of the 4-grams of words in a set of texts that occur in the training texts."
INPUTS = """
Args:
    predictions: list of texts.
    training_texts: list of training texts, of any length.
Returns:
    memorization: the share, repetitions counted.
"""
CITATION = """
@inproceedings{lovelace2023latent,
  title = {Latent Diffusion for Language Generation},
  author = {Lovelace, Justin and Kishore, Varsha and Wan, Chao and Shekhtman, Eliot and Weinberger, Kilian Q.},
  booktitle = {Advances in Neural Information Processing Systems},
  year = {2023},
}
"""


@evaluate.utils.file_utils.add_start_docstrings(DESCRIPTION, INPUTS)
class Memorization(evaluate.Metric):
    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description=DESCRIPTION,
            citation=CITATION,
            inputs_description=INPUTS,
            features=datasets.Features({"predictions": datasets.Value("string")}),
        )

    def _compute(self, predictions: list[str], training_texts: list[str]) -> dict:
        return memorization(predictions, training_texts)
