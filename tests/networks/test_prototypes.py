"""Prototypes: the posterior of a mixture of texts against its definition, and what they say to a model."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import DIM, LENGTH, make_config, make_ids, make_model, seeded

from diffusers_text_nfdm import objective
from diffusers_text_nfdm.likelihood import estimate_likelihood
from diffusers_text_nfdm.networks.prototypes import Prototypes


NUMBER = 3
DOUBLE = {"dtype": torch.float64}
READER = {
    "predictor": "two_stream",
    "prediction_type": "categorical",
    "decoder": "gaussian",
    "self_conditioning": True,
    "lattice_candidates": 2,
    "forward_num_layers": 0,
    "clock": "shared",
}


def reader(**options):
    return make_model("nfdm", **{**READER, "num_prototypes": NUMBER, **options})


def noised(model, ids, t):
    draws = model.draw(len(ids), seeded(0))
    return draws, model.forward_process.marginal(model.embed(ids), t).sample(draws.noise)


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 1000), st.booleans())
def test_it_is_the_posterior_mean_of_a_mixture(seed, times_of_tokens):
    generator = seeded(seed)
    prototypes = Prototypes(NUMBER, LENGTH, DIM).double()
    with torch.no_grad():
        prototypes.texts.normal_(generator=generator)
        prototypes.bias.normal_(generator=generator)
    t = torch.rand(2, LENGTH if times_of_tokens else 1, 1, generator=generator, **DOUBLE)
    alpha, sigma = 1 - 0.9 * t, 0.2 + 0.8 * t
    z = torch.randn(2, LENGTH, DIM, generator=generator, **DOUBLE)
    with torch.no_grad():
        predicted = prototypes(z, (alpha, sigma))
        log_joint = prototypes.bias + torch.stack(
            [
                torch.distributions.Normal(alpha * text, sigma.expand_as(z)).log_prob(z).sum((1, 2))
                for text in prototypes.texts
            ],
            -1,
        )
        weights = torch.softmax(log_joint, -1)
        expected = sum(weights[:, k, None, None] * prototypes.texts[k] for k in range(NUMBER))
    assert torch.allclose(predicted, expected, rtol=1e-10)


def test_weak_signs_of_many_tokens_tell_the_text():
    """Of each token alone hardly anything can be said."""
    length, alpha, sigma = 400, 0.2, 1.0
    prototypes = Prototypes(2, length, 1).double()
    with torch.no_grad():
        signs = torch.randint(0, 2, (length,), generator=seeded(0)).double() * 2 - 1
        prototypes.texts.copy_(torch.stack([signs, -signs])[..., None])
        z = alpha * prototypes.texts[:1] + sigma * torch.randn(1, length, 1, generator=seeded(1), **DOUBLE)
        predicted = prototypes(z, [torch.full((1, 1, 1), x, **DOUBLE) for x in (alpha, sigma)])
    right = (z[0, :, 0].sign() == signs).double().mean()
    assert 0.5 < right < 0.65 and torch.allclose(predicted[0, :, 0], signs, atol=1e-3)
    assert math.isclose(float(predicted.abs().mean()), 1, abs_tol=1e-3)


def test_before_training_a_model_with_prototypes_is_the_model_without():
    model, plain, ids = reader(**DOUBLE), make_model("nfdm", **READER, **DOUBLE), make_ids(2)
    plain.load_state_dict({name: w for name, w in model.state_dict().items() if name in plain.state_dict()})
    t = torch.full((2, 1), 0.6, **DOUBLE)
    _, z = noised(model, ids, t)
    different = model.denoise(z, t).logits
    model.predictor.outline_input.weight.data.zero_()
    assert torch.equal(model.denoise(z, t).logits, plain.denoise(z, t).logits)
    assert not torch.allclose(different, plain.denoise(z, t).logits)


def test_prototypes_are_for_texts_in_motion_as_a_whole():
    """In windows the clean tokens before them say more."""
    model, ids = reader(), make_ids(2)
    before = {
        clock: estimate_likelihood(model, ids, clock=clock, num_draws=2).nats_per_story.value
        for clock in ("ramp:2", "shared")
    }
    model.predictor.prototypes.texts.data.mul_(-2)
    after = {
        clock: estimate_likelihood(model, ids, clock=clock, num_draws=2).nats_per_story.value
        for clock in ("ramp:2", "shared")
    }
    assert after["ramp:2"] == before["ramp:2"] and after["shared"] != before["shared"]


def test_they_start_at_texts_and_are_trained_by_the_cross_entropy():
    model, ids = reader(), make_ids(NUMBER)
    model.set_prototypes(ids)
    assert torch.equal(model.predictor.prototypes.texts, model.embed(ids))
    for options in ({"cross_entropy": True}, {"lattices": True}):
        model.zero_grad()
        model.train()(ids, clock="shared", generator=seeded(0), **options).loss.backward()
        assert model.predictor.prototypes.texts.grad.any() and model.predictor.prototypes.bias.grad.any()


def test_their_own_error_is_added_in_training_and_trains_them_alone():
    model, ids = reader(**DOUBLE), make_ids(2)
    draws = model.draw(2, seeded(0))
    draws.self_conditioned = torch.ones(2, **DOUBLE)
    evaluated = model(ids, clock="shared", draws=draws, cross_entropy=True)
    trained = model.train()(ids, clock="shared", draws=draws, cross_entropy=True)
    times, _ = model.token_times(model.clock("shared"), draws)
    errors = objective.outline_errors(model, ids, times.value, draws).sum(-1)
    assert torch.allclose(trained.cross_entropy, evaluated.cross_entropy)
    assert torch.allclose(trained.loss, evaluated.loss + 0.02 * errors.mean())
    model.zero_grad()
    errors.sum().backward()
    moved = {name for name, parameter in model.named_parameters() if parameter.grad is not None}
    assert moved == {"predictor.prototypes.texts", "predictor.prototypes.bias"}


def test_training_shows_the_reading_or_a_step_before():
    """As sampling does: its first step is shown the reading from left to right, every other one the step before."""
    model, ids = reader(**DOUBLE).train(), make_ids(4)
    t = torch.full((4, 1), 0.6, **DOUBLE)
    draws, z = noised(model, ids, t)
    draws.self_conditioned = torch.tensor([0.0, 0.2, 0.49, 0.9], **DOUBLE)
    E = model.embed(ids)
    shown = model.shown_prediction(draws, E, z, t, None, None, None)
    assert not shown.requires_grad
    reading = model._read_first(z, t, None, None)
    assert torch.allclose(shown[3], reading[3]) and not torch.allclose(shown[:3], reading[:3])
    later = 0.6 + 0.35 * 2 * draws.self_conditioned[:, None] * 0.4
    z_later = model.forward_process.marginal(E, later).sample(draws.initial_noise)
    before = model.eval().denoise(z_later, later).states
    assert torch.allclose(shown[:3], before[:3])
    known = torch.zeros_like(ids, dtype=torch.bool)
    known[:, 2] = True
    held = model.train().shown_prediction(draws, E, z, torch.where(known, 0, t), None, None, None, known)
    assert torch.isfinite(held).all()
    assert model.shown_prediction(draws, E, z, t, None, None, object()) is None
    assert model.eval().shown_prediction(draws, E, z, t, None, None, None) is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_prototypes": -1}, "`num_prototypes` is -1"),
        ({"lattice_candidates": 0}, "`num_prototypes` is 3 without `lattice_candidates`; prototypes are for a model"),
    ],
)
def test_configurations_that_do_not_fit_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        make_config("nfdm", **{**READER, "num_prototypes": NUMBER, **options})
