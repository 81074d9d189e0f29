"""What weak signs of all tokens say together of a whole text."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Prototypes(nn.Module):
    """Ê of a text that is one of K learned prototypes, seen through noise: the exact posterior mean of a mixture.

        p(k | z) ∝ exp(b_k + Σ_i (α/σ²) z_i·P_k,i - (α²/2σ²) |P_k,i|²),    Ê = Σ_k p(k | z) P_k

    Where noise is strong no token can be read, but all of them together tell what kind of text it is. Attention, which
    reads tokens one by one, finds that late or never; here it is a sum. The prototypes start as training texts and
    become what they have in common.
    """

    def __init__(self, number: int, length: int, dim: int):
        super().__init__()
        self.texts = nn.Parameter(torch.zeros(number, length, dim))
        self.bias = nn.Parameter(torch.zeros(number))

    def forward(self, z: Tensor, alpha_sigma: tuple[Tensor, Tensor]) -> Tensor:
        """Ê, `(batch, length, dim)`, from latents and α, σ at their times."""
        alpha, sigma = alpha_sigma
        texts, bias = self.texts.to(z.dtype), self.bias.to(z.dtype)
        evidence = alpha / sigma.square()
        scores = torch.einsum("bid,kid->bk", evidence * z, texts)
        penalty = (evidence * alpha)[..., 0].expand(z.shape[:2]) @ texts.square().sum(-1).T
        return torch.einsum("bk,kid->bid", torch.softmax(bias + scores - 0.5 * penalty, -1), texts)
