"""The rates of `moving_marginal` are the derivatives in t of `marginal`, by three independent routes."""

import pytest
import torch
from tiny import MODELS, gradients, make_inputs, make_process, relative_error
from torch.nn.attention import SDPBackend, sdpa_kernel


TIMES = torch.tensor([0.03, 0.31, 0.5, 0.87, 0.99], dtype=torch.float64)


def make_case(name):
    process = make_process(name)
    embeddings, context = make_inputs(name, len(TIMES))

    def mean_and_log_std(t):
        marginal = process.marginal(embeddings, t, context)
        return marginal.mean, marginal.std.log()

    return process, mean_and_log_std, process.moving_marginal(embeddings, TIMES, context)


@pytest.fixture(params=MODELS)
def case(request):
    return make_case(request.param)


def forward_mode(function, t):
    # Fused attention has no forward-mode derivative.
    with sdpa_kernel(SDPBackend.MATH):
        return torch.func.jvp(function, (t,), (torch.ones_like(t),))


def test_moving_marginal_has_the_mean_and_std_of_marginal(case):
    _, function, moving = case
    mean, log_std = function(TIMES)
    torch.testing.assert_close(moving.mean, mean, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(moving.std.log(), log_std, rtol=1e-12, atol=1e-12)


def test_rates_equal_forward_mode_derivative(case):
    _, function, moving = case
    _, (mean_rate, log_std_rate) = forward_mode(function, TIMES)
    assert relative_error(moving.mean_rate, mean_rate) < 1e-11
    assert relative_error(moving.log_std_rate, log_std_rate) < 1e-11


def test_rates_equal_reverse_mode_derivative(case):
    # Examples do not mix, so the gradient of a weighted sum is the weighted sum of the rates of each example.
    _, function, moving = case
    t = TIMES.clone().requires_grad_()
    for value, rate in zip(function(t), (moving.mean_rate, moving.log_std_rate)):
        weights = torch.randn_like(value)
        (gradient,) = torch.autograd.grad((weights * value).sum(), t, retain_graph=True)
        assert relative_error((weights * rate).sum((-1, -2)), gradient) < 1e-11


def test_rates_equal_central_difference(case):
    # Time features oscillate at up to 1000 radians per unit of t: a step of 1e-6 leaves an error of (1e-3)² / 6.
    _, function, moving = case
    step = 1e-6
    for later, earlier, rate in zip(
        function(TIMES + step), function(TIMES - step), (moving.mean_rate, moving.log_std_rate)
    ):
        assert relative_error((later - earlier) / (2 * step), rate) < 1e-6


def reverse_mode_twice(function, t):
    """The rates as the derivative in u of `u ↦ uᵀ ∂value/∂t`: no forward mode anywhere."""
    t = t.clone().requires_grad_()
    rates = []
    with sdpa_kernel(SDPBackend.MATH):  # Fused attention can be differentiated once only.
        values = function(t)
    for value in values:
        u = torch.zeros_like(value, requires_grad=True)
        (product,) = torch.autograd.grad(value, t, u, create_graph=True)
        rates += torch.autograd.grad(product, u, torch.ones_like(t), create_graph=True)
    return rates


def forward_mode_rates(function, t):
    return forward_mode(function, t)[1]


def written_out_layer_norm(x, shape, weight=None, bias=None, eps=1e-5):
    centred = x - x.mean(-1, keepdim=True)
    y = centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + eps)
    return y if weight is None else y * weight + bias


@pytest.mark.parametrize("route", [forward_mode_rates, reverse_mode_twice])
@pytest.mark.parametrize("name", [name for name in MODELS if name != "diffusion-lm"])
def test_parameter_gradients_of_rates_equal_those_through_automatic_differentiation(name, route, monkeypatch):
    process, function, moving = make_case(name)
    weights = torch.randn(2, *moving.mean.shape, dtype=torch.float64)

    def scalar(mean_rate, log_std_rate):
        return (weights[0] * mean_rate.square() + weights[1] * log_std_rate.square()).sum()

    by_hand = gradients(scalar(moving.mean_rate, moving.log_std_rate), process)
    # The backward pass of torch 2.13 through the forward-mode derivative of its own layer norm is wrong, here by 40 %.
    monkeypatch.setattr(torch.nn.functional, "layer_norm", written_out_layer_norm)
    expected = gradients(scalar(*route(function, TIMES)), process)
    assert by_hand.keys() == expected.keys() and len(by_hand) >= 4
    for name, gradient in expected.items():
        assert relative_error(by_hand[name], gradient) < 1e-10, name
