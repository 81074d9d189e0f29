"""MuLAN: one noise schedule per token position, chosen by a latent context; and its fixed-average-SNR form."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from .base import VariancePreservingProcess
from .diffusion_lm import sqrt_schedule


def squared_polynomial_integral(coefficients: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    """`P(t) = ∫₀ᵗ (a s² + b s + d)² ds` and `Ṗ(t) = (a t² + b t + d)²`, for coefficients `(..., 3)`."""
    a, b, d = coefficients.unbind(-1)
    rate = ((a * t + b) * t + d).square()
    value = t * (d * d + t * (b * d + t * ((b * b + 2 * a * d) / 3 + t * (a * b / 2 + t * (a * a / 5)))))
    return value, rate


class MuLANProcess(VariancePreservingProcess):
    """`γ'_j = γ_min + (γ_max - γ_min) P_j(t) / P_j(1)` for token position j, with `P_j` from a network of the context.

    `rescaled=True` is MuLAN-Rescaled: `γ_j = γ_ref(t) + γ'_j - γ̃`, `γ̃ = log D - logsumexp_i(-γ'_i)`, so that the mean SNR
    over the D positions is that of Diffusion-LM's schedule at every t. Then
    `γ̇_j = γ̇_ref + γ̇'_j - Σ_i softmax(-γ')_i γ̇'_i`, which may be negative.
    """

    def __init__(
        self,
        *,
        context_dim: int,
        max_length: int,
        hidden_size: int,
        gamma_min: float,
        gamma_max: float,
        rescaled: bool = False,
    ):
        super().__init__()
        self.gamma_min, self.gamma_max = gamma_min, gamma_max
        self.rescaled = rescaled
        self.coefficients = nn.Sequential(
            nn.Linear(context_dim, hidden_size), nn.SiLU(), nn.Linear(hidden_size, 3 * max_length)
        )

    def gamma(self, t: Tensor, context: Tensor | None = None) -> tuple[Tensor, Tensor]:
        if context is None:
            raise ValueError("`context` is None, but MuLAN's noise schedule depends on the latent context `c`.")
        raw = self.coefficients(context.to(self.coefficients[0].weight.dtype))
        # d starts at one and a, b near zero: every schedule starts out linear in t.
        offset = torch.tensor([0.0, 0.0, 1.0], dtype=context.dtype, device=context.device)
        coefficients = raw.to(context.dtype).unflatten(-1, (-1, 3)) + offset
        value, rate = squared_polynomial_integral(coefficients, t[:, None])
        total, _ = squared_polynomial_integral(coefficients, torch.ones_like(t)[:, None])
        span = (self.gamma_max - self.gamma_min) / total.clamp_min(torch.finfo(total.dtype).tiny)
        gamma, gamma_rate = self.gamma_min + span * value, span * rate
        if self.rescaled:
            reference, reference_rate = sqrt_schedule(t[:, None])
            mean_gamma = math.log(gamma.shape[-1]) - torch.logsumexp(-gamma, dim=-1, keepdim=True)
            mean_rate = (torch.softmax(-gamma, dim=-1) * gamma_rate).sum(-1, keepdim=True)
            gamma, gamma_rate = reference + gamma - mean_gamma, reference_rate + gamma_rate - mean_rate
        return gamma[..., None], gamma_rate[..., None]
