"""What every forward process `q(z_t | x)` offers, and the Gaussian algebra that follows from it.

Shapes: embeddings `E` and latents `z` are `(..., batch, seq, dim)`. Every token has a time in [0, 1] (0 clean, 1
noise): times are `(batch, seq)`, or `(batch, 1)` where all tokens of a text have the same. Along a clock u they move
with rates `r_i = dt_i/du`; a `Dual` holds both. Whatever depends on times alone is broadcastable to
`(batch, seq, dim)`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..networks.dual import Dual


@dataclass(frozen=True)
class Marginal:
    """`q(z_t | x) = N(mean, std²)`."""

    mean: Tensor
    std: Tensor

    def sample(self, noise: Tensor) -> Tensor:
        """`z = mean + std ε`."""
        return self.mean + self.std * noise

    def noise(self, z: Tensor) -> Tensor:
        """`ε = (z - mean) / std`."""
        return (z - self.mean) / self.std

    def score(self, z: Tensor) -> Tensor:
        """`∇_z log q(z | x) = -(z - mean) / std²`."""
        return (self.mean - z) / self.std.square()

    def kl_to_standard_normal(self) -> Tensor:
        """`KL(N(mean, std²) || N(0, 1))` per element, in nats."""
        variance = self.std.square()
        return 0.5 * (self.mean.square() + variance - 1 - torch.log(variance))


@dataclass(frozen=True)
class MovingMarginal(Marginal):
    """A marginal with its derivatives along a clock, `d mean / du` and `d log std / du`."""

    mean_rate: Tensor
    log_std_rate: Tensor

    def ode_drift(self, z: Tensor) -> Tensor:
        """`f(z) = d mean/du + (d log std/du) (z - mean)`: the flow that carries the marginals."""
        return self.mean_rate + self.log_std_rate * (z - self.mean)

    def velocity(self, noise: Tensor) -> Tensor:
        """`dz/du = d mean/du + (d std/du) ε`: how `z = mean + std ε` moves with its noise held fixed."""
        return self.mean_rate + self.std * self.log_std_rate * noise

    def reverse_drift(self, z: Tensor, squared_volatility: Tensor) -> Tensor:
        """`f_B(z) = f(z) - (g²/2) ∇ log q(z)`: drift of the reverse SDE `dz = f_B du + g dw̄`."""
        return self.ode_drift(z) - 0.5 * squared_volatility * self.score(z)


class ForwardProcess(nn.Module, ABC):
    """A Gaussian forward process `z_t = mean(E, t) + std(E, t) ε` with volatility `g(t)`.

    A subclass gives the marginal, the marginal with its derivative along a clock, the squared volatility, and the
    linear process it is built on. `context` is MuLAN's latent `c`, `None` for the others. A process that lets tokens
    see each other does so within blocks of `block_size` tokens, or in the whole text if that is `None`.
    """

    @abstractmethod
    def marginal(
        self, embeddings: Tensor, t: Tensor, context: Tensor | None = None, block_size: int | None = None
    ) -> Marginal:
        """`q(z_t | x)`."""

    @abstractmethod
    def path(
        self, times: Dual, context: Tensor | None = None, block_size: int | None = None
    ) -> Callable[[Tensor], MovingMarginal]:
        """`E -> q(z_t | x)` with its derivative along the clock: what depends on the times alone is computed once."""

    @abstractmethod
    def squared_volatility(self, times: Dual, context: Tensor | None = None) -> Tensor:
        """`g_i² = r_i g²(t_i)`."""

    @abstractmethod
    def alpha_sigma(self, t: Tensor, context: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """`(α, σ)` of the process `α E + σ ε` that this one is, or that it deforms."""

    def initial_marginal(self, embeddings: Tensor, context: Tensor | None = None) -> Marginal:
        """`q(z_0 | x)`."""
        return self.marginal(embeddings, embeddings.new_zeros(embeddings.shape[-3], 1), context)

    def terminal_marginal(self, embeddings: Tensor, context: Tensor | None = None) -> Marginal:
        """`q(z_1 | x)`."""
        return self.marginal(embeddings, embeddings.new_ones(embeddings.shape[-3], 1), context)

    def diffusion_weight(self, times: Dual, context: Tensor | None = None) -> Tensor | None:
        """`w` where the diffusion term is `w ||E - Ê||²`; `None` where there is no such short form."""
        return None

    def snr(self, t: Tensor, context: Tensor | None = None) -> Tensor:
        """Signal-to-noise ratio `α²/σ²`."""
        raise ValueError(
            f"{type(self).__name__} has no signal-to-noise ratio: its mean and std depend on the data and are not "
            "a multiple of it. Choose a noise fraction in [0, 1] instead of 'snr'."
        )


class VariancePreservingProcess(ForwardProcess):
    """`mean = α E`, `α² = sigmoid(-γ)`, `std² = σ² = sigmoid(γ)`, `g² = σ² |γ̇|`, all from `γ(t)` and its rate.

    Along a clock `γ̇ = dγ/du = γ'(t) r`, `α̇ = -½ α σ² γ̇` and `d log σ / du = ½ α² γ̇`. Tokens do not see each other.
    """

    @abstractmethod
    def gamma(self, times: Dual, context: Tensor | None = None) -> Dual:
        """`γ = -log SNR` and, if the times have a rate, `γ̇`; broadcastable to `(batch, seq, dim)`."""

    def marginal(
        self, embeddings: Tensor, t: Tensor, context: Tensor | None = None, block_size: int | None = None
    ) -> Marginal:
        alpha, sigma = self.alpha_sigma(t, context)
        return Marginal(alpha * embeddings, sigma.expand(embeddings.shape))

    def path(
        self, times: Dual, context: Tensor | None = None, block_size: int | None = None
    ) -> Callable[[Tensor], MovingMarginal]:
        gamma, gamma_rate = self.gamma(times, context)
        variance, signal = torch.sigmoid(gamma), torch.sigmoid(-gamma)

        def moving_marginal(embeddings: Tensor) -> MovingMarginal:
            mean = signal.sqrt() * embeddings
            return MovingMarginal(
                mean=mean,
                std=variance.sqrt().expand(mean.shape),
                mean_rate=-0.5 * variance * gamma_rate * mean,
                log_std_rate=(0.5 * signal * gamma_rate).expand(mean.shape),
            )

        return moving_marginal

    def alpha_sigma(self, t: Tensor, context: Tensor | None = None) -> tuple[Tensor, Tensor]:
        gamma = self.gamma(Dual(t), context).value
        return torch.sigmoid(-gamma).sqrt(), torch.sigmoid(gamma).sqrt()

    def squared_volatility(self, times: Dual, context: Tensor | None = None) -> Tensor:
        gamma, gamma_rate = self.gamma(times, context)
        return torch.sigmoid(gamma) * gamma_rate.abs()

    def diffusion_weight(self, times: Dual, context: Tensor | None = None) -> Tensor:
        """`½ e^{-γ} max(γ̇, 0)`, which is `½ e^{-γ} (γ̇ + |γ̇|)² / (4 |γ̇|)`: the general form with `g² = σ² |γ̇|`."""
        gamma, gamma_rate = self.gamma(times, context)
        return 0.5 * torch.exp(-gamma) * gamma_rate.clamp_min(0)

    def snr(self, t: Tensor, context: Tensor | None = None) -> Tensor:
        """`e^{-γ}`."""
        return torch.exp(-self.gamma(Dual(t), context).value)
