"""The costly operations on a value and its rate, each with its backward pass written out.

The derivative of gelu, of a normalisation and of a softmax is a *symmetric* matrix J(x). So the rate `J ẋ` is what
PyTorch's fused backward kernels compute, and they serve here in both directions. The backward pass of `y = f(x)`,
`ẏ = J(x) ẋ` for gradients `a` of y and `b` of ẏ is

    gradient of ẋ:  J b
    gradient of x:  J a + ∂/∂x (bᵀ J(x) ẋ)

and only the last term needs more than those kernels.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable


aten = torch.ops.aten
# Attention scores held at a time, as in `linear_cross_entropy.py`: on a CPU the few tensors of this size should stay
# in cache, and a product should have as many queries as is worth a call.
CHUNK_ELEMENTS = 2**17
CHUNK_QUERIES = 128
ACCELERATOR_CHUNK_ELEMENTS = 2**26


class Gelu(torch.autograd.Function):
    """`gelu(x)` and `(Φ + x φ) ẋ`. Its second derivative is `φ (2 - x²)`."""

    @staticmethod
    def forward(ctx, x: Tensor, rate: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(x, rate)
        return F.gelu(x), aten.gelu_backward(rate, x)

    @staticmethod
    @once_differentiable
    def backward(ctx, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        x, rate = ctx.saved_tensors
        square = x * x
        curvature = torch.exp(square * -0.5).mul_(1 / math.sqrt(2 * math.pi)).mul_(square.neg_().add_(2))
        x_gradient = curvature.mul_(rate).mul_(b).add_(aten.gelu_backward(a, x))
        return x_gradient, aten.gelu_backward(b, x)


class LayerNorm(torch.autograd.Function):
    """`y = (x - mean) / std` and `J ẋ = (ẋ - mean(ẋ) - y mean(y ẋ)) / std`, over the last axis of n elements.

    `∂/∂x (bᵀ J ẋ) = -J (y·ẋ b + y·b ẋ) / (n std) - (b·J ẋ) y / (n std)`.
    """

    @staticmethod
    def forward(ctx, x: Tensor, rate: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        x, rate = x.contiguous(), rate.contiguous()
        y, mean, inverse_std = torch.native_layer_norm(x, x.shape[-1:], None, None, eps)
        y_rate = _layer_norm_jacobian(rate, x, mean, inverse_std)
        ctx.save_for_backward(x, rate, mean, inverse_std, y, y_rate)
        return y, y_rate

    @staticmethod
    @once_differentiable
    def backward(ctx, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, None]:
        x, rate, mean, inverse_std, y, y_rate = ctx.saved_tensors
        share = (inverse_std / x.shape[-1]).to(x.dtype)
        inner = torch.addcmul(a, b, _dot(y, rate) * -share).addcmul_(rate, _dot(y, b) * -share)
        x_gradient = _layer_norm_jacobian(inner, x, mean, inverse_std)
        x_gradient.addcmul_(y, _dot(b, y_rate) * -share)
        return x_gradient, _layer_norm_jacobian(b.contiguous(), x, mean, inverse_std), None


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return torch.linalg.vecdot(a, b).unsqueeze(-1)


def _layer_norm_jacobian(vector: Tensor, x: Tensor, mean: Tensor, inverse_std: Tensor) -> Tensor:
    mask = [True, False, False]
    return aten.native_layer_norm_backward(vector, x, x.shape[-1:], mean, inverse_std, None, None, mask)[0]


class Attention(torch.autograd.Function):
    """`O = P V` and `Ȯ = Ṗ V + P V̇`, `P = softmax(S)`, `Ṗ = J Ṡ = P C` with `C = Ṡ - <P, Ṡ>`, `S = q kᵀ / sqrt(d)`.

    With `G` and `Ġ` the gradients of P and Ṗ by the products above, those of the scores are

        gradient of Ṡ:  J Ġ
        gradient of S:  J (G + (Ġ - <P, Ġ>) C)

    P, Ṗ and C are computed for some heads and queries at a time, and anew in the backward pass. So memory is linear in
    the length, and what is held at a time stays in cache, which saves more time than the products cost. They are kept
    only where all of them are a single chunk of `CHUNK_ELEMENTS`.
    """

    @staticmethod
    def forward(ctx, value: Tensor, rate: Tensor, num_heads: int) -> tuple[Tensor, Tensor]:
        heads, heads_rate = _split_heads(value, num_heads), _split_heads(rate, num_heads)
        scale = heads.shape[-1] ** -0.5
        heads[0].mul_(scale)
        heads_rate[0].mul_(scale)
        output, output_rate = torch.empty_like(heads[0]), torch.empty_like(heads[0])
        for part, queries in _chunks(heads):
            (_, _, v), (_, _, v_rate) = some, some_rate = heads[:, part], heads_rate[:, part]
            probabilities, probabilities_rate, centred = _probabilities(some, some_rate, queries)
            torch.bmm(probabilities, v, out=output[part, queries])
            torch.bmm(probabilities_rate, v, out=output_rate[part, queries]).baddbmm_(probabilities, v_rate)
        keep = len(heads[0]) * value.shape[-2] ** 2 <= CHUNK_ELEMENTS
        ctx.save_for_backward(heads, heads_rate, *((probabilities, probabilities_rate, centred) if keep else ()))
        ctx.num_heads = num_heads
        return tuple(_merge_heads(x[None], value.shape[:-1], num_heads) for x in (output, output_rate))

    @staticmethod
    @once_differentiable
    def backward(ctx, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, None]:
        heads, heads_rate, *kept = ctx.saved_tensors
        shape, num_heads = a.shape[:-1], ctx.num_heads
        (a,), (b,) = _split_heads(a, num_heads, 1), _split_heads(b, num_heads, 1)
        gradient, gradient_rate = torch.empty_like(heads), torch.empty_like(heads_rate)
        for part, queries in _chunks(heads):
            some, some_rate = heads[:, part], heads_rate[:, part]
            probabilities = kept or _probabilities(some, some_rate, queries)
            gradients = gradient[:, part], gradient_rate[:, part]
            _add_attention_gradients(
                gradients, some, some_rate, queries, probabilities, a[part, queries], b[part, queries]
            )
        return _merge_heads(gradient, shape, num_heads), _merge_heads(gradient_rate, shape, num_heads), None


def _chunks(heads: Tensor) -> Iterator[tuple[slice, slice]]:
    """Which heads and which of their queries are taken together; queries of the same heads in their order."""
    _, count, length, _ = heads.shape
    elements = CHUNK_ELEMENTS if heads.device.type == "cpu" else ACCELERATOR_CHUNK_ELEMENTS
    queries = min(length, max(CHUNK_QUERIES, elements // (count * length)))
    together = max(1, elements // (queries * length))
    for head in range(0, count, together):
        for query in range(0, length, queries):
            yield slice(head, head + together), slice(query, query + queries)


def _probabilities(heads: Tensor, heads_rate: Tensor, queries: slice) -> tuple[Tensor, Tensor, Tensor]:
    """P, Ṗ and C of some queries, `(heads, queries, keys)` each."""
    (q, k, _), (q_rate, k_rate, _) = heads, heads_rate
    q, q_rate = q[:, queries], q_rate[:, queries]
    probabilities = torch.softmax(torch.bmm(q, k.mT), dim=-1)
    centred = torch.bmm(q_rate, k.mT).baddbmm_(q, k_rate.mT)
    centred.sub_(_dot(probabilities, centred))
    return probabilities, probabilities * centred, centred


def _add_attention_gradients(
    gradients: tuple[Tensor, Tensor],
    heads: Tensor,
    heads_rate: Tensor,
    queries: slice,
    probabilities: tuple[Tensor, Tensor, Tensor],
    a: Tensor,
    b: Tensor,
) -> None:
    """Write the gradients of some queries, and add those of keys and values to what earlier queries gave."""
    (q, k, v), (q_rate, k_rate, v_rate) = heads, heads_rate
    q, q_rate = q[:, queries], q_rate[:, queries]
    gradient, gradient_rate = gradients
    probabilities, probabilities_rate, centred = probabilities
    earlier = 1 if queries.start else 0  # With 0, what stands in new memory is not read.

    gradient[2].baddbmm_(probabilities.mT, a, beta=earlier).baddbmm_(probabilities_rate.mT, b)
    gradient_rate[2].baddbmm_(probabilities.mT, b, beta=earlier)
    of_rate = torch.bmm(b, v.mT)
    of_value = torch.bmm(a, v.mT).baddbmm_(b, v_rate.mT)
    of_scores_rate = _softmax_jacobian(of_rate, probabilities)
    of_rate.sub_(_dot(probabilities, of_rate))
    of_scores = _softmax_jacobian(of_value.addcmul_(of_rate, centred), probabilities)

    scale = q.shape[-1] ** -0.5  # q and its rate are scaled already.
    torch.bmm(of_scores, k, out=gradient[0, :, queries]).baddbmm_(of_scores_rate, k_rate).mul_(scale)
    torch.bmm(of_scores_rate, k, out=gradient_rate[0, :, queries]).mul_(scale)
    gradient[1].baddbmm_(of_scores.mT, q, beta=earlier).baddbmm_(of_scores_rate.mT, q_rate)
    gradient_rate[1].baddbmm_(of_scores_rate.mT, q, beta=earlier)


def _softmax_jacobian(vector: Tensor, probabilities: Tensor) -> Tensor:
    return aten._softmax_backward_data(vector, probabilities, -1, vector.dtype)


def _split_heads(x: Tensor, num_heads: int, parts: int = 3) -> Tensor:
    """`(..., seq, parts * hidden)` to `(parts, ... * heads, seq, head_dim)`, a copy."""
    length = x.shape[-2]
    x = x.reshape(-1, length, parts, num_heads, x.shape[-1] // (parts * num_heads)).permute(2, 0, 3, 1, 4)
    return x.clone(memory_format=torch.contiguous_format).view(parts, -1, length, x.shape[-1])


def _merge_heads(x: Tensor, shape: torch.Size, num_heads: int) -> Tensor:
    """The inverse of `_split_heads`; `shape` is that of the result without its last axis."""
    parts, _, length, head_dim = x.shape
    x = x.view(parts, -1, num_heads, length, head_dim).permute(1, 3, 0, 2, 4)
    return x.reshape(*shape, parts * num_heads * head_dim)
