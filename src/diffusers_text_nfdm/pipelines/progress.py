"""Texts in the making: what a callback can tell of them, and how they are written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from ..schedulers import RefinementScheduler, TextDiffusionScheduler, TokenScheduler
from ..tokenization import special_ids
from .token_writing import begins


def settled_tokens(
    scheduler: TextDiffusionScheduler | TokenScheduler, tokens: Tensor, timestep: Tensor, known: Tensor
) -> Tensor:
    """Which tokens `(texts, max_length)` will stay, as far as one knows after a call.

    They are those that are known, and of a scheduler that writes tokens those that it has verified or committed.
    Latents may change all others until their end.

    Args:
        tokens, timestep: what `callback_on_step_end` gets.
        known: which tokens were given, `(texts, max_length)`.
    """
    if not isinstance(scheduler, TokenScheduler):
        return known
    known = known.clone()
    known[:, 0] = True
    if isinstance(scheduler, RefinementScheduler) or not begins(known).all():
        # What is not committed is padding.
        return known | (tokens != tokens[:, -1:])
    written = ((1 - timestep) * tokens.shape[1]).round().to(tokens.device)
    return known | (torch.arange(tokens.shape[1], device=tokens.device) < written[:, None])


def text_pieces(
    tokens: Sequence[int], tokenizer: PreTrainedTokenizerBase, condition_length: int = 0
) -> Iterator[tuple[int, str | None]]:
    """The tokens of a text up to END: the position of each and how it is written behind those before it, with its
    space; `None` for one that is to come.
    """
    start, end, pad = special_ids(tokenizer)
    first = condition_length + 1
    tokens = list(tokens)[first:]
    tokens = tokens[: tokens.index(end)] if end in tokens else tokens
    while tokens and tokens[-1] == pad:
        tokens.pop()
    before = start
    for position, token in enumerate(tokens, first):
        if token == pad:
            yield position, None
        else:
            yield position, _piece(tokenizer, before, token)
            before = token


@lru_cache(maxsize=100_000)
def _piece(tokenizer: PreTrainedTokenizerBase, before: int | None, token: int) -> str:
    """How a token is written behind another one."""
    if before is None:
        return tokenizer.decode([token])
    return tokenizer.decode([before, token])[len(tokenizer.decode([before])) :]
