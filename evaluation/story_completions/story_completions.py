"""Completions of stories against exact draws of what was missing, as a module of `evaluate`."""

import datasets
import evaluate

from diffusers_text_nfdm.metrics import story_completions


DESCRIPTION = (
    "Stories that were continued or filled in, beside the stories that their known parts were taken from: how many "
    "are of the language, and whether their choices are as frequent as exact draws of the missing part."
)
INPUTS = """
Args:
    predictions: list of completed texts.
    stories: list of the grammar's samples that the known parts were taken from, one for each text.
    seed: of the test's draws.
Returns:
    validity: share of texts that are stories of the language.
    same: share of texts that are the story that they were taken from.
    coverage: share of the tested choices not rejected at 1%, None without one.
    tested_choices: behind it.
"""
CITATION = "The corpus and its grammar are part of diffusers_text_nfdm (diffusers_text_nfdm.stories)."


@evaluate.utils.file_utils.add_start_docstrings(DESCRIPTION, INPUTS)
class StoryCompletions(evaluate.Metric):
    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description=DESCRIPTION,
            citation=CITATION,
            inputs_description=INPUTS,
            features=datasets.Features({"predictions": datasets.Value("string"), "stories": datasets.Value("string")}),
        )

    def _compute(self, predictions: list[str], stories: list[str], seed: int = 0) -> dict:
        return story_completions(predictions, stories, seed=seed)
