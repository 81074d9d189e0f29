"""Cross-entropy of a linear layer's logits that never holds all the logits."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


# Logits held at a time. On a CPU a chunk of them should stay in cache; an accelerator wants large matrix products.
CHUNK_ELEMENTS = {"cpu": 2**20}
ACCELERATOR_CHUNK_ELEMENTS = 2**26


def linear_cross_entropy(hidden: Tensor, weight: Tensor, bias: Tensor, input_ids: Tensor) -> tuple[Tensor, Tensor]:
    """`-log softmax(hidden weightᵀ + bias)[id]` for every position, and whether no logit is above that of the id.

    The positions are taken in chunks and the gradients are computed along with the loss, so that the logits are
    computed once and the memory does not grow with positions times vocabulary. Logits and losses are in the precision
    of the arguments, whatever autocast would choose; where it chooses bfloat16, the products for the gradients are in
    that.

    Args:
        hidden: `(..., dim)`.
        weight: `(vocab, dim)`.
        bias: `(vocab,)`.
        input_ids: `(...)`.
    """
    needs_gradients = torch.is_grad_enabled() and any(x.requires_grad for x in (hidden, weight, bias))
    kind = hidden.device.type
    rough = torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind) == torch.bfloat16
    with torch.autocast(kind, enabled=False):
        return _LinearCrossEntropy.apply(hidden, weight, bias, input_ids, needs_gradients, rough)


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx, hidden: Tensor, weight: Tensor, bias: Tensor, input_ids: Tensor, needs_gradients: bool, rough: bool
    ):
        losses, correct, gradients = _over_chunks(hidden, weight, bias, input_ids, None, needs_gradients, rough)
        ctx.rough = rough
        if needs_gradients:
            ctx.save_for_backward(hidden, weight, bias, input_ids, *gradients)
        ctx.mark_non_differentiable(correct)
        return losses, correct

    @staticmethod
    @once_differentiable
    def backward(ctx, losses_gradient: Tensor, _: Tensor):
        hidden, weight, bias, input_ids, *gradients = ctx.saved_tensors
        if not _is_constant(losses_gradient):
            # Positions are weighted differently: their share of the gradients of weight and bias was not known in the
            # forward pass.
            gradients = _over_chunks(hidden, weight, bias, input_ids, losses_gradient, True, ctx.rough)[2]
            return *gradients, None, None, None
        factor = losses_gradient.as_strided((), ())
        return *(gradient * factor for gradient in gradients), None, None, None


def _is_constant(x: Tensor) -> bool:
    """Whether all elements are the same: one number expanded, as the backward pass of a sum gives it, or equal
    values.
    """
    if not any(x.stride()):
        return True
    # Reading values would make an accelerator wait.
    return x.device.type == "cpu" and bool((x == x.as_strided((), ())).all())


def _over_chunks(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor,
    input_ids: Tensor,
    weights: Tensor | None,
    with_gradients: bool,
    rough: bool,
) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
    """Losses, correctness, and the gradients of `Σ_i weights_i loss_i` (weights of 1 if `None`) in hidden, weight and
    bias, with products in bfloat16 where they are `rough`.
    """
    rows, ids = hidden.reshape(-1, hidden.shape[-1]), input_ids.reshape(-1, 1)
    weights = None if weights is None else weights.reshape(-1, 1)
    losses, correct = rows.new_empty(len(rows)), torch.empty(len(rows), dtype=torch.bool, device=rows.device)
    gradients = ()
    if with_gradients:
        gradients = rows.new_empty(rows.shape), torch.zeros_like(weight), torch.zeros_like(bias)
    chunk = max(1, CHUNK_ELEMENTS.get(rows.device.type, ACCELERATOR_CHUNK_ELEMENTS) // len(weight))
    # One buffer for all chunks and, in turn, for logits, probabilities and gradients: it stays in cache.
    buffer = rows.new_empty(min(chunk, len(rows)), len(weight))
    rough_rows, rough_weight = (x.bfloat16() for x in (rows, weight)) if rough and with_gradients else (None, None)
    for start in range(0, len(rows), chunk):
        part = slice(start, start + chunk)
        logits = torch.addmm(bias, rows[part], weight.T, out=buffer[: len(rows) - start])
        target, largest = logits.gather(1, ids[part]), logits.amax(-1, keepdim=True)
        probabilities = torch.softmax(logits, -1, out=logits)
        # log Σ exp = the largest logit minus the log of its probability, which unlike others is never too small for a
        # float.
        normalizer = largest - probabilities.amax(-1, keepdim=True).log()
        losses[part] = (normalizer - target)[:, 0]
        correct[part] = (target >= largest)[:, 0]
        if not with_gradients:
            continue
        logits_gradient = probabilities.scatter_add_(1, ids[part], torch.full_like(target, -1))
        if weights is not None:
            logits_gradient.mul_(weights[part])
        gradients[2].add_(logits_gradient.sum(0))
        if rough:
            logits_gradient = logits_gradient.bfloat16()
            gradients[0][part] = logits_gradient @ rough_weight
            gradients[1].add_(logits_gradient.T @ rough_rows[part])
        else:
            torch.mm(logits_gradient, weight, out=gradients[0][part])
            gradients[1].addmm_(logits_gradient.T, rows[part])
    losses, correct = losses.view(input_ids.shape), correct.view(input_ids.shape)
    return losses, correct, (gradients[0].view(hidden.shape), *gradients[1:]) if with_gradients else ()
