"""The density of times that a pilot run fits."""

import pytest
import torch
from tiny import LENGTH, make_ids, make_model, seeded

from diffusers_text_nfdm.likelihood import estimate_likelihood
from diffusers_text_nfdm.likelihood.time_fitting import FittedTimes, fit_times
from diffusers_text_nfdm.networks.dual import Dual


def test_pilot_finds_the_narrow_peak_of_the_published_diffusion_lm():
    # Half of it lies in t < 0.0003, where hardly any uniform time falls.
    model, ids = make_model("diffusion-lm", torch.float32, time_sampler="uniform"), make_ids(128)
    pilot, uniform = (
        estimate_likelihood(model, ids, num_draws=16, time_sampler=kind, batch_size=128).nats_per_story
        for kind in ("pilot", "learned")
    )
    assert pilot.monte_carlo_error < 0.02 * pilot.value
    assert uniform.monte_carlo_error > 5 * pilot.monte_carlo_error


def test_fitted_times_have_the_density_they_are_weighted_by():
    edges = torch.tensor([0.0, 0.01, 0.3, 1.0], dtype=torch.float64)
    uniforms = torch.linspace(0, 1, 300_001, dtype=torch.float64)
    t, weight = FittedTimes(edges)(Dual(uniforms, torch.ones_like(uniforms)))
    assert t[0] == 0 and t[-1] == 1 and (t.diff() > 0).all()
    torch.testing.assert_close(t[::100_000], edges)
    for power in (0, 1, 2):
        assert (weight * t**power).mean().item() == pytest.approx(1 / (power + 1), rel=1e-4)


@pytest.mark.parametrize("batch_size", [128, 50])
def test_fitted_times_keep_their_uniform_share_and_follow_the_term(batch_size):
    model = make_model("diffusion-lm", torch.float32, time_sampler="uniform")
    times, evaluations = fit_times(model, model.clock(), make_ids(16), None, batch_size, seeded(0))
    width = times.edges.diff()
    assert evaluations == 512
    assert times.edges[0] == 0 and times.edges[-1] == 1 and (width > 0).all()
    assert len(width) * width.max() <= 10.0001
    assert times.edges[8] < 0.005


def test_fitted_times_survive_a_term_that_is_zero():
    # Ê = E wherever it matters: one token alone in the vocabulary that the bias allows.
    model = make_model("diffusion-lm", prediction_type="categorical", decoder="gaussian")
    with torch.no_grad():
        model.token_bias.fill_(-1e4)
        model.token_bias[3] = 0.0
    bound = estimate_likelihood(model, torch.full((4, LENGTH), 3), num_draws=2).nats_per_story
    assert 0 <= bound.value < 1e-3
