"""Boundaries at t = 0 and t = 1, and the noise schedules against their formulas."""

import mpmath
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.polynomial.legendre import leggauss
from tiny import (
    CONTEXT,
    LENGTH,
    MODELS,
    NFDM,
    RESCALED,
    VARIANCE_PRESERVING,
    at_rate_one,
    make_inputs,
    make_process,
)

from diffusers_text_nfdm.forward_processes import MuLANProcess
from diffusers_text_nfdm.forward_processes.diffusion_lm import sqrt_schedule
from diffusers_text_nfdm.networks.dual import Dual


CLOSE_TO_ONE = [1 - 1e-3, 1 - 1e-5, 1 - 1e-6, 1 - 6e-8, 1.0]
GRID = torch.linspace(0, 1, 201, dtype=torch.float64)
TIMES = at_rate_one(GRID)


def schedule_from(coefficients, gamma_min=-10.0, gamma_max=10.0, rescaled=False):
    """A MuLAN process with these coefficients `[a, b, d]` of each position's `a s² + b s + d`, for every context."""
    coefficients = torch.as_tensor(coefficients, dtype=torch.float64)
    process = MuLANProcess(
        context_dim=CONTEXT,
        max_length=len(coefficients),
        hidden_size=4,
        gamma_min=gamma_min,
        gamma_max=gamma_max,
        rescaled=rescaled,
    ).double()
    with torch.no_grad():
        process.coefficients[-1].weight.zero_()
        process.coefficients[-1].bias.copy_((coefficients - torch.tensor([0.0, 0.0, 1.0])).flatten())
    return process


def gamma_on_grid(process):
    gamma, rate = process.gamma(TIMES, torch.randn(len(GRID), CONTEXT, dtype=torch.float64))
    return gamma[..., 0], rate[..., 0]


coefficient = st.floats(-5, 5).map(lambda x: round(x, 3))
polynomials = st.lists(st.tuples(coefficient, coefficient, coefficient), min_size=2, max_size=6).filter(
    lambda rows: all(any(row) for row in rows)
)


@pytest.mark.parametrize("name", ["nfdm", "nfdm-additive", "nfdm-head"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_nfdm_is_the_data_at_zero_and_standard_normal_at_one_whatever_the_network_says(name, dtype):
    process = make_process(name, dtype)
    embeddings, _ = make_inputs(name, 3, dtype)
    at_zero = process.marginal(embeddings, torch.zeros(3, 1, dtype=dtype))
    at_one = process.marginal(embeddings, torch.ones(3, 1, dtype=dtype))
    assert torch.equal(at_zero.mean, embeddings)
    torch.testing.assert_close(at_zero.std, torch.full_like(embeddings, NFDM["delta"]))
    assert torch.equal(at_one.mean, torch.zeros_like(embeddings))
    assert torch.equal(at_one.std, torch.ones_like(embeddings))


@pytest.mark.parametrize("name", MODELS)
def test_initial_and_terminal_marginals_are_the_marginals_at_zero_and_one(name):
    process = make_process(name)
    embeddings, context = make_inputs(name, 3)
    ends = (process.initial_marginal(embeddings, context), process.terminal_marginal(embeddings, context))
    for end, t in zip(ends, (0.0, 1.0)):
        expected = process.marginal(embeddings, torch.full((3, 1), t, dtype=torch.float64), context)
        torch.testing.assert_close(end.mean, expected.mean, rtol=1e-14, atol=0)
        torch.testing.assert_close(end.std, expected.std, rtol=1e-14, atol=0)
        assert end.std.shape == embeddings.shape


@pytest.mark.parametrize("name", ["nfdm", "nfdm-additive", "nfdm-head"])
def test_alpha_and_sigma_of_nfdm_are_those_of_the_process_with_a_silent_network(name):
    process = make_process(name)
    with torch.no_grad():
        process.network.output.weight.zero_()
        process.network.output.bias.zero_()
    embeddings, _ = make_inputs(name, len(GRID))
    marginal = process.marginal(embeddings, TIMES.value)
    alpha, sigma = process.alpha_sigma(TIMES.value)
    torch.testing.assert_close(marginal.mean, alpha * embeddings, rtol=1e-14, atol=0)
    torch.testing.assert_close(marginal.std, sigma.expand_as(embeddings), rtol=1e-14, atol=0)


@pytest.mark.parametrize("dtype, rtol", [(torch.float32, 2e-6), (torch.float64, 1e-9)])
@pytest.mark.parametrize("t", [0.0, 1e-7, 1e-4, 0.02, 0.5, 0.9, *CLOSE_TO_ONE])
def test_diffusion_lm_follows_the_closed_formulas_to_the_last_digits_also_near_one(t, dtype, rtol):
    time = torch.tensor([t], dtype=dtype)
    gamma, rate = sqrt_schedule(time)
    with mpmath.workdps(50):
        v = mpmath.sqrt(mpmath.mpf("0.9999") * mpmath.mpf(time.item()) + mpmath.mpf("0.000099"))
        expected_gamma = float(mpmath.log(v / (1 - v)))
        expected_rate = float(mpmath.mpf("0.9999") / (2 * v**2 * (1 - v)))
    assert gamma.item() == pytest.approx(expected_gamma, rel=rtol)
    assert rate.item() == pytest.approx(expected_rate, rel=5 * rtol)


def test_diffusion_lm_marginal_and_volatility_follow_the_table_of_the_theory():
    process = make_process("diffusion-lm")
    t = GRID[:-1, None]
    embeddings, _ = make_inputs("diffusion-lm", len(t))
    v = torch.sqrt(0.9999 * t + 0.000099)[..., None]
    marginal = process.marginal(embeddings, t)
    torch.testing.assert_close(marginal.mean, torch.sqrt(1 - v) * embeddings, rtol=1e-10, atol=0)
    torch.testing.assert_close(marginal.std, torch.sqrt(v).expand_as(embeddings), rtol=1e-10, atol=0)
    squared = process.squared_volatility(at_rate_one(t))
    torch.testing.assert_close(squared, 0.9999 / (2 * v * (1 - v)), rtol=1e-10, atol=0)
    torch.testing.assert_close(process.snr(t), (1 - v) / v, rtol=1e-10, atol=0)


@given(polynomials)
def test_mulan_gamma_rises_from_gamma_min_to_gamma_max(rows):
    gamma, rate = gamma_on_grid(schedule_from(rows))
    assert (gamma.diff(dim=0) >= -1e-11).all() and (rate >= 0).all()
    torch.testing.assert_close(gamma[0], torch.full_like(gamma[0], -10.0), rtol=1e-12, atol=0)
    torch.testing.assert_close(gamma[-1], torch.full_like(gamma[-1], 10.0), rtol=1e-12, atol=0)


@given(polynomials)
def test_mulan_gamma_is_the_normalised_integral_of_the_squared_polynomial(rows):
    gamma, _ = gamma_on_grid(schedule_from(rows))
    nodes, weights = (torch.as_tensor(x) for x in leggauss(5))
    a, b, d = torch.tensor(rows, dtype=torch.float64).T[..., None, None]

    def integral(t):  # Five nodes integrate a polynomial of degree four exactly.
        s = 0.5 * t[:, None] * (nodes + 1)
        return ((a * s * s + b * s + d).square() * 0.5 * t[:, None] * weights).sum(-1)

    expected = -10 + 20 * integral(GRID) / integral(torch.ones(1, dtype=torch.float64))
    torch.testing.assert_close(gamma, expected.T, rtol=1e-9, atol=1e-9)


def test_a_new_mulan_schedule_is_linear_in_time():
    gamma, _ = gamma_on_grid(schedule_from([[0, 0, 1]] * LENGTH))
    torch.testing.assert_close(gamma, (-10 + 20 * GRID)[:, None].expand(-1, LENGTH))


@given(polynomials)
def test_mulan_rescaled_has_the_mean_snr_of_the_reference_schedule_at_every_time(rows):
    process = schedule_from(rows, RESCALED["gamma_min"], RESCALED["gamma_max"], rescaled=True)
    gamma, _ = gamma_on_grid(process)
    reference, _ = sqrt_schedule(GRID)
    torch.testing.assert_close(torch.exp(-gamma).mean(-1), torch.exp(-reference), rtol=1e-10, atol=0)


def test_mulan_rescaled_starts_and_ends_at_the_reference_schedule():
    process = schedule_from(torch.randn(LENGTH, 3), RESCALED["gamma_min"], RESCALED["gamma_max"], rescaled=True)
    gamma, _ = gamma_on_grid(process)
    reference, _ = sqrt_schedule(GRID)
    for end in (0, -1):
        torch.testing.assert_close(gamma[end], reference[end].expand(LENGTH), rtol=1e-12, atol=0)


def test_mulan_positions_and_contexts_have_their_own_schedules():
    process = make_process("mulan")
    gamma, _ = process.gamma(Dual(torch.full((2, 1), 0.5).double()), torch.randn(2, CONTEXT).double())
    assert len(gamma.flatten().unique()) == 2 * LENGTH


def test_mulan_without_context_is_an_error_that_names_it():
    with pytest.raises(ValueError, match="`context` is None"):
        make_process("mulan").gamma(Dual(torch.zeros(1, 1, dtype=torch.float64)))


@pytest.mark.parametrize("name", ["nfdm", "nfdm-additive", "nfdm-head"])
def test_nfdm_has_no_snr_and_says_what_to_do(name):
    with pytest.raises(ValueError, match="no signal-to-noise ratio.*noise fraction"):
        make_process(name).snr(torch.zeros(1, 1, dtype=torch.float64))


@pytest.mark.parametrize("name", MODELS)
def test_volatility_is_positive_and_broadcasts_over_the_latents(name):
    process = make_process(name)
    embeddings, context = make_inputs(name, len(GRID))
    squared = process.squared_volatility(TIMES, context)
    assert (squared > 0).all() and squared.isfinite().all()
    assert torch.broadcast_shapes(squared.shape, embeddings.shape) == embeddings.shape


def test_learned_volatility_never_falls_below_its_floor():
    process = make_process("nfdm", volatility_floor=0.05)
    with torch.no_grad():
        process.volatility.mlp[2].bias.fill_(-1e4)
    torch.testing.assert_close(process.squared_volatility(TIMES), torch.full((len(GRID), 1, 1), 0.05**2).double())


def test_markovian_volatility_is_that_of_the_undeformed_process():
    """`g² = dσ²/dt - 2 σ² d log α/dt`, that of the Markov process with these marginals; and finite at t = 1."""
    process = make_process("nfdm", volatility="markovian")
    with torch.no_grad():
        for parameter in process.volatility.parameters():
            parameter.zero_()
    t = torch.linspace(0, 0.99, 100, dtype=torch.float64)[:, None].requires_grad_()
    alpha, sigma = process.alpha_sigma(t)
    (variance_rate,) = torch.autograd.grad(sigma.square().sum(), t, retain_graph=True)
    (log_alpha_rate,) = torch.autograd.grad(alpha.log().sum(), t)
    expected = variance_rate - 2 * sigma.detach()[..., 0].square() * log_alpha_rate
    squared = process.squared_volatility(at_rate_one(t.detach()))
    torch.testing.assert_close(squared[..., 0], expected, rtol=1e-10, atol=0)
    assert torch.isfinite(process.squared_volatility(at_rate_one(torch.ones(1, dtype=torch.float64)))).all()


@pytest.mark.parametrize("name", MODELS)
def test_a_token_with_a_time_of_its_own_has_the_schedule_of_that_time(name):
    """And what is a rate is by its own."""
    process, context = make_process(name), make_inputs(name, 3)[1]
    t, rate = torch.rand(2, 3, LENGTH, dtype=torch.float64)
    rate[:, 1] = 0

    def schedule(times):
        values = {"alpha, sigma": torch.cat(torch.broadcast_tensors(*process.alpha_sigma(times.value, context)), -1)}
        rates = {"g²": process.squared_volatility(times, context)}
        if name in VARIANCE_PRESERVING:
            values["γ"], rates["γ rate"] = process.gamma(times, context)
            values["snr"] = process.snr(times.value, context)
            rates["weight"] = process.diffusion_weight(times, context)
        return values, rates

    values, rates = schedule(Dual(t, rate))
    for token in range(LENGTH):
        of_one, rates_of_one = schedule(at_rate_one(t[:, token]))
        for key, value in of_one.items():
            value = value.expand(3, LENGTH, -1)[:, token]
            torch.testing.assert_close(values[key][:, token], value, rtol=1e-12, atol=1e-12, msg=key)
        for key, value in rates_of_one.items():
            value = rate[:, token, None] * value.expand(3, LENGTH, -1)[:, token]
            torch.testing.assert_close(rates[key][:, token], value, rtol=1e-12, atol=1e-12, msg=key)
