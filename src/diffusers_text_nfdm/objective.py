"""The variational bound term by term, each per example and in nats.

    -log p(x) <= reconstruction + diffusion + prior (+ context)

The terms are sums over positions and dimensions; every position counts, padding included.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .forward_processes import ForwardProcess, Marginal, MovingMarginal
from .linear_cross_entropy import linear_cross_entropy


def diffusion(
    process: ForwardProcess,
    moving_marginal: Callable[[Tensor], MovingMarginal],
    path: MovingMarginal,
    embeddings: Tensor,
    prediction: Tensor,
    z: Tensor,
    t: Tensor,
    context: Tensor | None = None,
) -> Tensor:
    """The integrand at t of the diffusion term `E_t [ ||f_B(z,t,E) - f_B(z,t,Ê)||² / (2 g²) ]`.

    `moving_marginal` is that of the process at t, `path` its value for the true embeddings, `z` a sample of it. A process with a
    signal-to-noise ratio has the short form `½ e^{-γ} γ̇ ||E - Ê||²`.
    """
    weight = process.diffusion_weight(t, context)
    if weight is not None:
        return (weight * (embeddings - prediction).square()).sum((-1, -2))
    return drift_matching(path, moving_marginal(prediction), z, process.squared_volatility(t, context))


def drift_matching(
    path: MovingMarginal, predicted_path: MovingMarginal, z: Tensor, squared_volatility: Tensor
) -> Tensor:
    """`||f_B(z,t,E) - f_B(z,t,Ê)||² / (2 g²)`, for any process."""
    difference = path.reverse_drift(z, squared_volatility) - predicted_path.reverse_drift(z, squared_volatility)
    return (difference.square() / (2 * squared_volatility)).sum((-1, -2))


def rescaled_diffusion(embeddings: Tensor, prediction: Tensor) -> Tensor:
    """`||E - Ê||²`: the short form without its weight. A training objective, never a likelihood."""
    return (embeddings - prediction).square().sum((-1, -2))


def reconstruction(hidden: Tensor, weight: Tensor, bias: Tensor, input_ids: Tensor) -> tuple[Tensor, Tensor]:
    """`-log p(x | z) = -Σ_i log softmax(hidden_i weightᵀ + bias)[x_i]`, and the share of tokens with the largest logit."""
    losses, correct = linear_cross_entropy(hidden, weight, bias, input_ids)
    return losses.sum(-1), correct.to(losses.dtype).mean(-1)


def prior(terminal: Marginal) -> Tensor:
    """`KL(q(z_1 | x) || N(0, I))`."""
    return terminal.kl_to_standard_normal().sum((-1, -2))


def context_divergence(mean: Tensor, log_variance: Tensor) -> Tensor:
    """`KL(q(c | x) || N(0, I))` for MuLAN's latent context."""
    return Marginal(mean, torch.exp(0.5 * log_variance)).kl_to_standard_normal().sum(-1)
