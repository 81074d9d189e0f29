"""Scores of single texts: exact values, bounds with errors, and common random numbers."""

import pytest
import torch
from tiny import make_ids, make_model

from diffusers_text_nfdm import estimate_likelihood, score_texts


TWO_STREAM = {"predictor": "two_stream", "prediction_type": "categorical"}


def test_a_clean_stream_gives_exact_scores():
    torch.manual_seed(0)
    model, ids = make_model("nfdm", **TWO_STREAM), make_ids(5)
    scores = score_texts(model, ids, batch_size=2)
    expected = model.clean_stream(ids, None, next_token=True)[1].sum(-1)
    assert torch.allclose(scores.nats, expected, rtol=1e-12)
    assert not scores.errors.any()


@pytest.mark.parametrize("name", ["nfdm", "mulan", "diffusion-lm"])
@pytest.mark.parametrize("clock", ["shared", "ramp:2"])
def test_bounds_have_the_mean_of_the_estimate(name, clock):
    torch.manual_seed(0)
    model, ids = make_model(name, **TWO_STREAM), make_ids(4)
    known = torch.zeros_like(ids, dtype=torch.bool)
    known[:, :2] = True
    scores = score_texts(model, ids, known, clock, num_draws=2000, batch_size=400)
    # A hundred times the same texts with four draws each: many in a batch.
    many, given = (rows.repeat(100, 1) for rows in (ids, known))
    estimate = estimate_likelihood(model, many, known=given, clock=clock, num_draws=4, batch_size=400).nats_per_story
    # The errors of the texts are not independent: they share their random numbers.
    error = scores.errors.mean().hypot(torch.tensor(estimate.monte_carlo_error))
    assert abs(scores.nats.mean() - estimate.value) < 4 * error


def test_draws_that_are_evaluated_together_are_those_evaluated_alone():
    model, ids = make_model("nfdm", **TWO_STREAM), make_ids(3)
    alone, together = (score_texts(model, ids, clock="ramp:2", num_draws=5, batch_size=size) for size in (3, 8))
    torch.testing.assert_close(alone.nats, together.nats, rtol=1e-10, atol=0)
    torch.testing.assert_close(alone.errors, together.errors, rtol=1e-8, atol=0)


def test_equal_texts_have_equal_bounds():
    model, ids = make_model("mulan", **TWO_STREAM), make_ids(1).expand(3, -1)
    nats = score_texts(model, ids, clock="ramp:2", num_draws=3, batch_size=2).nats
    assert torch.allclose(nats, nats[:1].expand(3), rtol=1e-12)


def test_a_model_without_a_clean_stream_is_scored_by_the_bound():
    scores = score_texts(make_model("nfdm"), make_ids(2), num_draws=4)
    assert (scores.errors > 0).all()
