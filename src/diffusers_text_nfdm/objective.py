"""The variational bound, term by term, per token and in nats.

    -log p(x_unknown | x_known) <= Σ_i reconstruction_i + diffusion_i + prior_i (+ context)

The sum is over the unknown tokens, padding included. Tokens that stand still (not yet started, finished, known) have
rate 0 and no diffusion term.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .clocks import Windows
from .forward_processes import Marginal, MovingMarginal
from .models.prediction import Prediction
from .models.token_choice import noise_of
from .networks.dual import Dual
from .networks.linear_cross_entropy import linear_cross_entropy
from .networks.two_stream_predictor import Places


if TYPE_CHECKING:
    from .models import Draws, TextDiffusionModel


@dataclass
class BoundTerms:
    """Terms of the bound, `(batch, seq)` but for the context's, `(batch,)`; zero for known tokens.

    Args:
        diffusion: how far the predicted reverse drift is from the true one, at the token times, by their rates.
        squared_error: `||E - Ê||²`, the short form without its weight: a training objective, never a likelihood.
        reconstruction: what decoding z_0 costs, or z at the finish time.
        correct: whether it decodes to the token.
        prior: what is left of the data at t = 1.
        context: what MuLAN's context costs.
        next_token: `-log p(x_i | x_<i)` of the clean stream, `(batch, seq - 1)`, where it was asked for.
        curvature: how far the path of z is from a straight one, where it was asked for: no part of the bound.
    """

    diffusion: Tensor
    squared_error: Tensor
    reconstruction: Tensor
    correct: Tensor
    prior: Tensor
    context: Tensor
    next_token: Tensor | None = None
    curvature: Tensor | None = None


def bound(
    model: TextDiffusionModel,
    input_ids: Tensor,
    times: Dual,
    draws: Draws,
    known: Tensor | None = None,
    windows: Windows | None = None,
    next_token: bool = False,
    curvature: bool = False,
    finish_time: float | None = None,
) -> BoundTerms:
    """The terms at the token times, for one draw of the noise.

    With a `finish_time` τ texts are decoded jointly there, and the diffusion ends:

        reconstruction = -log p(x | z_τ) = -Σ_i log p(x_i | x_<i, z_τ),    diffusion = ∫ from τ to 1.
    """
    process, E, mixing = model.forward_process, model.embed(input_ids), None if windows is None else windows.mixing
    c, context = model.encode_context(E, draws.context_noise)
    clean, next_token_losses = model.clean_stream(input_ids, windows, next_token)

    # Diffusion: ||f_B(z, u, E) - f_B(z, u, Ê)||² / (2 g²), or in short w ||E - Ê||².
    path = process.path(times, c, mixing)
    true = path(E)
    z = keep_known(known, process.initial_marginal(E, c).mean, true.sample(draws.noise))
    shown = model.shown_prediction(draws, E, z, times.value, c, clean, windows, known)
    second_call = model.second_calls(draws)
    prediction = model.denoise(z, times.value, c, clean, shown, windows, known, second_call=second_call)
    E_hat = keep_known(known, E, prediction.embeddings)
    squared_error = (E - E_hat).square()
    weight = process.diffusion_weight(times, c)
    if weight is not None:
        diffusion = (weight * squared_error).sum(-1)
    else:
        diffusion = drift_matching(true, path(E_hat), z, process.squared_volatility(times, c))

    # Reconstruction: -log p(x | z_0). Without it the embeddings collapse.
    if finish_time is None:
        z_0 = process.initial_marginal(E, c).sample(draws.initial_noise)
        decoder = model.decoder_factors(z_0, c)
    else:
        diffusion = diffusion.masked_fill(times.value < finish_time, 0)
        tau = torch.full_like(times.value[:, :1], finish_time)
        tau = tau if known is None else torch.where(known, 0, tau)
        z_tau = keep_known(known, z, process.marginal(E, tau, c).sample(draws.initial_noise))
        decoder = model.joint_factors(input_ids, model.denoise(z_tau, tau, c, known=known))
    reconstruction, correct = linear_cross_entropy(*decoder, input_ids)

    # Prior: KL(q(z_1 | x) || N(0, I)).
    prior = process.terminal_marginal(E, c).kl_to_standard_normal().sum(-1)

    # Straightness, apart from the bound: z moves from z_0 to z_1 at one speed, or not.
    curvatures = None
    if curvature:
        ends = (end.sample(draws.noise) for end in (process.initial_marginal(E, c), process.terminal_marginal(E, c)))
        curvatures = path_curvature(true.velocity(draws.noise), *ends, times.rate)

    squared_error = squared_error.sum(-1)
    if known is not None:
        diffusion, squared_error, reconstruction, prior = (
            term.masked_fill(known, 0) for term in (diffusion, squared_error, reconstruction, prior)
        )
    return BoundTerms(diffusion, squared_error, reconstruction, correct, prior, context, next_token_losses, curvatures)


def cross_entropy(
    model: TextDiffusionModel,
    input_ids: Tensor,
    t: Tensor,
    draws: Draws,
    known: Tensor | None = None,
    windows: Windows | None = None,
    next_token: bool = False,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """`-log p(x_i | z)` of every token at the times t, that of the clean stream where it is asked for, and
    `-log p(x_i | x_<i, z)` of a joint decoder.

    It has the optimum of the bound and, without its weights, far less noise. It trains the predictor alone.
    """
    process, mixing = model.forward_process, None if windows is None else windows.mixing
    with torch.no_grad():
        E = model.embed(input_ids)
        c, _ = model.encode_context(E, draws.context_noise)
        z = process.marginal(E, t, c, mixing).sample(draws.noise)
        z = keep_known(known, process.initial_marginal(E, c).mean, z)
    clean, next_token_losses = model.clean_stream(input_ids, windows, next_token, detach_process=True)
    shown = model.shown_prediction(draws, E, z, t, c, clean, windows, known)
    options = {"detach_process": True, "second_call": model.second_calls(draws)}
    prediction = model.denoise(z, t, c, clean, shown, windows, known, **options)
    losses, joint = linear_cross_entropy(*prediction.factors, input_ids)[0], None
    if model.config.joint_decoder and windows is None:
        joint, _ = linear_cross_entropy(*model.joint_factors(input_ids, prediction), input_ids)
    if known is not None:
        losses, joint = (None if x is None else x.masked_fill(known, 0) for x in (losses, joint))
    return losses, next_token_losses, joint


def outline_errors(
    model: TextDiffusionModel, input_ids: Tensor, t: Tensor, draws: Draws, known: Tensor | None = None
) -> Tensor:
    """`||E_i - Ê_i||²` of the prototypes' Ê, `(batch, seq)`: it trains the prototypes alone."""
    process = model.forward_process
    with torch.no_grad():
        E = model.embed(input_ids)
        c, _ = model.encode_context(E, draws.context_noise)
        z = keep_known(known, process.initial_marginal(E, c).mean, process.marginal(E, t, c).sample(draws.noise))
        alpha_sigma = process.alpha_sigma(t, c)
    return (E - model.outline(z, alpha_sigma)).square().sum(-1)


def jump_losses(
    model: TextDiffusionModel, input_ids: Tensor, starts: Tensor, uniforms: Tensor
) -> tuple[Tensor, Tensor]:
    """What a jump over a window costs, `-log p(x_i | x_<start, u_start..u_i-1)` of every token of the text.

    Along the steepest clock from left to right a token goes from noise to text in one step, a draw by its noise u_i:

        x_i = F⁻¹(u_i | x_<i),   F the cumulative distribution of the clean stream's p(x_i | x_<i).

    So the noise decides the text, and a jump over a window composes these steps: what the tokens before i are is in
    their noise, and the network learns to read it there. For a text of the data the noise that leads to it is known,
    `u_i = F(x_i-) + v p(x_i)`: no text has to be sampled.

    Args:
        starts: where the window of each token starts, `(1 or batch, length)`.
        uniforms: v, `(batch, length)`.

    Returns:
        the losses of the jumps and those of the clean stream, `(batch, length - 1)` each, those of a condition left
        out.
    """
    # START and the condition are given: the first window begins behind them.
    given = 1 + model.config.condition_length
    targets = input_ids[:, given:]
    states, clean = model.read_clean(input_ids, None, detach_process=True)
    factors = model.next_token_factors(states[:, given - 1 : -1])
    next_token, _ = linear_cross_entropy(*factors, targets)
    with torch.no_grad(), torch.autocast(input_ids.device.type, enabled=False):
        weights = torch.softmax(Prediction(factors=factors).logits, -1)
        noise = noise_of(weights, targets, uniforms[:, given:], model.token_order)
    positions = torch.arange(given, input_ids.shape[1], device=input_ids.device).expand(targets.shape)
    places = Places(positions, starts[:, given:].clamp_min(given).expand(targets.shape))
    jump, _ = linear_cross_entropy(*model.jump(noise, clean, places).factors, targets)
    return jump, next_token


def lattice_losses(
    model: TextDiffusionModel, input_ids: Tensor, t: Tensor, draws: Draws, windows: Windows
) -> tuple[Tensor, Tensor, Tensor]:
    """What the parts of a lattice cost (`models/lattice.py`), at the times t.

    They are `-log p(x_i | z_<i)` of every token, given the latents before it in its window, and
    `-log p(x_i | x_i-1, z_<i-1)`, where the window has a token before it. The text before the window is given to both.

    Returns:
        the two, `(batch, length)` and `(batch, length - 1)`, and the losses of the clean stream.
    """
    process = model.forward_process
    with torch.no_grad():
        E = model.embed(input_ids)
        c, _ = model.encode_context(E, draws.context_noise)
        z = process.marginal(E, t, c, windows.mixing).sample(draws.noise)
    clean, next_token = model.clean_stream(input_ids, windows, next_token=True, detach_process=True)
    states, following = model.follow(input_ids, z, t, c, clean, windows, model.second_calls(draws))
    seen, _ = linear_cross_entropy(*model.next_token_factors(states), input_ids)
    followed, _ = linear_cross_entropy(*model.next_token_factors(following[:, :-1]), input_ids[:, 1:])
    starts = windows.starts.expand(input_ids.shape)
    return seen, followed.masked_fill(starts[:, 1:] != starts[:, :-1], 0), next_token


def drift_matching(
    path: MovingMarginal, predicted_path: MovingMarginal, z: Tensor, squared_volatility: Tensor
) -> Tensor:
    """`||f_B(z, u, E) - f_B(z, u, Ê)||² / (2 g²)` per token, for any process; zero where nothing moves."""
    difference = path.reverse_drift(z, squared_volatility) - predicted_path.reverse_drift(z, squared_volatility)
    moving = squared_volatility > 0
    squared_volatility = torch.where(moving, squared_volatility, 1)
    return torch.where(moving[..., 0], (difference.square() / (2 * squared_volatility)).sum(-1), 0)


def path_curvature(velocity: Tensor, z_0: Tensor, z_1: Tensor, rate: Tensor) -> Tensor:
    """`r ||dz/dt - (z_1 - z_0)||²` per token, for a text and its noise; zero where nothing moves.

    Along the token's own time t, `dz/dt = (dz/du) / r`. Over a clock it averages to

        ∫ ||dz/dt - (z_1 - z_0)||² dt,

    the variance of the velocity over t, as the mean velocity is `z_1 - z_0`: zero where the path is straight and has
    one speed, and Euler's method with the true text exact. One time tells it without bias, the one of the bound.

    Args:
        velocity: `dz/du` with the noise held fixed, `(batch, seq, dim)`.
        z_0, z_1: the ends of the path for the same noise.
        rate: `r = dt/du`, `(batch, seq or 1)`.
    """
    moving = rate > 0
    rate = torch.where(moving, rate, 1)[..., None]
    return torch.where(moving, ((velocity - rate * (z_1 - z_0)).square() / rate).sum(-1), 0)


def keep_known(known: Tensor | None, given: Tensor, values: Tensor) -> Tensor:
    """The values, and what is given for known tokens."""
    return values if known is None else torch.where(known[..., None], given, values)


def context_divergence(mean: Tensor, log_variance: Tensor) -> Tensor:
    """`KL(q(c | x) || N(0, I))` for MuLAN's latent context."""
    return Marginal(mean, torch.exp(0.5 * log_variance)).kl_to_standard_normal().sum(-1)
