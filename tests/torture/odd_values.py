"""Values that users give by mistake, and whether a value is of a kind that a signature names."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st


NUMBERS = (-1, 0, 1, 2, 3, True, 0.5, -0.5, 1e-320, 1e-9, 1e30, float("nan"), float("inf"), float("-inf"))
TEXTS = ("", " ", "x", "shared", "ramp:x", "Tom saw [GAP]", "Tom [MASK]", "half \ud800", "\0", "a: [", "ü" * 300)
# Made when they are used: a tensor or an iterator may be changed by the call.
MADE = {
    "object()": object,
    "bytes": lambda: b"x",
    "iterator": lambda: iter(["x"]),
    "float ids": lambda: torch.ones(2, 5),
    "no rows": lambda: torch.zeros(0, 5, dtype=torch.long),
    "short rows": lambda: torch.zeros(2, 3, dtype=torch.long),
    "long rows": lambda: torch.zeros(2, 9, dtype=torch.long),
    "one row": lambda: torch.zeros(5, dtype=torch.long),
    "ids beyond": lambda: torch.full((2, 5), 99),
    "negative ids": lambda: torch.full((2, 5), -1),
    "mask": lambda: torch.zeros(2, 5, dtype=torch.bool),
    "nan latents": lambda: torch.full((2, 5, 4), float("nan")),
    "scalar tensor": lambda: torch.tensor(1.0),
    "array": lambda: np.zeros((2, 5)),
    "generator": lambda: torch.Generator().manual_seed(0),
    "function": lambda: lambda *args: None,
    "path": lambda: Path("nowhere"),
}
LISTS = (
    [],
    [1],
    ["x"],
    [None],
    [[]],
    [0.5, 0.9],
    [0.9, 0.5],
    [float("nan")],
    ["half \ud800"],
    {},
    {"a": 1},
    {1: None},
    (),
)


def odd_values(annotation: Any) -> st.SearchStrategy[tuple[str, Any]]:
    """A name to show, and a function that makes the value. A flag gets what has a truth value."""
    plain = st.one_of(st.none(), st.sampled_from(NUMBERS), st.sampled_from(TEXTS), st.sampled_from(LISTS))
    plain = st.one_of(plain, st.floats(), st.integers(-(2**70), 4), st.text(max_size=5))
    plain = plain.map(lambda value: (repr(value), lambda: value))
    return (
        plain
        if annotation in ("bool", bool)
        else st.one_of(
            plain,
            st.sampled_from(sorted(MADE)).map(lambda name: (name, MADE[name])),
        )
    )


KINDS = {
    # A recipe may say 1.0e+4.
    "int": lambda x: not isinstance(x, bool) and (isinstance(x, int) or (isinstance(x, float) and x.is_integer())),
    "float": lambda x: isinstance(x, (int, float)) and not isinstance(x, bool),
    "str": lambda x: isinstance(x, str),
    "None": lambda x: x is None,
    "dict": lambda x: isinstance(x, dict),
    "list": lambda x: isinstance(x, (list, tuple)),
    "tuple": lambda x: isinstance(x, (list, tuple)),
    "Sequence": lambda x: isinstance(x, (list, tuple, np.ndarray, torch.Tensor)),
    "Iterable": lambda x: isinstance(x, Iterable),
    "Mapping": lambda x: isinstance(x, dict),
    "Tensor": lambda x: isinstance(x, torch.Tensor),
    "Path": lambda x: isinstance(x, Path),
    "Callable": callable,
    "torch.Generator": lambda x: isinstance(x, torch.Generator),
}


def fits(value: Any, annotation: Any) -> bool:
    """Whether a value is of a kind that the annotation names. A flag takes anything, as flags do in Python, and so
    does what is not annotated, or by a class that is not known here."""
    if annotation is inspect.Parameter.empty:
        return True
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))
    heads = [part.split("[")[0].strip() for part in _alternatives(text)]
    return any(head not in KINDS or KINDS[head](value) for head in heads)


def _alternatives(text: str) -> list[str]:
    """`a | b[c | d]` as its two parts."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "[(") - (letter in "])")
        if letter == "|" and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return parts
