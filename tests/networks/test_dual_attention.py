"""Attention of value and rate in chunks: the plain formula to rounding, in memory that is linear in the length."""

import math

import pytest
import torch
from tiny import make_model, relative_error, seeded

from diffusers_text_nfdm.networks import fused_dual
from diffusers_text_nfdm.networks.fused_dual import Attention


BATCH, HEADS, LENGTH, HEAD_DIM = 2, 3, 7, 4


@pytest.fixture(params=[(1, 1), (21, 3), (60, 2), (98, 7), (10_000, 7)], ids=str)
def _chunk(request, monkeypatch):
    """A query of a head at a time; with remainders of queries, of heads, of both; all at once."""
    elements, queries = request.param
    monkeypatch.setattr(fused_dual, "CHUNK_ELEMENTS", elements)
    monkeypatch.setattr(fused_dual, "CHUNK_QUERIES", queries)


def plain_attention(value, rate, num_heads):
    """`P V` and `Ṗ V + P V̇`, written down whole."""
    q, k, v = value.unflatten(-1, (3, num_heads, -1)).permute(2, 0, 3, 1, 4)
    q_rate, k_rate, v_rate = rate.unflatten(-1, (3, num_heads, -1)).permute(2, 0, 3, 1, 4)
    scale = 1 / math.sqrt(q.shape[-1])
    probabilities = torch.softmax(scale * q @ k.mT, dim=-1)
    scores_rate = scale * (q_rate @ k.mT + q @ k_rate.mT)
    probabilities_rate = probabilities * (scores_rate - (probabilities * scores_rate).sum(-1, keepdim=True))
    attended = probabilities @ v, probabilities_rate @ v + probabilities @ v_rate
    return [x.transpose(1, 2).flatten(2) for x in attended]


@pytest.mark.usefixtures("_chunk")
def test_value_rate_and_gradients_are_those_of_the_plain_formula():
    inputs = 2 * torch.randn(2, BATCH, LENGTH, 3 * HEADS * HEAD_DIM, dtype=torch.float64)
    weights = torch.randn(2, BATCH, LENGTH, HEADS * HEAD_DIM, dtype=torch.float64)
    results = []
    for function in (Attention.apply, plain_attention):
        leaves = [x.clone().requires_grad_() for x in inputs]
        outputs = function(*leaves, HEADS)
        torch.autograd.backward(outputs, list(weights))
        results.append([*outputs, *(x.grad for x in leaves)])
    assert max(relative_error(x, y) for x, y in zip(*results, strict=True)) < 1e-12


@pytest.mark.usefixtures("_chunk")
def test_every_query_of_every_head_is_in_one_chunk():
    seen = torch.zeros(BATCH * HEADS, LENGTH)
    for heads, queries in fused_dual._chunks(torch.empty(3, BATCH * HEADS, LENGTH, HEAD_DIM)):
        seen[heads, queries] += 1
    assert (seen == 1).all()


def saved_bytes(length: int) -> int:
    """What autograd keeps for the backward pass of a training step, every tensor once."""
    model = make_model("nfdm", torch.float32, max_length=length)
    sizes = {}

    def pack(x):
        sizes[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x  # Alive until the loss is gone, so no two have the same address.

    ids = torch.randint(model.config.vocab_size, (2, length))
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        loss = model(ids, draws=model.draw(2, seeded(0))).loss
    assert loss.requires_grad
    return sum(sizes.values())


def test_what_a_step_keeps_is_linear_in_the_length(monkeypatch):
    monkeypatch.setattr(fused_dual, "CHUNK_ELEMENTS", 2**10)
    short, long = saved_bytes(128), saved_bytes(512)
    assert 2 * short < long < 4 * short
