"""Cross-entropy without the logits: the same as with them, in value, gradients and accuracy, in less memory."""

import pytest
import torch
import torch.nn.functional as F
from tiny import relative_error

from diffusers_text_nfdm.networks import linear_cross_entropy as module
from diffusers_text_nfdm.networks.linear_cross_entropy import linear_cross_entropy


BATCH, LENGTH, DIM, VOCAB = 3, 7, 5, 13


@pytest.fixture(params=[1, 4, 100])
def _rows_per_chunk(request, monkeypatch):
    """21 positions: one at a time, with a remainder, and all at once."""
    monkeypatch.setattr(module, "CHUNK_ELEMENTS", {"cpu": request.param * VOCAB})


def make_inputs(dtype=torch.float64):
    hidden = torch.randn(BATCH, LENGTH, DIM, dtype=dtype, requires_grad=True)
    weight = torch.randn(VOCAB, DIM, dtype=dtype, requires_grad=True)
    bias = torch.randn(VOCAB, dtype=dtype, requires_grad=True)
    return (hidden, weight, bias), torch.randint(VOCAB, (BATCH, LENGTH))


def with_logits(hidden, weight, bias, ids):
    logits = hidden @ weight.T + bias
    return F.cross_entropy(logits.flatten(0, 1), ids.flatten(), reduction="none").view(ids.shape), logits


@pytest.mark.usefixtures("_rows_per_chunk")
@pytest.mark.parametrize("reduce", ["mean", "sum over positions", "weighted"])
def test_losses_accuracy_and_gradients_are_those_with_the_logits(reduce):
    inputs, ids = make_inputs()
    weights = torch.randn(BATCH, LENGTH, dtype=torch.float64)

    def scalar(losses):
        if reduce == "mean":
            return losses.mean()
        return (losses.sum(-1) * weights[:, 0]).sum() if reduce == "sum over positions" else (losses * weights).sum()

    losses, correct = linear_cross_entropy(*inputs, ids)
    expected, logits = with_logits(*inputs, ids)
    torch.testing.assert_close(losses, expected, rtol=1e-12, atol=1e-12)
    assert torch.equal(correct, logits.argmax(-1) == ids) and correct.any() and not correct.all()
    for actual, reference in zip(
        torch.autograd.grad(scalar(losses), inputs), torch.autograd.grad(scalar(expected), inputs)
    ):
        assert relative_error(actual, reference) < 1e-12


@pytest.mark.usefixtures("_rows_per_chunk")
def test_gradients_equal_finite_differences():
    inputs, ids = make_inputs()
    assert torch.autograd.gradcheck(lambda *x: linear_cross_entropy(*x, ids)[0], inputs)
    assert torch.autograd.gradcheck(lambda *x: linear_cross_entropy(*x, ids)[0].mean(), inputs)


def test_a_token_of_vanishing_probability_costs_its_logit_and_not_infinity():
    weight = torch.tensor([[0.0], [1.0]])
    losses, correct = linear_cross_entropy(torch.tensor([[300.0]]), weight, torch.zeros(2), torch.tensor([0]))
    assert losses.item() == 300 and not correct


def test_without_gradients_none_are_computed(monkeypatch):
    inputs, ids = make_inputs()
    monkeypatch.setattr(torch, "mm", None)
    with torch.no_grad():
        losses, _ = linear_cross_entropy(*inputs, ids)
    assert not losses.requires_grad
    assert not linear_cross_entropy(*(x.detach() for x in inputs), ids)[0].requires_grad


@pytest.mark.usefixtures("_rows_per_chunk")
@pytest.mark.parametrize("reduce", ["mean", "weighted"])
def test_under_autocast_losses_are_exact_and_only_bfloat16_rounds_gradients(reduce):
    inputs, ids = make_inputs(torch.float32)
    weights = torch.rand(BATCH, LENGTH)

    def run():
        losses, _ = linear_cross_entropy(*inputs, ids)
        return losses, torch.autograd.grad(losses.mean() if reduce == "mean" else (losses * weights).sum(), inputs)

    losses, gradients = run()
    for dtype, limit in ((torch.bfloat16, 1e-2), (torch.float16, 0)):
        with torch.autocast("cpu", dtype):
            rough_losses, rough_gradients = run()
        assert torch.equal(rough_losses, losses)
        # That of the bias is a sum, no product.
        assert torch.equal(rough_gradients[2], gradients[2])
        for rough, exact in zip(rough_gradients[:2], gradients[:2]):
            assert relative_error(rough, exact) <= limit
            assert torch.equal(rough, exact) == (limit == 0)


class LargestTensor(torch.utils._python_dispatch.TorchDispatchMode):
    """Number of elements of the largest tensor made meanwhile."""

    elements = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, (tuple, list)) else [out]:
            if isinstance(tensor, torch.Tensor):
                self.elements = max(self.elements, tensor.untyped_storage().nbytes() // tensor.element_size())
        return out


@pytest.mark.parametrize("reduction", ["mean", "weighted"])
def test_no_tensor_has_the_size_of_positions_times_vocabulary(reduction, monkeypatch):
    monkeypatch.setattr(module, "CHUNK_ELEMENTS", {"cpu": 2000})
    positions, vocab = 400, 300
    hidden, weight = torch.randn(positions, DIM, requires_grad=True), torch.randn(vocab, DIM, requires_grad=True)
    with LargestTensor() as largest:
        losses, _ = linear_cross_entropy(hidden, weight, torch.zeros(vocab), torch.randint(vocab, (positions,)))
        (losses.mean() if reduction == "mean" else (losses * torch.rand(positions)).sum()).backward()
    assert largest.elements == positions * DIM == 2000 < positions * vocab
