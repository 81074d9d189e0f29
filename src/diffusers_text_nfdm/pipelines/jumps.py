"""Writing texts by jumps over windows of tokens."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..models import TextDiffusionModel
from ..networks.two_stream_predictor import Places
from ..schedulers import JumpScheduler


def token_noise(latents: Tensor) -> Tensor:
    """The noise u in [0, 1] that decides each token, from latents at time 1: `Φ(z)` of their first coordinate."""
    return torch.special.ndtr(latents[..., 0].double())


def write_jumps(
    model: TextDiffusionModel,
    scheduler: JumpScheduler,
    noise: Tensor,
    length: int,
    given: Tensor | None = None,
    num_given: Tensor | None = None,
    on_call: Callable[[Tensor, Tensor], None] = lambda tokens, written: None,
) -> tuple[Tensor, Tensor]:
    """Token ids `(batch, max_length)`, and how many calls of the predictor each text took.

    Args:
        noise: `(batch, max_length)`.
        length: tokens of a window.
        given: token ids `(batch, max_length)` of which the first `num_given`, `(batch,)`, are the beginnings of the
            texts.
        on_call: gets the texts and the number of tokens that are written, after every call.
    """
    config, device, (n, end) = model.config, noise.device, noise.shape
    positions = torch.arange(end, device=device)
    text = torch.full((n, end), config.pad_token_id, device=device)
    text[:, 0] = config.bos_token_id
    written = torch.ones(n, dtype=torch.long, device=device)
    if given is not None:
        written = num_given.clone()
        text = torch.where(positions < written[:, None], given, text)
    calls, clean, kept = torch.zeros_like(written), None, 0
    # The texts that are not finished; the others take no part in a call.
    rows = (written < end).nonzero()[:, 0]
    while len(rows):
        begun, lowest = written[rows], int(written[rows].min())
        if kept < lowest:
            _, clean = model.read_clean(text[rows, kept:lowest], clean)
            kept = lowest
        # Texts with other beginnings are ahead of one another; what not all have is read anew.
        seen, highest = clean, int(begun.max())
        if highest > lowest:
            _, seen = model.read_clean(text[rows, lowest:highest], clean)
        window = begun[:, None] + torch.arange(length, device=device)
        places = Places(window.clamp_max(end), begun[:, None].expand(window.shape))
        own_noise = noise[rows[:, None], window.clamp_max(end - 1)]
        guess, last = None, scheduler.config.calls_per_jump - 1
        for call in range(last + 1):
            logits = model.jump(own_noise, seen, places, guess).logits
            guess = scheduler.step(logits, own_noise, model.token_order)
            calls[rows] += 1
            inside = window < end
            at = rows[:, None].expand(window.shape)[inside], window[inside]
            text[at] = guess[inside]
            if call == last:
                written[rows] = (begun + length).clamp_max(end)
            on_call(text, written)
        ended = ((text[rows] == config.eos_token_id) & (positions < written[rows, None])).any(-1)
        going = ~ended & (written[rows] < end)
        rows, clean = rows[going], clean.rows(going)
    after_end = (text == config.eos_token_id).cumsum(1) - (text == config.eos_token_id).long() > 0
    return text.masked_fill(after_end, config.pad_token_id), calls
