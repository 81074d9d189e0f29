"""Self-conditioning: the predictor sees an Ê made before, and the bound stays one."""

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


def texts() -> torch.Tensor:
    return torch.randint(VOCAB, (TEXTS, LENGTH), generator=seeded(0))


@pytest.mark.parametrize("block_size", [None, BLOCK])
@pytest.mark.parametrize("prediction_type", PREDICTION_TYPES)
@pytest.mark.parametrize("name", MODELS)
def test_without_an_estimate_the_predictor_makes_its_own(name, prediction_type, block_size):
    model = conditioned(name, prediction_type, block_size=block_size)
    previous = model.encode_all_previous(texts())
    count = TEXTS * model.config.num_blocks
    z = torch.randn(count, model.config.block_length, model.config.embedding_dim, dtype=torch.float64)
    t, context = torch.linspace(0.1, 0.9, count, dtype=torch.float64), make_inputs(name, count)[1]
    first = model.predict(z, t, context, previous, torch.zeros_like(z))
    second = model.predict(z, t, context, previous, first)
    assert torch.equal(model.predict(z, t, context, previous), second)
    assert relative_error(second, first) > 1e-3


@pytest.mark.parametrize("cross_entropy", [False, True])
@pytest.mark.parametrize("block_size", [None, BLOCK])
def test_training_shows_the_estimate_to_the_texts_that_were_drawn(block_size, cross_entropy):
    """A shown text has the loss of evaluation, another one that of a predictor whose Ê is hidden."""
    model, ids = conditioned(block_size=block_size), texts()
    draws = model.draw(TEXTS, seeded(1))
    draws.shown = torch.tensor([1.0, 0.0, 1.0], dtype=torch.float64)
    term = "cross_entropy" if cross_entropy else "bound"
    evaluated = model(ids, draws=draws, cross_entropy=cross_entropy)[term]
    trained = model.train()(ids, draws=draws, cross_entropy=cross_entropy)[term]
    model.predictor.estimate.weight.data.zero_()
    hidden = model.eval()(ids, draws=draws, cross_entropy=cross_entropy)[term]
    shown = draws.shown.bool()
    assert torch.allclose(trained[shown], evaluated[shown], rtol=1e-12)
    assert torch.allclose(trained[~shown], hidden[~shown], rtol=1e-12)
    assert not torch.allclose(trained[shown], hidden[shown], rtol=1e-4)


def test_half_of_the_texts_are_shown_and_slices_keep_them():
    model = conditioned()
    draws = model.draw(1000, seeded(0))
    assert set(draws.shown.tolist()) == {0.0, 1.0}
    assert 400 < draws.shown.sum() < 600
    assert torch.equal(draws.slice(3, 9).shown, draws.shown[3:9])
    assert make_model("nfdm").draw(4).shown is None


@pytest.mark.parametrize("prediction_type", PREDICTION_TYPES)
def test_no_gradient_goes_through_the_first_call(prediction_type):
    model = conditioned(prediction_type=prediction_type)
    z, t = torch.randn(TEXTS, LENGTH, 4, dtype=torch.float64), torch.full((TEXTS,), 0.4, dtype=torch.float64)
    estimate = model.predict(z, t, None, None, torch.zeros_like(z)).detach()
    actual = gradients(model.predict(z, t).square().sum(), model)
    expected = gradients(model.predict(z, t, None, None, estimate).square().sum(), model)
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(actual[name], value), name


def test_weights_that_autocast_casts_in_the_first_call_still_get_their_gradient():
    model, ids = conditioned().float().train(), texts()
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(ids, generator=seeded(0)).loss
    loss.backward()
    for name, parameter in model.predictor.named_parameters():
        assert parameter.grad is not None and parameter.grad.any(), name


def test_likelihood_counts_both_calls():
    columns = {"input_ids": texts(), "num_draws": 2, "time_sampler": "uniform"}
    assert estimate_likelihood(conditioned(), **columns).num_function_evaluations == 2 * TEXTS * 2
    assert estimate_likelihood(conditioned(self_conditioning=False), **columns).num_function_evaluations == TEXTS * 2


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_sampling_calls_the_predictor_as_the_bound_does(scheduler):
    """Twice for every Ê, which depends on z alone and on nothing of the steps before."""
    pipeline = make_pipeline(
        "nfdm", SCHEDULERS[scheduler], max_length=LENGTH, block_size=BLOCK, prediction_type="categorical", self_conditioning=True
    )  # fmt: skip
    model, seen = pipeline.model, []
    factors = model.prediction_factors

    def watch(*inputs):
        seen.append(inputs)
        return factors(*inputs)

    model.prediction_factors = watch
    output = pipeline(num_samples=2, num_inference_steps=9, generator=seeded(0))
    # No Ê is given from outside; the call for the first one has zeros.
    assert [inputs[4] is None for inputs in seen] == [True, False] * (len(seen) // 2)
    assert not any(inputs[4].any() for inputs in seen[1::2])
    assert all(torch.equal(outer[0], inner[0]) for outer, inner in zip(seen[::2], seen[1::2]))
    assert output.num_function_evaluations == len(seen)
