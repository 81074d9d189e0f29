"""The importance-weighted bound: above the truth, tighter with more draws, and the continuous bound on a fine grid."""

import math

import pytest
import torch
from exact_models import exact_model, sample_tokens, silence
from tiny import LENGTH, MODELS, PREDICTION_TYPES, VOCAB, make_ids, make_model, seeded

from diffusers_text_nfdm.likelihood import estimate_likelihood
from diffusers_text_nfdm.likelihood.importance_weighting import importance_weighted_bound, step_variance
from diffusers_text_nfdm.networks.dual import Dual


@pytest.mark.parametrize("name", MODELS)
def test_importance_weighting_tightens_the_bound_and_stays_above_the_truth(name):
    model, log_frequencies = exact_model(name)
    ids, information = sample_tokens(log_frequencies, 144)
    one, eight = (
        importance_weighted_bound(model, ids, num_draws=k, num_steps=6, batch_size=144) - information for k in (1, 8)
    )
    assert (one - eight).mean() > 3 * (one - eight).std() / 12
    assert eight.mean() > 3 * eight.std() / 12


@pytest.mark.parametrize("name", MODELS)
def test_weights_are_those_of_a_probability_distribution(name):
    # The mean weight of a text is its probability under the chain, so over all texts, of one token, they sum to one.
    model, _ = exact_model(name, max_length=1)
    with torch.no_grad():
        if name.startswith("nfdm"):
            # Mean and std that do depend on the token.
            model.forward_process.network.output.weight.normal_(std=0.05, generator=seeded(0))
        if name.startswith("mulan"):
            # So does the context. (A narrower q(c|x) than the prior would give weights of large variance.)
            model.context_encoder.head.weight.normal_(std=0.05, generator=seeded(0))
            model.context_encoder.head.bias.fill_(0.3)
        if name in ("mulan-rescaled", "diffusion-lm"):
            # Their schedule starts at an SNR of 100, and the weights of large embeddings, which cross it in eight
            # leaps, vary so much that their mean cannot be measured.
            model.embeddings.weight.mul_(0.1)
    n = 500
    ids = torch.arange(VOCAB).repeat_interleave(n)[:, None]
    weights = torch.exp(-importance_weighted_bound(model, ids, num_draws=1, num_steps=8, batch_size=len(ids)))
    weights = weights.view(VOCAB, n)
    error = (weights.var(-1) / n).sum().sqrt().item()
    assert error < 0.05
    assert abs(weights.mean(-1).sum().item() - 1) < 4 * error


@pytest.mark.parametrize("kind", PREDICTION_TYPES)
@pytest.mark.parametrize("name", MODELS)
def test_importance_weighted_bound_of_an_untrained_model_is_above_the_truth(name, kind):
    model = make_model(name, prediction_type=kind)
    ids, information = sample_tokens(torch.log_softmax(torch.randn(LENGTH, VOCAB, dtype=torch.float64), -1), 128)
    excess = importance_weighted_bound(model, ids, num_draws=2, num_steps=4, batch_size=128) - information
    assert torch.isfinite(excess).all()
    assert excess.mean() > 4 * excess.std() / math.sqrt(128)


def smooth_model(name, **options):
    """Deformed by its network and with a volatility of its own, but without the fast oscillations in t of a random
    time embedding.
    """
    model = make_model(
        name, prediction_type="categorical", decoder="gaussian", num_hidden_layers=1, delta=0.6, **options
    )
    process = model.forward_process
    silence(model.predictor.output, model.prediction.gate)
    if name == "nfdm":
        silence(process.network.film.linear, *(layer.modulation.linear for layer in process.network.layers))
    else:
        silence(process.network.time_embedding.linear_2)
    with torch.no_grad():
        for parameter in process.network.output.parameters():
            parameter.mul_(0.5)
    return model


@pytest.mark.parametrize("name", ["nfdm", "nfdm-additive", "nfdm-head"])
def test_one_weight_on_a_fine_grid_has_the_mean_of_the_continuous_bound(name):
    model, ids = smooth_model(name), make_ids(64)
    continuous = estimate_likelihood(model, ids, num_draws=64, batch_size=64).nats_per_story
    gaps, errors = [], []
    for steps in (4, 40):
        bounds = importance_weighted_bound(model, ids.repeat(4, 1), num_draws=1, num_steps=steps, batch_size=256)
        gaps.append(bounds.mean().item() - continuous.value)
        own_error = bounds.view(4, 64).var(0).sum().sqrt().item() / (2 * 64)
        errors.append(math.hypot(own_error, continuous.monte_carlo_error))
    assert errors[1] < 0.02 * continuous.value
    assert gaps[0] > 5 * errors[0]
    assert abs(gaps[1]) < 3 * errors[1]


@pytest.mark.parametrize("name", ["mulan", "diffusion-lm"])
def test_one_weight_approaches_the_exact_bound_as_the_steps_get_shorter(name):
    model, log_frequencies = exact_model(name)
    ids, information = sample_tokens(log_frequencies, 256)
    gaps = [
        (importance_weighted_bound(model, ids, num_draws=1, num_steps=n, batch_size=256) - information).mean().item()
        for n in (4, 16, 64)
    ]
    # The gap of order h: a quarter of the step, a quarter of the gap, at least roughly.
    assert gaps[1] < 0.4 * gaps[0] and gaps[2] < 0.4 * gaps[1]


@pytest.mark.parametrize("clock", ["shared", "ramp:2", "random:2", "blocks:4"])
@pytest.mark.parametrize("name", ["nfdm", "mulan"])
def test_a_condition_is_not_counted(name, clock):
    # Of independent tokens it says nothing about the others, so another one changes nothing.
    model, _ = exact_model(name, predictor="two_stream", max_length=8, condition_length=2, clock=clock)
    ids = torch.randint(VOCAB, (6, 8))
    other = ids.clone()
    other[:, 1:3] = (ids[:, 1:3] + 1) % VOCAB
    one, two = (importance_weighted_bound(model, x, num_draws=2, num_steps=6) for x in (ids, other))
    torch.testing.assert_close(one, two)
    other[:, 3] = (ids[:, 3] + 1) % VOCAB
    assert not torch.isclose(one, importance_weighted_bound(model, other, num_draws=2, num_steps=6)).any()


@pytest.mark.parametrize("clock", ["shared", "ramp:2", "blocks:4"])
def test_a_condition_is_read(clock):
    model = make_model(
        "nfdm", prediction_type="categorical", predictor="two_stream", max_length=8, condition_length=2, clock=clock
    )
    ids = torch.randint(VOCAB, (6, 8))
    other = ids.clone()
    other[:, 1:3] = (ids[:, 1:3] + 1) % VOCAB
    one, two = (importance_weighted_bound(model, x, num_draws=2, num_steps=6) for x in (ids, other))
    assert not torch.isclose(one, two).any()


def test_one_weight_given_a_condition_has_the_mean_of_the_continuous_bound():
    model, ids = smooth_model("nfdm", condition_length=2), make_ids(64)
    continuous = estimate_likelihood(model, ids, num_draws=64, batch_size=64).nats_per_story
    bounds = importance_weighted_bound(model, ids.repeat(8, 1), num_draws=1, num_steps=40, batch_size=512)
    own_error = (bounds.view(8, 64).var(0).sum() / 8).sqrt().item() / 64
    error = math.hypot(own_error, continuous.monte_carlo_error)
    assert error < 0.02 * continuous.value
    assert abs(bounds.mean().item() - continuous.value) < 3 * error


@pytest.mark.parametrize("name", MODELS)
def test_variance_of_a_short_step_is_the_squared_volatility_times_its_length(name):
    model = make_model(name)
    context = None if model.context_dim is None else torch.randn(3, model.context_dim, dtype=torch.float64)
    t, h = torch.tensor([[0.2], [0.5], [0.9]], dtype=torch.float64), 1e-5
    variance = step_variance(model.forward_process, t, t - h, context)
    expected = model.forward_process.squared_volatility(Dual(t - h / 2, torch.full_like(t, h)), context)
    torch.testing.assert_close(variance, expected.expand(variance.shape), rtol=1e-2, atol=0)


def test_importance_weighted_bound_does_not_depend_on_how_many_texts_go_at_once():
    # Other random numbers, the same mean.
    model, log_frequencies = exact_model("diffusion-lm")
    ids, _ = sample_tokens(log_frequencies, 96)
    whole, parts = (importance_weighted_bound(model, ids, num_draws=1, num_steps=4, batch_size=b) for b in (96, 40))
    assert whole.shape == parts.shape == (96,)
    assert torch.equal(whole, importance_weighted_bound(model, ids, num_draws=1, num_steps=4, batch_size=96))
    difference = whole - parts
    assert difference.any() and abs(difference.mean()) < 4 * difference.std() / math.sqrt(96)


@pytest.mark.parametrize("option", ["num_draws", "num_steps", "batch_size"])
def test_importance_weighted_bound_refuses_a_number_below_one(option):
    with pytest.raises(ValueError, match=f"`{option}` is 0; it must be an integer of at least 1"):
        importance_weighted_bound(make_model("diffusion-lm"), make_ids(2), **{option: 0})


def test_importance_weighted_bound_refuses_ids_of_another_model():
    with pytest.raises(ValueError, match=r"`input_ids` has shape \(2, 6\); it must be \(batch, 5\)"):
        importance_weighted_bound(make_model("diffusion-lm"), torch.zeros(2, LENGTH + 1).long())
