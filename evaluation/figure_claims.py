"""What the paper says about its figures, and whether it is so for trained checkpoints: numbers, and one table."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from diffusers_text_nfdm import DiffusionLMModel, MuLANModel, NFDMModel
from diffusers_text_nfdm.forward_processes import DiffusionLMProcess
from diffusers_text_nfdm.model_card import is_undeformed
from diffusers_text_nfdm.models import TextDiffusionModel
from diffusers_text_nfdm.networks.dual import Dual
from diffusers_text_nfdm.objective import path_curvature
from diffusers_text_nfdm.plots.process import transformation_similarity


# Directions with a larger cosine are called the same.
SAME_DIRECTION = 0.99
# Nats of log SNR that tokens, or texts, must differ by to be called different.
DIFFERENT_GAMMA = 0.1
# A spike is this many times the least value.
SPIKE = 10
TIMES = torch.linspace(0.005, 0.995, 100)


class Claim(NamedTuple):
    """A claim, where it is made, what is measured, and whether it is so: yes when the measurement passes the test that
    `measured` names."""

    claim: str
    place: str
    model: str
    measured: str
    holds: bool


def claims_table(models: dict[str, tuple[TextDiffusionModel, Tensor]]) -> str:
    """The claims about those models of the paper that are there, each with token ids of validation texts."""
    header = ["in the paper", "where", "model", "measured here", "so here"]
    rows = [[*claim[:4], "yes" if claim.holds else "**no**"] for claim in claims(models)]
    return "\n".join("| " + " | ".join(row) + " |" for row in [header, ["---"] * len(header), *rows]) + "\n"


@torch.no_grad()
def claims(models: dict[str, tuple[TextDiffusionModel, Tensor]]) -> Iterator[Claim]:
    curvatures = {}
    for name, (model, ids) in models.items():
        if is_undeformed(model.config):
            # It has no transformation, and no path that is learned.
            continue
        embeddings, context = model_inputs(model, ids)
        curvatures[name] = relative_curvature(model, embeddings, context)
        if isinstance(model, NFDMModel):
            yield from transformation_claims(name, model, ids, embeddings)
        elif isinstance(model, MuLANModel):
            yield from schedule_claims(name, model, embeddings, context)
        elif isinstance(model, DiffusionLMModel):
            yield from spike_claims(name, model, embeddings)
    fixed = [name for name, (model, _) in models.items() if isinstance(model, DiffusionLMModel)]
    for name in [name for name in curvatures if fixed and name not in fixed]:
        own, other = curvatures[name], curvatures[fixed[0]]
        yield Claim(
            "learned forward processes have smoother paths than a fixed one (a hypothesis; its few-step tables speak "
            "against it)",
            "F.2.3",
            name,
            f"variance of the velocity over t, relative to the straight path's square: {own:.2f}; of {fixed[0]} "
            f"{other:.2f}",
            own < other,
        )


def model_inputs(model: TextDiffusionModel, ids: Tensor) -> tuple[Tensor, Tensor | None]:
    """Embeddings of texts, and their context at the mean of `q(c | x)`."""
    embeddings = model.embed(ids.to(model.device))
    noise = None if model.context_dim is None else embeddings.new_zeros(len(embeddings), model.context_dim)
    return embeddings, model.encode_context(embeddings, noise)[0]


def transformation_claims(name: str, model: NFDMModel, ids: Tensor, embeddings: Tensor) -> Iterator[Claim]:
    _, similarity, _ = transformation_similarity(model, ids)
    least, figure = similarity.min().item(), "figure 4, F.1"
    measured = f"least cosine of m(E, t) and m(E, t + 0.1): {least:.3f}"
    if model.config.time_conditioning == "additive":
        first, _ = model.forward_process.deformation(embeddings, embeddings.new_full((len(embeddings), 1), 0.1))
        between = torch.cosine_similarity(first[:-1], first[1:], dim=-1).mean().item()
        yield Claim(
            "with additive time embeddings the transformation depends on the input at t = 0.1",
            figure,
            name,
            f"cosine of m(E, 0.1) of two texts: {between:.3f} (below {SAME_DIRECTION})",
            between < SAME_DIRECTION,
        )
        claim, holds = "and does not change with t from there on", least >= SAME_DIRECTION
        measured += f" (at least {SAME_DIRECTION})"
    else:
        claim, holds = "with AdaLN the transformation changes with t", least < SAME_DIRECTION
        measured += f" (below {SAME_DIRECTION})"
    yield Claim(claim, figure, name, measured, holds)


def gammas(model: TextDiffusionModel, embeddings: Tensor, context: Tensor | None) -> Dual:
    """γ and its rate, `(times, batch, seq or 1)`."""
    process = model.forward_process
    times = [embeddings.new_full((len(embeddings), 1), t.item()) for t in TIMES]
    pairs = [process.gamma(Dual(t, torch.ones_like(t)), context) for t in times]
    return Dual(*(torch.stack([part.squeeze(-1) for part in parts]) for parts in zip(*pairs)))


def schedule_claims(name: str, model: MuLANModel, embeddings: Tensor, context: Tensor) -> Iterator[Claim]:
    gamma = gammas(model, embeddings, context)
    value = gamma.value
    tokens, texts = value.std(2).mean(-1).max().item(), value.std(1)
    yield Claim(
        "every token has noise of its own",
        "3, B",
        name,
        f"deviation of γ between tokens, at the t where it is most: {tokens:.2f} (above {DIFFERENT_GAMMA})",
        tokens > DIFFERENT_GAMMA,
    )
    yield Claim(
        "which depends on the input by a learned context",
        "3, B",
        name,
        f"deviation of γ between texts, mean over tokens at the t where it is most: {texts.mean(-1).max():.3f} (above "
        f"{DIFFERENT_GAMMA}); of one token at most {texts.max():.3f}",
        texts.mean(-1).max().item() > DIFFERENT_GAMMA,
    )
    falling = (gamma.rate < 0).float().mean().item()
    claim = "γ rises with t"
    if model.config.rescaled_schedule:
        reference = DiffusionLMProcess().gamma(Dual(TIMES[:, None].to(value))).value[..., 0]
        error = ((-value).exp().mean(-1) / (-reference).exp() - 1).abs().max().item()
        yield Claim(
            "the mean SNR over tokens is that of Diffusion-LM",
            "B.4",
            name,
            f"largest relative difference: {error:.1e} (below 1e-3)",
            error < 1e-3,
        )
        claim = "γ rises with t (not said of the rescaled schedule, but its volatility σ² γ̇ needs it)"
    yield Claim(claim, "B", name, f"γ falls for {falling:.1%} of tokens and times", falling == 0)


def spike_claims(name: str, model: DiffusionLMModel, embeddings: Tensor) -> Iterator[Claim]:
    ends = torch.tensor([1e-4, 1 - 1e-4], dtype=torch.float64)
    rates, volatilities = [], []
    for t in [*TIMES, *ends]:
        times = Dual(embeddings.new_full((1, 1), t.item()), embeddings.new_ones(1, 1))
        rates.append(model.forward_process.gamma(times).rate.item())
        volatilities.append(model.forward_process.squared_volatility(times).item())
    for claim, place, what, values in (
        ("its schedule is steep at the ends", "figures 1 and 2, C", "γ̇", rates),
        ("g² has spikes near t = 0 and t = 1", "figure 3, F.2.2", "g²", volatilities),
    ):
        low, high, least = *values[-2:], min(values)
        yield Claim(
            claim,
            place,
            name,
            f"{what} is {low:,.0f} at t = 0.0001 and {high:,.0f} at 0.9999, at least {least:.2f} between (spike: "
            f"{SPIKE} times)",
            min(low, high) > SPIKE * least,
        )


def relative_curvature(
    model: TextDiffusionModel, embeddings: Tensor, context: Tensor | None, num_times: int = 200, num_texts: int = 8
) -> float:
    """`∫ ||dz/dt - (z_1 - z_0)||² dt / ||z_1 - z_0||²` for fixed texts and noise: 0 for straight paths.

    More of the times are near the ends, `t = (1 - cos πu) / 2`, where Diffusion-LM is fast.
    """
    process, embeddings = model.forward_process, embeddings[:num_texts]
    context = None if context is None else context[:num_texts]
    noise = torch.randn(embeddings.shape, generator=torch.Generator().manual_seed(0)).to(embeddings)
    z_0, z_1 = (
        marginal.sample(noise)
        for marginal in (process.initial_marginal(embeddings, context), process.terminal_marginal(embeddings, context))
    )
    total = 0.0
    for number in range(num_times):
        angle = math.pi * (number + 0.5) / num_times
        t = embeddings.new_full((len(embeddings), 1), (1 - math.cos(angle)) / 2)
        times = Dual(t, torch.full_like(t, math.pi * math.sin(angle) / 2))
        velocity = process.path(times, context)(embeddings).velocity(noise)
        total += path_curvature(velocity, z_0, z_1, times.rate).sum().item() / num_times
    return total / (z_1 - z_0).square().sum().item()
