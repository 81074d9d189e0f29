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


# A predictor and a clock for it.
SETTINGS = {
    "bert": {"predictor": "bert"},
    "bert, random": {"predictor": "bert", "clock": "random:1"},
    "blocks": {"predictor": "two_stream", "clock": f"blocks:{BLOCK}"},
}


def texts() -> torch.Tensor:
    return torch.randint(VOCAB, (TEXTS, LENGTH), generator=seeded(0))


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("prediction_type", PREDICTION_TYPES)
@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_without_an_estimate_the_predictor_makes_its_own(name, prediction_type, setting):
    model = conditioned(name, prediction_type, **SETTINGS[setting])
    block_size = model.block_size(model.clock())
    clean, _ = model.clean_stream(texts(), block_size)
    z, context = make_inputs(name, TEXTS, length=LENGTH)
    t = torch.rand(TEXTS, LENGTH, dtype=torch.float64)
    first = model.denoise(z, t, context, clean, torch.zeros_like(z), block_size).embeddings
    second = model.denoise(z, t, context, clean, first, block_size).embeddings
    assert torch.equal(model.denoise(z, t, context, clean, None, block_size).embeddings, second)
    assert relative_error(second, first) > 1e-3


@pytest.mark.parametrize("cross_entropy", [False, True])
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("name", ["nfdm", "mulan"])
def test_training_shows_the_estimate_to_the_texts_that_were_drawn(name, setting, cross_entropy):
    """A shown text has the loss of evaluation, another one that of a predictor whose Ê is hidden."""
    model, ids = conditioned(name, **SETTINGS[setting]), texts()
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
    shown = model.shown_prediction(draws, z, t, None, None, None).flatten(1).any(1)
    assert torch.equal(shown, draws.self_conditioned < 0.25) and 200 < shown.sum() < 300
    assert torch.equal(draws.slice(3, 9).self_conditioned, draws.self_conditioned[3:9])
    assert make_model("nfdm").draw(4).self_conditioned is None
    assert model.eval().shown_prediction(draws, z, t, None, None, None) is None


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


def test_weights_that_autocast_casts_in_the_first_call_still_get_their_gradient():
    model, ids = conditioned().float().train(), texts()
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(ids, generator=seeded(0)).loss
    loss.backward()
    for name, parameter in model.predictor.named_parameters():
        assert parameter.grad is not None and parameter.grad.any(), name


def test_likelihood_counts_both_calls():
    columns = {"input_ids": texts(), "num_draws": 2, "time_sampler": "learned"}
    assert estimate_likelihood(conditioned(), **columns).num_function_evaluations == 2 * TEXTS * 2
    assert estimate_likelihood(conditioned(self_conditioning=False), **columns).num_function_evaluations == TEXTS * 2


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_sampling_calls_the_predictor_as_the_bound_does(scheduler):
    """Twice for every Ê, which depends on z alone and on nothing of the steps before."""
    options = {"max_length": LENGTH, "prediction_type": "categorical", "self_conditioning": True}
    pipeline = make_pipeline("nfdm", SCHEDULERS[scheduler], **SETTINGS["blocks"], **options)
    model, seen = pipeline.model, []
    denoise = model.denoise

    def watch(z, t, context=None, clean=None, self_condition=None, *options, **named):
        seen.append((z, self_condition))
        return denoise(z, t, context, clean, self_condition, *options, **named)

    model.denoise = watch
    output = pipeline(num_samples=2, num_inference_steps=9, generator=seeded(0))
    # No Ê is given from outside; the call for the first one has zeros.
    assert [shown is None for _, shown in seen] == [True, False] * (len(seen) // 2)
    assert not any(shown.any() for _, shown in seen[1::2])
    assert all(torch.equal(outer[0], inner[0]) for outer, inner in zip(seen[::2], seen[1::2]))
    assert output.num_function_evaluations == len(seen)
