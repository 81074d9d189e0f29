"""Perplexity of texts under a causal language model, as a module of `evaluate`."""

import datasets
import evaluate

from diffusers_text_nfdm.metrics import Judge, perplexity


DESCRIPTION = "Perplexity of texts under a causal language model: token-weighted, and as a mean over texts."
INPUTS = """
Args:
    predictions: list of texts.
    judge: name, folder or .gguf file of the language model, 'smollm2', or a `diffusers_text_nfdm.metrics.Judge`.
    batch_size: texts scored at a time.
Returns:
    perplexity: exp of all nats over all predicted tokens.
    mean_text_perplexity: mean over texts of exp of nats over tokens.
    settings: judge, start token, numbers of texts and tokens.
"""
CITATION = """
@article{radford2019language,
  title = {Language Models are Unsupervised Multitask Learners},
  author = {Radford, Alec and Wu, Jeffrey and Child, Rewon and Luan, David and Amodei, Dario and Sutskever, Ilya},
  year = {2019},
}
"""


@evaluate.utils.file_utils.add_start_docstrings(DESCRIPTION, INPUTS)
class Perplexity(evaluate.Metric):
    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description=DESCRIPTION,
            citation=CITATION,
            inputs_description=INPUTS,
            features=datasets.Features({"predictions": datasets.Value("string")}),
        )

    def _compute(self, predictions: list[str], judge: str | Judge = "gpt2-large", batch_size: int = 16) -> dict:
        if not isinstance(judge, Judge):
            judge = Judge.from_pretrained(judge, batch_size=batch_size)
        return perplexity(predictions, judge)
