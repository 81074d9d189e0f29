"""NFDM: mean and standard deviation of the forward process are learned."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..networks.dual import Dual
from ..networks.transformer import TimeConditions
from .base import ForwardProcess, Marginal, MovingMarginal


class LearnedVolatility(nn.Module):
    """`g²(t) = (softplus(MLP(t)) + floor)²`."""

    def __init__(self, hidden_size: int, floor: float):
        super().__init__()
        self.floor = floor
        self.mlp = nn.Sequential(nn.Linear(1, hidden_size), nn.SiLU(), nn.Linear(hidden_size, 1))

    def forward(self, t: Tensor) -> Tensor:
        out = self.mlp(t[..., None].to(self.mlp[0].weight.dtype)).to(t.dtype)
        return (F.softplus(out) + self.floor).square()


class MarkovianVolatility(nn.Module):
    """`g²(t) = σ² γ' · e^{MLP(t)}`: the volatility with which the base process `(1-t) E + δ^{1-t} ε` is Markov, times
    a learned factor.

    There `σ² γ' = 2 σ² (1/(1-t) - log δ)`, the choice of least bound while the network still says `m = s = 0`.
    """

    def __init__(self, hidden_size: int, delta: float):
        super().__init__()
        self.log_delta = math.log(delta)
        self.mlp = nn.Sequential(nn.Linear(1, hidden_size), nn.SiLU(), nn.Linear(hidden_size, 1))

    def forward(self, t: Tensor) -> Tensor:
        factor = self.mlp(t[..., None].to(self.mlp[0].weight.dtype)).to(t.dtype)
        remaining = (1 - t)[..., None]
        variance = torch.exp(2 * remaining * self.log_delta)
        # Infinite at t = 1, where the bound's integrand stays finite: its score difference is of order 1-t.
        markovian = 2 * variance * (1 / remaining.clamp_min(1e-5) - self.log_delta)
        return markovian * torch.exp(factor)


class NFDMProcess(ForwardProcess):
    """`mean = (1-t) E + t(1-t) m(E, t)`, `log std = (1-t) log δ + t(1-t) s(E, t)`, volatility `g(t)` learned.

    At t = 0 it is `N(E, δ²)` and at t = 1 `N(0, 1)`, exactly, whatever the network says. The network sees the
    embeddings and times of all tokens, so its rate along a clock is `ṁ_i = Σ_j (∂m_i/∂t_j) r_j`, by forward-mode
    differentiation. The products are differentiated by hand:

        d mean_i/du    = r_i (-E_i + (1-2t_i) m_i) + t_i(1-t_i) ṁ_i
        d log std_i/du = r_i (-log δ + (1-2t_i) s_i) + t_i(1-t_i) ṡ_i

    Args:
        network: a `Transformer` from embeddings and times to a `Dual` whose last axis holds `[m, s]`; without one
            `m = s = 0`.
        volatility: maps times `(batch, seq or 1)` to `g²` of shape `(batch, seq or 1, 1)`.
        delta: standard deviation at t = 0.
    """

    def __init__(self, network: nn.Module | None, volatility: nn.Module, delta: float):
        super().__init__()
        self.network = network
        self.volatility = volatility
        self.log_delta = math.log(delta)

    def marginal(
        self, embeddings: Tensor, t: Tensor, context: Tensor | None = None, block_size: int | None = None
    ) -> Marginal:
        return Marginal(*self._mean_and_std(embeddings, t, *self.deformation(embeddings, t, block_size)))

    def deformation(self, embeddings: Tensor, t: Tensor, block_size: int | None = None) -> tuple[Tensor, Tensor]:
        """The network's `m(E, t)` and `s(E, t)`."""
        if self.network is None:
            return torch.zeros_like(embeddings), torch.zeros_like(embeddings)
        out = self.network(embeddings, self._conditions(Dual(t), block_size), block_size).value
        return out.to(embeddings.dtype).chunk(2, dim=-1)

    def path(
        self, times: Dual, context: Tensor | None = None, block_size: int | None = None
    ) -> Callable[[Tensor], MovingMarginal]:
        t, rate = times.value[..., None], times.rate[..., None]
        if self.network is None:
            return lambda embeddings: MovingMarginal(
                *self._mean_and_std(embeddings, times.value, *self.deformation(embeddings, times.value)),
                mean_rate=-rate * embeddings,
                log_std_rate=-rate * self.log_delta * torch.ones_like(embeddings),
            )
        conditions = self._conditions(times, block_size)
        bump, bump_rate = t * (1 - t), rate * (1 - 2 * t)

        def moving_marginal(embeddings: Tensor) -> MovingMarginal:
            out = self.network(embeddings, conditions, block_size).map_linear(lambda x: x.to(embeddings.dtype))
            m, s = out.value.chunk(2, dim=-1)
            m_rate, s_rate = out.rate.chunk(2, dim=-1)
            mean, std = self._mean_and_std(embeddings, times.value, m, s)
            return MovingMarginal(
                mean=mean,
                std=std,
                mean_rate=torch.addcmul(torch.addcmul(bump_rate * m, bump, m_rate), rate, embeddings, value=-1),
                log_std_rate=torch.addcmul(bump_rate * s - rate * self.log_delta, bump, s_rate),
            )

        return moving_marginal

    def _conditions(self, times: Dual, block_size: int | None) -> TimeConditions:
        if block_size is not None:
            times = times.map_linear(lambda x: x.expand(-1, self.network.positions.num_embeddings))
        return self.network.conditions(times)

    def initial_marginal(self, embeddings: Tensor, context: Tensor | None = None) -> Marginal:
        """`N(E, δ²)`: no network call."""
        return Marginal(embeddings, torch.full_like(embeddings, math.exp(self.log_delta)))

    def terminal_marginal(self, embeddings: Tensor, context: Tensor | None = None) -> Marginal:
        """`N(0, 1)`: no network call."""
        return Marginal(torch.zeros_like(embeddings), torch.ones_like(embeddings))

    def squared_volatility(self, times: Dual, context: Tensor | None = None) -> Tensor:
        return times.rate[..., None] * self.volatility(times.value)

    def alpha_sigma(self, t: Tensor, context: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """`(1-t, δ^(1-t))`: the process with `m = s = 0`."""
        t = t[..., None]
        return 1 - t, torch.exp((1 - t) * self.log_delta)

    def snr(self, t: Tensor, context: Tensor | None = None) -> Tensor:
        """`((1-t) / δ^(1-t))²`, of a process that no network deforms."""
        if self.network is not None:
            return super().snr(t, context)
        alpha, sigma = self.alpha_sigma(t, context)
        # At t = 1 it is 0, and ratios are taken of it.
        return (alpha / sigma).square().clamp_min(torch.finfo(t.dtype).tiny)

    def _mean_and_std(self, embeddings: Tensor, t: Tensor, m: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
        t = t[..., None]
        bump = t * (1 - t)
        return torch.addcmul((1 - t) * embeddings, bump, m), torch.exp((1 - t) * self.log_delta + bump * s)
