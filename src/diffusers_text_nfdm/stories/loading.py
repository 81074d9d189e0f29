"""The grammar of the embedded corpus, and its splits as a Hugging Face dataset."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from .content import RULES
from .grammar import MemoryGrammar, Step
from .templates import Option


if TYPE_CHECKING:
    from datasets import DatasetDict


class StoryGrammar(MemoryGrammar):
    """Five-sentence everyday stories with exactly known entropy; other ``rules`` make another language.

    The rules are those of :mod:`diffusers_text_nfdm.stories.content`; ``story`` is the start. Why every story has
    exactly one derivation is said in :class:`~diffusers_text_nfdm.stories.grammar.MemoryGrammar`.
    """

    def __init__(self, rules: Mapping[str, Sequence[Option]] | None = None, start: str = "story", lookahead: int = 6):
        super().__init__(RULES if rules is None else rules, start, lookahead)

    @staticmethod
    def condition(derivation: Sequence[Step]) -> str:
        """Plot, hero and thing of a story, ``practice Lucy tuba``: the thing is what the plot remembers first."""
        options = {step.choice: step.option for step in reversed(derivation)}
        plot = options["plot"].strip("{}")
        thing = re.search(r"{\w+=(\w+)}", options[plot])[1]
        return f"{plot} {options['hero']} {options[thing]}"

    def condition_entropy(self) -> float:
        """Entropy of the condition in nats. It is a function of the story, so ``H(story | condition)`` is the
        difference of the two.
        """
        things = {
            plot: re.search(r"{\w+=(\w+)}", next(iter(self.choices[plot])))[1]
            for plot in (option.strip("{}") for option in self.choices["plot"])
        }
        entropy = {
            rule: -math.fsum(float(p) * math.log(p) for p in options.values())
            for rule, options in self.choices.items()
        }
        return (
            entropy["plot"]
            + entropy["hero"]
            + math.fsum(float(p) * entropy[things[option.strip("{}")]] for option, p in self.choices["plot"].items())
        )


def load_stories(
    num_train: int = 50_000,
    num_validation: int = 1_000,
    num_test: int = 1_000,
    seed: int = 0,
    conditions: bool = False,
) -> DatasetDict:
    """Splits ``train``, ``validation`` and ``test`` with the column ``text``, each from a stream of its own.

    A split depends on ``seed`` and its name alone; a larger split begins with the stories of a smaller one.
    With ``conditions`` there is a column ``condition``, too (:meth:`StoryGrammar.condition`).
    """
    from datasets import Dataset, DatasetDict, Features, Value

    sizes = {"train": num_train, "validation": num_validation, "test": num_test}
    for split, size in sizes.items():
        if not isinstance(size, int) or isinstance(size, bool) or size < 0:
            raise ValueError(f"num_{split} is {size!r}; an integer >= 0 is needed")
    if not isinstance(seed, int) or isinstance(seed, bool):
        raise ValueError(f"seed is {seed!r}; an integer is needed")
    grammar = StoryGrammar()
    columns = Features({name: Value("string") for name in ["text"] + ["condition"] * bool(conditions)})
    splits = {}
    for split, size in sizes.items():
        rows: dict[str, list[str]] = {name: [] for name in columns}
        for text, derivation in grammar.sample_derivations(size, seed=f"{seed}:{split}"):
            rows["text"].append(text)
            if conditions:
                rows["condition"].append(grammar.condition(derivation))
        splits[split] = Dataset.from_dict(rows, features=columns)
    return DatasetDict(splits)
