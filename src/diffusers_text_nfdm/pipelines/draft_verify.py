"""Writing texts by independent drafts of the noisy stream that the clean stream verifies."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..devices import wide_uniforms
from ..models import Prediction, TextDiffusionModel
from ..models.token_choice import behind_end, draw_from
from ..networks.two_stream_predictor import Places
from ..schedulers import DraftVerifyScheduler


def write_verified(
    model: TextDiffusionModel,
    scheduler: DraftVerifyScheduler,
    generators: list[torch.Generator],
    context: Tensor | None,
    max_calls: int | None = None,
    given: Tensor | None = None,
    num_given: Tensor | None = None,
    excluded: Tensor | None = None,
    on_call: Callable[[Tensor, Tensor], None] = lambda tokens, written: None,
) -> tuple[Tensor, Tensor]:
    """Token ids `(batch, max_length)`, and how many calls of the predictor each text took.

    Args:
        generators: one per text; a text does not depend on the others.
        max_calls: a text that is not finished by then is cut off.
        given: token ids `(batch, max_length)` of which the first `num_given`, `(batch,)`, are the beginnings of the
            texts.
        excluded: tokens that each text must not have, `(batch, vocab)`.
        on_call: gets the texts with their drafts and the number of tokens that are written, after every call.
    """
    config, n, device = model.config, len(generators), model.device
    length, size = config.max_length, scheduler.config.block_size
    rows, offsets = torch.arange(n, device=device), torch.arange(size, device=device)
    # Room for drafts that reach beyond the end.
    text = torch.full((n, length + 2 * size), config.pad_token_id, device=device)
    text[:, 0] = config.bos_token_id
    written = torch.ones(n, dtype=torch.long, device=device)
    if given is not None:
        text[:, :length], written = given, num_given
        text = text.masked_fill(torch.arange(text.shape[1], device=device) >= written[:, None], config.pad_token_id)
    calls = torch.zeros(n, dtype=torch.long, device=device)
    q, finished, kept, kept_tokens = None, written >= length, None, 0
    while not finished.all() and (max_calls is None or int(calls.max()) < max_calls):
        calls = calls + ~finished
        # The clean stream reads the drafts, and keeps what is written in all texts; the noisy one has a block for
        # every place where a draft may end.
        going = written[~finished]
        lowest, highest = int(going.min()) - 1, min(length, int(going.max()) + size - 1)
        if lowest > kept_tokens:
            _, kept = model.read_clean(text[:, kept_tokens:lowest], kept)
            kept_tokens = lowest
        states, clean = model.read_clean(text[:, lowest:highest], kept)
        after = (written[:, None] - 1 + offsets).clamp(lowest, highest - 1) - lowest
        starts = (written[:, None] + offsets)[..., None].expand(-1, -1, size)
        places = Places((starts + offsets).flatten(1).clamp_max(length), starts.flatten(1))
        factors = model.next_token_factors(states[rows[:, None], after])
        logits = Prediction(factors=factors, excluded=excluded).logits
        draft = text[rows[:, None], written[:, None] + offsets[:-1]]
        verified_by, drafted_by = wide_uniforms(generators, 2 * size, device).split([size, size], dim=1)
        p = scheduler.probabilities(logits)
        if q is None:
            accepted, token = torch.zeros_like(written), draw_from(p[:, 0], verified_by[:, 0])
        else:
            accepted, token = scheduler.step(draft, q, p, verified_by)
        unseen = model.predict_unseen(clean, places, context).without(excluded)
        # The first token of the next block is the one just drawn.
        if model.config.token_link and unseen.states is not None:
            states = unseen.states.unflatten(1, (size, size))[rows, accepted, 1:]
            q, draft = _draft_linked(model, scheduler, states, token, drafted_by, excluded)
        else:
            q = scheduler.probabilities(unseen.logits.unflatten(1, (size, size))[rows, accepted, 1:])
            draft = draw_from(q, drafted_by[:, :-1])
        text[rows, written + accepted] = torch.where(finished, text[rows, written + accepted], token)
        written = torch.where(finished, written, written + accepted + 1)
        draft_at = rows[:, None], written[:, None] + offsets[:-1]
        text[draft_at] = torch.where(finished[:, None], text[draft_at], draft)
        beyond = torch.arange(text.shape[1], device=device) >= written[:, None]
        ended = (text == config.eos_token_id) & ~beyond
        finished = finished | ended.any(1) | (written >= length)
        on_call(text[:, :length], written.clamp_max(length))
        # Finished texts have no draft behind them, so that their places stay inside the text.
        text = torch.where(finished[:, None] & beyond, config.pad_token_id, text)
        written = torch.where(finished, written.clamp_max(length), written)
    beyond = torch.arange(text.shape[1], device=device) >= written[:, None]
    text = text.masked_fill(beyond, config.pad_token_id)[:, :length]
    return text.masked_fill(behind_end(text, config.eos_token_id), config.pad_token_id), calls


def _draft_linked(
    model: TextDiffusionModel,
    scheduler: DraftVerifyScheduler,
    states: Tensor,
    token: Tensor,
    uniforms: Tensor,
    excluded: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Tokens behind `token`, each drawn given the one before it, and the distributions that they are drawn from."""
    # Of texts that are finished it may be none.
    q, draft = [], [token.clamp_max(model.config.vocab_size - 1)]
    for place in range(states.shape[1]):
        factors = model.linked_factors(states[:, place : place + 1], draft[-1][:, None])
        q.append(scheduler.probabilities(Prediction(factors=factors, excluded=excluded).logits)[:, 0])
        draft.append(draw_from(q[-1], uniforms[:, place]))
    return torch.stack(q, dim=1), torch.stack(draft[1:], dim=1)
