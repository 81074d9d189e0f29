"""What the predictor reads of the noise that decides a token."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class NoiseEmbedding(nn.Module):
    """`cos(π k u)` for k = 1..64 of noise u in [0, 1], followed by a two-layer network that starts at zero.

    The shortest wave resolves tokens of a probability of about one in a hundred.
    """

    num_waves = 64

    def __init__(self, dim: int):
        super().__init__()
        self.linear_1 = nn.Linear(self.num_waves, dim)
        self.linear_2 = nn.Linear(dim, dim)

    def forward(self, noise: Tensor) -> Tensor:
        waves = torch.arange(1, self.num_waves + 1, dtype=noise.dtype, device=noise.device)
        features = torch.cos(math.pi * waves * noise[..., None]).to(self.linear_1.weight.dtype)
        return self.linear_2(torch.relu(self.linear_1(features)).square())
