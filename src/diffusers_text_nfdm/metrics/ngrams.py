"""Diversity of a set of texts and what it shares with the training texts, by n-grams of words."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from tqdm.auto import tqdm

from .texts import check_same_form, check_texts, split_words


DIVERSITY_ORDERS = (2, 3, 4)
MEMORIZATION_ORDER = 4


def ngrams(words: Sequence[str], n: int) -> Iterator[tuple[str, ...]]:
    """All n-grams within one text."""
    return zip(*(words[start:] for start in range(n)))


def diversity(texts: Sequence[str]) -> dict[str, float]:
    """`Π_n distinct n-grams / all n-grams` for n = 2, 3, 4 over the whole set, and each factor as `distinct_n`.

    N-grams do not cross texts. The value falls with the number of texts, so it compares sets of one size only.
    """
    words = [split_words(text) for text in check_texts(texts, "texts")]
    factors = {}
    for n in DIVERSITY_ORDERS:
        seen = [gram for text in words for gram in ngrams(text, n)]
        if not seen:
            raise ValueError(f"`texts` has no text of {n} words or more, so there are no {n}-grams to count.")
        factors[f"distinct_{n}"] = len(set(seen)) / len(seen)
    return {"diversity": math.prod(factors.values()), **factors}


class TrainingNgrams:
    """The 4-grams of the training texts.

    Args:
        texts: training texts.
        progress: show a bar while they are read.
    """

    def __init__(self, texts: Iterable[str], progress: bool = False):
        self.seen: set[tuple[str, ...]] = set()
        for text in tqdm(texts, desc="4-grams of the training texts", unit="text", disable=not progress):
            self.seen.update(ngrams(split_words(text), MEMORIZATION_ORDER))
        if not self.seen:
            raise ValueError(f"The training texts have no text of {MEMORIZATION_ORDER} words or more.")

    def memorization(self, texts: Sequence[str]) -> float:
        """Share of the 4-grams of `texts`, repetitions counted, that occur in the training texts."""
        grams = [gram for text in texts for gram in ngrams(split_words(text), MEMORIZATION_ORDER)]
        if not grams:
            raise ValueError(f"`texts` has no text of {MEMORIZATION_ORDER} words or more, so there are no 4-grams.")
        return sum(gram in self.seen for gram in grams) / len(grams)


def memorization(texts: Sequence[str], training_texts: Sequence[str]) -> dict[str, float]:
    """Share of the 4-grams of `texts` that occur in `training_texts`. It grows with the number of training texts."""
    texts, training_texts = check_texts(texts, "texts"), check_texts(training_texts, "training_texts")
    check_same_form(texts, training_texts, "texts", "training_texts")
    return {"memorization": TrainingNgrams(training_texts).memorization(texts)}
