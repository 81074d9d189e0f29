"""What the tokens of a window cost beyond the clean stream, by their place in the window.

    excess_k = E Σ_i diffusion_i - alone_i,   over the tokens i at place k of their windows,

where `alone_i` is what token i would cost at the same time and with the same noise if the text before it were known
(`control_variate`). Tokens at place 0 settle first. Those that begin to move cost more than alone, because what is
before them is not settled. Those that are about to settle cost less, as far as the model uses what follows them. With
an exact denoiser the sum is zero on texts of the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..clocks import Clock
from ..conditions import with_condition
from ..models import TextDiffusionModel, evaluation_mode
from ..objective import bound
from .control_variate import lone_token_costs
from .estimation import check_draws, prepared_texts, stratified_draws


@dataclass(frozen=True)
class WindowExcess:
    """Nats per text of the tokens at each place of their windows.

    Args:
        alone: what they would cost alone, given the text before them.
        excess: what they cost beyond that.
        error: the standard error of `excess`, over texts and draws.
    """

    alone: tuple[float, ...]
    excess: tuple[float, ...]
    error: tuple[float, ...]

    def __str__(self) -> str:
        lines = [f"{'place':>5}{'alone':>10}{'excess':>10}{'error':>9}"]
        for place, row in enumerate(zip(self.alone, self.excess, self.error)):
            lines.append("{:>5}{:>10.2f}{:>+10.2f}{:>9.2f}".format(place, *row))
        lines.append(f"{'sum':>5}{sum(self.alone):>10.2f}{sum(self.excess):>+10.2f}")
        return "\n".join(lines)


@torch.no_grad()
def window_excess(
    model: TextDiffusionModel,
    input_ids: Tensor | Sequence[Sequence[int]],
    *,
    clock: str | dict | Clock | None = None,
    num_draws: int = 8,
    batch_size: int = 64,
    seed: int = 0,
    progress: bool = False,
) -> WindowExcess:
    """Measure it over texts `(texts, max_length)`, for a model whose windows are given a clean stream.

    Args:
        clock: one with windows, instead of the model's own.
        num_draws: evaluations per text, an even number.
    """
    input_ids, _, _ = prepared_texts(model, input_ids, None, None, batch_size)
    check_draws(num_draws, seed)
    clock = model.clock(clock)
    if not (model.has_clean_stream and model.has_windows(clock)):
        raise ValueError(
            f"Along the clock {str(clock)!r} this model has no windows that are given a clean stream: no token has a "
            "place in one."
        )
    known = with_condition(None, input_ids, model.config.condition_length)
    generator = torch.Generator(model.device).manual_seed(seed)
    positions = torch.arange(input_ids.shape[1], device=model.device)
    # What is alone and the excess, of each text, by place.
    sums = torch.zeros(2, *input_ids.shape, dtype=torch.float64)
    with evaluation_mode(model):
        for rows, _, batch, given, draws in stratified_draws(
            model, input_ids, known, num_draws, batch_size, generator, progress
        ):
            times, windows = model.token_times(clock, draws, given)
            diffusion = bound(model, batch, times, draws, given, windows).diffusion
            alone, _ = lone_token_costs(model, batch, times, draws)
            # START and the condition are not: the clean stream is given them.
            counted = (positions > 0) if given is None else (positions > 0) & ~given
            costs = torch.stack([alone, diffusion - alone]).masked_fill(~counted, 0).cpu().double()
            places = (positions - windows.starts).expand(batch.shape).cpu()
            sums[:, rows].scatter_add_(2, places.expand(2, -1, -1), costs / num_draws)
    number = int(sums.abs().sum((0, 1)).nonzero().max()) + 1
    (alone, excess), error = sums.mean(1), sums[1].std(0) / len(input_ids) ** 0.5
    return WindowExcess(*(tuple(x[:number].tolist()) for x in (alone, excess, error)))
