"""A density of times for one estimate of the bound, fitted in a short run of its own."""

from __future__ import annotations

import torch
from torch import Tensor

from ..clocks import Clock
from ..models import TextDiffusionModel
from ..networks.dual import Dual
from ..objective import bound
from ..time_samplers import piecewise_times


class FittedTimes:
    """Times with a piecewise constant density: each interval between neighbouring `edges` has the same probability."""

    def __init__(self, edges: Tensor):
        self.edges = edges

    def __call__(self, times: Dual) -> Dual:
        edges = self.edges.to(times.value.device, times.value.dtype)
        t, slope = piecewise_times(times.value, edges, torch.full_like(edges[1:], 1 / (len(edges) - 1)))
        return Dual(t, times.rate * slope)


@torch.no_grad()
def fit_times(
    model: TextDiffusionModel,
    clock: Clock,
    input_ids: Tensor,
    known: Tensor | None,
    batch_size: int,
    generator: torch.Generator,
    *,
    finish_time: float | None = None,
    rounds: int = 4,
    evaluations_per_round: int = 128,
    num_intervals: int = 16,
    uniform_share: float = 0.1,
) -> tuple[FittedTimes, int]:
    """A density of global times close to the root mean square of the diffusion term, which has the least variance; and
    its cost.

    Each round measures the term in intervals of equal probability and redraws them, so they shrink around a peak
    (VEGAS, Lepage 1978): as published, Diffusion-LM has half of its bound in t < 0.0003. The uniform share bounds the
    weights `1/p` by its inverse. Of a text in blocks every block is a measurement.
    """
    device, edges = model.device, torch.linspace(0, 1, num_intervals + 1, dtype=torch.float64)
    n = evaluations_per_round
    for _ in range(rounds):
        uniforms, squares = [], []
        density = FittedTimes(edges)
        texts = torch.randint(len(input_ids), (n,), generator=generator, device=device).cpu()
        for start in range(0, n, batch_size):
            rows = texts[start : start + batch_size]
            batch, given = input_ids[rows].to(device), None if known is None else known[rows].to(device)
            draws = model.draw(len(batch), generator)
            draws.uniforms = (start + torch.arange(len(batch), device=device) + draws.uniforms) / n
            times, windows = model.token_times(clock, draws, given, density)
            terms = bound(model, batch, times, draws, given, windows, finish_time=finish_time).diffusion
            block = clock.block_size or model.config.max_length
            # What was drawn, for every text or block, and its term without the weight of the density.
            u = draws.uniforms[:, None]
            if clock.block_size:
                drawn, _ = clock.parallel_times(u, model.config.max_length, given, draws.order)
                u = drawn.value.expand(terms.shape)[:, ::block]
            weight = density(Dual(u, torch.ones_like(u))).rate
            uniforms.append(u.flatten().cpu().double())
            squares.append((terms.unflatten(1, (-1, block)).sum(-1) / weight).square().flatten().cpu().double())
        interval = (torch.cat(uniforms) * num_intervals).long().clamp_max(num_intervals - 1)
        sums = torch.zeros(num_intervals, dtype=torch.float64).index_add_(0, interval, torch.cat(squares))
        counts = torch.bincount(interval, minlength=num_intervals).clamp_min(1)
        width = edges.diff()
        mass = (sums / counts).sqrt() * width
        # A few evaluations measure an interval badly; its neighbours know about it too.
        padded = torch.cat([mass[:1], mass, mass[-1:]])
        mass = 0.25 * padded[:-2] + 0.5 * mass + 0.25 * padded[2:] + 1e-30
        share = (1 - uniform_share) * mass / mass.sum() + uniform_share * width
        targets = torch.linspace(0, 1, num_intervals + 1, dtype=torch.float64)
        edges, _ = piecewise_times(targets, edges, share / share.sum())
    return FittedTimes(edges), rounds * n
