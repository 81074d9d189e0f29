"""Clocks: a time for every token.

A clock maps a global time u in [0, 1] (1 noise, 0 text) to token times `t_i = c_i(u)`, which grow from `c_i(0) = 0` to
`c_i(1) = 1`, and to their rates `r_i = dt_i/du`. With an exact denoiser the bound is tight along every clock; what
differs is the error of a trained one, and how many steps sampling takes. Known tokens have time 0 and rate 0 in all of
them.

| clock | written | token times |
|---|---|---|
| shared, the paper's | `"shared"` | `t_i = u` |
| ramp from left to right | `"ramp:8"` | `t_i = clip((1+w) u - w o_i, 0, 1)`, w = 8, `o_i` falls along the text |
| ramp in random order | `"random:8"` | the same with `o_i` in a random order, drawn anew for every text |
| blocks | `"blocks:8"` | 8 tokens at a time, from left to right, all at one time, given the clean tokens before them |
| blocks with a clock inside | `"blocks:8:random:2"` | the same with that clock for the tokens of a block |
"""

from __future__ import annotations

from typing import Any

from ..checks import check_integers
from .base import Clock, Density, SharedClock, Windows, check_clock, check_known, hold_known
from .batch import BatchClock, WindowStep, moving_window
from .blocks import GOLDEN_RATIO, BlockClock
from .ramp import RampClock


def make_clock(clock: str | dict[str, Any] | Clock, length: int) -> Clock:
    """The clock of a config, of the command line, or as it is, for texts of `length` tokens; a ValueError if there is
    none.
    """
    check_integers(1, length=length)
    if not isinstance(clock, Clock):
        clock = _parse(clock)
    clock.check_length(length)
    if not isinstance(clock, (SharedClock, RampClock, BlockClock)):
        check_clock(clock, length)
    return clock


def _parse(spec: Any) -> Clock:
    if isinstance(spec, dict):
        unknown = set(spec) - {"name", "width", "offsets"}
        if spec.get("name") != "ramp" or unknown or "width" not in spec:
            raise ValueError(
                f"The clock is {spec!r}; a dict must be {{'name': 'ramp', 'width': w, 'offsets': [...]}}."
            )
        return RampClock(spec["width"], offsets=spec.get("offsets"))
    name, _, number = spec.partition(":") if isinstance(spec, str) else (None, None, None)
    try:
        if name == "shared" and not number:
            return SharedClock()
        if name in ("ramp", "random"):
            return RampClock(float(number), order="random" if name == "random" else "left_to_right")
        if name == "blocks":
            size, _, inside = number.partition(":")
            return BlockClock(int(size), _parse(inside) if inside else SharedClock())
    except ValueError as error:
        if "must be" in str(error):
            raise
    raise ValueError(
        f"The clock is {spec!r}; it must be 'shared', 'ramp:WIDTH', 'random:WIDTH', 'blocks:SIZE' or "
        "'blocks:SIZE:CLOCK', such as 'ramp:8'."
    )


__all__ = [
    "GOLDEN_RATIO",
    "BatchClock",
    "BlockClock",
    "Clock",
    "Density",
    "RampClock",
    "SharedClock",
    "WindowStep",
    "Windows",
    "check_clock",
    "check_known",
    "hold_known",
    "make_clock",
    "moving_window",
]
