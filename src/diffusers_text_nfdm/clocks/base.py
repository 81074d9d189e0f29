"""What a clock is, the paper's, and windows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..networks.dual import Dual


# A monotone map of [0, 1] onto itself, with its slope: where times are drawn more often than elsewhere.
Density = Callable[[Dual], Dual]


class Windows(NamedTuple):
    """Tokens that move together, given the clean tokens before them.

    A window is known by the position at which it starts. A clock from left to right is a row of windows: those before
    are text, those behind have not begun. So one call of the predictor can evaluate all of them, each as if it were
    alone.

    Args:
        starts: where the window of each token starts, `(1 or batch, length)`.
        mixing: number of neighbouring tokens, from the first on, within which a forward process may let tokens see
            each other. Along a ramp it is 1: what a token's mean depends on may not change as the window moves on.
            `None` for the whole text.
    """

    starts: Tensor
    mixing: int | None


class Clock(ABC):
    """A subclass gives `token_times` and how it is written in a config."""

    # Tokens of a block that is given the clean tokens before it; `None` where the text is not in blocks.
    block_size: int | None = None
    # Whether the tokens in motion are windows, given the clean tokens before them.
    has_windows = False
    # Whether every text has an order of its own, from random numbers.
    draws_order = False

    @abstractmethod
    def token_times(self, u: Tensor, length: int, known: Tensor | None = None, order: Tensor | None = None) -> Dual:
        """Times and rates of the tokens at global times u.

        Args:
            u: `(batch, 1)`.
            length: tokens of a text.
            known: `(batch, length)`, the tokens that are known. They are left out of the order; `hold_known` sets
                their times.
            order: `(batch, length)` uniform random numbers, for a clock that draws an order.

        Returns:
            times and rates `(batch, length)`, or `(batch, 1)` where all tokens of a text have the same.
        """

    @abstractmethod
    def to_config(self) -> str | dict[str, Any]:
        """How the clock is written in a config; `make_clock` reads it."""

    def parallel_times(
        self,
        u: Tensor,
        length: int,
        known: Tensor | None = None,
        order: Tensor | None = None,
        density: Density | None = None,
    ) -> tuple[Dual, Windows | None]:
        """Times at which one call of the predictor estimates the bound, for uniform u: `E_u` is that along the clock;
        and the windows of the tokens.

        With a `density` the global times are drawn by it, and the rates have the weight that keeps the estimate
        unbiased.
        """
        return self.single_times(u, length, known, order, density), None

    def single_times(
        self,
        u: Tensor,
        length: int,
        known: Tensor | None = None,
        order: Tensor | None = None,
        density: Density | None = None,
    ) -> Dual:
        """The same for a predictor that takes the whole text at one global time."""
        if density is None:
            return self.token_times(u, length, known, order)
        u, weight = density(Dual(u, torch.ones_like(u)))
        t, rate = self.token_times(u, length, known, order)
        return Dual(t, rate * weight)

    def fixed_windows(self, length: int, device: torch.device | None = None) -> Windows | None:
        """The windows where they are the same at all times."""
        return None

    def time_grid(self, num_steps: int, length: int) -> list[float]:
        """`num_steps + 1` global times from 1 to 0 for sampling."""
        return torch.linspace(1, 0, num_steps + 1, dtype=torch.float64).tolist()

    def check_length(self, length: int) -> None:  # noqa: B027  (most clocks are for all lengths)
        """Raise a ValueError if the clock is not one for texts of this length."""

    def __str__(self) -> str:
        return str(self.to_config())


@dataclass(frozen=True)
class SharedClock(Clock):
    """`t_i = u`: one time for the whole text, as in the paper."""

    def token_times(self, u: Tensor, length: int, known: Tensor | None = None, order: Tensor | None = None) -> Dual:
        return Dual(u, torch.ones_like(u))

    def to_config(self) -> str:
        return "shared"


def hold_known(times: Dual, known: Tensor | None) -> Dual:
    """Time 0 and rate 0 for known tokens."""
    if known is None:
        return times
    return times.map_linear(lambda x: x.expand(known.shape).masked_fill(known, 0))


def check_clock(clock: Clock, length: int, points: int = 65) -> None:
    """Raise a ValueError unless the times are in [0, 1], grow with u, and go from 0 to 1."""
    u = torch.linspace(0, 1, points, dtype=torch.float64)[:, None]
    order = torch.rand(1, length, generator=torch.Generator().manual_seed(0), dtype=torch.float64).expand(points, -1)
    times = clock.token_times(u, length, None, order)
    for name, values in (("times", times.value), ("rates", times.rate)):
        if values is None or values.shape not in ((points, length), (points, 1)):
            shape = None if values is None else tuple(values.shape)
            raise ValueError(
                f"The {name} of {clock} have shape {shape}; they must be (batch, {length}) or (batch, 1)."
            )
    t = times.value
    if not ((t >= 0) & (t <= 1)).all():
        raise ValueError(f"{clock} has times from {t.min():.3g} to {t.max():.3g}; they must be in [0, 1].")
    if (t.diff(dim=0) < 0).any() or (times.rate < 0).any():
        raise ValueError(f"{clock} is not monotone; no token's time may fall while u grows.")
    if ((times.rate == 0) & (t > 0) & (t < 1)).any():
        raise ValueError(
            f"{clock} lets tokens pause between 0 and 1; a token may only stand still as text or as noise."
        )
    if t[0].any() or (t[-1] != 1).any():
        raise ValueError(f"{clock} does not go from text to noise; all times must be 0 at u = 0 and 1 at u = 1.")


def check_known(known: Any, shape: Sequence[int]) -> None:
    """Raise a ValueError for a mask of known tokens that is none."""
    shape = tuple(shape)
    if not isinstance(known, Tensor) or known.dtype != torch.bool:
        kind = known.dtype if isinstance(known, Tensor) else type(known).__name__
        raise ValueError(f"`known` is of type {kind}; it must be a tensor of booleans of shape {shape}.")
    if tuple(known.shape) != shape:
        raise ValueError(f"`known` has shape {tuple(known.shape)}; it must be {shape}, one boolean per token.")
    # Reading values would stall an accelerator at every step.
    if known.device.type == "cpu" and known.all(-1).any():
        raise ValueError(
            f"`known` is True for every token of text {int(known.all(-1).nonzero()[0])}; nothing is left to model."
        )
