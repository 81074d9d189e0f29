"""Diversity of a set of texts, as a module of `evaluate`."""

import datasets
import evaluate

from diffusers_text_nfdm.metrics import diversity


DESCRIPTION = "Diversity of a set of texts: the product over n = 2, 3, 4 of distinct over all n-grams of words."
INPUTS = """
Args:
    predictions: list of texts.
Returns:
    diversity: the product.
    distinct_2, distinct_3, distinct_4: its factors.
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
class Diversity(evaluate.Metric):
    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description=DESCRIPTION,
            citation=CITATION,
            inputs_description=INPUTS,
            features=datasets.Features({"predictions": datasets.Value("string")}),
        )

    def _compute(self, predictions: list[str]) -> dict:
        return diversity(predictions)
