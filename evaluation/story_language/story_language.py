"""Samples of the embedded corpus against its grammar, as a module of `evaluate`."""

import datasets
import evaluate

from diffusers_text_nfdm.metrics import story_language


DESCRIPTION = (
    "Texts against the grammar of the embedded stories: validity, exact log-probability, distinct stories and "
    "coverage of the grammar's choices."
)
INPUTS = """
Args:
    predictions: list of texts.
    num_draws: Monte-Carlo draws for the p-value of each choice.
    seed: of these draws.
Returns:
    validity: share of texts that are stories of the language.
    log_probability: mean over valid stories in nats; -entropy for the grammar's own samples.
    entropy: of the grammar in nats.
    distinct_stories: distinct over all valid stories.
    coverage: share of the choices not rejected at 1%.
    tested_choices, untested_choices, p_values: behind the coverage.
"""
CITATION = "The corpus and its grammar are part of diffusers_text_nfdm (diffusers_text_nfdm.stories)."


@evaluate.utils.file_utils.add_start_docstrings(DESCRIPTION, INPUTS)
class StoryLanguage(evaluate.Metric):
    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description=DESCRIPTION,
            citation=CITATION,
            inputs_description=INPUTS,
            features=datasets.Features({"predictions": datasets.Value("string")}),
        )

    def _compute(self, predictions: list[str], num_draws: int = 9999, seed: int = 0) -> dict:
        return story_language(predictions, num_draws=num_draws, seed=seed)
