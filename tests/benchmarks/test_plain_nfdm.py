"""The yardstick computes the same loss and the same gradients as the library."""

import sys
from pathlib import Path

import pytest
import torch
from tiny import make_ids, make_model, relative_error, seeded


sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from plain_nfdm import plain_loss  # noqa: E402


@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-12), (torch.float32, 1e-5)], ids=str)
def test_plain_loss_and_its_gradients_are_those_of_the_model(dtype, tolerance):
    ours, plain = (make_model("nfdm", dtype) for _ in range(2))
    plain.set_attn_implementation("eager")
    ids, draws = make_ids(6), ours.draw(6, seeded(0))
    loss, expected = ours(ids, draws=draws).loss, plain_loss(plain, ids, draws)
    torch.testing.assert_close(loss, expected, rtol=tolerance, atol=0)
    loss.backward()
    expected.backward()
    compared = 0
    for (name, parameter), reference in zip(ours.named_parameters(), plain.parameters()):
        # A constant in all keys changes no attention: the gradient of its bias is zero, and rounding is all to see.
        if name.endswith("key.bias"):
            assert parameter.grad.norm() < tolerance * ours.embeddings.weight.grad.norm()
        elif name.endswith("query_key_value.bias"):
            hidden = len(parameter) // 3
            queries_and_values = [
                x.grad[[*range(hidden), *range(2 * hidden, 3 * hidden)]] for x in (parameter, reference)
            ]
            assert relative_error(*queries_and_values) < tolerance, name
        else:
            assert relative_error(parameter.grad, reference.grad) < tolerance, name
        compared += 1
    assert compared > 60


def test_plain_loss_without_gradients_has_the_same_value():
    model = make_model("nfdm")
    ids, draws = make_ids(3), model.draw(3, seeded(0))
    with torch.no_grad():
        torch.testing.assert_close(plain_loss(model, ids, draws), model(ids, draws=draws).loss, rtol=1e-12, atol=0)
