"""What the token before changes in the prediction of a token of which nothing is seen."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class TokenLink(nn.Module):
    """`h_i + mlp(norm(h_i), norm(r(x_i-1)))`: the state h_i that predicts token i, and the row r of the token before.

    Tokens that are predicted side by side do not know of each other. Linked, they are drawn one after the other, each
    given the one before it, without another call of the network:

        p(x_i | x_i-1, what is seen) = softmax(W link(h_i, x_i-1) + b).
    """

    def __init__(self, size: int):
        super().__init__()
        self.input = nn.Linear(2 * size, 2 * size)
        self.output = nn.Linear(2 * size, size)

    def forward(self, states: Tensor, rows: Tensor) -> Tensor:
        """Both are `(..., size)`."""
        size = states.shape[-1:]
        inputs = torch.cat([F.rms_norm(states, size), F.rms_norm(rows, size)], dim=-1)
        return states + self.output(F.relu(self.input(inputs)).square())
