"""The grammar of the embedded corpus, and its splits as a Hugging Face dataset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from .content import RULES
from .grammar import MemoryGrammar
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


def load_stories(
    num_train: int = 50_000, num_validation: int = 1_000, num_test: int = 1_000, seed: int = 0
) -> DatasetDict:
    """Splits ``train``, ``validation`` and ``test`` with one column ``text``, each from a stream of its own.

    A split depends on ``seed`` and its name alone; a larger split begins with the stories of a smaller one.
    """
    from datasets import Dataset, DatasetDict, Features, Value

    sizes = {"train": num_train, "validation": num_validation, "test": num_test}
    for split, size in sizes.items():
        if not isinstance(size, int) or isinstance(size, bool) or size < 0:
            raise ValueError(f"num_{split} is {size!r}; an integer >= 0 is needed")
    if not isinstance(seed, int) or isinstance(seed, bool):
        raise ValueError(f"seed is {seed!r}; an integer is needed")
    grammar, columns = StoryGrammar(), Features({"text": Value("string")})
    return DatasetDict(
        {
            split: Dataset.from_dict({"text": grammar.sample(size, seed=f"{seed}:{split}")}, features=columns)
            for split, size in sizes.items()
        }
    )
