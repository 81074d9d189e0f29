"""A clock for the texts of a batch, and the windows of a sampling step."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ..networks.dual import Dual
from .base import Clock, Windows, hold_known


class WindowStep(NamedTuple):
    """What a sampling step shows to the predictor.

    Args:
        windows: of all tokens of the texts.
        tokens: those that the predictor gets: the tokens in motion, and what is given and not seen as clean.
        written: tokens, from the first on, that are finished in all texts.
        seen: tokens, from the first on, of which some text sees the clean ones; in the others some are not finished.
    """

    windows: Windows
    tokens: slice
    written: int
    seen: int


@dataclass(frozen=True)
class BatchClock:
    """A clock for the texts of a batch.

    Args:
        clock: the clock.
        length: tokens of a text.
        known: `(batch, length)`, the tokens that are known.
        order: `(batch, length)` uniform random numbers, for a clock that draws an order.
        in_windows: whether the predictor takes the windows of a clock that has them one by one.
    """

    clock: Clock
    length: int
    known: Tensor | None = None
    order: Tensor | None = None
    in_windows: bool = False

    def __call__(self, u: Tensor) -> Dual:
        """Times and rates at global times u, `(batch, 1)`."""
        return hold_known(self.clock.token_times(u, self.length, self.known, self.order), self.known)

    @property
    def block_size(self) -> int | None:
        """Tokens of a block, `None` where that is the whole text."""
        return None if self.clock.block_size == self.length else self.clock.block_size

    @property
    def has_windows(self) -> bool:
        return self.in_windows and self.clock.has_windows and self.clock.block_size != self.length

    @property
    def mixing(self) -> int | None:
        """Tokens within which a forward process may let tokens see each other; `None` for the whole text."""
        return (self.block_size or 1) if self.has_windows else None

    def step_windows(self, u: float, t: Tensor, s: Tensor) -> WindowStep | None:
        """The windows in the step of token times from t to s which begins at u: the block in motion; of a ramp, the
        tokens from the first that has not settled to the last that moves. `None` where the whole text is one.
        """
        if not self.has_windows:
            return None
        positions = torch.arange(self.length, device=t.device)[None]
        if self.block_size is not None:
            blocks = self.length // self.block_size
            # A block ends where the next one begins, whatever the rounding of u.
            unfinished = max(1, math.ceil(u * blocks - 1e-6))
            first = torch.full_like(positions[:, :1], (blocks - unfinished) * self.block_size)
            last = first + self.block_size - 1
            starts = positions - positions % self.block_size
        else:
            t, s = (x.expand(-1, self.length) for x in (t, s))
            first, last = _first(t > 0), self.length - 1 - _first((s < t).flip(-1))
            starts = _window_starts(first, last, positions)
        return _window_step(first, last, Windows(starts, self.mixing), self.known)


def moving_window(first: Tensor, last: Tensor, length: int, known: Tensor | None = None) -> WindowStep:
    """A window of each text from its first token to its last, `(batch, 1)`, given the clean tokens before it."""
    positions = torch.arange(length, device=first.device)[None]
    last = last.clamp_max(length - 1)
    return _window_step(first, last, Windows(_window_starts(first, last, positions), 1), known)


def _window_starts(first: Tensor, last: Tensor, positions: Tensor) -> Tensor:
    """Neither what is written nor what has not begun is of the window."""
    return torch.where(positions < first, -1, torch.where(positions > last, last + 1, first))


def _window_step(first: Tensor, last: Tensor, windows: Windows, known: Tensor | None) -> WindowStep:
    written, seen = int(first.min()), int(first.max())
    begin, end = written, max(written, int(last.max()))
    if known is not None:
        # What is given behind the start of a window is seen, too, and sees all that is given before it.
        behind = known & (torch.arange(known.shape[1], device=known.device) >= first)
        places = (known & behind.any(-1, keepdim=True)).any(0).nonzero()
        if len(places):
            begin, end = min(begin, int(places[0])), max(end, int(places[-1]))
    return WindowStep(windows, slice(begin, end + 1), written, seen)


def _first(mask: Tensor) -> Tensor:
    """The first place of each row where the mask is True, `(batch, 1)`; the last place if there is none."""
    last = mask.shape[-1] - 1
    return torch.where(mask.any(-1), mask.long().argmax(-1), last)[:, None]
