"""The reverse ODE and SDE: order of convergence, tolerance, and the distribution they reach, on Gaussian data."""

import math

import pytest
import torch
from gaussian_data import GaussianData, order_of_convergence
from tiny import DIM, LENGTH, MODELS, make_inputs, make_model, make_process

from diffusers_text_nfdm import ReverseODEScheduler, ReverseSDEScheduler
from diffusers_text_nfdm.clocks import BatchClock, make_clock
from diffusers_text_nfdm.networks.dual import Dual
from diffusers_text_nfdm.schedulers import TextDiffusionScheduler
from diffusers_text_nfdm.schedulers.scheduling_reverse_ode import TABLEAUS


START = 0.999


@pytest.fixture
def data():
    return GaussianData()


@pytest.fixture
def z():
    return torch.randn(3, LENGTH, DIM, dtype=torch.float64)


# --- the ODE ---


@pytest.mark.parametrize("method", TABLEAUS)
def test_tableau_meets_the_order_conditions(method):
    tableau = TABLEAUS[method]
    size = len(tableau.c)
    a = torch.tensor([[*row, *[0.0] * (size - len(row))] for row in tableau.a], dtype=torch.float64)
    b, c = torch.tensor(tableau.b, dtype=torch.float64), torch.tensor(tableau.c, dtype=torch.float64)
    torch.testing.assert_close(a.sum(1), c)
    # Butcher's conditions by order: one for 1, one for 2, two for 3.
    conditions = [(1, b.sum(), 1), (2, b @ c, 1 / 2), (3, b @ c**2, 1 / 3), (3, b @ a @ c, 1 / 6)]
    met = {order: True for order, _, _ in conditions}
    for order, value, wanted in conditions:
        met[order] &= abs(value.item() - wanted) < 1e-12
    assert [order for order in met if met[order]] == list(range(1, tableau.order + 1))
    if tableau.error is not None:
        # The embedded solution is of one order less, and the last stage is the step itself.
        error = torch.tensor(tableau.error, dtype=torch.float64)
        assert abs(error.sum()) < 1e-12 and abs(error @ c) < 1e-12 and abs(error @ c**2) > 1e-3
        assert tableau.a[-1] == tableau.b[:-1] and tableau.b[-1] == 0 and tableau.c[-1] == 1


@pytest.mark.parametrize("method, order", [("euler", 1), ("heun", 2)])
def test_error_of_the_ode_solver_falls_with_its_order(data, z, method, order):
    exact, counts = data.flow(z, START, 0.0), [32, 64, 128, 256]
    scheduler = ReverseODEScheduler(method)
    errors = [(data.run(scheduler, z, n) - exact).norm().item() for n in counts]
    assert abs(order_of_convergence(errors, counts) - order) < 0.15
    assert scheduler.order == order and errors[-1] < 0.05 * exact.norm()


def test_adaptive_method_meets_its_tolerance_at_the_cost_of_order_three(data, z):
    # From t = 1 on, where tokens need not wait: a flow without a kink.
    exact, errors, calls = data.flow(z, 1.0, 0.0), [], []
    tolerances = [1e-2, 1e-3, 1e-4, 1e-5, 1e-6]
    for tolerance in tolerances:
        scheduler = ReverseODEScheduler("adaptive", rtol=tolerance, atol=tolerance, start_time=1.0)
        errors.append((data.run(scheduler, z, 8) - exact).abs().max().item())
        calls.append(scheduler.num_function_evaluations)
    assert all(error < 10 * tolerance for error, tolerance in zip(errors, tolerances))
    assert errors == sorted(errors, reverse=True) and calls == sorted(calls)
    assert abs(order_of_convergence(errors[1:], calls[1:]) - 3) < 0.5
    # Three calls a step, and a fourth in the first one.
    assert scheduler.order == 3 and calls[0] < 60 and all(count % 3 == 1 for count in calls)


@pytest.mark.parametrize("clock", ["shared", "ramp:0.5", "ramp:4", "random:4", "ramp:40"])
def test_adaptive_method_comes_closer_with_its_tolerance_along_every_ramp(data, z, clock):
    exact, errors, calls = data.flow(z, START, 0.0), [], []
    batch_clock = BatchClock(make_clock(clock, LENGTH), LENGTH, order=torch.rand(3, LENGTH, dtype=z.dtype))
    for tolerance in (1e-2, 1e-3, 1e-4):
        scheduler = ReverseODEScheduler("adaptive", rtol=tolerance, atol=tolerance)
        errors.append((data.run(scheduler, z, 8, batch_clock) - exact).abs().max().item())
        calls.append(scheduler.num_function_evaluations)
    assert errors[0] < 0.5 and errors[2] < 0.1 * errors[0] and calls == sorted(calls)


def test_adaptive_method_survives_the_stiff_end_of_diffusion_lm(z):
    process = make_process("diffusion-lm")
    scheduler = ReverseODEScheduler("adaptive", rtol=1e-3, atol=1e-3)
    scheduler.set_timesteps(8)
    embeddings, latents = torch.randn_like(z), z
    for t in scheduler.timesteps:
        latents = scheduler.step(embeddings, t, latents, forward_process=process).prev_sample
    # With a fixed prediction the ODE carries ε unchanged.
    start, end = (torch.full((len(z), 1), time, dtype=z.dtype) for time in (START, 0.0))
    exact = process.marginal(embeddings, end).sample(process.marginal(embeddings, start).noise(z))
    assert (latents - exact).abs().max() < 1e-2


def test_adaptive_method_treats_each_sample_as_if_it_were_alone(data, z):
    z = z * torch.tensor([1.0, 30.0, 0.01], dtype=z.dtype)[:, None, None]
    together = ReverseODEScheduler("adaptive", rtol=1e-5, atol=1e-5)
    result = data.run(together, z, 8)
    calls = []
    for i in range(3):
        alone = ReverseODEScheduler("adaptive", rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(data.run(alone, z[i : i + 1], 8), result[i : i + 1], rtol=1e-12, atol=1e-12)
        calls.append(alone.num_function_evaluations)
    assert len(set(calls)) > 1 and together.num_function_evaluations == max(calls)


def test_adaptive_method_ends_where_the_prediction_jumps(data, z):
    scheduler = ReverseODEScheduler("adaptive", rtol=1e-6, atol=1e-6)
    scheduler.set_timesteps(4)
    for t in scheduler.timesteps:
        z = scheduler.step(z.sign(), t, z, forward_process=data.process, context=data.context(z)).prev_sample
    assert torch.isfinite(z).all() and not scheduler._state.u.any()


# --- the SDE ---


def moments_after(data, scheduler, num_steps, monkeypatch):
    """Mean and variance at 0 from `N(M, S²)` at the start. A step is `A z + b + c w`: A, b, c from three inputs."""
    inputs = torch.zeros(3, LENGTH, DIM, dtype=torch.float64)
    inputs[1], noise = 1, torch.zeros_like(inputs)
    noise[2] = 1
    monkeypatch.setattr(TextDiffusionScheduler, "_noise", staticmethod(lambda sample, generator: noise))
    _, mean, std = data.marginal(START, inputs)
    mean, variance = mean[0], std[0].square()
    scheduler.set_timesteps(num_steps)
    for u in scheduler.timesteps:
        prediction = data.predict(inputs, scheduler.token_times(u, inputs).value)
        offset, one, new = scheduler.step(
            prediction, u, inputs, forward_process=data.process, context=data.context(inputs)
        ).prev_sample
        mean, variance = offset + (one - offset) * mean, (one - offset).square() * variance + (new - offset).square()
    return mean, variance


@pytest.mark.parametrize("scale", [0.0, 0.5, 1.0, 2.0])
def test_every_volatility_reaches_the_data_distribution_with_weak_order_one(data, scale, monkeypatch):
    _, mean, std = data.marginal(0.0, torch.zeros(1, LENGTH, DIM, dtype=torch.float64))
    counts, mean_errors, variance_errors, results = [128, 256, 512], [], [], []
    for n in counts:
        results.append(moments_after(data, ReverseSDEScheduler(volatility_scale=scale), n, monkeypatch))
        mean_errors.append((results[-1][0] - mean[0]).norm().item())
        variance_errors.append((results[-1][1] - std[0].square()).norm().item())
    assert abs(order_of_convergence(mean_errors, counts) - 1) < 0.15
    assert abs(order_of_convergence(variance_errors, counts) - 1) < 0.15
    # An error of order one is gone after extrapolation.
    for finer, coarser, exact in zip(results[-1], results[-2], (mean, std.square())):
        torch.testing.assert_close((2 * finer - coarser)[:, :1], exact[0], rtol=1e-3, atol=1e-3)


def test_heun_reaches_the_data_distribution(data):
    zero = torch.zeros(1, LENGTH, DIM, dtype=torch.float64)
    _, mean, std = data.marginal(0.0, zero)
    _, start_mean, start_std = data.marginal(START, zero)
    low, high = (data.run(ReverseODEScheduler("heun"), start_mean + c * start_std, 128)[0] for c in (-1, 1))
    torch.testing.assert_close((low + high) / 2, mean[0], rtol=1e-3, atol=1e-3)
    torch.testing.assert_close((high - low) / 2, std[0], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", MODELS)
def test_no_volatility_is_eulers_ode_bit_for_bit(name):
    model, results = make_model(name, torch.float32), []
    context = make_inputs(name, 2, torch.float32)[1]
    start = torch.randn(2, LENGTH, DIM)
    for scheduler in (ReverseSDEScheduler(volatility_scale=0), ReverseODEScheduler("euler")):
        scheduler.set_timesteps(6)
        latents = start
        with torch.no_grad():
            for u in scheduler.timesteps:
                prediction = model.denoise(latents, scheduler.token_times(u, latents).value, context)
                latents = scheduler.step(
                    prediction, u, latents, forward_process=model.forward_process, context=context
                ).prev_sample
        results.append(latents)
    assert torch.isfinite(results[0]).all() and torch.equal(*results)


@pytest.mark.parametrize("name", MODELS)
def test_volatility_is_limited_only_while_the_step_is_too_long_for_it(name, monkeypatch):
    process, scale, t = make_process(name).requires_grad_(False), 3.0, 0.6
    embeddings, context = make_inputs(name, 2)
    z, times = (
        torch.randn_like(embeddings),
        Dual(torch.full((2, 1), t, dtype=torch.float64), torch.ones(2, 1).double()),
    )
    std = process.marginal(embeddings, times.value, context).std
    wanted = scale**2 * process.squared_volatility(times, context).expand_as(z)
    path = process.path(times, context)(embeddings)

    for h in (0.5, 1e-6):
        results = []
        for noise in (torch.zeros_like(z), torch.ones_like(z)):
            monkeypatch.setattr(TextDiffusionScheduler, "_noise", staticmethod(lambda *args, noise=noise: noise))
            scheduler = ReverseSDEScheduler(volatility_scale=scale)
            scheduler.set_timesteps(timesteps=[t, t - h])
            results.append(scheduler.step(embeddings, t, z, forward_process=process, context=context).prev_sample)
        drawn = (results[1] - results[0]).square()
        h = scheduler._grid[0] - scheduler._grid[1]
        used = torch.minimum(wanted, std.square() / h)
        if h < 1e-3:
            # `z - f_B h + g sqrt(h) w` as in the book: no trace of the limit.
            assert torch.equal(used, wanted)
        torch.testing.assert_close(drawn, used * h, rtol=1e-5, atol=1e-14)
        torch.testing.assert_close(results[0], z - h * path.reverse_drift(z, used), rtol=1e-12, atol=1e-12)
        assert (drawn <= std.square() * (1 + 1e-5)).all()


def test_the_last_step_adds_no_noise(data, z):
    scheduler, generator = ReverseSDEScheduler(), torch.Generator().manual_seed(0)
    scheduler.set_timesteps(1)
    state = generator.get_state()
    scheduler.step(z, START, z, forward_process=data.process, context=data.context(z), generator=generator)
    assert torch.equal(generator.get_state(), state)


@pytest.mark.parametrize("scale", [-1.0, float("nan"), "1", None, True])
def test_a_bad_volatility_scale_is_refused(scale):
    with pytest.raises(ValueError, match=f"`volatility_scale` is {scale!r}; it must be a number of at least 0"):
        ReverseSDEScheduler(volatility_scale=scale)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"method": "rk4"}, "`method` is 'rk4'; it must be one of 'euler', 'heun', 'adaptive'"),
        ({"method": "adaptive", "rtol": -1.0}, "`rtol` is -1.0 and `atol` 0.01"),
        ({"method": "adaptive", "atol": 0.0}, "`rtol` is 0.01 and `atol` 0.0"),
        ({"method": "adaptive", "atol": math.nan}, "`atol` nan"),
        ({"method": "adaptive", "rtol": "small"}, "`rtol` is 'small'"),
    ],
)
def test_bad_options_of_the_ode_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        ReverseODEScheduler(**options)
