"""The bound over a dataset: above the truth, on it where the model is exact, with errors that mean what they say."""

import json
import math

import pytest
import torch
from datasets import Dataset
from exact_models import exact_model, sample_tokens
from tiny import LENGTH, MODELS, PREDICTION_TYPES, VOCAB, make_config, make_ids, make_model, make_tokenizer

from diffusers_text_nfdm import NFDMModel, WordTokenizer
from diffusers_text_nfdm.data import prepare_dataset
from diffusers_text_nfdm.likelihood import UNITS, estimate_likelihood, importance_weighted_bound
from diffusers_text_nfdm.stories import StoryGrammar


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
    draws = 4 if name.startswith("nfdm") else {"mulan-rescaled": 48, "diffusion-lm": 32}.get(name, 16)
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


# --- units, terms, errors ---


def counts(n):
    return torch.randint(1, LENGTH, (n,)), torch.randint(5, 30, (n,))


@pytest.mark.parametrize("name", MODELS)
def test_units_differ_by_exact_factors_and_terms_sum_to_the_bound(name):
    model, ids, (tokens, chars) = make_model(name, torch.float32), make_ids(12), counts(12)
    estimate = estimate_likelihood(model, ids, tokens, chars, num_draws=4, time_sampler="learned")
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
    neither = estimate_likelihood(model, ids, num_draws=2, time_sampler="learned")
    assert neither.nats_per_token is neither.bits_per_token is neither.bits_per_character is None
    assert "token" not in str(neither) and "character" not in str(neither)
    only_chars = estimate_likelihood(model, ids, num_chars=chars, num_draws=2, time_sampler="learned")
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
    estimate = estimate_likelihood(make_model("diffusion-lm"), make_ids(1), num_draws=2, time_sampler="learned")
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
    model, plain = (
        make_model(name, torch.float32, prediction_type=kind, time_sampler=sampler)
        for sampler in ("buckets", "uniform")
    )
    assert model.time_sampler.probabilities().std() > 0.01  # the learned density is not uniform
    ids = make_ids(128)
    estimates = [
        estimate_likelihood(one, ids, num_draws=8, time_sampler=density, batch_size=128).nats_per_story
        for one, density in ((model, "pilot"), (model, "learned"), (plain, "learned"))
    ]
    for a, b in [(0, 1), (0, 2), (1, 2)]:
        error = math.hypot(estimates[a].monte_carlo_error, estimates[b].monte_carlo_error)
        assert error < 0.1 * estimates[a].value
        assert abs(estimates[a].value - estimates[b].value) < 4 * error


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
    estimate = estimate_likelihood(model, ids, tokens, chars, num_draws=2, time_sampler="learned")
    rows = {line[:34].strip(): line[34:].split() for line in str(estimate).splitlines()[1:]}
    for unit in UNITS:
        quantity = getattr(estimate, unit)
        errors = (quantity.monte_carlo_error, quantity.dataset_error)
        assert rows[unit.replace("_", " ")] == [f"{x:.4f}" for x in (quantity.value, *errors)]
    assert {f"{term} (nats per story)" for term in estimate.terms} < set(rows)
    assert rows["function evaluations"] == [str(estimate.num_function_evaluations)]
    assert len(rows) == 5 + 4 + 1
    assert {len(line) for line in str(estimate).splitlines()[:-1]} == {34 + 3 * 12}


@pytest.mark.parametrize("time_sampler, pilot", [("pilot", 512), ("learned", 0)])
def test_function_evaluations_are_the_predictor_calls(time_sampler, pilot):
    model, calls = make_model("nfdm", torch.float32), []
    model.predictor.register_forward_hook(lambda module, inputs, output: calls.append(len(output)))
    estimate = estimate_likelihood(model, make_ids(50), num_draws=2, time_sampler=time_sampler, batch_size=48)
    assert estimate.num_function_evaluations == sum(calls) == 50 * 2 + pilot


def test_times_of_a_text_are_one_in_each_cell_of_both_halves_and_its_noise_is_normal():
    model, seen = make_model("diffusion-lm", torch.float32, time_sampler="uniform"), []
    model.predictor.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[:2]))
    estimate_likelihood(model, make_ids(500), num_draws=8, time_sampler="learned", batch_size=500)
    t = torch.stack([time[:, 0] for _, time in seen])
    for half in (t[:4], t[4:]):
        assert torch.equal((half * 4).long(), torch.arange(4)[:, None].expand(4, 500))
    shifts = t[::4] * 4
    assert abs(torch.corrcoef(shifts)[0, 1]) < 0.15  # the halves are independent
    for shift in shifts:
        assert shift.mean().item() == pytest.approx(0.5, abs=0.05)
        assert shift.std().item() == pytest.approx(12**-0.5, abs=0.03)
    # At t near 1 z is the noise itself.
    z = torch.cat([latents[time[:, 0] > 0.99] for latents, time in seen])
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
    estimate = estimate_likelihood(model, **prepared[:], num_draws=2, time_sampler="learned")
    rows = prepared[:]
    assert estimate == estimate_likelihood(
        model,
        rows["input_ids"].tolist(),
        rows["num_tokens"].tolist(),
        rows["num_chars"].tolist(),
        num_draws=2,
        time_sampler="learned",
    )
    assert estimate.protocol["texts"] == 3


@pytest.mark.parametrize("training", [True, False])
def test_model_is_left_in_the_mode_it_was_in(training):
    model = make_model("mulan", torch.float32, hidden_dropout_prob=0.5).train(training)
    modes = []
    handle = model.predictor.register_forward_hook(lambda module, *_: modes.append(module.training))
    estimate_likelihood(model, make_ids(4), num_draws=2, time_sampler="learned")
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
        ({"num_tokens": [1, 2, 3]}, r"`num_tokens` has shape \(3,\).*one finite number above 0 for each of the 2"),
        ({"num_tokens": [3, float("inf")]}, r"`num_tokens` .* values \[3.0, inf\]"),
        ({"input_ids": torch.full((2, LENGTH), 1.9)}, "`input_ids` is of type torch.float32; token ids must be integ"),
        ({"input_ids": [[True] * LENGTH]}, "`input_ids` is of type torch.bool"),
        ({"num_chars": [1]}, r"`num_chars` has shape \(1,\)"),
        ({"num_chars": [4, 0]}, r"`num_chars` .* values \[4.0, 0.0\]"),
        ({"num_draws": 3}, "`num_draws` is 3; it must be an even number of at least 2"),
        ({"num_draws": 0}, "`num_draws` is 0"),
        ({"batch_size": 0}, "`batch_size` is 0; it must be an integer of at least 1"),
        (
            {"time_sampler": "stratified"},
            "`time_sampler` is 'stratified'; it must be one of 'pilot', 'learned'",
        ),
    ],
)
def test_bad_input_is_refused_by_name_and_value(arguments, message):
    model, calls = make_model("diffusion-lm"), []
    model.predictor.register_forward_hook(lambda *_: calls.append(1))
    with pytest.raises(ValueError, match=message):
        estimate_likelihood(model, **{"input_ids": make_ids(2), **arguments})
    assert not calls


# --- errors that mean what they say ---


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
