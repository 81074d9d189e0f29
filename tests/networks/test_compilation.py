"""Compiled layer by layer, a model computes the same; without a compiler it stays as it is and says so."""

import importlib.util

import pytest
import torch
from tiny import make_ids, make_model, relative_error, seeded

from diffusers_text_nfdm.models.configuration import PREDICTORS
from diffusers_text_nfdm.networks.compilation import REPEATED, compile_layers, missing_compiler


def compiled_layers(model):
    return [module for module in model.modules() if module._compiled_call_impl is not None]


def test_without_a_compiler_the_model_stays_as_it_is_with_a_warning(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    model = make_model("nfdm")
    with pytest.warns(UserWarning, match="there is no C\\+\\+ compiler \\(`no-such-compiler`"):
        assert not compile_layers(model)
    assert not compiled_layers(model)


def test_an_accelerator_needs_triton(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert missing_compiler(torch.device("cuda")) == "package `triton`"


@pytest.mark.parametrize("predictor", PREDICTORS)
def test_all_layers_of_predictor_and_forward_network_are_compiled_and_the_weights_keep_their_names(
    predictor, monkeypatch
):
    monkeypatch.setenv("CXX", "true")  # Found, and not called before the first call of a layer.
    model = make_model("nfdm", predictor=predictor)
    names = list(model.state_dict())
    assert compile_layers(model)
    of_predictor = model.predictor.encoder.layer if predictor == "bert" else model.predictor.layers
    assert compiled_layers(model) == [*model.forward_process.network.layers, *of_predictor]
    assert all(isinstance(layer, REPEATED) for layer in compiled_layers(model))
    assert list(model.state_dict()) == names


@pytest.mark.slow
@pytest.mark.skipif(missing_compiler(torch.device("cpu")) is not None, reason="there is no C++ compiler")
@pytest.mark.parametrize(
    "name, clock, dtype, tolerance",
    [
        ("nfdm", "shared", torch.float64, 1e-12),
        ("nfdm", "random:2", torch.float64, 1e-12),
        ("nfdm-additive", "shared", torch.float32, 1e-5),
    ],
    ids=str,
)
def test_compiled_values_and_gradients_are_the_same_to_rounding(name, clock, dtype, tolerance):
    torch.compiler.reset()  # PyTorch compiles a function for a limited number of cases, and then no more.
    plain, compiled = (make_model(name, dtype, clock=clock).train() for _ in range(2))
    assert compile_layers(compiled)
    compiled.gradient_checkpointing_enable()
    for batch_size in (6, 3):  # The second with shapes that were not compiled for.
        ids, draws = make_ids(batch_size), plain.draw(batch_size, seeded(0))
        losses = [model(ids, draws=draws).loss for model in (plain, compiled)]
        torch.testing.assert_close(losses[1], losses[0], rtol=tolerance, atol=0)
        for model, loss in zip((plain, compiled), losses):
            model.zero_grad()
            loss.backward()
        for (parameter_name, parameter), reference in zip(compiled.named_parameters(), plain.parameters()):
            # A constant in all keys changes no attention: the gradient of its bias is zero, but for rounding.
            if not parameter_name.endswith(("key.bias", "query_key_value.bias")):
                assert relative_error(parameter.grad, reference.grad) < tolerance, parameter_name
