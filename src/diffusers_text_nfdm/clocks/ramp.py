"""A front that moves through the text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..checks import check_one_of, is_number
from ..networks.dual import Dual
from .base import Clock, Density, Windows


ORDERS = ("left_to_right", "random")


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
        check_one_of("order", self.order, ORDERS)
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
