"""Value and time derivative carried together through a network: forward-mode differentiation by hand.

A `Dual(value, rate)` is a tensor and its derivative with respect to t. `rate=None` means "constant in time"; every
operation below then does the work of the plain operation and no more, so one network serves both for `q(z_t | x)` alone
and for its time derivative. Written by hand, the derivative shares the attention probabilities and normalisations with
the value, compiles, and composes with autograd and checkpointing, which `torch.func.jvp` over attention does not.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Dual(NamedTuple):
    """A tensor and its derivative with respect to t (`None` when it does not depend on t)."""

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


def gelu(x: Dual) -> Dual:
    """`gelu'(x) = Φ(x) + x φ(x)`."""
    if x.rate is None:
        return Dual(F.gelu(x.value))
    cdf = 0.5 * (1 + torch.erf(x.value * math.sqrt(0.5)))
    density = torch.exp(-0.5 * x.value.square()) * (1 / math.sqrt(2 * math.pi))
    return Dual(x.value * cdf, x.rate * torch.addcmul(cdf, x.value, density))


def layer_norm(x: Dual, layer: nn.LayerNorm) -> Dual:
    """`y = (x - mean) / std`, `ẏ = (ẋ - mean(ẋ) - y mean(y ẋ)) / std`, then the layer's own scale and shift if it has them."""
    if x.rate is None:
        return Dual(layer(x.value))
    centred = x.value - x.value.mean(-1, keepdim=True)
    inverse_std = torch.rsqrt(centred.square().mean(-1, keepdim=True) + layer.eps)
    y = centred * inverse_std
    rate = (x.rate - x.rate.mean(-1, keepdim=True) - y * (y * x.rate).mean(-1, keepdim=True)) * inverse_std
    if layer.weight is not None:
        return Dual(torch.addcmul(layer.bias, y, layer.weight), rate * layer.weight)
    return Dual(y, rate)


def attention(q: Dual, k: Dual, v: Dual) -> Dual:
    """Softmax attention. `Ȯ = Ṗ V + P V̇` with `Ṗ = P (Ṡ - <P, Ṡ>)` and `S = q kᵀ / sqrt(d)`.

    Without rates this is PyTorch's fused attention.
    """
    if q.rate is None and k.rate is None and v.rate is None:
        return Dual(F.scaled_dot_product_attention(q.value, k.value, v.value))
    scale = q.value.shape[-1] ** -0.5
    scaled_q, scaled_rate = q.value * scale, q.rate * scale
    keys = k.value.transpose(-1, -2)
    probabilities = torch.softmax(scaled_q @ keys, dim=-1)
    scores_rate = scaled_rate @ keys + scaled_q @ k.rate.transpose(-1, -2)
    weighted = probabilities * scores_rate
    probabilities_rate = weighted - probabilities * weighted.sum(-1, keepdim=True)
    return Dual(probabilities @ v.value, probabilities_rate @ v.value + probabilities @ v.rate)
