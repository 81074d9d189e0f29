"""From logits to token ids: the most probable ones, or draws with temperature, top-k, top-p and min-p."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def select_tokens(
    logits: Tensor,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float = 0.0,
    generators: list[torch.Generator] | None = None,
) -> Tensor:
    """Token ids `(batch, seq)`. `temperature=0` is the argmax; otherwise one draw per position from `softmax(logits / temperature)`
    restricted to the `top_k` most probable tokens, to the smallest set of them with probability `top_p`, and to those with at least
    `min_p` times the probability of the most probable one."""
    if temperature == 0:
        return logits.argmax(-1)
    logits = logits.float()
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
    uniforms = torch.stack([torch.rand(logits.shape[1], generator=g, device=g.device) for g in generators]).to(
        logits.device
    )
    cumulative = probabilities.cumsum(-1)
    # Below the total, so that rounding cannot reach beyond the last token of probability above zero.
    total = cumulative[..., -1:]
    drawn = (uniforms[..., None] * total).minimum(torch.nextafter(total, torch.zeros_like(total)))
    chosen = torch.searchsorted(cumulative, drawn, right=True)
    return (chosen if order is None else order.gather(-1, chosen))[..., 0]
