"""What single texts cost, for choosing between them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from ..checks import as_token_ids, check_integers, check_seed
from ..clocks import Clock
from ..conditions import with_condition
from ..models import Draws, TextDiffusionModel, evaluation_mode
from ..objective import bound


if TYPE_CHECKING:
    from ..baseline import AutoregressiveModel, MaskedDiffusionModel


class Scores(NamedTuple):
    """
    Args:
        nats: of each text, `(texts,)`: `-log p(x)`, or a bound of `-log p(x_unknown | x_known)`.
        errors: their standard errors, zero where the value is exact.
    """

    nats: Tensor
    errors: Tensor


@torch.no_grad()
def score_texts(
    model: TextDiffusionModel | AutoregressiveModel | MaskedDiffusionModel,
    input_ids: Tensor,
    known: Tensor | None = None,
    clock: str | dict | Clock | None = None,
    num_draws: int = 32,
    batch_size: int = 64,
    seed: int = 0,
) -> Scores:
    """What each text costs; the fewer nats, the more probable it is.

    A clean stream, or an autoregressive model, gives `-log p(x)`, exactly. It is taken unless `known` or `clock` is
    given: texts that share their beginning differ by `-log p(rest | beginning)`. Else the bound along the clock is
    estimated, with the same times and noise for every text, so that their differences have less error than they have.

    Args:
        input_ids: `(texts, max_length)`, padding included.
        known: `(texts, max_length)`, the tokens that are given and not counted.
        num_draws: evaluations of the bound for each text.
    """
    check_integers(1, batch_size=batch_size)
    # Their spread is the error.
    check_integers(2, num_draws=num_draws)
    check_seed(seed)
    input_ids = as_token_ids(input_ids)
    model.check_inputs(input_ids.cpu(), *(() if known is None else (known,)))
    input_ids = input_ids.long()
    diffusion = isinstance(model, TextDiffusionModel)
    if known is not None and not diffusion:
        raise ValueError("`known` tokens are for a diffusion model; leave them out.")
    values = []
    with evaluation_mode(model):
        for start in range(0, len(input_ids), batch_size):
            rows = slice(start, start + batch_size)
            batch, given = input_ids[rows].to(model.device), None if known is None else known[rows].to(model.device)
            if known is None and clock is None and (not diffusion or model.has_clean_stream):
                nats = model.clean_stream(batch, None, True)[1].sum(-1) if diffusion else _exact(model, batch)
                nats = nats.cpu().double()
                values.append(torch.stack([nats, torch.zeros_like(nats)]))
                continue
            given = with_condition(given, batch, model.config.condition_length)
            together = max(1, batch_size // len(batch))
            values.append(_bounds(model, batch, given, model.clock(clock), num_draws, together, seed))
    return Scores(*torch.cat(values, dim=1))


def _exact(model: AutoregressiveModel | MaskedDiffusionModel, batch: Tensor) -> Tensor:
    if hasattr(model, "clean_stream"):
        return model.clean_stream(batch, None, next_token=True)[1].sum(-1)
    return model(batch).bound


def _bounds(
    model: TextDiffusionModel,
    batch: Tensor,
    known: Tensor | None,
    clock: Clock,
    num_draws: int,
    together: int,
    seed: int,
) -> Tensor:
    """Means and their standard errors, `(2, texts)`; so many draws are evaluated together."""
    generator = torch.Generator(model.device).manual_seed(seed)
    values = []
    for first in range(0, num_draws, together):
        strata = range(first, min(first + together, num_draws))
        parts = []
        # One after the other: how many are evaluated together does not change them.
        for stratum in strata:
            draws = model.draw(1, generator)
            draws.uniforms = (stratum + draws.uniforms) / num_draws
            parts.append(draws.repeat(len(batch)))
        draws, texts = Draws.join(parts), batch.repeat(len(strata), 1)
        given = None if known is None else known.repeat(len(strata), 1)
        times, windows = model.token_times(clock, draws, given)
        terms = bound(model, texts, times, draws, given, windows)
        nats = (terms.diffusion + terms.reconstruction + terms.prior).sum(-1) + terms.context
        values.append(nats.view(len(strata), len(batch)))
    values = torch.cat(values).cpu().double()
    return torch.stack([values.mean(0), values.std(0) / num_draws**0.5])
