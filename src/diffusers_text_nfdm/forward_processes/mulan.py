"""MuLAN: one noise schedule per token position, chosen by a latent context; and its fixed-average-SNR form."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from ..networks.dual import Dual
from .base import VariancePreservingProcess
from .diffusion_lm import sqrt_schedule


def squared_polynomial_integral(coefficients: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    """`P(t) = ∫₀ᵗ (a s² + b s + d)² ds` and its slope `(a t² + b t + d)²`, for coefficients `(..., 3)`."""
    a, b, d = coefficients.unbind(-1)
    rate = ((a * t + b) * t + d).square()
    value = t * (d * d + t * (b * d + t * ((b * b + 2 * a * d) / 3 + t * (a * b / 2 + t * (a * a / 5)))))
    return value, rate


class MuLANProcess(VariancePreservingProcess):
    """`γ'_j = γ_min + (γ_max - γ_min) P_j(t) / P_j(1)` for token position j, with `P_j` from a network of the context.

    `rescaled=True` is MuLAN-Rescaled: `γ_j(t) = γ_ref(t) + γ'_j(t) - γ̃(t)`, `γ̃ = log D - logsumexp_i(-γ'_i)`, so
    that the mean SNR over the D positions is that of Diffusion-LM's schedule at every t. Its slope
    `dγ_j/dt = dγ_ref/dt + dγ'_j/dt - Σ_i softmax(-γ')_i dγ'_i/dt` may be negative. A token with a time of its own has
    the γ_j of that time, where γ̃ takes all positions at that very time.
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

    def gamma(self, times: Dual, context: Tensor | None = None) -> Dual:
        if context is None:
            raise ValueError("`context` is None, but MuLAN's noise schedule depends on the latent context `c`.")
        raw = self.coefficients(context.to(self.coefficients[0].weight.dtype))
        # d starts at one and a, b near zero: every schedule starts out linear in t.
        offset = torch.tensor([0.0, 0.0, 1.0], dtype=context.dtype, device=context.device)
        coefficients = raw.to(context.dtype).unflatten(-1, (-1, 3)) + offset
        t = times.value
        gamma, slope = self._schedule(coefficients, t)
        if self.rescaled:
            reference, reference_slope = sqrt_schedule(t)
            # All positions at the time of each token: (batch, times, positions).
            others, others_slope = self._schedule(coefficients[:, None], t[..., None])
            mean_gamma = math.log(others.shape[-1]) - torch.logsumexp(-others, dim=-1)
            mean_slope = (torch.softmax(-others, dim=-1) * others_slope).sum(-1)
            gamma, slope = reference + gamma - mean_gamma, reference_slope + slope - mean_slope
        return Dual(gamma[..., None], None if times.rate is None else (slope * times.rate)[..., None])

    def _schedule(self, coefficients: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        """`γ'` and its slope."""
        value, slope = squared_polynomial_integral(coefficients, t)
        total, _ = squared_polynomial_integral(coefficients, torch.ones_like(t))
        span = (self.gamma_max - self.gamma_min) / total.clamp_min(torch.finfo(total.dtype).tiny)
        return self.gamma_min + span * value, span * slope
