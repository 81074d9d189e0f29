"""From logits to token ids: the most probable ones, or draws with temperature, top-k, top-p and min-p."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def draw_tokens(
    logits: Tensor,
    uniforms: Tensor,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float = 0.0,
) -> Tensor:
    """One token per position, `(...)`, from logits `(..., vocab)` and uniform random numbers `(...)`, by the cumulative distribution.

    It is drawn from `softmax(logits / temperature)`, restricted to the `top_k` most probable tokens, to the smallest set of them with
    probability `top_p`, and to those with at least `min_p` times the probability of the most probable one. `temperature=0`
    takes the most probable token.
    """
    if temperature == 0:
        return logits.argmax(-1)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    order = None
    if top_k is not None or top_p is not None:
        logits, order = logits.sort(-1, descending=True)
    # With the largest at zero a small temperature cannot overflow.
    logits = (logits - logits.amax(-1, keepdim=True)) / temperature
    if min_p:
        logits = logits.masked_fill(logits < math.log(min_p), -torch.inf)
    if top_k is not None:
        logits[..., top_k:] = -torch.inf
    probabilities = torch.softmax(logits, -1)
    if top_p is not None:
        # A token stays while the more probable ones before it have not reached `top_p`: at least one always does.
        before = probabilities.cumsum(-1) - probabilities
        probabilities = probabilities.masked_fill(before >= top_p, 0)
    cumulative = probabilities.cumsum(-1)
    # Below the total, so that rounding cannot reach beyond the last token of probability above zero.
    total = cumulative[..., -1:]
    drawn = (uniforms[..., None].to(total) * total).minimum(torch.nextafter(total, torch.zeros_like(total)))
    chosen = torch.searchsorted(cumulative, drawn, right=True)
    return (chosen if order is None else order.gather(-1, chosen))[..., 0]


def select_tokens(
    logits: Tensor,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float = 0.0,
    generators: list[torch.Generator] | torch.Generator | None = None,
) -> Tensor:
    """`draw_tokens` for logits `(batch, seq, vocab)`, with the generator of each text."""
    if temperature == 0:
        return logits.argmax(-1)
    shape = logits.shape[:-1]
    if isinstance(generators, list):
        uniforms = torch.stack([torch.rand(shape[1:], generator=g, device=g.device) for g in generators])
    else:
        device = logits.device if generators is None else generators.device
        uniforms = torch.rand(shape, generator=generators, device=device)
    return draw_tokens(logits, uniforms.to(logits.device), temperature, top_k, top_p, min_p)
