"""Writing texts by jumps: drawing tokens by their noise, and verifying them."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from ..devices import widened
from ..models import Prediction, TextDiffusionModel
from ..models.token_choice import behind_end
from ..schedulers import JumpScheduler


def token_noise(latents: Tensor) -> Tensor:
    """The noise u in [0, 1] that decides each token, from latents at time 1: `Φ(z)` of their first coordinate."""
    return torch.special.ndtr(widened(latents[..., 0]))


def write_jumps(
    model: TextDiffusionModel,
    scheduler: JumpScheduler,
    noise: Tensor,
    num_calls: int | None = None,
    given: Tensor | None = None,
    num_given: Tensor | None = None,
    excluded: Tensor | None = None,
    on_call: Callable[[Tensor, Tensor], None] = lambda tokens, verified: None,
) -> tuple[Tensor, Tensor]:
    """Token ids `(batch, max_length)`, and how many calls of the predictor each text took.

    Args:
        noise: `(batch, max_length)`.
        num_calls: the most that a text may take; by default it takes as many as verify it.
        given: token ids `(batch, max_length)` of which the first `num_given`, `(batch,)`, are the beginnings of the
            texts.
        excluded: tokens that each text must not have, `(batch, vocab)`.
        on_call: gets the texts and the number of tokens that are verified, after every call.
    """
    config, device, (n, length) = model.config, noise.device, noise.shape
    # Texts are ahead of one another: room for what is read of one beyond its end.
    noise = F.pad(noise, (0, length))
    positions = torch.arange(2 * length, device=device)
    text = torch.full(noise.shape, config.pad_token_id, device=device)
    text[:, 0] = config.bos_token_id
    verified = torch.ones(n, dtype=torch.long, device=device)
    if given is not None:
        verified = num_given.clone()
        text[:, :length] = torch.where(positions[:length] < verified[:, None], given, text[:, :length])
    begun, front, read, calls = verified.clone(), verified.clone(), torch.zeros_like(verified), 0
    taken = torch.zeros_like(verified)
    # The texts that are not finished; the others take no part in a call.
    rows = (verified < length).nonzero()[:, 0]
    reader = model.text_reader(noise, len(rows))
    while len(rows) and calls != num_calls:
        calls += 1
        first, drawn = verified[rows], front[rows]
        # The next front, if all that was drawn before is verified.
        end = scheduler.front(calls, num_calls, begun[rows], drawn + 1, length)
        # What is read anew: from the last verified token, or in the first call from START.
        unread, ahead = first - read[rows], int((end - first).max())
        at = rows[:, None], read[rows, None] + positions[: int(unread.max()) + ahead - 1]
        states = reader.read(text[at], at[1] < drawn[:, None], at)
        after = (unread - 1)[:, None] + positions[:ahead]
        states = states.gather(1, after[..., None].expand(-1, -1, states.shape[-1]))
        own_excluded = None if excluded is None else excluded[rows]
        logits = Prediction(factors=model.next_token_factors(states), excluded=own_excluded).logits
        new = rows[:, None], first[:, None] + positions[:ahead]
        draft, inside = text[new], new[1] < end[:, None]
        tokens, accepted = scheduler.step(draft, new[1] < drawn[:, None], logits, noise[new], model.token_order)
        text[new] = torch.where(inside, tokens, draft)
        verified[rows] = (first + accepted + 1).clamp_max(length)
        front[rows] = scheduler.front(calls, num_calls, begun[rows], verified[rows], length)
        read[rows], taken[rows] = verified[rows] - 1, calls
        on_call(text[:, :length], verified)
        # What is verified behind END is padding.
        ended = behind_end(text[rows], config.eos_token_id).gather(1, verified[rows, None])[:, 0]
        going = ~ended & (verified[rows] < length)
        if not going.all():
            rows = rows[going]
            reader.keep(going)
    text = text[:, :length]
    return text.masked_fill(behind_end(text, config.eos_token_id), config.pad_token_id), taken
