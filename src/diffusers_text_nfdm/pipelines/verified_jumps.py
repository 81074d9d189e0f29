"""Writing texts by jumps that the clean stream verifies."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from ..models import Prediction, TextDiffusionModel
from ..schedulers import DraftVerifyScheduler


def write_verified_jumps(
    model: TextDiffusionModel,
    scheduler: DraftVerifyScheduler,
    noise: Tensor,
    max_calls: int | None = None,
    given: Tensor | None = None,
    num_given: Tensor | None = None,
    on_call: Callable[[Tensor, Tensor], None] = lambda tokens, written: None,
) -> tuple[Tensor, Tensor]:
    """Token ids `(batch, max_length)`, and how many calls of the predictor each text took.

    Args:
        noise: `(batch, max_length)`.
        max_calls: a text that is not finished by then is cut off.
        given: token ids `(batch, max_length)` of which the first `num_given`, `(batch,)`, are the beginnings of the
            texts.
        on_call: gets the texts with their drafts and the number of tokens that are written, after every call.
    """
    config, device, (n, length) = model.config, noise.device, noise.shape
    size = scheduler.config.block_size
    # Room for what is drawn beyond the end.
    noise = F.pad(noise, (0, 2 * size))
    positions = torch.arange(noise.shape[1], device=device)
    text = torch.full(noise.shape, config.pad_token_id, device=device)
    text[:, 0] = config.bos_token_id
    written = torch.ones(n, dtype=torch.long, device=device)
    if given is not None:
        written = num_given.clone()
        text[:, :length] = torch.where(positions[:length] < written[:, None], given, text[:, :length])
    # The texts that are not finished; the others take no part in a call.
    rows = (written < length).nonzero()[:, 0]
    reader = model.text_reader(noise, len(rows))
    calls, drafted, read = torch.zeros_like(written), 0, torch.zeros_like(written)
    while len(rows) and (max_calls is None or int(calls.max()) < max_calls):
        begun = written[rows]
        # The last token that is written, the draft, and the noise of `size - 1` tokens; the first call has no draft
        # yet, but a beginning.
        ahead = min(drafted + size, length - int(begun.min()))
        drafted = min(drafted, ahead - 1)
        unread = begun - read[rows]
        at = rows[:, None], read[rows, None] + positions[: int(unread.max()) + ahead - 1]
        clean = at[1] < (begun + drafted)[:, None]
        states = reader.read(text[at], clean, at)
        after = (unread - 1)[:, None] + positions[:ahead]
        states = states.gather(1, after[..., None].expand(-1, -1, states.shape[-1]))
        logits = Prediction(factors=model.next_token_factors(states)).logits
        new = rows[:, None], begun[:, None] + positions[:ahead]
        draft = text[new][:, :drafted]
        accepted, text[new] = scheduler.step_by_noise(draft, logits, noise[new], model.token_order)
        written[rows] = begun + accepted + 1
        read[rows], drafted = written[rows] - 1, size - 1
        calls[rows] += 1
        on_call(text[:, :length], written.clamp_max(length))
        ends = (text[rows] == config.eos_token_id) & (positions < written[rows, None])
        ended = ends.any(-1)
        going = ~ended & (written[rows] < length)
        if not going.all():
            written[rows] = torch.where(ended, ends.long().argmax(-1) + 1, written[rows])
            done = rows[~going]
            text[done] = text[done].masked_fill(positions >= written[done, None], config.pad_token_id)
            rows = rows[going]
            reader.keep(going)
    return text.masked_fill(positions >= written[:, None], config.pad_token_id)[:, :length], calls
