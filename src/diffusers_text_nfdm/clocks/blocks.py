"""Blocks of tokens, one after the other."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..networks.dual import Dual
from .base import Clock, Density, SharedClock, Windows


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
