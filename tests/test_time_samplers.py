"""Time samplers: unbiased whatever their density, and the learned one follows the term it is given."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny import at_rate_one

from diffusers_text_nfdm.networks.dual import Dual
from diffusers_text_nfdm.time_samplers import (
    SMALLEST_TERM,
    BucketTimeSampler,
    UniformTimeSampler,
    piecewise_times,
    stratify,
)


# Midpoints of a fine grid of u: integrals over u without Monte Carlo.
U = (torch.arange(200_000, dtype=torch.float64) + 0.5) / 200_000
TIMES = Dual(U, torch.ones_like(U))


def make_buckets(n=10, seed=0):
    sampler = BucketTimeSampler(n).double()
    torch.manual_seed(seed)
    torch.nn.init.normal_(sampler.log_terms, std=1.5)
    return sampler


SAMPLERS = {"uniform": UniformTimeSampler(), "new buckets": BucketTimeSampler(10).double(), "buckets": make_buckets()}


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("power", [0, 1, 5])
def test_the_weighted_estimate_is_unbiased(name, power):
    # power 0: the mean weight is one.
    t, weight = SAMPLERS[name](TIMES)
    assert (weight * t**power).mean().item() == pytest.approx(1 / (power + 1), rel=1e-4)


def test_new_buckets_are_uniform():
    t, weight = SAMPLERS["new buckets"](TIMES)
    torch.testing.assert_close(t, U)
    torch.testing.assert_close(weight, torch.ones_like(U))


def test_times_are_the_inverse_of_the_numerically_integrated_density():
    sampler = make_buckets()
    t, weight = sampler(TIMES)
    assert (t.diff() > 0).all() and t.min() >= 0 and t.max() <= 1
    # F(t(u)) = u, with F integrated from the density 1/weight by the trapezoid rule.
    cumulative = torch.cumulative_trapezoid(1 / weight, t) + U[0]
    torch.testing.assert_close(cumulative, U[1:], rtol=0, atol=1e-4)
    histogram = torch.histc(t, bins=10, min=0, max=1) / len(t)
    torch.testing.assert_close(histogram, sampler.probabilities(), rtol=1e-3, atol=1e-4)


def test_probabilities_sum_to_one_and_keep_the_uniform_share():
    sampler = make_buckets()
    with torch.no_grad():
        sampler.log_terms[3] = 1e3
    p = sampler.probabilities()
    assert p.sum().item() == pytest.approx(1) and p.min().item() == pytest.approx(0.1 / 10)
    _, weight = sampler(TIMES)
    assert weight.max().item() == pytest.approx(1 / sampler.uniform_share)


def test_buckets_learn_to_follow_a_positive_function():
    def term(t):
        return 5 * torch.exp(-20 * (t - 0.3).square()) + 0.2

    sampler = BucketTimeSampler(10, uniform_share=0.0).double()
    optimizer = torch.optim.SGD(sampler.parameters(), lr=0.5)
    for _ in range(200):
        times = sampler(at_rate_one(stratify(torch.rand(400, dtype=torch.float64))))
        optimizer.zero_grad()
        (10 * sampler.fitting_loss(times, times.rate * term(times.value)).mean()).backward()
        optimizer.step()
    expected = term(U).unflatten(0, (10, -1)).mean(-1)
    torch.testing.assert_close(sampler.probabilities(), expected / expected.sum(), rtol=0.1, atol=0)


def test_rare_tokens_that_make_up_a_term_count_as_much_as_frequent_ones():
    """In one bucket every token has the term 1, in the other one in a hundred has 100."""
    sampler = BucketTimeSampler(2, uniform_share=0.0).double()
    optimizer = torch.optim.SGD(sampler.parameters(), lr=0.5)
    generator = torch.Generator().manual_seed(0)
    for _ in range(300):
        t = torch.rand(400, 1, generator=generator, dtype=torch.float64)
        rare = 100 * (torch.rand(400, 1, generator=generator, dtype=torch.float64) < 0.01)
        optimizer.zero_grad()
        sampler.fitting_loss(at_rate_one(t), torch.where(t < 0.5, rare, 1.0)).mean().backward()
        optimizer.step()
    torch.testing.assert_close(sampler.probabilities(), torch.full((2,), 0.5).double(), rtol=0.3, atol=0)


def test_fitting_gives_no_gradient_to_the_term():
    sampler, term = make_buckets(), torch.rand(3, 4, dtype=torch.float64, requires_grad=True)
    sampler.fitting_loss(at_rate_one(torch.rand(3, 4, dtype=torch.float64)), term).sum().backward()
    assert term.grad is None and sampler.log_terms.grad.any()


def test_the_last_time_falls_into_the_last_bucket():
    sampler = make_buckets()
    loss = sampler.fitting_loss(at_rate_one(torch.ones(1, dtype=torch.float64)), torch.ones(1, 1).double())
    (gradient,) = torch.autograd.grad(loss.sum(), sampler.log_terms)
    assert gradient.nonzero().tolist() == [[9]]


@pytest.mark.parametrize("num_steps", [1, 7, 100])
@pytest.mark.parametrize("name", SAMPLERS)
def test_equal_steps_become_steps_of_equal_mass_from_one_to_zero(name, num_steps):
    sampler = SAMPLERS[name]
    grid = sampler(Dual(torch.linspace(1, 0, num_steps + 1, dtype=torch.float64))).value
    assert grid[0] == 1 and grid[-1] == 0 and (grid.diff() < 0).all()
    t, _ = sampler(TIMES)
    mass = torch.stack([((t <= high) & (t > low)).double().mean() for high, low in zip(grid, grid[1:])])
    torch.testing.assert_close(mass, torch.full_like(mass, 1 / num_steps), rtol=0, atol=2e-5)


def test_steps_of_learned_buckets_are_finer_where_they_have_more_mass():
    sampler = make_buckets()
    grid = sampler(Dual(torch.linspace(1, 0, 1001, dtype=torch.float64))).value
    counts = torch.histc(grid, bins=10, min=0, max=1)
    assert counts.argmax() == sampler.log_terms.argmax() and counts.argmin() == sampler.log_terms.argmin()


@given(st.integers(1, 40), st.integers(0, 1000))
def test_stratified_numbers_have_one_in_each_cell(n, seed):
    u = stratify(torch.rand(n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64))
    assert (u >= 0).all() and (u < 1).all()
    gaps = torch.cat([u.sort().values, u.min()[None] + 1]).diff()
    torch.testing.assert_close(gaps, torch.full_like(gaps, 1 / n))


def test_each_stratified_number_is_uniform():
    # The shift runs over a fine grid: every element must visit [0, 1) evenly.
    shifted = torch.stack([stratify(torch.cat([u[None], torch.rand(3)])) for u in torch.linspace(0, 1, 1001)[:-1]])
    for column in shifted.T:
        torch.testing.assert_close(
            torch.histc(column, bins=10, min=0, max=1), torch.full((10,), 100.0), rtol=0, atol=1
        )


def test_learned_edges_do_not_move_in_bfloat16():
    # 1000 buckets: bfloat16 could not even number them.
    sampler = BucketTimeSampler(1000).bfloat16()
    t, weight = sampler(Dual(U.float(), torch.ones(len(U))))
    assert t.dtype == weight.dtype == torch.float32
    torch.testing.assert_close(t, U.float(), rtol=0, atol=1e-4)


def test_buckets_start_at_the_mean_of_the_terms_seen():
    sampler = BucketTimeSampler(4).double()
    t = torch.tensor([0.1, 0.2, 0.3, 0.6, 0.9, 1.0], dtype=torch.float64)
    sampler.set_terms(t, torch.tensor([1.0, 3.0, 4.0, 0.0, 5.0, 7.0], dtype=torch.float64))
    terms = torch.tensor([2.0, 4.0, 0.0, 6.0], dtype=torch.float64) + SMALLEST_TERM
    torch.testing.assert_close(sampler.probabilities(), 0.9 * terms / terms.sum() + 0.1 / 4)


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_sampler_is_a_map_of_times_and_its_rate_the_slope_times_theirs(name):
    t = torch.rand(3, 4, dtype=torch.float64)
    rate = torch.tensor([0.0, 1.0, 2.0, 0.5], dtype=torch.float64).expand(3, 4)
    mapped, ones = SAMPLERS[name](Dual(t, rate)), SAMPLERS[name](at_rate_one(t))
    assert torch.equal(mapped.value, ones.value) and torch.equal(mapped.value, SAMPLERS[name](Dual(t)).value)
    torch.testing.assert_close(mapped.rate, rate * ones.rate)
    assert SAMPLERS[name](Dual(t)).rate is None
    step = 1e-9
    slope = (SAMPLERS[name](Dual(t + step)).value - SAMPLERS[name](Dual(t - step)).value) / (2 * step)
    torch.testing.assert_close(ones.rate, slope, rtol=1e-5, atol=0)


def test_fitting_takes_the_rates_out_and_leaves_tokens_that_stand_still_out():
    """`a_k + e^{-a_k} (mean term in bucket k + floor)`, by the share of the tokens in the bucket."""
    sampler = make_buckets(4)
    times = Dual(
        torch.tensor([[0.1, 0.2, 0.6, 0.9, 0.0]], dtype=torch.float64),
        torch.tensor([[2.0, 1.0, 0.5, 0.0, 0.0]], dtype=torch.float64),
    )
    terms = times.rate * torch.tensor([[1.0, 3.0, 5.0, 100.0, 100.0]], dtype=torch.float64)
    means, logs = torch.tensor([2.0, 5.0], dtype=torch.float64) + SMALLEST_TERM, sampler.log_terms[[0, 2]]
    fits = logs + means * torch.exp(-logs)
    expected = 2 / 5 * fits[0] + 1 / 5 * fits[1]
    torch.testing.assert_close(sampler.fitting_loss(times, terms), expected[None])


def test_one_time_for_all_tokens_is_fitted_to_their_mean_term():
    sampler, t, terms = make_buckets(), torch.rand(3, 1, dtype=torch.float64), torch.rand(3, 4, dtype=torch.float64)
    means = terms.mean(-1, keepdim=True)
    torch.testing.assert_close(
        sampler.fitting_loss(at_rate_one(t), terms), sampler.fitting_loss(at_rate_one(t), means)
    )
    # The same time for each token.
    times = at_rate_one(t.expand(3, 4).contiguous())
    torch.testing.assert_close(sampler.fitting_loss(times, terms), sampler.fitting_loss(at_rate_one(t), means))


def test_piecewise_times_have_the_masses_between_the_edges():
    edges = torch.tensor([0.0, 0.1, 0.5, 1.0], dtype=torch.float64)
    masses = torch.tensor([0.6, 0.1, 0.3], dtype=torch.float64)
    t, weight = piecewise_times(U, edges, masses)
    shares = torch.stack([((t >= low) & (t < high)).double().mean() for low, high in zip(edges, edges[1:])])
    torch.testing.assert_close(shares, masses, rtol=1e-4, atol=0)
    assert (weight * t.square()).mean().item() == pytest.approx(1 / 3, rel=1e-4)
