"""From the predictor's output to Ê: the paper's embedding prediction, and categorical prediction."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .time_embedding import fourier_features


def gaussian_factors(
    z: Tensor, base: tuple[Tensor, Tensor], table: Tensor, gate: Tensor | float = 1.0
) -> tuple[Tensor, Tensor]:
    """`(hidden, weight)` with `hidden weightᵀ = a (α/σ²) z Embᵀ - a (α²/2σ²) |Emb|²`, so that a loss need not hold the logits.

    They are `hidden = a (α z / σ², -α² / 2σ²)` and `weight = (Emb, |Emb|²)`.
    """
    alpha, sigma = base
    evidence = gate * alpha / sigma.square()
    penalty = (-0.5 * evidence * alpha).expand(*z.shape[:-1], 1)
    return torch.cat([evidence * z, penalty], -1), torch.cat([table, table.square().sum(-1, keepdim=True)], -1)


class EmbeddingPrediction(nn.Module):
    """`Ê = net`, or with `stabilized` `Ê = (1-t) z + (t + 0.01) net`, as in the published code of NFDM and MuLAN."""

    def __init__(self, stabilized: bool):
        super().__init__()
        self.stabilized = stabilized

    def forward(self, output: Tensor, z: Tensor, t: Tensor) -> Tensor:
        if not self.stabilized:
            return output
        t = t[:, None, None]
        return (1 - t) * z + (t + 0.01) * output


class CategoricalPrediction(nn.Module):
    """`Ê = softmax(logits) Emb`, with the posterior of a single token inside the logits (for NFDM, that of its undeformed process).

    For a token with prior `π_k` seen through `z = α e_k + σ ε`,

        log p(k | z) = (α/σ²) z·e_k - (α²/2σ²) |e_k|² + log π_k + const,

    so `logits = net + a (α/σ²) z Embᵀ - a (α²/2σ²) |Emb|² + b`, with the bias `b` in the role of `log π` and a gate `a(t)` in (e^-2, e^2)
    that starts at one. With `net = 0` the bound is the cross-entropy of independent tokens. The network's logits have their own output
    matrix: through the embeddings, of small dimension and spread out at the start, few distributions could be expressed.
    """

    fourier_dim = 32

    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(self.fourier_dim, 1)

    def evidence_factors(
        self, z: Tensor, t: Tensor, base: tuple[Tensor, Tensor], table: Tensor
    ) -> tuple[Tensor, Tensor]:
        """`gaussian_factors` of the logits with `net = 0` and `b = 0`; `base` is `(α, σ)` of the forward process, `table` the embeddings."""
        features = fourier_features(t, self.fourier_dim).value.to(self.gate.weight.dtype)
        gate = torch.exp(2 * torch.tanh(self.gate(features).to(z.dtype)))[:, None]
        return gaussian_factors(z, base, table, gate)

    @staticmethod
    def linear_estimate(z: Tensor, base: tuple[Tensor, Tensor]) -> Tensor:
        """`α z / (α² + σ²)`, the best linear estimate of embeddings of variance one: the network's input, without noise where z is only noise."""
        alpha, sigma = base
        return alpha / (alpha.square() + sigma.square()) * z

    def forward(self, logits: Tensor, table: Tensor) -> Tensor:
        return torch.softmax(logits, dim=-1) @ table
