"""Fourier features of the continuous time t in [0, 1]."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from . import dual
from .dual import Dual


def fourier_features(t: Tensor, dim: int, with_rate: bool = False) -> Dual:
    """`[cos(1000 t f_k), sin(1000 t f_k)]`, `f_k = 10000^(-k / (dim/2))`, and its derivative in t.

    `t` is multiplied by 1000 before the frequency, and all of it is at least float32: in bfloat16 neighbouring times
    become equal.
    """
    t = t.to(torch.promote_types(t.dtype, torch.float32))
    half = dim // 2
    frequencies = torch.exp(-math.log(10_000.0) / half * torch.arange(half, dtype=t.dtype, device=t.device))
    angles = (t * 1000.0)[..., None] * frequencies
    cos, sin = torch.cos(angles), torch.sin(angles)
    value = torch.cat([cos, sin], dim=-1)
    if not with_rate:
        return Dual(value)
    speed = 1000.0 * frequencies
    return Dual(value, torch.cat([-sin * speed, cos * speed], dim=-1))


class TimeEmbedding(nn.Module):
    """Fourier features followed by a two-layer SiLU network."""

    def __init__(self, fourier_dim: int, dim: int):
        super().__init__()
        self.fourier_dim = fourier_dim
        self.linear_1 = nn.Linear(fourier_dim, dim)
        self.linear_2 = nn.Linear(dim, dim)

    def forward(self, t: Tensor, with_rate: bool = False) -> Dual:
        dtype = self.linear_1.weight.dtype
        features = fourier_features(t, self.fourier_dim, with_rate).map_linear(lambda x: x.to(dtype))
        return dual.linear(dual.silu(dual.linear(features, self.linear_1)), self.linear_2)
