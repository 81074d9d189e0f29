"""All metrics of one set of texts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

from .judge import Judge
from .mauve_score import MINIMUM_TEXTS, mauve_from_features
from .ngrams import TrainingNgrams, diversity
from .perplexity_score import perplexity
from .protocol import Protocol
from .story_language import story_language


# In the order of the table, with their titles.
METRICS = {
    "perplexity": "perplexity",
    "mean_text_perplexity": "mean text perplexity",
    "mauve": "MAUVE",
    "diversity": "diversity",
    "memorization": "memorization",
    "distinct_texts": "distinct texts",
    "blank_texts": "blank texts",
    "validity": "validity",
    "log_probability": "log-probability",
    "distinct_stories": "distinct stories",
    "coverage": "coverage",
}


class Scorer:
    """Scores sets of texts under one protocol.

    Args:
        protocol: the protocol.
        training_texts: what memorization is counted against.
        load_judge: loads the judge when it is first needed; None leaves perplexity and MAUVE out.
        stories: whether the texts are those of the embedded corpus.
        progress: show bars.
    """

    def __init__(
        self,
        protocol: Protocol,
        training_texts: Sequence[str],
        load_judge: Callable[[], Judge] | None,
        stories: bool,
        progress: bool = False,
    ):
        self.protocol, self.training_texts, self.load_judge = protocol, training_texts, load_judge
        self.stories, self.progress = stories, progress

    @cached_property
    def judge(self) -> Judge | None:
        return None if self.load_judge is None else self.load_judge()

    @cached_property
    def training_ngrams(self) -> TrainingNgrams:
        return TrainingNgrams(self.training_texts, self.progress)

    def score(self, texts: Sequence[str], references: Sequence[str]) -> dict:
        """`scores` by metric, `details` behind them, and `notes` on what was left out and why."""
        written = [text for text in texts if text.strip()]
        blank = len(texts) - len(written)
        scores: dict[str, float] = {"blank_texts": blank / len(texts)}
        details: dict[str, object] = {}
        notes: list[str] = []
        if blank:
            notes.append(f"{blank} of {len(texts)} texts are blank: only `blank_texts` and `validity` count them.")
        if written:
            scores["distinct_texts"] = len(set(written)) / len(written)
            for measure in (self._diversity, self._memorization, self._perplexity):
                try:
                    measure(written, scores, details)
                except ValueError as error:
                    notes.append(f"{measure.__name__.strip('_')} is left out: {error}")
            if self.judge is not None and len(written) >= MINIMUM_TEXTS:
                self._mauve(written, references[: len(written)], scores, details)
            elif self.judge is not None:
                notes.append(f"mauve is left out: {len(written)} texts, and it needs {MINIMUM_TEXTS}.")
        if self.stories:
            self._stories(texts, scores, details, notes)
        return {"scores": scores, "details": details, "notes": notes}

    def _diversity(self, texts: list[str], scores: dict, details: dict) -> None:
        details["diversity"] = diversity(texts)
        scores["diversity"] = details["diversity"]["diversity"]

    def _memorization(self, texts: list[str], scores: dict, details: dict) -> None:
        scores["memorization"] = self.training_ngrams.memorization(texts)

    def _perplexity(self, texts: list[str], scores: dict, details: dict) -> None:
        if self.judge is None:
            return
        result = perplexity(texts, self.judge)
        details["perplexity"] = result.pop("settings")
        scores.update(result)

    def _mauve(self, texts: list[str], references: Sequence[str], scores: dict, details: dict) -> None:
        settings = self.protocol.mauve
        features = [self.judge.features(some, settings.max_text_length) for some in (texts, references)]
        details["mauve"] = mauve_from_features(*features, settings)
        scores["mauve"] = details["mauve"]["mauve"]

    def _stories(self, texts: Sequence[str], scores: dict, details: dict, notes: list[str]) -> None:
        result = story_language(texts)
        details["story_language"] = result
        for metric in ("validity", "log_probability", "distinct_stories", "coverage"):
            if result[metric] is not None:
                scores[metric] = result[metric]
        if result["coverage"] is None:
            notes.append("coverage is left out: too few valid stories to test any choice of the grammar.")
