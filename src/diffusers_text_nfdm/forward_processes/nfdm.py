"""NFDM: mean and standard deviation of the forward process are learned."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .base import ForwardProcess, Marginal, MovingMarginal


if TYPE_CHECKING:
    from ..models.dual import Dual


class LearnedVolatility(nn.Module):
    """`g²(t) = (softplus(MLP(t)) + floor)²`."""

    def __init__(self, hidden_size: int, floor: float):
        super().__init__()
        self.floor = floor
        self.mlp = nn.Sequential(nn.Linear(1, hidden_size), nn.SiLU(), nn.Linear(hidden_size, 1))

    def forward(self, t: Tensor) -> Tensor:
        out = self.mlp(t[:, None].to(self.mlp[0].weight.dtype)).to(t.dtype)
        return (F.softplus(out) + self.floor).square()[..., None]


class MarkovianVolatility(nn.Module):
    """`g²(t) = σ² γ̇ · e^{MLP(t)}`: the volatility with which the base process `(1-t) E + δ^{1-t} ε` is Markov, times a learned factor.

    There `σ² γ̇ = 2 σ² (1/(1-t) - log δ)`, the choice of least bound while the network still says `m = s = 0`.
    """

    def __init__(self, hidden_size: int, delta: float):
        super().__init__()
        self.log_delta = math.log(delta)
        self.mlp = nn.Sequential(nn.Linear(1, hidden_size), nn.SiLU(), nn.Linear(hidden_size, 1))

    def forward(self, t: Tensor) -> Tensor:
        factor = self.mlp(t[:, None].to(self.mlp[0].weight.dtype)).to(t.dtype)
        remaining = (1 - t)[:, None]
        variance = torch.exp(2 * remaining * self.log_delta)
        # Infinite at t = 1, where the bound's integrand stays finite: its score difference is of order 1-t.
        markovian = 2 * variance * (1 / remaining.clamp_min(1e-5) - self.log_delta)
        return (markovian * torch.exp(factor))[..., None]


class NFDMProcess(ForwardProcess):
    """`mean = (1-t) E + t(1-t) m(E, t)`, `log std = (1-t) log δ + t(1-t) s(E, t)`, volatility `g(t)` learned.

    At t = 0 it is `N(E, δ²)` and at t = 1 `N(0, 1)`, exactly, whatever the network says. The products are differentiated by
    hand, so only the network's own `∂_t m`, `∂_t s` come from forward-mode differentiation:

        d mean    = -E + (1-2t) m + t(1-t) ∂_t m
        d log std = -log δ + (1-2t) s + t(1-t) ∂_t s

    Args:
        network: a `Transformer` from embeddings and t to a `Dual` whose last axis holds `[m, s]`.
        volatility: maps `t` of shape `(batch,)` to `g²` of shape `(batch, 1, 1)`.
        delta: standard deviation at t = 0.
    """

    def __init__(self, network: nn.Module, volatility: nn.Module, delta: float):
        super().__init__()
        self.network = network
        self.volatility = volatility
        self.log_delta = math.log(delta)

    def marginal(self, embeddings: Tensor, t: Tensor, context: Tensor | None = None) -> Marginal:
        m, s = self.network(embeddings, t).value.to(embeddings.dtype).chunk(2, dim=-1)
        return Marginal(*self._mean_and_std(embeddings, t, m, s))

    def moving_marginal(self, embeddings: Tensor, t: Tensor, context: Tensor | None = None) -> MovingMarginal:
        return self.moving_marginal_at(t, context)(embeddings)

    def moving_marginal_at(self, t: Tensor, context: Tensor | None = None) -> Callable[[Tensor], MovingMarginal]:
        conditions = self.network.conditions(t, with_rate=True)
        return lambda embeddings: self._moving_marginal(embeddings, t, self.network(embeddings, conditions=conditions))

    def _moving_marginal(self, embeddings: Tensor, t: Tensor, out: Dual) -> MovingMarginal:
        m, s = out.value.to(embeddings.dtype).chunk(2, dim=-1)
        m_rate, s_rate = out.rate.to(embeddings.dtype).chunk(2, dim=-1)
        mean, std = self._mean_and_std(embeddings, t, m, s)
        t = t[:, None, None]
        bump, bump_rate = t * (1 - t), 1 - 2 * t
        return MovingMarginal(
            mean=mean,
            std=std,
            mean_rate=-embeddings + bump_rate * m + bump * m_rate,
            log_std_rate=-self.log_delta + bump_rate * s + bump * s_rate,
        )

    def initial_marginal(self, embeddings: Tensor, context: Tensor | None = None) -> Marginal:
        """`N(E, δ²)`: no network call."""
        return Marginal(embeddings, torch.full_like(embeddings, math.exp(self.log_delta)))

    def terminal_marginal(self, embeddings: Tensor, context: Tensor | None = None) -> Marginal:
        """`N(0, 1)`: no network call."""
        return Marginal(torch.zeros_like(embeddings), torch.ones_like(embeddings))

    def squared_volatility(self, t: Tensor, context: Tensor | None = None) -> Tensor:
        return self.volatility(t)

    def linear_base(self, t: Tensor, context: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """`(1-t, δ^(1-t))`: the process with `m = s = 0`."""
        t = t[:, None, None]
        return 1 - t, torch.exp((1 - t) * self.log_delta)

    def _mean_and_std(self, embeddings: Tensor, t: Tensor, m: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
        t = t[:, None, None]
        bump = t * (1 - t)
        return (1 - t) * embeddings + bump * m, torch.exp((1 - t) * self.log_delta + bump * s)
