"""What tokens cost alone, as a control variate: it has the mean zero, and takes noise out of the bound."""

import math

import pytest
import torch
from tiny import MODELS, VOCAB, make_model, seeded

from diffusers_text_nfdm import estimate_likelihood
from diffusers_text_nfdm.likelihood import estimation
from diffusers_text_nfdm.likelihood.control_variate import lone_token_residual, snr_rate


LENGTH, TEXTS = 6, 4
OPTIONS = {"max_length": LENGTH, "predictor": "two_stream", "prediction_type": "categorical", "decoder": "gaussian"}


def texts(number: int = TEXTS) -> torch.Tensor:
    return torch.randint(VOCAB, (number, LENGTH), generator=seeded(0))


@pytest.mark.parametrize("clock", ["ramp:3", "blocks:2", "shared"])
@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_its_mean_is_zero_for_every_process_and_clock(name, clock):
    model = make_model(name, **OPTIONS)
    ids, draws_per_text, means = texts(), 2000, []
    for seed in range(8):
        batch = ids.repeat(draws_per_text // TEXTS, 1)
        draws = model.draw(len(batch), seeded(seed))
        draws.uniforms = (draws.uniforms[:1] + torch.arange(len(batch)) / len(batch)) % 1
        # Texts take turns, so that the stratified times of each are spread over all.
        times, _ = model.token_times(model.clock(clock), draws)
        means.append(lone_token_residual(model, batch, times, draws).sum(-1).mean())
    means = torch.stack(means)
    error = means.std() / len(means) ** 0.5
    assert error > 0 and means.mean().abs() < 5 * error
    # Each of the two sides is about as many nats as the text has: a mistake in one of them would show.
    assert error < 0.04 * (LENGTH - 1) * math.log(VOCAB)


@pytest.mark.parametrize("name", MODELS)
def test_the_rate_of_the_signal_to_noise_ratio_is_its_derivative(name):
    model = make_model(name, **OPTIONS)
    t = 0.05 + 0.9 * torch.rand(TEXTS, LENGTH, dtype=torch.float64, generator=seeded(1))
    context = None if model.context_dim is None else torch.randn(TEXTS, model.context_dim, dtype=torch.float64)

    def snr(t):
        alpha, sigma = model.forward_process.alpha_sigma(t, context)
        return (alpha / sigma).square()[..., 0]

    step = 1e-6
    with torch.no_grad():
        expected = (snr(t + step) - snr(t - step)) / (2 * step)
        torch.testing.assert_close(snr_rate(model, t, context), expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("clock", ["ramp:3", "blocks:2", "shared"])
def test_the_bound_has_the_same_mean_with_it(clock, monkeypatch):
    model, ids = make_model("nfdm", **OPTIONS), texts(64)
    options = {"clock": clock, "num_draws": 64, "time_sampler": "learned"}
    with_it = estimate_likelihood(model, ids, **options)
    assert with_it.protocol["control_variate"] is not None
    monkeypatch.setattr(estimation, "has_control_variate", lambda *_: False)
    without = estimate_likelihood(model, ids, **options)
    assert without.protocol["control_variate"] is None
    a, b = with_it.nats_per_story, without.nats_per_story
    assert a.value != b.value
    assert abs(a.value - b.value) < 4 * (a.monte_carlo_error**2 + b.monte_carlo_error**2) ** 0.5


def test_known_tokens_have_none(monkeypatch):
    model, ids = make_model("nfdm", **OPTIONS), texts()
    known = torch.zeros(TEXTS, LENGTH, dtype=torch.bool)
    known[:, ::2] = True
    residuals = []

    def constant(model, batch, times, draws, first_time):
        assert first_time == 0
        residuals.append(torch.ones(batch.shape, dtype=torch.float64))
        return residuals[-1]

    options = {"clock": "ramp:3", "known": known, "num_draws": 2, "time_sampler": "learned"}
    monkeypatch.setattr(estimation, "lone_token_residual", constant)
    shifted = estimate_likelihood(model, ids, **options).nats_per_story.value
    monkeypatch.setattr(estimation, "has_control_variate", lambda *_: False)
    plain = estimate_likelihood(model, ids, **options).nats_per_story.value
    assert residuals and shifted == pytest.approx(plain - (~known[0]).sum().item(), rel=1e-10)


@pytest.mark.parametrize(("clock", "some"), [("random:3", False), ("shared", True)])
def test_where_a_token_is_given_what_follows_there_is_none(clock, some):
    known = torch.eye(TEXTS, LENGTH).bool() if some else None
    estimate = estimate_likelihood(make_model("nfdm", **OPTIONS), texts(), clock=clock, known=known, num_draws=2)
    assert estimate.protocol["control_variate"] is None


def test_a_model_without_a_clean_stream_has_none():
    model = make_model("nfdm", max_length=LENGTH, prediction_type="categorical")
    estimate = estimate_likelihood(model, texts(), num_draws=2)
    assert estimate.protocol["control_variate"] is None
