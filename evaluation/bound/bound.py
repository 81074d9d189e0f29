"""The bound on the negative log-likelihood of texts under a checkpoint, as a module of `evaluate`."""

import datasets
import evaluate

from diffusers_text_nfdm.metrics import bound, bound_units, load_pipeline


DESCRIPTION = (
    "Upper bound of the negative log-likelihood of texts under a checkpoint (exact for an autoregressive one), in "
    "bits per character and other units."
)
INPUTS = """
Args:
    predictions: list of texts, real ones that the model has not seen.
    checkpoint: folder or repository of a pipeline.
    num_draws: draws of time and noise per text, an even number.
    batch_size: texts evaluated at a time.
    seed: of the draws.
Returns:
    bits_per_character, bits_per_token, nats_per_token, nats_per_position, nats_per_story: the bound.
    <unit>_error: standard error from the draws.
"""
CITATION = """
@article{midavaine2026towards,
  title = {Towards Latent Diffusion Suitable For Text},
  author = {Midavaine, Nesta and Naesseth, Christian A. and Bartosh, Grigory},
  journal = {arXiv:2601.16220},
  year = {2026},
}
"""


@evaluate.utils.file_utils.add_start_docstrings(DESCRIPTION, INPUTS)
class Bound(evaluate.Metric):
    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description=DESCRIPTION,
            citation=CITATION,
            inputs_description=INPUTS,
            features=datasets.Features({"predictions": datasets.Value("string")}),
        )

    def _compute(
        self, predictions: list[str], checkpoint: str, num_draws: int = 8, batch_size: int = 64, seed: int = 0
    ) -> dict:
        pipeline = load_pipeline(checkpoint)
        return bound_units(bound(pipeline, predictions, num_draws=num_draws, batch_size=batch_size, seed=seed))
