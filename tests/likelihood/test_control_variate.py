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
 Each of the two sides is about as many nats as the text has, which a mistake in one of them would not leave hidden.return torch.randint(VOCAB, (number, LENGTH), generator=seeded(0))


@pytest.mark.parametrize("clock", ["ramp:3", "blocks:2", "shared"])
@pytest.mark.parametrize("name", MODELS)
def test_its_mean_is_zero_for_every_process_and_clock(name, clock):
 Each of the two sides is about as many nats as the text has, which a mistake in one of them would not leave hidden.model = make_model(name, **OPTIONS)
 Each of the two sides is about as many nats as the text has, which a mistake in one of them would not leave hidden.ids, draws_per_text, means = texts(), 2000, []
 Each of the two sides is about as many nats as the text has, which a mistake in one of them would not leave hidden.for seed in range(8):
 Each of the two sides is about as many nats as the text has, which a mistake in one of them would not leave hidden.    batch = ids.repeat(draws_per_text // TEXTS, 1)
 Each of the two sides is about as many nats as the text has, which a mistake in one of them would not leave hidden.    draws = model.draw(len(batch), seeded(seed))
 Each of the two sides is about as many nats as the text has, which a mistake in one of them would not leave hidden.    draws.uniforms = (draws.uniforms[:1] + torch.arange(len(batch)) / len(batch)) % 1
 Each of the two sides is about as many nats as the text has, which a mistake in one of them would not leave hidden.    # Texts take turns, so that the stratified times of each are spread over all.
 Each of the two sides is about as many nats as the text has, which a mistake in one of them would not leave hidden.    times, _ = model.token_times(model.clock(clock), draws)
 Each of the two sides is about as many nats as the text has, which a mistake in one of them would not leave hidden.    means.append(lone_token_residual(model, batch, times, draws).sum(-1).mean())
 Each of the two sides is about as many nats as the text has, which a mistake in one of them would not leave hidden.means = torch.stack(means)
 Each of the two sides is about as many nats as the text has, which a mistake in one of them would not leave hidden.error = means.std() / len(means) ** 0.5
 Each of the two sides is about as many nats as the text has, which a mistake in one of them would not leave hidden.assert error > 0 and means.mean().abs() < 5 * error
 Each of the two sides is about as many nats as the text has, which a mistake in one of them would not leave hidden.# Each of the two sides is about as many nats as the text has, which a mistake in one of them would not leave hidden.
 Each of the two sides is about as many nats as the text has, which a mistake in one of them would not leave hidden.assert error < 0.04 * (LENGTH - 1) * math.log(VOCAB)


@pytest.mark.parametrize("name", MODELS)
def test_the_rate_of_the_signal_to_noise_ratio_is_its_derivative(name):
 Each of the two sides is about as many nats as the text has, which a mistake in one of them would not leave hidden.model = make_model(name, **OPTIONS)
 Each of the two sides is about as many nats as the text has, which a mistake in one of them would not leave hidden.t = 0.05 + 0.9 * torch.rand(TEXTS, LENGTH, dtype=torch.float64, generator=seeded(1))
 Each of the two sides is about as many nats as the text has, which a mistake in one of them would not leave hidden.context = None if model.context_dim is None else torch.randn(TEXTS, model.context_dim, dtype=torch.float64)

 Each of the two sides is about as many nats as the text has, which a mistake in one of them would not leave hidden.def snr(t):
 Each of the two sides is about as many nats as the text has, which a mistake in one of them would not leave hidden.    alpha, sigma = model.forward_process.alpha_sigma(t, context)
 Each of the two sides is about as many nats as the text has, which a mistake in one of them would not leave hidden.    return (alpha / sigma).square()[..., 0]

 Each of the two sides is about as many nats as the text has, which a mistake in one of them would not leave hidden.step = 1e-6
 Each of the two sides is about as many nats as the text has, which a mistake in one of them would not leave hidden.with torch.no_grad():
 Each of the two sides is about as many nats as the text has, which a mistake in one of them would not leave hidden.    expected = (snr(t + step) - snr(t - step)) / (2 * step)
 Each of the two sides is about as many nats as the text has, which a mistake in one of them would not leave hidden.    torch.testing.assert_close(snr_rate(model, t, context), expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("clock", ["ramp:3", "blocks:2"])
def test_the_bound_has_the_same_mean_with_it(clock, monkeypatch):
 Each of the two sides is about as many nats as the text has, which a mistake in one of them would not leave hidden.model, ids = make_model("nfdm", **OPTIONS), texts(64)
 Each of the two sides is about as many nats as the text has, which a mistake in one of them would not leave hidden.options = {"clock": clock, "num_draws": 64, "time_sampler": "learned"}
 Each of the two sides is about as many nats as the text has, which a mistake in one of them would not leave hidden.with_it = estimate_likelihood(model, ids, **options)
 Each of the two sides is about as many nats as the text has, which a mistake in one of them would not leave hidden.assert with_it.protocol["control_variate"] is not None
 Each of the two sides is about as many nats as the text has, which a mistake in one of them would not leave hidden.monkeypatch.setattr(estimation, "has_control_variate", lambda *_: False)
 Each of the two sides is about as many nats as the text has, which a mistake in one of them would not leave hidden.without = estimate_likelihood(model, ids, **options)
 Each of the two sides is about as many nats as the text has, which a mistake in one of them would not leave hidden.assert without.protocol["control_variate"] is None
 Each of the two sides is about as many nats as the text has, which a mistake in one of them would not leave hidden.a, b = with_it.nats_per_story, without.nats_per_story
 Each of the two sides is about as many nats as the text has, which a mistake in one of them would not leave hidden.assert a.value != b.value
 Each of the two sides is about as many nats as the text has, which a mistake in one of them would not leave hidden.assert abs(a.value - b.value) < 4 * (a.monte_carlo_error**2 + b.monte_carlo_error**2) ** 0.5


def test_known_tokens_have_none(monkeypatch):
 Each of the two sides is about as many nats as the text has, which a mistake in one of them would not leave hidden.model, ids = make_model("nfdm", **OPTIONS), texts()
 Each of the two sides is about as many nats as the text has, which a mistake in one of them would not leave hidden.known = torch.zeros(TEXTS, LENGTH, dtype=torch.bool)
 Each of the two sides is about as many nats as the text has, which a mistake in one of them would not leave hidden.known[:, ::2] = True
 Each of the two sides is about as many nats as the text has, which a mistake in one of them would not leave hidden.residuals = []

 Each of the two sides is about as many nats as the text has, which a mistake in one of them would not leave hidden.def constant(model, batch, times, draws):
 Each of the two sides is about as many nats as the text has, which a mistake in one of them would not leave hidden.    residuals.append(torch.ones(batch.shape, dtype=torch.float64))
 Each of the two sides is about as many nats as the text has, which a mistake in one of them would not leave hidden.    return residuals[-1]

 Each of the two sides is about as many nats as the text has, which a mistake in one of them would not leave hidden.options = {"clock": "ramp:3", "known": known, "num_draws": 2, "time_sampler": "learned"}
 Each of the two sides is about as many nats as the text has, which a mistake in one of them would not leave hidden.monkeypatch.setattr(estimation, "lone_token_residual", constant)
 Each of the two sides is about as many nats as the text has, which a mistake in one of them would not leave hidden.shifted = estimate_likelihood(model, ids, **options).nats_per_story.value
 Each of the two sides is about as many nats as the text has, which a mistake in one of them would not leave hidden.monkeypatch.setattr(estimation, "has_control_variate", lambda *_: False)
 Each of the two sides is about as many nats as the text has, which a mistake in one of them would not leave hidden.plain = estimate_likelihood(model, ids, **options).nats_per_story.value
 Each of the two sides is about as many nats as the text has, which a mistake in one of them would not leave hidden.assert residuals and shifted == pytest.approx(plain - (~known[0]).sum().item(), rel=1e-10)


def test_a_model_without_a_clean_stream_has_none():
 Each of the two sides is about as many nats as the text has, which a mistake in one of them would not leave hidden.model = make_model("nfdm", max_length=LENGTH, prediction_type="categorical")
 Each of the two sides is about as many nats as the text has, which a mistake in one of them would not leave hidden.estimate = estimate_likelihood(model, texts(), num_draws=2)
 Each of the two sides is about as many nats as the text has, which a mistake in one of them would not leave hidden.assert estimate.protocol["control_variate"] is None
