"""The rates of `path` are the derivatives of `marginal` along the clock, by three independent routes."""

import pytest
import torch
from tiny import MODELS, at_rate_one, gradients, make_inputs, make_process, relative_error
from torch.nn.attention import SDPBackend, sdpa_kernel

from diffusers_text_nfdm.networks.dual import Dual


LENGTH, BLOCK = 6, 2
TIMES = at_rate_one(torch.tensor([0.03, 0.31, 0.5, 0.87, 0.99], dtype=torch.float64))


def random_clock():
    """A time and a rate for every token, some of which stand still; of the last text all do."""
    t, rate = torch.rand(2, len(TIMES.value), LENGTH, dtype=torch.float64, generator=torch.Generator().manual_seed(7))
    rate = 3 * rate.where(torch.arange(LENGTH) % 3 != 1, 0)
    rate[-1] = 0
    return Dual(t, rate)


def make_case(name, times=TIMES, block_size=None):
    process = make_process(name, max_length=LENGTH)
    embeddings, context = make_inputs(name, len(times.value), length=LENGTH)

    def mean_and_log_std(t):
        marginal = process.marginal(embeddings, t, context, block_size)
        return marginal.mean, marginal.std.log()

    return process, mean_and_log_std, times, process.path(times, context, block_size)(embeddings)


CASES = {
    "one time": lambda name: make_case(name),
    "a time for every token": lambda name: make_case(name, random_clock()),
    "in blocks": lambda name: make_case(name, random_clock(), BLOCK),
}


@pytest.fixture(params=[(name, case) for name in MODELS for case in CASES], ids=", ".join)
def case(request):
    name, case = request.param
    return CASES[case](name)


def forward_mode(function, times):
    # Fused attention has no forward-mode derivative.
    with sdpa_kernel(SDPBackend.MATH):
        return torch.func.jvp(function, (times.value,), (times.rate,))


def test_path_has_the_mean_and_std_of_marginal(case):
    _, function, times, moving = case
    mean, log_std = function(times.value)
    torch.testing.assert_close(moving.mean, mean, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(moving.std.log(), log_std, rtol=1e-12, atol=1e-12)


def test_rates_equal_forward_mode_derivative(case):
    _, function, times, moving = case
    _, (mean_rate, log_std_rate) = forward_mode(function, times)
    assert relative_error(moving.mean_rate, mean_rate) < 1e-11
    assert relative_error(moving.log_std_rate, log_std_rate) < 1e-11


def test_rates_equal_reverse_mode_derivative(case):
    # Examples do not mix, so the gradient of a weighted sum is the weighted sum of the rates of each example.
    _, function, times, moving = case
    t = times.value.clone().requires_grad_()
    for value, rate in zip(function(t), (moving.mean_rate, moving.log_std_rate)):
        weights = torch.randn_like(value)
        (gradient,) = torch.autograd.grad((weights * value).sum(), t, retain_graph=True)
        assert relative_error((weights * rate).sum((-1, -2)), (gradient * times.rate).sum(-1)) < 1e-11


def test_rates_equal_central_difference(case):
    # Time features oscillate at up to 1000 radians per unit of t: a step of 1e-6 leaves an error of (1e-3)² / 6.
    _, function, times, moving = case
    step = 1e-6 * times.rate / times.rate.max()
    for later, earlier, rate in zip(
        function(times.value + step), function(times.value - step), (moving.mean_rate, moving.log_std_rate)
    ):
        assert relative_error((later - earlier) / 2e-6 * times.rate.max(), rate) < 1e-6


def test_nothing_moves_where_no_token_does(case):
    _, _, times, moving = case
    still = (times.rate == 0).all(-1)
    assert not moving.mean_rate[still].any() and not moving.log_std_rate[still].any()
    assert moving.mean_rate[~still].abs().amax((1, 2)).all() and moving.log_std_rate[~still].abs().amax((1, 2)).all()


@pytest.mark.parametrize("name", MODELS)
def test_equal_times_of_all_tokens_are_one_time(name):
    process, (embeddings, context) = make_process(name, max_length=LENGTH), make_inputs(name, 5, length=LENGTH)
    one = process.path(TIMES, context)(embeddings)
    every = process.path(TIMES.map_linear(lambda x: x.expand(-1, LENGTH)), context)(embeddings)
    for field in ("mean", "std", "mean_rate", "log_std_rate"):
        assert relative_error(getattr(every, field), getattr(one, field)) < 1e-12, field


@pytest.mark.parametrize("name", MODELS)
def test_a_block_is_a_text_of_its_own(name):
    """Nothing of the other blocks is seen: neither their embeddings nor their times."""
    process, (embeddings, context) = make_process(name, max_length=LENGTH), make_inputs(name, 5, length=LENGTH)
    times = random_clock()
    before = process.path(times, context, BLOCK)(embeddings)
    other, part = embeddings.clone(), slice(BLOCK, 2 * BLOCK)
    other[:, part] += 1
    t, rate = (x.clone() for x in times)
    t[:, part], rate[:, part] = 1 - t[:, part], rate[:, part] + 1
    after = process.path(Dual(t, rate), context, BLOCK)(other)
    for field in ("mean", "std", "mean_rate", "log_std_rate"):
        changed = (getattr(before, field) != getattr(after, field)).any(-1).any(0)
        assert changed.tolist() == [False, False, True, True, False, False], field


def reverse_mode_twice(function, times):
    """The rates as the derivative in v of `v ↦ vᵀ ∂value/∂t`: no forward mode anywhere."""
    t = times.value.clone().requires_grad_()
    rates = []
    with sdpa_kernel(SDPBackend.MATH):  # Fused attention can be differentiated once only.
        values = function(t)
    for value in values:
        v = torch.zeros_like(value, requires_grad=True)
        (product,) = torch.autograd.grad(value, t, v, create_graph=True)
        rates += torch.autograd.grad(product, v, times.rate, create_graph=True)
    return rates


def forward_mode_rates(function, times):
    return forward_mode(function, times)[1]


def written_out_layer_norm(x, shape, weight=None, bias=None, eps=1e-5):
    centred = x - x.mean(-1, keepdim=True)
    y = centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + eps)
    return y if weight is None else y * weight + bias


@pytest.mark.parametrize("route", [forward_mode_rates, reverse_mode_twice])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", [name for name in MODELS if name != "diffusion-lm"])
def test_parameter_gradients_of_rates_equal_those_through_automatic_differentiation(name, case, route, monkeypatch):
    process, function, times, moving = CASES[case](name)
    weights = torch.randn(2, *moving.mean.shape, dtype=torch.float64)

    def scalar(mean_rate, log_std_rate):
        return (weights[0] * mean_rate.square() + weights[1] * log_std_rate.square()).sum()

    by_hand = gradients(scalar(moving.mean_rate, moving.log_std_rate), process)
    # The backward pass of torch 2.13 through the forward-mode derivative of its own layer norm is wrong, here by 40 %.
    monkeypatch.setattr(torch.nn.functional, "layer_norm", written_out_layer_norm)
    expected = gradients(scalar(*route(function, times)), process)
    assert by_hand.keys() == expected.keys() and len(by_hand) >= 4
    for name, gradient in expected.items():
        assert relative_error(by_hand[name], gradient) < 1e-10, name
