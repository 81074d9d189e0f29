"""The importance-weighted bound: tighter than the variational one, for a sampler with a finite number of steps."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..checks import as_token_ids, check_integers, check_seed
from ..clocks import BatchClock, Clock
from ..conditions import with_condition
from ..forward_processes import ForwardProcess
from ..models import TextDiffusionModel, evaluation_mode
from ..networks.dual import Dual
from ..objective import keep_known


@torch.no_grad()
def importance_weighted_bound(
    model: TextDiffusionModel,
    input_ids: Tensor,
    *,
    clock: str | dict | Clock | None = None,
    num_draws: int = 16,
    num_steps: int = 64,
    batch_size: int = 64,
    seed: int = 0,
) -> Tensor:
    """`-log (1/K) Σ_k w_k` per text, in nats: a bound of `-log p(x)` that tightens with K = `num_draws`.

    In continuous time the terms are estimated at single times, and the logarithm of such an estimate is no bound. It
    is one for the chain `z_1 -> ... -> z_0 -> x` on T = `num_steps` equal steps, whose whole path is drawn here:

        w = p(x | z_0) p(z_1) p(c) Π p(z_s | z_t) / [q(z_1 | x) q(c | x) Π q(z_s | z_t, x)]
        q(z_s | z_t, x) = N(mean_s + sqrt(std_s² - v) ε_t, v),   ε_t = (z_t - mean_t) / std_t

    and `p` the same with Ê in place of E. Tokens that do not move in a step are left out; the blocks of a text go side
    by side. The variance `v` of a step does not depend on x (`step_variance`), else every step would cost something
    even as T -> ∞; so there K = 1 has the mean of the continuous bound. It costs K T predictor calls per text. A
    condition is known: the bound is that of the text given it.
    """
    check_integers(1, num_draws=num_draws, num_steps=num_steps, batch_size=batch_size)
    check_seed(seed)
    input_ids = as_token_ids(input_ids)
    model.check_inputs(input_ids.cpu())
    input_ids = input_ids.long()
    clock = model.clock(clock)
    generator = torch.Generator(model.device).manual_seed(seed)
    bounds = []
    with evaluation_mode(model):
        for batch in input_ids.split(batch_size):
            batch = batch.to(model.device)
            log_weights = [_log_weight(model, batch, clock, num_steps, generator) for _ in range(num_draws)]
            bounds.append(math.log(num_draws) - torch.logsumexp(torch.stack(log_weights), dim=0))
    return torch.cat(bounds)


def _log_weight(
    model: TextDiffusionModel, input_ids: Tensor, clock: Clock, num_steps: int, generator: torch.Generator
) -> Tensor:
    process, embeddings = model.forward_process, model.embed(input_ids)
    draws = model.draw(len(input_ids), generator)
    context, log_weight = None, embeddings.new_zeros(len(input_ids))
    if model.context_encoder is not None:
        mean, log_variance = model.context_encoder(embeddings)
        std = torch.exp(0.5 * log_variance)
        context = mean + std * draws.context_noise
        log_weight = _log_ratio_to_standard(context, std, draws.context_noise).sum(-1)
    length = input_ids.shape[1]
    known = with_condition(None, input_ids, model.config.condition_length)
    unknown = torch.ones_like(input_ids, dtype=torch.bool) if known is None else ~known
    batch_clock = BatchClock(clock, length, known, draws.order, in_windows=model.has_windows(clock))
    blocks = clock.fixed_windows(length, embeddings.device)
    clean = model.read_clean(input_ids)[1] if batch_clock.has_windows else None
    terminal = process.terminal_marginal(embeddings, context)
    z = terminal.sample(draws.noise)
    log_ratios = _log_ratio_to_standard(z, terminal.std, draws.noise)
    log_weight = log_weight + torch.where(unknown[..., None], log_ratios, 0).sum((-1, -2))
    z = keep_known(known, process.initial_marginal(embeddings, context).mean, z)

    grid = torch.linspace(1, 0, num_steps + 1, device=z.device, dtype=z.dtype)[:, None].expand(-1, len(z))[..., None]
    times = [batch_clock(u).value if blocks is None else u * unknown for u in grid]
    for u, t, s in zip(grid, times, times[1:]):
        variance = step_variance(process, t, s, context)
        windows, window = blocks, None
        if blocks is None and batch_clock.has_windows:
            windows, window, *_ = batch_clock.step_windows(float(u[0]), t, s)
        step = z, t, s, variance, context, batch_clock.mixing
        q_mean = _step_mean(process, embeddings, *step)
        prediction = model.denoise(z, t, context, clean, windows=windows, known=known, window=window)
        p_mean = _step_mean(process, keep_known(known, embeddings, prediction.embeddings), *step)
        noise = torch.randn(z.shape, generator=generator, device=z.device, dtype=z.dtype)
        # log N(z_s; p_mean, v) - log N(z_s; q_mean, v) at z_s = q_mean + sqrt(v) noise
        shift = (q_mean - p_mean) / variance.sqrt()
        moving = (t > s)[..., None]
        log_weight = log_weight - torch.where(moving, shift * noise + 0.5 * shift.square(), 0).sum((-1, -2))
        z = torch.where(moving, q_mean + variance.sqrt() * noise, z)
    log_probabilities = torch.log_softmax(model.decode(z, context), dim=-1).gather(-1, input_ids[..., None])[..., 0]
    return log_weight + torch.where(unknown, log_probabilities, 0).sum(-1)


def step_variance(process: ForwardProcess, t: Tensor, s: Tensor, context: Tensor | None = None) -> Tensor:
    """Variance of the noise that the step from t to s < t adds: `σ_s² (1 - e^{-Γ})`, about `g² (t-s)` when the step is
    short.

    `Γ` is `|γ(t) - γ(s)|` for a process with a signal-to-noise ratio: where it falls towards noise this is the
    posterior of DDPM, and where it rises the step does not depend on Ê at all, as in the continuous bound. For NFDM it
    is `g²(t-s)/σ²` of the base at the middle of the step.
    """
    _, sigma = process.alpha_sigma(s, context)
    if process.diffusion_weight(Dual(t, torch.ones_like(t)), context) is not None:
        exponent = (torch.log(process.snr(t, context)) - torch.log(process.snr(s, context))).abs()
    else:
        middle = 0.5 * (t + s)
        _, middle_sigma = process.alpha_sigma(middle, context)
        exponent = process.squared_volatility(Dual(middle, t - s), context) / middle_sigma.square()
    # Not zero, for the step's density to exist.
    return sigma.square() * -torch.expm1(-exponent.clamp_min(1e-6))


def _step_mean(
    process: ForwardProcess,
    embeddings: Tensor,
    z: Tensor,
    t: Tensor,
    s: Tensor,
    variance: Tensor,
    context: Tensor | None,
    mixing: int | None,
) -> Tensor:
    """Mean of the step from t to s when the clean embeddings are `embeddings`.

    It keeps the marginals unless `v > std_s²`.
    """
    current, following = (process.marginal(embeddings, time, context, mixing) for time in (t, s))
    return following.mean + (following.std.square() - variance).clamp_min(0).sqrt() * current.noise(z)


def _log_ratio_to_standard(z: Tensor, std: Tensor, noise: Tensor) -> Tensor:
    """`log N(z; 0, 1) - log N(z; mean, std²)` per element, at `z = mean + std noise`."""
    return torch.log(std) + 0.5 * (noise.square() - z.square())
