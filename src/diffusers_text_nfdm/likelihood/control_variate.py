"""A control variate for the bound: what every token would cost alone, given the text before it.

Of a token with the prior `π = p(x_i | x_<i)` of the clean stream, seen through `z_t = α E + σ ε`, the posterior
`P(x_i | z_t) ∝ π N(z_t; α E, σ²)` is known exactly, and with its mean Ê

    E ∫ ½ (-dSNR/dt) ||E - Ê||² dt = E[-log P(x_i | z_1)] - E[-log P(x_i | z_0)].

The difference of the two sides, at the times and the noise at which the bound is estimated, has the mean zero for
every text. It is large where the bound's own term is large, because noise hides the token, and is subtracted from it.
What is left is what the bound costs beyond the clean stream.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..models import Draws, Prediction, TextDiffusionModel
from ..models.prediction import gaussian_factors
from ..networks.dual import Dual


def lone_token_residual(
    model: TextDiffusionModel, input_ids: Tensor, times: Dual, draws: Draws, first_time: float = 0.0
) -> Tensor:
    """The difference of the two sides for every token, `(batch, seq)`; zero for START, which is given."""
    estimate, ends = lone_token_costs(model, input_ids, times, draws, first_time)
    return estimate - ends


@torch.no_grad()
def lone_token_costs(
    model: TextDiffusionModel, input_ids: Tensor, times: Dual, draws: Draws, first_time: float = 0.0
) -> tuple[Tensor, Tensor]:
    """The two sides for every token, `(batch, seq)` each; zero for START, which is given.

    Args:
        times: token times and their rates, whose weight the estimate has: of a clock and of a density of times.
        draws: the noise at these times, which is that at time 1, too, and the noise at the first time.
        first_time: from which time on the integral is taken.
    """
    states, _ = model.read_clean(input_ids)
    prior = torch.log_softmax(Prediction(factors=model.next_token_factors(states[:, :-1])).logits, -1)
    table, tokens = model.embedding_table(), input_ids[:, 1:, None]
    E = model.embed(input_ids)
    # Given MuLAN's c, the schedule is one like others.
    context, _ = model.encode_context(E, draws.context_noise)

    def posterior(t: Tensor, noise: Tensor) -> Tensor:
        """`log P(· | z_t)`."""
        alpha, sigma = (x.expand(*noise.shape[:-1], -1) for x in model.forward_process.alpha_sigma(t, context))
        states, weight = gaussian_factors(alpha * E + sigma * noise, (alpha, sigma), table)
        return torch.log_softmax(prior + states[:, 1:] @ weight.T, -1)

    def cost(t: Tensor, noise: Tensor) -> Tensor:
        return -posterior(t, noise).gather(-1, tokens)[..., 0]

    t, rate = (x.expand(input_ids.shape) for x in times)
    error = (E[:, 1:] - posterior(t, draws.noise).exp() @ table).square().sum(-1)
    estimate = -0.5 * (snr_rate(model, t, context) * rate)[:, 1:] * error
    estimate = estimate.masked_fill(t[:, 1:] < first_time, 0)
    ends = cost(torch.ones_like(t), draws.noise) - cost(torch.full_like(t, first_time), draws.initial_noise)
    estimate, ends = (torch.nn.functional.pad(side, (1, 0)) for side in (estimate, ends))
    return estimate, ends


def snr_rate(model: TextDiffusionModel, t: Tensor, context: Tensor | None = None) -> Tensor:
    """`dSNR/dt` of the linear process that the forward process is, or that it deforms, `(batch, seq)`."""
    with torch.enable_grad():
        t = t.detach().requires_grad_()
        alpha, sigma = model.forward_process.alpha_sigma(t, context)
        (rate,) = torch.autograd.grad((alpha / sigma).square().sum(), t)
    return rate
