"""The static schedule of Diffusion-LM, in continuous time."""

from __future__ import annotations

import torch
from torch import Tensor

from ..networks.dual import Dual
from .base import VariancePreservingProcess


def sqrt_schedule(t: Tensor) -> tuple[Tensor, Tensor]:
    """`γ = logit(v)`, `dγ/dt = 0.9999 / (2 v² (1 - v))` for `v = sqrt(0.9999 t + 0.000099)`.

    `1 - v = (1 - v²) / (1 + v)` keeps all digits as t -> 1, where `1 - v` is 5e-7.
    """
    v = torch.sqrt(0.9999 * t + 0.000099)
    one_minus_v = (0.9999 * (1 - t) + 0.000001) / (1 + v)
    return torch.log(v) - torch.log(one_minus_v), 0.9999 / (2 * v.square() * one_minus_v)


class DiffusionLMProcess(VariancePreservingProcess):
    """`mean = sqrt(1 - v) E`, `std = sqrt(v)`: one fixed schedule for every token."""

    def gamma(self, times: Dual, context: Tensor | None = None) -> Dual:
        gamma, slope = sqrt_schedule(times.value)
        rate = None if times.rate is None else (slope * times.rate)[..., None]
        return Dual(gamma[..., None], rate)
