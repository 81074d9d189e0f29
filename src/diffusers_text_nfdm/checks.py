"""Checks of values that users give."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def check_one_of(name: str, value: Any, allowed: Iterable) -> None:
    """Raise a ValueError unless the value is one of those allowed."""
    allowed = tuple(allowed)
    if value not in allowed:
        raise ValueError(f"`{name}` is {value!r}; it must be one of {', '.join(map(repr, allowed))}.")


def check_positive(**values: Any) -> None:
    """Raise a ValueError unless every value is a number above 0."""
    for name, value in values.items():
        if not is_number(value) or not value > 0:
            raise ValueError(f"`{name}` is {value!r}; it must be a number above 0.")
