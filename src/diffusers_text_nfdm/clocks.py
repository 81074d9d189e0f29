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

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .checks import is_number
from .networks.dual import Dual


ORDERS = ("left_to_right", "random")
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
    """

    starts: Tensor
    mixing: int


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


@dataclass(frozen=True)
class RampClock(Clock):
    """`t_i = clip((1+w) u - w o_i, 0, 1)`: a front that moves through the text.

    About `length / width` tokens are in motion at once, all for a width of at most 1. Of K sampling steps each token
    gets about `K / (1 + width)`. A ramp as steep as the length moves one token at a time.

    Args:
        width: w, at least 0, which is the shared clock.
        order: `"left_to_right"`, or `"random"`, drawn for every text.
        offsets: `o_i` in [0, 1] of every token, instead of an order. A token with a larger one settles sooner.
    """

    width: float
    order: str = "left_to_right"
    offsets: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if not is_number(self.width) or not 0 <= self.width < float("inf"):
            raise ValueError(f"The `width` of a ramp is {self.width!r}; it must be a number of at least 0.")
        if self.order not in ORDERS:
            raise ValueError(
                f"The `order` of a ramp is {self.order!r}; it must be one of {', '.join(map(repr, ORDERS))}."
            )
        if self.offsets is not None:
            try:
                object.__setattr__(self, "offsets", tuple(float(offset) for offset in self.offsets))
            except (TypeError, ValueError) as error:
                raise ValueError(
                    f"The `offsets` of a ramp are {self.offsets!r}; they must be numbers in [0, 1]."
                ) from error
            if not self.offsets or not all(0 <= offset <= 1 for offset in self.offsets):
                raise ValueError(f"The `offsets` of a ramp are {self.offsets}; they must be numbers in [0, 1].")
            if self.order != "left_to_right":
                raise ValueError("A ramp has an `order` or `offsets`, not both.")

    def token_times(self, u: Tensor, length: int, known: Tensor | None = None, order: Tensor | None = None) -> Dual:
        offsets = self.token_offsets(u, length, known, order)
        unclipped = (1 + self.width) * u - self.width * offsets
        # Where a piece ends the rate is that below it, and at u = 0 that above it.
        moving = ((unclipped > 0) | ((unclipped == 0) & (u == 0))) & (unclipped <= 1)
        return Dual(unclipped.clamp(0, 1), (1 + self.width) * moving.to(u.dtype))

    @property
    def draws_order(self) -> bool:
        return self.order == "random"

    @property
    def has_windows(self) -> bool:
        return self.order == "left_to_right" and self.offsets is None and self.width > 0

    def parallel_times(
        self,
        u: Tensor,
        length: int,
        known: Tensor | None = None,
        order: Tensor | None = None,
        density: Density | None = None,
    ) -> tuple[Dual, Windows | None]:
        """From left to right, at the global times `(u + k) / (1 + w)` for all k at once.

        A token moves for `1 / (1 + w)` of the time, so it moves at exactly one of them, where its time is
        `(u - w o_i) mod 1`; tokens of the same k are a window.
        """
        if not self.has_windows:
            return super().parallel_times(u, length, known, order, density)
        phase = Dual(u, torch.ones_like(u)) if density is None else density(Dual(u, torch.ones_like(u)))
        unclipped = phase.value - self.width * self.token_offsets(u, length, known)
        windows = unclipped.floor()
        positions = torch.arange(length, device=u.device).expand(windows.shape)
        # Known tokens stand in the window that is around them.
        unknown = torch.ones_like(windows, dtype=torch.bool) if known is None else ~known
        windows = windows.masked_fill(~unknown, -torch.inf).cummax(-1).values
        first = F.pad(windows[:, 1:] > windows[:, :-1], (1, 0), value=True)
        starts = torch.where(first, positions, 0).cummax(-1).values
        return Dual(unclipped - unclipped.floor(), phase.rate.expand(unclipped.shape)), Windows(starts, 1)

    def token_offsets(
        self, u: Tensor, length: int, known: Tensor | None = None, order: Tensor | None = None
    ) -> Tensor:
        """`o_i` of shape `(batch or 1, length)`: evenly spread over the unknown tokens, in their order."""
        if self.offsets is not None:
            return torch.tensor(self.offsets, dtype=u.dtype, device=u.device)[None]
        if self.order == "random":
            if order is None:
                raise ValueError("A ramp in random order needs `order`: a random number for every token.")
            keys = order.to(u.dtype)
        else:
            keys = torch.arange(length, dtype=u.dtype, device=u.device)[None]
        if known is None:
            known = torch.zeros(1, length, dtype=torch.bool, device=u.device)
        # Known tokens come last in the order, so that the unknown ones share the whole time.
        keys, known = torch.broadcast_tensors(keys, known)
        ranks = keys.masked_fill(known, torch.inf).argsort(dim=-1, stable=True).argsort(dim=-1).to(u.dtype)
        unknown = (~known).sum(-1, keepdim=True)
        return (1 - ranks / (unknown - 1).clamp_min(1)).clamp_min(0)

    def check_length(self, length: int) -> None:
        if self.offsets is not None and len(self.offsets) != length:
            raise ValueError(
                f"The `offsets` of a ramp are {len(self.offsets)} numbers; texts of this model have {length} tokens, "
                "each needs one."
            )

    def to_config(self) -> str | dict[str, Any]:
        if self.offsets is not None:
            return {"name": "ramp", "width": self.width, "offsets": list(self.offsets)}
        return f"{'random' if self.order == 'random' else 'ramp'}:{self.width:g}"


# Multiples of it spread evenly over [0, 1) modulo 1, however many are taken.
GOLDEN_RATIO = 0.6180339887498949


@dataclass(frozen=True)
class BlockClock(Clock):
    """Blocks of `size` tokens, one after the other, each given the clean tokens before it and with a clock of its own
    inside.

    Block b of B moves while u goes from `(B-b)/B` to `(B-b-1)/B`. The bound is that of `p(x) = Π_b p(x_b | x_<b)`, so
    all blocks of a text may be evaluated at once, each at a time of its own (`parallel_times`).
    """

    size: int
    inside: Clock = SharedClock()
    has_windows = True

    def __post_init__(self) -> None:
        if isinstance(self.size, bool) or not isinstance(self.size, int) or self.size < 1:
            raise ValueError(f"The `size` of blocks is {self.size!r}; it must be an integer of at least 1.")
        if not isinstance(self.inside, Clock) or self.inside.block_size is not None:
            raise ValueError(f"The clock inside blocks is {str(self.inside)!r}; it must be a shared one or a ramp.")
        self.inside.check_length(self.size)

    @property
    def block_size(self) -> int:
        return self.size

    @property
    def draws_order(self) -> bool:
        return self.inside.draws_order

    def token_times(self, u: Tensor, length: int, known: Tensor | None = None, order: Tensor | None = None) -> Dual:
        blocks = length // self.size
        unclipped = u * blocks - torch.arange(blocks - 1, -1, -1, dtype=u.dtype, device=u.device)
        # A block ends where the next one begins, whatever the rounding of u.
        whole = unclipped.round()
        near = (unclipped - whole).abs() < 4 * blocks * torch.finfo(u.dtype).eps
        unclipped = torch.where(near, whole, unclipped)
        moving = (unclipped > 0) & (unclipped <= 1)
        return self._inside(Dual(unclipped.clamp(0, 1), blocks * moving.to(u.dtype)), known, order)

    def parallel_times(
        self,
        u: Tensor,
        length: int,
        known: Tensor | None = None,
        order: Tensor | None = None,
        density: Density | None = None,
    ) -> tuple[Dual, Windows | None]:
        """A time for every block from that of its text: each is uniform, and those of a text are spread out."""
        shifts = GOLDEN_RATIO * torch.arange(length // self.size, dtype=u.dtype, device=u.device)
        times = (u + shifts) % 1
        times = Dual(times, torch.ones_like(times))
        times = self._inside(times if density is None else density(times), known, order)
        return times, self.fixed_windows(length, u.device)

    def fixed_windows(self, length: int, device: torch.device | None = None) -> Windows | None:
        positions = torch.arange(length, device=device)[None]
        return Windows(positions - positions % self.size, self.size) if self.size < length else None

    def _inside(self, times: Dual, known: Tensor | None, order: Tensor | None) -> Dual:
        """Token times `(batch, length)` from those of the blocks, `(batch, blocks)`."""
        batch, blocks = times.value.shape
        known, order = (None if x is None else x.reshape(-1, self.size) for x in (known, order))
        t, rate = self.inside.token_times(times.value.reshape(-1, 1), self.size, known, order)
        rate = rate * times.rate.reshape(-1, 1)
        return Dual(t, rate).map_linear(lambda x: x.expand(-1, self.size).reshape(batch, blocks * self.size))

    def time_grid(self, num_steps: int, length: int) -> list[float]:
        """The steps are shared out evenly to the blocks, so that none is begun before the one before it is
        finished.
        """
        blocks = length // self.size
        if num_steps < blocks:
            raise ValueError(
                f"`num_inference_steps` is {num_steps}; along the clock {str(self)!r} a text has {blocks} blocks, "
                "and each needs "
                "at least one step."
            )
        grid = [1.0]
        for block in range(blocks):
            steps = num_steps // blocks + (block < num_steps % blocks)
            grid += [(blocks - block - step / steps) / blocks for step in range(1, steps + 1)]
        return grid

    def check_length(self, length: int) -> None:
        if length % self.size:
            raise ValueError(
                f"The `size` of blocks is {self.size}; it must divide the {length} tokens of a text of this model."
            )

    def to_config(self) -> str:
        return f"blocks:{self.size}" + ("" if self.inside == SharedClock() else f":{self.inside}")


def hold_known(times: Dual, known: Tensor | None) -> Dual:
    """Time 0 and rate 0 for known tokens."""
    if known is None:
        return times
    return times.map_linear(lambda x: x.expand(known.shape).masked_fill(known, 0))


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
            # Neither what is written nor what has not begun is of the window.
            starts = torch.where(positions < first, -1, torch.where(positions > last, last + 1, first))
        written, seen = int(first.min()), int(first.max())
        begin, end = written, max(written, int(last.max()))
        if self.known is not None:
            # What is given behind the start of a window is seen, too, and sees all that is given before it.
            behind = self.known & (positions >= first)
            places = (self.known & behind.any(-1, keepdim=True)).any(0).nonzero()
            if len(places):
                begin, end = min(begin, int(places[0])), max(end, int(places[-1]))
        return WindowStep(Windows(starts, self.mixing), slice(begin, end + 1), written, seen)


def _first(mask: Tensor) -> Tensor:
    """The first place of each row where the mask is True, `(batch, 1)`; the last place if there is none."""
    last = mask.shape[-1] - 1
    return torch.where(mask.any(-1), mask.long().argmax(-1), last)[:, None]


def make_clock(clock: str | dict[str, Any] | Clock, length: int) -> Clock:
    """The clock of a config, of the command line, or as it is, for texts of `length` tokens; a ValueError if there is
    none.
    """
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
