"""Fourier features of continuous times in [0, 1]."""

from __future__ import annotations

import math

import torch
from torch import nn

from . import dual
from .dual import Dual


def fourier_features(times: Dual, dim: int) -> Dual:
    """`[cos(1000 t f_k), sin(1000 t f_k)]`, `f_k = 10000^(-k / (dim/2))`; its rate is `1000 f_k ṫ [-sin, cos]`.

    `t` is multiplied by 1000 before the frequency, and all of it is at least float32: in bfloat16 neighbouring times
    become equal.
    """
    times = times.map_linear(lambda x: x.to(torch.promote_types(x.dtype, torch.float32)))
    t, half = times.value, dim // 2
    frequencies = torch.exp(-math.log(10_000.0) / half * torch.arange(half, dtype=t.dtype, device=t.device))
    angles = (t * 1000.0)[..., None] * frequencies
    cos, sin = torch.cos(angles), torch.sin(angles)
    value = torch.cat([cos, sin], dim=-1)
    if times.rate is None:
        return Dual(value)
    speed = times.rate[..., None] * (1000.0 * frequencies)
    return Dual(value, torch.cat([-sin * speed, cos * speed], dim=-1))


class TimeEmbedding(nn.Module):
    """Fourier features followed by a two-layer SiLU network."""

    def __init__(self, fourier_dim: int, dim: int):
        super().__init__()
        self.fourier_dim = fourier_dim
        self.linear_1 = nn.Linear(fourier_dim, dim)
        self.linear_2 = nn.Linear(dim, dim)

    def forward(self, times: Dual) -> Dual:
        dtype = self.linear_1.weight.dtype
        features = fourier_features(times, self.fourier_dim).map_linear(lambda x: x.to(dtype))
        return dual.linear(dual.silu(dual.linear(features, self.linear_1)), self.linear_2)
