"""Time samplers: unbiased whatever their density, and the learned one follows the term it is given."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from diffusers_text_nfdm.time_samplers import BucketTimeSampler, UniformTimeSampler, stratify


# Midpoints of a fine grid of u: integrals over u without Monte Carlo.
U = (torch.arange(200_000, dtype=torch.float64) + 0.5) / 200_000


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
    t, weight = SAMPLERS[name](U)
    assert (weight * t**power).mean().item() == pytest.approx(1 / (power + 1), rel=1e-4)


def test_new_buckets_are_uniform():
    t, weight = SAMPLERS["new buckets"](U)
    torch.testing.assert_close(t, U)
    torch.testing.assert_close(weight, torch.ones_like(U))


def test_times_are_the_inverse_of_the_numerically_integrated_density():
    sampler = make_buckets()
    t, weight = sampler(U)
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
    _, weight = sampler(U)
    assert weight.max().item() == pytest.approx(1 / sampler.uniform_share)


def test_buckets_learn_to_follow_a_positive_function():
    def term(t):
        return 5 * torch.exp(-20 * (t - 0.3).square()) + 0.2

    sampler = BucketTimeSampler(10, uniform_share=0.0).double()
    optimizer = torch.optim.SGD(sampler.parameters(), lr=0.5)
    for _ in range(200):
        t, _ = sampler(stratify(torch.rand(400, dtype=torch.float64)))
        optimizer.zero_grad()
        (10 * sampler.fitting_loss(t, term(t)).mean()).backward()
        optimizer.step()
    expected = term(U).unflatten(0, (10, -1)).mean(-1)
    torch.testing.assert_close(sampler.probabilities(), expected / expected.sum(), rtol=0.1, atol=0)


def test_fitting_gives_no_gradient_to_the_term():
    sampler, term = make_buckets(), torch.rand(3, dtype=torch.float64, requires_grad=True)
    sampler.fitting_loss(torch.rand(3, dtype=torch.float64), term).sum().backward()
    assert term.grad is None and sampler.log_terms.grad.any()


def test_the_last_time_falls_into_the_last_bucket():
    sampler = make_buckets()
    loss = sampler.fitting_loss(torch.ones(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64))
    (gradient,) = torch.autograd.grad(loss.sum(), sampler.log_terms)
    assert gradient.nonzero().tolist() == [[9]]


@pytest.mark.parametrize("num_steps", [1, 7, 100])
@pytest.mark.parametrize("name", SAMPLERS)
def test_time_grid_falls_from_one_to_zero_in_steps_of_equal_mass(name, num_steps):
    sampler = SAMPLERS[name]
    grid = sampler.time_grid(num_steps)
    assert len(grid) == num_steps + 1 and grid[0] == 1 and grid[-1] == 0 and (grid.diff() < 0).all()
    t, _ = sampler(U)
    mass = torch.stack([((t <= high) & (t > low)).double().mean() for high, low in zip(grid, grid[1:])])
    torch.testing.assert_close(mass, torch.full_like(mass, 1 / num_steps), rtol=0, atol=2e-5)


def test_time_grid_of_learned_buckets_is_finer_where_they_have_more_mass():
    sampler = make_buckets()
    grid = sampler.time_grid(1000)
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
    t, weight = sampler(U.float())
    assert t.dtype == weight.dtype == torch.float32
    torch.testing.assert_close(t, U.float(), rtol=0, atol=1e-4)


def test_buckets_start_at_the_mean_of_the_terms_seen():
    sampler = BucketTimeSampler(4).double()
    t = torch.tensor([0.1, 0.2, 0.3, 0.6, 0.9, 1.0], dtype=torch.float64)
    sampler.set_terms(t, torch.tensor([1.0, 3.0, 4.0, 0.0, 5.0, 7.0], dtype=torch.float64))
    terms = torch.tensor([2.0, 4.0, 0.0, 6.0], dtype=torch.float64) + 0.01
    torch.testing.assert_close(sampler.probabilities(), 0.9 * terms / terms.sum() + 0.1 / 4)
