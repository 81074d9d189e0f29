"""Value and rate carried together through a network: forward-mode differentiation by hand.

A `Dual(value, rate)` is a tensor and its derivative along a clock. The times of the tokens are such a pair: their
values, and how fast each of them moves. `rate=None` means "constant"; every operation below then does the work of the
plain operation and no more, so one network serves both for `q(z_t | x)` alone and for its derivative. Written by hand,
the derivative shares the attention probabilities and normalisations with the value, compiles, and composes with
autograd and checkpointing, which `torch.func.jvp` over attention does not. The operations that cost most are in
`fused_dual.py`, with their backward passes.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from . import fused_dual


class Dual(NamedTuple):
    """A tensor and its derivative along a clock (`None` when it is constant)."""

    value: Tensor
    rate: Tensor | None = None

    def map_linear(self, function) -> Dual:
        """Apply a function that is linear in its argument (a reshape, a slice, a product with a constant)."""
        return Dual(function(self.value), None if self.rate is None else function(self.rate))


def add(a: Dual, b: Dual) -> Dual:
    """`(a + b)˙ = ȧ + ḃ`."""
    value = a.value + b.value
    if a.rate is None and b.rate is None:
        return Dual(value)
    if a.rate is None:
        return Dual(value, b.rate.expand(value.shape))
    return Dual(value, a.rate.expand(value.shape) if b.rate is None else a.rate + b.rate)


def add_product(c: Dual, a: Dual, b: Dual) -> Dual:
    """`(c + a b)˙ = ċ + ȧ b + a ḃ`, in one pass for the value and at most two for the rate."""
    value = torch.addcmul(c.value, a.value, b.value)
    rate = c.rate
    for x, y in ((a.value, b.rate), (a.rate, b.value)):
        if x is not None and y is not None:
            rate = x * y if rate is None else torch.addcmul(rate, x, y)
    return Dual(value, None if rate is None else rate.expand(value.shape))


def linear(x: Dual, layer: nn.Linear) -> Dual:
    """`(W x + b)˙ = W ẋ`."""
    return Dual(layer(x.value), None if x.rate is None else F.linear(x.rate, layer.weight))


def silu(x: Dual) -> Dual:
    """`silu'(x) = s (1 + x (1 - s))` with `s = sigmoid(x)`."""
    if x.rate is None:
        return Dual(F.silu(x.value))
    s = torch.sigmoid(x.value)
    return Dual(x.value * s, x.rate * s * (1 + x.value * (1 - s)))


def _apply(function: type[torch.autograd.Function], x: Dual, *arguments) -> Dual:
    # One precision inside: what autocast chooses for an operation in the forward pass, it does not in the backward
    # pass.
    with torch.autocast(x.value.device.type, enabled=False):
        return Dual(*function.apply(x.value, x.rate.to(x.value.dtype), *arguments))


def gelu(x: Dual) -> Dual:
    """`gelu'(x) = Φ(x) + x φ(x)`."""
    if x.rate is None:
        return Dual(F.gelu(x.value))
    return _apply(fused_dual.Gelu, x)


def layer_norm(x: Dual, layer: nn.LayerNorm) -> Dual:
    """`y = (x - mean) / std`, `ẏ = (ẋ - mean(ẋ) - y mean(y ẋ)) / std`, then the layer's own scale and shift if it has
    them.
    """
    if x.rate is None:
        return Dual(layer(x.value))
    y, rate = _apply(fused_dual.LayerNorm, x, layer.eps)
    if layer.weight is not None:
        return Dual(torch.addcmul(layer.bias, y, layer.weight), rate * layer.weight)
    return Dual(y, rate)


def attention(query_key_value: Dual, num_heads: int) -> Dual:
    """Softmax attention over `(..., seq, 3 * hidden)`, the queries, keys and values of all heads side by side, to
    `(..., seq, hidden)`.

    `Ȯ = Ṗ V + P V̇` with `Ṗ = P (Ṡ - <P, Ṡ>)` and `S = q kᵀ / sqrt(d)`. Without a rate this is PyTorch's fused
    attention.
    """
    if query_key_value.rate is not None:
        return _attention_with_rate(query_key_value, num_heads)
    q, k, v = query_key_value.value.unflatten(-1, (3, num_heads, -1)).movedim(-3, 0).transpose(-2, -3)
    return Dual(F.scaled_dot_product_attention(q, k, v).transpose(-2, -3).flatten(-2))


# A compiler would write its loop over chunks out, chunk by chunk.
@torch.compiler.disable
def _attention_with_rate(query_key_value: Dual, num_heads: int) -> Dual:
    return _apply(fused_dual.Attention, query_key_value, num_heads)
