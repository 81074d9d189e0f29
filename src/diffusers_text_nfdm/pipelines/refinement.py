"""Writing texts by refinement: tokens of a moving window are committed when they are sure."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from ..clocks import moving_window
from ..devices import wide_uniforms, widened, widest_float
from ..models import TextDiffusionModel
from ..models.token_choice import draw_from
from ..schedulers import RefinementScheduler
from .batches import read_before


def write_refined(
    model: TextDiffusionModel,
    scheduler: RefinementScheduler,
    generators: list[torch.Generator],
    context: Tensor | None,
    max_calls: int | None = None,
    given: Tensor | None = None,
    known: Tensor | None = None,
    excluded: Tensor | None = None,
    on_call: Callable[[Tensor, Tensor], None] = lambda tokens, written: None,
) -> tuple[Tensor, Tensor]:
    """Token ids `(batch, max_length)`, and how many calls of the predictor each text took.

    Args:
        generators: one per text; a text does not depend on the others.
        max_calls: a text that is not finished by then keeps padding where nothing is written.
        given, known: token ids `(batch, max_length)`, and which of them are known.
        excluded: tokens that each text must not have, `(batch, vocab)`.
        on_call: gets the texts and the number of tokens that are committed, after every call.
    """
    number = scheduler.config.candidates
    # The most probable tokens are the same in all of them.
    if number == 1 or scheduler.config.temperature == 0:
        text, calls, _ = _write(model, scheduler, generators, context, max_calls, given, known, excluded, on_call)
        return text, calls
    steps: list[tuple[Tensor, Tensor]] = []
    many = [torch.Generator(g.device).manual_seed(seed) for g in generators for seed in _seeds(g, number)]
    of_texts = context, given, known, excluded
    context, *of_texts = (None if x is None else x.repeat_interleave(number, 0) for x in of_texts)
    text, calls, log_q = _write(
        model, scheduler, many, context, max_calls, *of_texts, lambda *step: steps.append([x.clone() for x in step])
    )
    weights = torch.softmax(_log_targets(model, scheduler, text, number) - log_q.view(-1, number), -1)
    taken = draw_from(weights, wide_uniforms(generators, (), weights.device))
    rows = torch.arange(len(generators), device=taken.device) * number + taken
    for step in steps:
        on_call(*(x[rows] for x in step))
    # One more reads the candidates.
    return text[rows], calls.view(-1, number).sum(-1) + number * (calls.view(-1, number).sum(-1) > 0)


def _log_targets(model: TextDiffusionModel, scheduler: RefinementScheduler, text: Tensor, number: int) -> Tensor:
    """`log p(text) / temperature - contrast Σ_i log p(x_i)` of candidates, up to a constant, `(texts, number)`. What
    cuts leave out counts as it is: a known token may be among it.
    """
    choice, written = scheduler.choice, text[:, 1:]
    states, weight, bias = model.next_token_factors(model.read_clean(text)[0][:, :-1])
    log_p = torch.log_softmax(widened(states @ weight.T + bias), -1).gather(-1, written[..., None])[..., 0]
    log_p = log_p.sum(-1).view(-1, number)
    # With the largest at zero a small temperature cannot overflow; a smaller one than this would be 0 in this type.
    heated = (log_p - log_p.amax(-1, keepdim=True)) / max(choice["temperature"], torch.finfo(log_p.dtype).tiny)
    if not choice["contrast"]:
        return heated
    frequent = choice["log_frequencies"].to(log_p)[written].masked_fill(written == model.config.pad_token_id, 0)
    return heated - choice["contrast"] * frequent.sum(-1).view(-1, number)


def _seeds(generator: torch.Generator, number: int) -> list[int]:
    return torch.randint(2**62, (number,), generator=generator, device=generator.device).tolist()


def _write(
    model: TextDiffusionModel,
    scheduler: RefinementScheduler,
    generators: list[torch.Generator],
    context: Tensor | None,
    max_calls: int | None,
    given: Tensor | None,
    known: Tensor | None,
    excluded: Tensor | None,
    on_call: Callable[[Tensor, Tensor], None],
) -> tuple[Tensor, Tensor, Tensor]:
    """As `write_refined`, and the log-probability with which each text was drawn."""
    config, n, device = model.config, len(generators), model.device
    length, pad, end = config.max_length, config.pad_token_id, config.eos_token_id
    positions = torch.arange(length, device=device)
    text = torch.full((n, length), pad, device=device)
    text[:, 0] = config.bos_token_id
    settled = (positions == 0).expand(n, -1).clone()
    if known is not None:
        text, settled = torch.where(known, given, text), settled | known
    calls, rows = torch.zeros(n, dtype=torch.long, device=device), (~settled).any(-1).nonzero()[:, 0]
    log_q = torch.zeros(n, dtype=widest_float(device), device=device)
    kept = None
    while len(rows) and (max_calls is None or int(calls.max()) < max_calls):
        own, done = text[rows], settled[rows]
        own_known, own_context, own_excluded = (None if x is None else x[rows] for x in (known, context, excluded))
        first = (~done).long().argmax(-1, keepdim=True)
        last = first + scheduler.config.block_length - 1
        step = moving_window(first, last, length, own_known)
        kept, clean = read_before(model, kept, own[:, : step.written], own[:, step.written : step.seen])
        z = torch.where(done[..., None], model.forward_process.initial_marginal(model.embed(own), own_context).mean, 0)
        prediction = model.denoise(
            z,
            (~done).to(z.dtype),
            own_context,
            clean,
            windows=step.windows,
            known=own_known,
            window=step.tokens,
            second_call=False,
        )
        uniforms = wide_uniforms([generators[row] for row in rows.tolist()], length, device)
        in_window = ~done & (positions <= last)
        tokens, committed, log_probability = scheduler.step(
            prediction.without(own_excluded).logits, in_window[:, step.tokens], uniforms[:, step.tokens]
        )
        log_q[rows] += log_probability
        own[:, step.tokens] = torch.where(committed, tokens, own[:, step.tokens])
        done[:, step.tokens] |= committed
        # What is behind END is padding, once all before it is written.
        ended = ((own == end) & done).long().cumsum(-1) > 0
        behind = F.pad(ended[:, :-1], (1, 0)) & (done | ended).all(-1, keepdim=True)
        if own_known is not None:
            behind &= ~own_known
        text[rows], settled[rows] = own.masked_fill(behind, pad), done | behind
        calls[rows] += 1
        on_call(text, settled.sum(-1))
        going = (~settled[rows]).any(-1)
        if not going.all():
            rows, kept = rows[going], None if kept is None else kept.rows(going)
    return text, calls, log_q
