"""Self-conditioning: a second call sees what a first one predicts, and the bound stays one.

With BERT, or with predicted embeddings, it is shown an Ê; with two streams and categorical prediction it sees the
tokens themselves as they are predicted.
"""

import pytest
import torch
from tiny import (
    MODELS,
    PREDICTION_TYPES,
    VOCAB,
    gradients,
    make_inputs,
    make_model,
    make_pipeline,
    relative_error,
    seeded,
)

from diffusers_text_nfdm import MarkovChainScheduler, ReverseODEScheduler, estimate_likelihood


LENGTH, BLOCK, TEXTS = 6, 2, 3
SCHEDULERS = {
    "star": MarkovChainScheduler(),
    "tokens": MarkovChainScheduler(prediction="tokens"),
    "heun": ReverseODEScheduler("heun"),
}


def conditioned(name: str = "nfdm", prediction_type: str = "categorical", **overrides):
    options = {"max_length": LENGTH, "self_conditioning": True, "prediction_type": prediction_type}
    return make_model(name, **{**options, **overrides})


# A predictor and a clock for it.
SETTINGS = {
    "bert": {"predictor": "bert"},
    "bert, random": {"predictor": "bert", "clock": "random:1"},
    "blocks": {"predictor": "two_stream", "clock": f"blocks:{BLOCK}"},
    "ramp": {"predictor": "two_stream", "clock": "ramp:3"},
}
# Those in which the second call sees tokens.
TOKENS = ["blocks", "ramp"]


def texts() -> torch.Tensor:
    return torch.randint(VOCAB, (TEXTS, LENGTH), generator=seeded(0))


@pytest.mark.parametrize(
    ("prediction_type", "setting"),
    [
        (kind, setting)
        for kind in PREDICTION_TYPES
        for setting in SETTINGS
        if kind == "embedding" or setting not in TOKENS
    ],
)
@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_without_an_estimate_the_predictor_makes_its_own(name, prediction_type, setting):
    model = conditioned(name, prediction_type, **SETTINGS[setting])
    windows = model.token_times(model.clock(), model.draw(TEXTS, seeded(0)))[1]
    assert (windows is not None) == (setting in TOKENS)
    clean, _ = model.clean_stream(texts(), windows)
    z, context = make_inputs(name, TEXTS, length=LENGTH)
    t = torch.rand(TEXTS, LENGTH, dtype=torch.float64)
    first = model.denoise(z, t, context, clean, torch.zeros_like(z), windows).embeddings
    second = model.denoise(z, t, context, clean, first, windows).embeddings
    assert torch.equal(model.denoise(z, t, context, clean, None, windows).embeddings, second)
    assert relative_error(second, first) > 1e-3


# --- tokens as the first call predicts them ---


def token_inputs(name="nfdm", setting="ramp", **options):
    """A model, and what its prediction gets, at times of which some are of tokens that move alone."""
    model = conditioned(name, **SETTINGS[setting], **options)
    _, windows = model.token_times(model.clock("blocks:3"), model.draw(TEXTS, seeded(0)))
    with torch.no_grad():
        clean, _ = model.clean_stream(texts(), windows)
    z, context = make_inputs(name, TEXTS, length=LENGTH)
    t = 0.2 + 0.8 * torch.rand(TEXTS, LENGTH, dtype=torch.float64, generator=seeded(1))
    t[0, 1:3] = 1
    return model, z, t, context, clean, windows


def watch_predictor(model):
    """The tokens, the states, and whether it is the second call, of all calls of the network to come."""
    seen, forward = [], model.predictor.forward

    def spy(z, t, context, tokens, self_condition, clean, places, second_call=False):
        assert self_condition is None
        states = forward(z, t, context, tokens, self_condition, clean, places, second_call)
        seen.append((tokens, states, second_call))
        return states

    model.predictor.forward = spy
    return seen


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_the_second_call_sees_tokens_as_the_first_predicts_them(name):
    """Rows of the tokens under the posterior of the first call, without its own evidence for what moves alone."""
    model, z, t, context, clean, windows = token_inputs(name)
    seen = watch_predictor(model)
    prediction = model.denoise(z, t, context, clean, windows=windows)
    (first_tokens, first_states, first), (tokens, _, second) = seen
    assert (first, second) == (False, True)
    factors, weight, bias = prediction.factors
    size, rows = model.config.hidden_size, model.predictor.token_rows.weight
    states = torch.cat([first_states, factors[..., size:]], -1)
    expected = torch.softmax(states @ weight.T + bias, -1) @ rows
    alone = torch.zeros(TEXTS, LENGTH, dtype=torch.bool)
    alone[0, 0] = True
    assert relative_error(tokens[~alone], expected[~alone]) < 1e-12
    # Its latent is in neither, but it is in the logits, once.
    without = torch.softmax(states[..., :size] @ weight[:, :size].T + bias, -1) @ rows
    assert relative_error(tokens[alone], without[alone]) < 1e-12
    assert relative_error(expected[alone], without[alone]) > 1e-3
    assert relative_error(factors[..., :size], first_states) > 1e-3
    assert relative_error(first_tokens, tokens) > 1e-3


@torch.no_grad()
def test_what_moves_alone_is_hidden_from_both_calls():
    model, z, t, context, clean, windows = token_inputs()
    moved = z.clone()
    moved[0, 0] += 1
    size = model.config.hidden_size
    before, after = (model.denoise(x, t, context, clean, windows=windows).factors[0] for x in (z, moved))
    assert torch.equal(before[..., :size], after[..., :size])
    assert not torch.equal(before[0, 0, size:], after[0, 0, size:])


def test_without_self_conditioning_there_is_one_call():
    model, z, t, context, clean, windows = token_inputs(self_conditioning=False)
    seen = watch_predictor(model)
    model.denoise(z, t, context, clean, windows=windows)
    assert [second for *_, second in seen] == [False]
    assert model.predictor.second_call is None


@pytest.mark.parametrize("cross_entropy", [False, True])
@pytest.mark.parametrize("setting", TOKENS)
@pytest.mark.parametrize("name", ["nfdm", "mulan"])
def test_training_reads_the_texts_that_were_drawn_twice_and_the_others_once(name, setting, cross_entropy):
    """Each text has the loss and the gradient of its own calls."""
    model, ids = conditioned(name, **SETTINGS[setting]), texts()
    draws = model.draw(TEXTS, seeded(1))
    draws.self_conditioned = torch.tensor([0.1, 0.8, 0.2], dtype=torch.float64)
    term = "cross_entropy" if cross_entropy else "bound"
    denoise, options = model.denoise, {"draws": draws, "cross_entropy": cross_entropy}

    def with_calls(second_call):
        model.denoise = lambda *x, **named: denoise(*x, **{**named, "second_call": second_call})
        return model(ids, **options)[term]

    once, twice = with_calls(False), with_calls(True)
    model.denoise = denoise
    read_twice = torch.tensor([True, False, True])
    expected = torch.where(read_twice, twice, once)
    assert torch.equal(model(ids, **options)[term], twice)
    actual = model.train()(ids, **options)[term]
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-12)
    assert relative_error(once, twice) > 1e-4
    expected, actual = gradients(expected.sum(), model), gradients(actual.sum(), model)
    assert actual.keys() == expected.keys()
    for key, value in expected.items():
        torch.testing.assert_close(actual[key], value, rtol=1e-7, atol=1e-10)


def test_three_quarters_of_the_texts_are_read_twice_in_training():
    model = conditioned(**SETTINGS["ramp"]).train()
    draws = model.draw(1000, seeded(0))
    assert torch.equal(model.second_calls(draws), draws.self_conditioned < 0.75)
    assert model.eval().second_calls(draws) is True
    assert conditioned(**SETTINGS["bert"]).train().second_calls(draws) is True


def test_no_gradient_goes_from_the_second_call_through_the_first():
    model, z, t, context, clean, windows = token_inputs()
    prediction = model.denoise(z, t, context, clean, windows=windows)
    actual = gradients(prediction.embeddings.square().sum(), model)
    predictor, seen = model.predictor, []

    # The second call alone, with the tokens of the first as numbers.
    forward = predictor.forward

    def once(*arguments, second_call=False):
        if second_call:
            return forward(*arguments, second_call=True)
        with torch.no_grad():
            seen.append(1)
            return forward(*arguments)

    predictor.forward = once
    expected = gradients(model.denoise(z, t, context, clean, windows=windows).embeddings.square().sum(), model)
    assert seen == [1] and actual.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(actual[name], value, rtol=1e-10, atol=1e-12)


# --- training and sampling ---


SHOWN = [
    *((setting, "categorical", cross_entropy) for setting in ("bert", "bert, random") for cross_entropy in (0, 1)),
    *((setting, "embedding", 0) for setting in TOKENS),
]


@pytest.mark.parametrize("setting, prediction_type, cross_entropy", SHOWN)
@pytest.mark.parametrize("name", ["nfdm", "mulan"])
def test_training_shows_the_estimate_to_the_texts_that_were_drawn(name, setting, prediction_type, cross_entropy):
    """A shown text has the loss of evaluation, another one that of a predictor whose Ê is hidden."""
    model, ids = conditioned(name, prediction_type, **SETTINGS[setting]), texts()
    cross_entropy = bool(cross_entropy)
    draws = model.draw(TEXTS, seeded(1))
    draws.self_conditioned = torch.tensor([0.1, 0.5, 0.2], dtype=torch.float64)
    term = "cross_entropy" if cross_entropy else "bound"
    evaluated = model(ids, draws=draws, cross_entropy=cross_entropy)[term]
    trained = model.train()(ids, draws=draws, cross_entropy=cross_entropy)[term]
    model.predictor.self_condition.weight.data.zero_()
    hidden = model.eval()(ids, draws=draws, cross_entropy=cross_entropy)[term]
    shown = torch.tensor([True, False, True])
    assert torch.allclose(trained[shown], evaluated[shown], rtol=1e-12)
    assert torch.allclose(trained[~shown], hidden[~shown], rtol=1e-12)
    assert not torch.allclose(trained[shown], hidden[shown], rtol=1e-4)


def test_a_quarter_of_the_texts_are_shown_theirs_and_slices_keep_them():
    model = conditioned().train()
    draws = model.draw(1000, seeded(0))
    z, t = torch.randn(1000, LENGTH, 4, dtype=torch.float64), torch.full((1000, 1), 0.4, dtype=torch.float64)
    shown = model.shown_prediction(draws, z, z, t, None, None, None).flatten(1).any(1)
    assert torch.equal(shown, draws.self_conditioned < 0.25) and 200 < shown.sum() < 300
    assert torch.equal(draws.slice(3, 9).self_conditioned, draws.self_conditioned[3:9])
    assert make_model("nfdm").draw(4).self_conditioned is None
    assert model.eval().shown_prediction(draws, z, z, t, None, None, None) is None


@pytest.mark.parametrize("prediction_type", PREDICTION_TYPES)
def test_no_gradient_goes_through_the_first_call(prediction_type):
    model = conditioned(prediction_type=prediction_type)
    z, t = torch.randn(TEXTS, LENGTH, 4, dtype=torch.float64), torch.full((TEXTS, 1), 0.4, dtype=torch.float64)
    estimate = model.denoise(z, t, None, None, torch.zeros_like(z)).embeddings.detach()
    actual = gradients(model.denoise(z, t).embeddings.square().sum(), model)
    expected = gradients(model.denoise(z, t, None, None, estimate).embeddings.square().sum(), model)
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(actual[name], value), name


@pytest.mark.parametrize("setting", ["bert", "ramp"])
def test_weights_that_autocast_casts_in_the_first_call_still_get_their_gradient(setting):
    model, ids = conditioned(**SETTINGS[setting]).float().train(), texts()
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(ids, generator=seeded(0)).loss
    loss.backward()
    for name, parameter in model.predictor.named_parameters():
        assert parameter.grad is not None and parameter.grad.any(), name


def test_likelihood_counts_both_calls():
    columns = {"input_ids": texts(), "num_draws": 2, "time_sampler": "learned"}
    assert estimate_likelihood(conditioned(), **columns).num_function_evaluations == 2 * TEXTS * 2
    assert estimate_likelihood(conditioned(self_conditioning=False), **columns).num_function_evaluations == TEXTS * 2


@pytest.mark.parametrize("scheduler", ["star", "heun"])
def test_every_step_of_sampling_is_shown_the_prediction_before(scheduler):
    options = {"max_length": LENGTH, "prediction_type": "embedding", "self_conditioning": True}
    pipeline = make_pipeline("nfdm", SCHEDULERS[scheduler], **SETTINGS["blocks"], **options)
    seen, denoise = [], pipeline.model.denoise

    def watch(z, t, context, clean, shown, **options):
        prediction = denoise(z, t, context, clean, shown, **options)
        seen.append((shown, prediction.embeddings))
        return prediction

    pipeline.model.denoise = watch
    output = pipeline(num_samples=2, num_inference_steps=9, generator=seeded(0))
    assert not seen[0][0].any()
    assert all(torch.equal(shown, before) for (_, before), (shown, _) in zip(seen, seen[1:]))
    assert output.num_function_evaluations == len(seen)


@pytest.mark.parametrize("setting", TOKENS)
@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_sampling_calls_the_network_once_a_step(scheduler, setting):
    options = {"max_length": LENGTH, "prediction_type": "categorical", "self_conditioning": True}
    pipeline = make_pipeline("nfdm", SCHEDULERS[scheduler], **SETTINGS[setting], **options)
    seen = watch_predictor(pipeline.model)
    output = pipeline(num_samples=2, num_inference_steps=9, generator=seeded(0))
    assert all(second for *_, second in seen)
    assert output.num_function_evaluations == len(seen)


def test_states_of_a_first_call_make_the_second_one():
    """To be shown the states that a first call has at the same latents is to call twice."""
    model, z, t, context, clean, windows = token_inputs()
    # All tokens move: of one that moves alone, states of an earlier step would hold its latent.
    t = t.clamp(0.1, 0.9)
    first = model.denoise(z, t, context, clean, windows=windows, second_call=False)
    twice = model.denoise(z, t, context, clean, windows=windows)
    shown = model.denoise(z, t, context, clean, first.shown_next, windows)
    assert torch.equal(shown.logits, twice.logits) and not torch.equal(first.logits, twice.logits)
