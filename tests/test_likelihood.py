"""The bound over a dataset: above the truth, on it where the model is exact, with errors that mean what they say."""

import json
import math
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from datasets import Dataset
from tiny import LENGTH, MODELS, PREDICTION_TYPES, VOCAB, make_config, make_ids, make_model, make_tokenizer, seeded

from diffusers_text_nfdm import NFDMConfig, NFDMModel, WordTokenizer
from diffusers_text_nfdm.data import prepare_dataset
from diffusers_text_nfdm.likelihood.importance_weighting import importance_weighted_bound, step_variance
from diffusers_text_nfdm.likelihood import FittedTimes, estimate_likelihood, fit_times
from diffusers_text_nfdm.stories import StoryGrammar


ROOT = Path(__file__).parent.parent
UNIT_NAMES = ("nats_per_story", "nats_per_position", "nats_per_token", "bits_per_token", "bits_per_character")

# Starting this noisy, z_0 leaves something to decode (the start of Diffusion-LM and of MuLAN-Rescaled is fixed).
# Over a small range of γ' the rescaled rates stay positive.
SCHEDULES = {
    "nfdm": {"delta": 0.6, "volatility": "markovian"},
    "nfdm-additive": {"delta": 0.6, "volatility": "markovian"},
    "nfdm-head": {"delta": 0.6, "volatility": "markovian"},
    "mulan": {"gamma_min": -1.0, "gamma_max": 12.0},
    "mulan-rescaled": {"gamma_min": 0.0, "gamma_max": 5.0},
    "diffusion-lm": {},
}


def silence(*layers):
    with torch.no_grad():
        for layer in layers:
            layer.weight.zero_()
            layer.bias.zero_()


def exact_model(name, **options):
    """A model whose prediction is the exact posterior mean of independent tokens; and their log frequencies."""
    options = {"prediction_type": "categorical", "decoder": "gaussian", "num_hidden_layers": 1, **options}
    model = make_model(name, **SCHEDULES[name], **options)
    log_frequencies = torch.log_softmax(torch.randn(VOCAB, dtype=torch.float64), 0)
    silence(model.predictor.output, model.prediction.gate)
    if name.startswith("nfdm"):
        silence(model.forward_process.network.output, model.forward_process.volatility.mlp[2])
    if name.startswith("mulan"):
        # Nothing about x in c, and one fixed schedule.
        silence(model.context_encoder.head, model.forward_process.coefficients[2])
    with torch.no_grad():
        model.token_bias.copy_(log_frequencies)
    return model, log_frequencies.expand(LENGTH, VOCAB)


def sample_tokens(log_frequencies, n):
    """Texts of independent tokens, position j from row j, and their true `-log p`."""
    ids = torch.multinomial(log_frequencies.exp(), n, replacement=True).T
    return ids, -log_frequencies[torch.arange(LENGTH), ids].sum(-1)


# --- against the truth ---


@pytest.mark.parametrize("kind", PREDICTION_TYPES)
@pytest.mark.parametrize("name", MODELS)
def test_bound_of_an_untrained_model_is_above_the_truth(name, kind):
    model = make_model(name, torch.float32, prediction_type=kind)
    ids, information = sample_tokens(torch.log_softmax(torch.randn(LENGTH, VOCAB), -1), 256)
    bound = estimate_likelihood(model, ids, num_draws=4, batch_size=256).nats_per_story
    assert bound.value - 4 * bound.monte_carlo_error > information.mean().item()


@pytest.mark.parametrize("name", MODELS)
def test_bound_of_the_exact_model_is_the_truth(name):
    model, log_frequencies = exact_model(name)
    ids, information = sample_tokens(log_frequencies, 1024)
    truth = information.mean().item()
    # The integrand of NFDM varies less, and costs more; that of MuLAN-Rescaled varies most.
    draws = 4 if name.startswith("nfdm") else 48 if name == "mulan-rescaled" else 16
    bound = estimate_likelihood(model, ids, num_draws=draws, batch_size=1024).nats_per_story
    assert bound.monte_carlo_error < 0.0125 * truth
    assert abs(bound.value - truth) < 4 * bound.monte_carlo_error


@pytest.mark.parametrize("name", MODELS)
def test_bound_of_the_exact_model_knows_the_texts_it_was_given(name):
    # Text by text, not only on average: improbable texts cost what they should.
    model, log_frequencies = exact_model(name)
    likely, unlikely = log_frequencies[0].argmax().item(), log_frequencies[0].argmin().item()
    for token in (likely, unlikely):
        bound = estimate_likelihood(model, [[token] * LENGTH] * 512, num_draws=4, batch_size=512).nats_per_story
        truth = -LENGTH * log_frequencies[0, token].item()
        assert bound.monte_carlo_error < 0.05 * truth + 0.1
        assert abs(bound.value - truth) < 4 * bound.monte_carlo_error


def test_bound_of_an_untrained_model_is_above_the_entropy_of_the_story_grammar():
    grammar = StoryGrammar()
    texts = grammar.sample(64)
    tokenizer = WordTokenizer.from_texts(texts, min_count=0, max_length=64)
    prepared, report = prepare_dataset(Dataset.from_dict({"text": texts}), tokenizer, max_length=64)
    assert report.truncated_share == report.unknown_share == 0
    config = make_config("nfdm", vocab_size=len(tokenizer), max_length=64, prediction_type="categorical")
    model = NFDMModel(config)
    model.set_token_frequencies(torch.bincount(prepared[:]["input_ids"].flatten(), minlength=len(tokenizer)))
    estimate = estimate_likelihood(model, **prepared[:], num_draws=2, batch_size=128)
    bound, truth = estimate.nats_per_story, -math.fsum(map(grammar.log_prob, texts)) / len(texts)
    assert bound.value - 4 * bound.monte_carlo_error > truth
    assert bound.value - 4 * bound.dataset_error > grammar.entropy()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["nfdm", "diffusion-lm"])
def test_training_brings_the_bound_down_to_the_truth_and_not_below(name):
    # The tokens depend on their position, which only the network can know.
    log_frequencies = torch.log_softmax(1.5 * torch.randn(LENGTH, VOCAB), -1)
    options = {"volatility": "markovian"} if name == "nfdm" else {}
    config = make_config(
        name,
        prediction_type="categorical",
        decoder="gaussian",
        embedding_dim=8,
        num_hidden_layers=1,
        **options,
    )
    model = MODELS[name][0](config)
    ids, information = sample_tokens(log_frequencies, 1024)
    truth = information.mean().item()

    def bound():
        return estimate_likelihood(model, ids, num_draws=16, batch_size=256).nats_per_story

    bounds, steps, rate = [bound()], 500, 1e-2
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = rate * (1 - step / steps)
        model.train()
        optimizer.zero_grad()
        model(sample_tokens(log_frequencies, 64)[0]).loss.backward()
        optimizer.step()
        if step + 1 in (steps // 4, steps):
            bounds.append(bound())
    print(name, f"truth {truth:.3f}, bounds", *(f"{b.value:.3f} ± {b.monte_carlo_error:.3f}" for b in bounds))
    assert all(b.value > truth - 3 * b.monte_carlo_error for b in bounds)
    assert bounds[0].value > 1.2 * truth
    assert bounds[2].value < bounds[1].value < bounds[0].value
    assert bounds[2].value < 1.05 * truth


# --- the importance-weighted bound ---


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
            # Their schedule starts at an SNR of 100, and the weights of large embeddings, which cross it in eight leaps, vary
            # so much that their mean cannot be measured.
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


def smooth_model(name):
    """Deformed by its network and with a volatility of its own, but without the fast oscillations in t of a random time embedding."""
    model = make_model(name, prediction_type="categorical", decoder="gaussian", num_hidden_layers=1, delta=0.6)
    process = model.forward_process
    silence(model.predictor.output, model.prediction.gate)
    if name == "nfdm":
        silence(process.network.film.linear, *(block.modulation.linear for block in process.network.blocks))
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


@pytest.mark.parametrize("name", MODELS)
def test_variance_of_a_short_step_is_the_squared_volatility_times_its_length(name):
    model = make_model(name)
    context = None if model.context_dim is None else torch.randn(3, model.context_dim, dtype=torch.float64)
    t, h = torch.tensor([0.2, 0.5, 0.9], dtype=torch.float64), 1e-5
    variance = step_variance(model.forward_process, t, t - h, context)
    expected = model.forward_process.squared_volatility(t - h / 2, context) * h
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
    with pytest.raises(ValueError, match=f"`{option}` is 0; it must be at least 1"):
        importance_weighted_bound(make_model("diffusion-lm"), make_ids(2), **{option: 0})


def test_importance_weighted_bound_refuses_ids_of_another_model():
    with pytest.raises(ValueError, match=r"`input_ids` has shape \(2, 6\); it must be \(batch, 5\)"):
        importance_weighted_bound(make_model("diffusion-lm"), torch.zeros(2, LENGTH + 1).long())


# --- units, terms, errors ---


def counts(n):
    return torch.randint(1, LENGTH, (n,)), torch.randint(5, 30, (n,))


@pytest.mark.parametrize("name", MODELS)
def test_units_differ_by_exact_factors_and_terms_sum_to_the_bound(name):
    model, ids, (tokens, chars) = make_model(name, torch.float32), make_ids(12), counts(12)
    estimate = estimate_likelihood(model, ids, tokens, chars, num_draws=4, time_sampler="uniform")
    story = estimate.nats_per_story.value
    factors = {
        "nats_per_position": 1 / LENGTH,
        "nats_per_token": 12 / tokens.sum().item(),
        "bits_per_token": 12 / tokens.sum().item() / math.log(2),
        "bits_per_character": 12 / chars.sum().item() / math.log(2),
    }
    for unit, factor in factors.items():
        quantity = getattr(estimate, unit)
        assert quantity.value == pytest.approx(factor * story, rel=1e-12)
        assert quantity.monte_carlo_error == pytest.approx(
            factor * estimate.nats_per_story.monte_carlo_error, rel=1e-12
        )
    assert sum(term.value for term in estimate.terms.values()) == pytest.approx(story, rel=1e-12)
    assert list(estimate.terms) == ["diffusion", "reconstruction", "prior", "context"]
    assert (estimate.terms["prior"].value == 0) == name.startswith("nfdm")
    assert (estimate.terms["context"].value > 0) == name.startswith("mulan")


def test_units_without_their_counts_are_none():
    model, ids, (_, chars) = make_model("diffusion-lm"), make_ids(3), counts(3)
    neither = estimate_likelihood(model, ids, num_draws=2, time_sampler="uniform")
    assert neither.nats_per_token is neither.bits_per_token is neither.bits_per_character is None
    assert "token" not in str(neither) and "character" not in str(neither)
    only_chars = estimate_likelihood(model, ids, num_chars=chars, num_draws=2, time_sampler="uniform")
    assert only_chars.nats_per_token is None and only_chars.bits_per_character is not None


def test_dataset_error_is_that_of_a_mean_and_of_a_ratio_of_means():
    # With the exact model the bound of a text is its information and the noise, which is independent of it.
    model, log_frequencies = exact_model("mulan")
    ids, information = sample_tokens(log_frequencies, 200)
    tokens = torch.randint(1, LENGTH + 1, (200,))
    estimate = estimate_likelihood(model, ids, tokens, num_draws=128, batch_size=200)
    story, token = estimate.nats_per_story, estimate.nats_per_token
    of_texts = information.std().item() / math.sqrt(200)
    assert story.monte_carlo_error < 0.6 * of_texts
    assert story.dataset_error == pytest.approx(math.hypot(of_texts, story.monte_carlo_error), rel=0.1)
    # The error of the ratio by the jackknife.
    left_out = (information.sum() - information) / (tokens.sum() - tokens)
    of_texts = ((199 / 200) * (left_out - left_out.mean()).square().sum()).sqrt().item()
    assert token.dataset_error == pytest.approx(math.hypot(of_texts, token.monte_carlo_error), rel=0.1)


def test_a_single_text_has_no_dataset_error():
    estimate = estimate_likelihood(make_model("diffusion-lm"), make_ids(1), num_draws=2, time_sampler="uniform")
    assert estimate.nats_per_story.dataset_error is None
    assert str(estimate).splitlines()[1].endswith("-")


def test_monte_carlo_error_falls_with_the_root_of_the_draws():
    model, log_frequencies = exact_model("mulan")
    ids, _ = sample_tokens(log_frequencies, 512)
    few, many = (
        estimate_likelihood(model, ids, num_draws=n, batch_size=1024).nats_per_story.monte_carlo_error for n in (2, 32)
    )
    # Stratified times do better than 1/sqrt(16) = 0.25, but the noise remains.
    assert 0.1 < many / few < 0.3


@pytest.mark.parametrize("name, kind", [("nfdm", "embedding"), ("nfdm", "categorical"), ("mulan", "categorical")])
def test_every_time_density_estimates_the_same(name, kind):
    model = make_model(name, torch.float32, prediction_type=kind)
    assert model.time_sampler.probabilities().std() > 0.01  # the learned density is not uniform
    ids = make_ids(128)
    estimates = [
        estimate_likelihood(model, ids, num_draws=8, time_sampler=density, batch_size=128).nats_per_story
        for density in ("pilot", "learned", "uniform")
    ]
    for a, b in [(0, 1), (0, 2), (1, 2)]:
        error = math.hypot(estimates[a].monte_carlo_error, estimates[b].monte_carlo_error)
        assert error < 0.1 * estimates[a].value
        assert abs(estimates[a].value - estimates[b].value) < 4 * error


def test_pilot_finds_the_narrow_peak_of_the_published_diffusion_lm():
    # Half of it lies in t < 0.0003, where hardly any uniform time falls.
    model, ids = make_model("diffusion-lm", torch.float32), make_ids(128)
    pilot, uniform = (
        estimate_likelihood(model, ids, num_draws=16, time_sampler=kind, batch_size=128).nats_per_story
        for kind in ("pilot", "uniform")
    )
    assert pilot.monte_carlo_error < 0.02 * pilot.value
    assert uniform.monte_carlo_error > 5 * pilot.monte_carlo_error


def test_fitted_times_have_the_density_they_are_weighted_by():
    edges = torch.tensor([0.0, 0.01, 0.3, 1.0], dtype=torch.float64)
    uniforms = torch.linspace(0, 1, 300_001, dtype=torch.float64)
    t, weight = FittedTimes(edges)(uniforms)
    assert t[0] == 0 and t[-1] == 1 and (t.diff() > 0).all()
    torch.testing.assert_close(t[::100_000], edges)
    for power in (0, 1, 2):
        assert (weight * t**power).mean().item() == pytest.approx(1 / (power + 1), rel=1e-4)


@pytest.mark.parametrize("batch_size", [128, 50])
def test_fitted_times_keep_their_uniform_share_and_follow_the_term(batch_size):
    model = make_model("diffusion-lm", torch.float32)
    with torch.no_grad():
        times, evaluations = fit_times(model, make_ids(16), batch_size, seeded(0))
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


# --- the report ---


def test_report_survives_json_with_its_protocol(tmp_path):
    model, ids, (tokens, chars) = make_model("mulan", torch.float32), make_ids(6), counts(6)
    estimate = estimate_likelihood(model, ids, tokens, chars, num_draws=4, seed=5, batch_size=32)
    estimate.save(tmp_path / "likelihood.json")
    read = json.loads((tmp_path / "likelihood.json").read_text())
    assert read == estimate.to_dict()
    assert read["bits_per_character"]["value"] == estimate.bits_per_character.value
    protocol = read["protocol"]
    expected = {
        "model": "MuLANModel",
        "texts": 6,
        "draws_per_text": 4,
        "seed": 5,
        "batch_size": 32,
        "dtype": "torch.float32",
    }
    assert {key: protocol[key] for key in expected} == expected
    again = estimate_likelihood(model, ids, tokens, chars, num_draws=4, seed=protocol["seed"], batch_size=32)
    assert again == estimate


def test_table_has_a_row_for_every_unit_and_term():
    model, ids, (tokens, chars) = make_model("nfdm", torch.float32), make_ids(6), counts(6)
    estimate = estimate_likelihood(model, ids, tokens, chars, num_draws=2, time_sampler="uniform")
    rows = {line[:34].strip(): line[34:].split() for line in str(estimate).splitlines()[1:]}
    for unit in UNIT_NAMES:
        quantity = getattr(estimate, unit)
        errors = (quantity.monte_carlo_error, quantity.dataset_error)
        assert rows[unit.replace("_", " ")] == [f"{x:.4f}" for x in (quantity.value, *errors)]
    assert {f"{term} (nats per story)" for term in estimate.terms} < set(rows)
    assert rows["function evaluations"] == [str(estimate.num_function_evaluations)]
    assert len(rows) == 5 + 4 + 1
    assert {len(line) for line in str(estimate).splitlines()[:-1]} == {34 + 3 * 12}


@pytest.mark.parametrize("time_sampler, pilot", [("pilot", 512), ("learned", 0), ("uniform", 0)])
def test_function_evaluations_are_the_predictor_calls(time_sampler, pilot):
    model, calls = make_model("nfdm", torch.float32), []
    model.predictor.register_forward_hook(lambda module, inputs, output: calls.append(len(output)))
    estimate = estimate_likelihood(model, make_ids(50), num_draws=2, time_sampler=time_sampler, batch_size=48)
    assert estimate.num_function_evaluations == sum(calls) == 50 * 2 + pilot


def test_times_of_a_text_are_one_in_each_cell_of_both_halves_and_its_noise_is_normal():
    model, seen = make_model("diffusion-lm", torch.float32), []
    model.predictor.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[:2]))
    estimate_likelihood(model, make_ids(500), num_draws=8, time_sampler="uniform", batch_size=500)
    t = torch.stack([time for _, time in seen])
    for half in (t[:4], t[4:]):
        assert torch.equal((half * 4).long(), torch.arange(4)[:, None].expand(4, 500))
    shifts = t[::4] * 4
    assert abs(torch.corrcoef(shifts)[0, 1]) < 0.15  # the halves are independent
    for shift in shifts:
        assert shift.mean().item() == pytest.approx(0.5, abs=0.05)
        assert shift.std().item() == pytest.approx(12**-0.5, abs=0.03)
    # At t near 1 z is the noise itself.
    z = torch.cat([latents[time > 0.99] for latents, time in seen])
    assert z.numel() > 300 and abs(z.mean().item()) < 0.2 and z.std().item() == pytest.approx(1, abs=0.1)


def test_seeds():
    model, ids = make_model("nfdm", torch.float32), make_ids(5)
    first, same, other = (estimate_likelihood(model, ids, num_draws=2, seed=seed) for seed in (1, 1, 2))
    assert first == same
    assert first.nats_per_story != other.nats_per_story
    state = torch.get_rng_state()
    estimate_likelihood(model, ids, num_draws=2)
    assert torch.equal(torch.get_rng_state(), state)


def test_columns_of_a_prepared_dataset_are_the_arguments():
    texts = ["Tom ran.", "Tom saw a fox.", "a red fox ran."]
    prepared, _ = prepare_dataset(Dataset.from_dict({"text": texts}), make_tokenizer(), LENGTH)
    model = make_model("nfdm", torch.float32)
    estimate = estimate_likelihood(model, **prepared[:], num_draws=2, time_sampler="uniform")
    rows = prepared[:]
    assert estimate == estimate_likelihood(
        model,
        rows["input_ids"].tolist(),
        rows["num_tokens"].tolist(),
        rows["num_chars"].tolist(),
        num_draws=2,
        time_sampler="uniform",
    )
    assert estimate.protocol["texts"] == 3


@pytest.mark.parametrize("training", [True, False])
def test_model_is_left_in_the_mode_it_was_in(training):
    model = make_model("mulan", torch.float32, hidden_dropout_prob=0.5).train(training)
    modes = []
    handle = model.predictor.register_forward_hook(lambda module, *_: modes.append(module.training))
    estimate_likelihood(model, make_ids(4), num_draws=2, time_sampler="uniform")
    importance_weighted_bound(model, make_ids(2), num_draws=1, num_steps=2)
    handle.remove()
    assert modes and not any(modes) and model.training == training
    assert all(parameter.grad is None for parameter in model.parameters())

    def fail(*_):
        raise RuntimeError("stop")

    model.predictor.register_forward_hook(fail)
    for call in (estimate_likelihood, importance_weighted_bound):
        with pytest.raises(RuntimeError, match="stop"):
            call(model, make_ids(2))
        assert model.training == training and model.predictor.training == training


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"input_ids": torch.zeros(LENGTH).long()}, r"`input_ids` has shape \(5,\); it must be \(texts, max_length\)"),
        ({"input_ids": torch.zeros(0, LENGTH).long()}, "at least one text"),
        ({"input_ids": torch.zeros(2, LENGTH + 1).long()}, r"`input_ids` has shape \(2, 6\)"),
        ({"input_ids": torch.full((65, LENGTH), VOCAB)}, "`input_ids` has values from 11 to 11"),
        ({"num_tokens": [1, 2, 3]}, r"`num_tokens` has shape \(3,\).*one number above 0 for each of the 2 texts"),
        ({"num_chars": [1]}, r"`num_chars` has shape \(1,\)"),
        ({"num_chars": [4, 0]}, r"`num_chars` .* values \[4.0, 0.0\]"),
        ({"num_draws": 3}, "`num_draws` is 3; it must be an even number of at least 2"),
        ({"num_draws": 0}, "`num_draws` is 0"),
        ({"batch_size": 0}, "`batch_size` is 0; it must be at least 1"),
        (
            {"time_sampler": "stratified"},
            "`time_sampler` is 'stratified'; it must be one of 'pilot', 'learned', 'uniform'",
        ),
    ],
)
def test_bad_input_is_refused_by_name_and_value(arguments, message):
    model, calls = make_model("diffusion-lm"), []
    model.predictor.register_forward_hook(lambda *_: calls.append(1))
    with pytest.raises(ValueError, match=message):
        estimate_likelihood(model, **{"input_ids": make_ids(2), **arguments})
    assert not calls


# --- errors that mean what they say, memory, sizes, the page ---


def coverage(model, ids, repeats=100, num_draws=8):
    """In how many runs a value of 50 times the draws lies within two standard errors."""
    reference = estimate_likelihood(
        model, ids, num_draws=50 * num_draws, batch_size=len(ids), seed=10_000
    ).nats_per_story
    runs = [
        estimate_likelihood(model, ids, num_draws=num_draws, batch_size=len(ids), seed=seed).nats_per_story
        for seed in range(repeats)
    ]
    return sum(
        abs(run.value - reference.value) <= 2 * math.hypot(run.monte_carlo_error, reference.monte_carlo_error)
        for run in runs
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", PREDICTION_TYPES)
@pytest.mark.parametrize("name", ["nfdm", "diffusion-lm"])
def test_two_standard_errors_cover_the_value_of_a_far_longer_run(name, kind):
    covered = coverage(make_model(name, torch.float32, prediction_type=kind), make_ids(64))
    print(f"{name}, {kind} prediction: {covered} of 100 within two standard errors")
    assert covered >= 90


MEMORY = """
import resource, torch
from diffusers_text_nfdm import NFDMConfig, NFDMModel
torch.set_num_threads(1)
model = NFDMModel(NFDMConfig()).train()
optimizer = torch.optim.Adam(model.parameters())
for _ in range(2):
    model(torch.randint(10767, (8, 64))).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="ru_maxrss has other units elsewhere")
def test_a_training_step_at_the_sizes_of_the_paper_fits_into_6_gib():
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", MEMORY], env=environment, capture_output=True, text=True, check=True)
    gib = int(done.stdout) / 2**20
    print(f"peak memory of two steps at batch 8: {gib:.2f} GiB")
    # Weights, gradients and Adam's two moments alone are four times 99M float32 numbers.
    assert 4 * 98.9e6 * 4 / 2**30 < gib < 6


def test_parameter_counts_are_printed_for_every_model(capsys):
    runpy.run_path(str(ROOT / "examples" / "parameter_counts.py"), run_name="__main__")
    header, *rows = capsys.readouterr().out.splitlines()
    table = {row.split()[0]: [int(number.replace(",", "")) for number in row.split()[1:]] for row in rows}
    assert header.split()[-1] == "total"
    assert list(table) == ["NFDM", "NFDM-Additive", "MuLAN", "MuLAN-Rescaled", "Diffusion-LM"]
    with torch.device("meta"):
        model = NFDMModel(NFDMConfig())
    assert table["NFDM"][-1] == model.num_parameters()
    for *parts, other, total in table.values():
        assert sum(parts) + other == total
        # The bias of every token, and the buckets of the time sampler.
        assert other == 10_767 + 100
    assert table["Diffusion-LM"][2:4] == [0, 0]


def test_the_example_on_the_page_prints_its_table(tmp_path, monkeypatch, capsys):
    code = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "likelihood.md").read_text(encoding="utf-8"), re.S)
    assert len(code) == 1
    monkeypatch.chdir(tmp_path)
    exec(code[0], {})
    printed = capsys.readouterr().out
    assert "bits per character" in printed and "diffusion (nats per story)" in printed
    assert json.loads((tmp_path / "likelihood.json").read_text())["protocol"]["texts"] == 64


def test_the_paper_index_names_only_what_exists():
    page = (ROOT / "docs" / "paper_index.md").read_text(encoding="utf-8")
    tests = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", page)
    assert len(tests) > 8
    for path, name in tests:
        assert f"def {name}(" in (ROOT / path).read_text(encoding="utf-8"), f"{path}::{name}"
    package = ROOT / "src" / "diffusers_text_nfdm"
    paths = set(re.findall(r"`((?:examples/)?[\w/]+(?:\.py|/))`", page))
    assert len(paths) > 15
    for path in paths:
        assert (ROOT / path).exists() or (package / path).exists(), path
    source = "".join(path.read_text(encoding="utf-8") for path in package.rglob("*.py"))
    names = set(re.findall(r"`(?:[a-z]\w*\.py: )?((?:[A-Z]\w+\.)?[A-Za-z_]\w{4,})(?:\(|`)", page))
    assert {"NFDMProcess.marginal", "drift_matching", "MarkovChainScheduler"} < names
    for name in names:
        for part in name.split("."):
            assert re.search(rf"\b{part}\b", source), name
    for recipe in re.findall(r"`(rocstories-[\w-]+)`", page):
        assert (package / "training" / "recipes" / f"{recipe}.yaml").is_file()
