"""Checks of values that users give."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedConfig


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def check_one_of(name: str, value: Any, allowed: Iterable) -> None:
    """Raise a ValueError unless the value is one of the words allowed."""
    allowed = tuple(allowed)
    # Only a string is compared: an array would be so value by value.
    if not isinstance(value, str) or value not in allowed:
        raise ValueError(f"`{name}` is {value!r}; it must be one of {', '.join(map(repr, allowed))}.")


def check_positive(**values: Any) -> None:
    """Raise a ValueError unless every value is a number above 0."""
    for name, value in values.items():
        if not is_number(value) or not value > 0:
            raise ValueError(f"`{name}` is {value!r}; it must be a number above 0.")


def check_finite(**values: Any) -> None:
    """Raise a ValueError unless every value is a finite number."""
    for name, value in values.items():
        if not is_number(value) or not math.isfinite(value):
            raise ValueError(f"`{name}` is {value!r}; it must be a finite number.")


def check_integers(minimum: int, **values: Any) -> None:
    """Raise a ValueError unless every value is an integer of at least `minimum`."""
    for name, value in values.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
            raise ValueError(f"`{name}` is {value!r}; it must be an integer of at least {minimum}.")


def check_seed(seed: Any) -> None:
    if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < 2**63:
        raise ValueError(f"`seed` is {seed!r}; it must be an integer in [0, 2**63).")


def check_text(name: str, text: Any) -> None:
    """Raise a ValueError for what is no string, or has half of a surrogate pair, which no file can hold."""
    if not isinstance(text, str):
        raise ValueError(f"`{name}` is a {type(text).__name__}, {str(text)[:40]!r}; it must be a string.")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"`{name}` has {text[error.start]!r} at position {error.start}, which is half of a character; read the "
            "text with errors='replace'."
        ) from error


def as_token_ids(input_ids: Any) -> Tensor:
    """Token ids as a tensor; a ValueError where they are neither that nor rows of numbers."""
    try:
        return torch.as_tensor(input_ids)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(
            f"`input_ids` is {str(input_ids)[:60]!r}; it must be a tensor of token ids, or rows of equal length."
        ) from error


def check_is_tensor(name: str, value: Any) -> None:
    if not isinstance(value, Tensor):
        raise ValueError(f"`{name}` is a {type(value).__name__}; it must be a tensor.")


def pad_rows(input_ids: Tensor, config: PreTrainedConfig) -> Tensor:
    """Token ids `(batch, max_length)` from rows that a tokenizer left shorter, where the padding is known."""
    check_is_tensor("input_ids", input_ids)
    missing = config.max_length - input_ids.shape[-1]
    if input_ids.ndim != 2 or missing <= 0 or config.pad_token_id is None:
        return input_ids
    return F.pad(input_ids, (0, missing), value=config.pad_token_id)


def check_token_ids(input_ids: Tensor, vocab_size: int) -> None:
    """Raise a ValueError for token ids that are no integers, or outside the vocabulary."""
    kind = input_ids.dtype
    if kind.is_floating_point or kind.is_complex or kind == torch.bool:
        raise ValueError(f"`input_ids` is of type {kind}; token ids must be integers.")
    # Reading values would stall an accelerator at every step; there an id out of range is a device-side assertion.
    if input_ids.device.type != "cpu" or not input_ids.numel():
        return
    low, high = input_ids.aminmax()
    if low < 0 or high >= vocab_size:
        raise ValueError(
            f"`input_ids` has values from {int(low)} to {int(high)}; token ids must be in [0, {vocab_size - 1}]. Was "
            "the tokenizer built for another model?"
        )
