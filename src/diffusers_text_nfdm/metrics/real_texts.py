"""The real texts of an evaluation: what samples are compared with, and what stands in the "Dataset" row."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from transformers import PreTrainedTokenizerBase

from ..data import load_text_dataset, prepare_dataset
from ..stories import load_stories
from ..tokenization import content_ids
from .protocol import Protocol
from .texts import check_same_form


STORIES = "stories"
FORM_TEXTS = 200


@dataclass(frozen=True)
class RealTexts:
    """Training texts that memorization is counted against, and texts that no model was trained on.

    Args:
        training: training texts.
        held_out: texts of other splits, in the order in which they are used.
        num_samples: size of a set of references, and of a set of real texts in the place of samples.
        num_repeats: number of such pairs.
        splits: where `held_out` comes from.
    """

    training: list[str]
    held_out: list[str]
    num_samples: int
    num_repeats: int
    splits: tuple[str, ...]

    @property
    def disjoint(self) -> bool:
        """Whether there are enough texts for every repeat to have its own.

        Otherwise repeats share texts and their spread is too small.
        """
        return len(self.held_out) >= 2 * self.num_samples * self.num_repeats

    def repeat(self, index: int) -> tuple[list[str], list[str]]:
        """References of a repeat, and other real texts in the place of its samples."""
        n = self.num_samples
        if self.disjoint:
            texts = self.held_out[2 * n * index : 2 * n * (index + 1)]
        else:
            order = np.random.default_rng(index).permutation(len(self.held_out))[: 2 * n]
            texts = [self.held_out[place] for place in order]
        return texts[:n], texts[n:]


def load_real_texts(
    dataset: str | Path | Mapping[str, str | Path], protocol: Protocol, column: str = "text"
) -> RealTexts:
    """Read a dataset (see `load_text_dataset`), as much of it as the protocol needs; ValueError where that is not
    there.

    Of the embedded stories there are as many as needed: the held-out ones are the test split, continued.
    """
    n, repeats = protocol.num_samples, len(protocol.seeds)
    if dataset == STORIES:
        needed = max(2 * n * repeats, protocol.likelihood_texts)
        # A smaller split is the beginning of a larger one.
        sizes = {} if protocol.memorization_texts is None else {"num_train": protocol.memorization_texts}
        loaded, splits = load_stories(num_validation=0, num_test=needed, **sizes), ("test",)
        held_out = loaded["test"]["text"][:]
    else:
        loaded = load_text_dataset(dataset, column=column)
        splits = tuple(split for split in protocol.reference_splits if split in loaded)
        held_out = [text for split in splits for text in loaded[split]["text"] if text and text.strip()]
        # A dataset may be sorted by subject or length.
        held_out = [held_out[place] for place in np.random.default_rng(0).permutation(len(held_out))]
        needed = max(2 * n, protocol.likelihood_texts)
    if len(held_out) < needed:
        raise ValueError(
            f"The protocol {protocol.name!r} needs {needed} held-out texts ({n} references and {n} real texts in the "
            "place of samples; "
            f"{protocol.likelihood_texts} for the likelihood), but the dataset has {len(held_out)} in "
            f"{', '.join(protocol.reference_splits)}. Give more, or make the protocol smaller with `num_samples`, at "
            f"most {len(held_out) // 2}."
        )
    training = [text for text in loaded["train"]["text"] if text and text.strip()] if "train" in loaded else []
    wanted = protocol.memorization_texts or 1
    if len(training) < wanted:
        raise ValueError(
            f"The protocol {protocol.name!r} counts memorization against at least {wanted} training texts, but the "
            f"dataset has {len(training)}."
        )
    return RealTexts(training[: protocol.memorization_texts], list(held_out), n, repeats, splits)


def round_trip(texts: Sequence[str], tokenizer: PreTrainedTokenizerBase, max_length: int) -> list[str]:
    """Texts as the tokenizer would write them back: cut at `max_length`, with UNK where a word is unknown."""
    from datasets import Dataset

    rows = prepare_dataset(Dataset.from_dict({"text": list(texts)}), tokenizer, max_length)[0]
    return [tokenizer.decode(content_ids(ids, tokenizer)) for ids in rows["input_ids"][:].tolist()]


def in_form(real: RealTexts, pipeline, detokenisation: str) -> RealTexts:
    """The texts in the form that the protocol asks for; ValueError where samples could not have it."""
    tokenizer, max_length = pipeline.tokenizer, pipeline.model.config.max_length
    if detokenisation == "round_trip":
        training, held_out = (round_trip(texts, tokenizer, max_length) for texts in (real.training, real.held_out))
        return RealTexts(training, held_out, real.num_samples, real.num_repeats, real.splits)
    some = real.held_out[:FORM_TEXTS]
    try:
        # Of the tokenizer, not of samples: a model that writes one small word again and again is bad, but not in
        # another form.
        check_same_form(round_trip(some, tokenizer, max_length), some, "the checkpoint's texts", "the dataset's texts")
    except ValueError as error:
        raise ValueError(
            f"{error} Or compare with real texts in the form of the tokenizer: detokenisation='round_trip'."
        ) from error
    return real


def texts_hash(texts: Sequence[str]) -> str:
    digest = hashlib.sha256()
    for text in texts:
        digest.update(text.encode("utf-8", "surrogatepass") + b"\0")
    return digest.hexdigest()[:16]
