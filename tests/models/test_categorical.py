"""Categorical prediction and what goes with it: cross-entropy steps, masked tokens, tokens that move alone."""

import math

import pytest
import torch
from tiny import CONTEXT, DIM, LENGTH, MODELS, VOCAB, make_inputs, make_model, relative_error, seeded

from diffusers_text_nfdm import BlockClock
from diffusers_text_nfdm.models.configuration import PREDICTORS
from diffusers_text_nfdm.models.prediction import moves_alone
from diffusers_text_nfdm.networks.two_stream_predictor import Places


EVERYTHING = {
    "prediction_type": "categorical",
    "decoder": "gaussian",
    "embedding_sphere": True,
    "self_conditioning": True,
}


@pytest.fixture
def input_ids():
    return torch.randint(VOCAB, (6, LENGTH), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("predictor", PREDICTORS)
@pytest.mark.parametrize("name", MODELS)
def test_every_parameter_gets_a_gradient_with_all_options(name, predictor, input_ids):
    model = make_model(name, predictor=predictor, **EVERYTHING)
    model(input_ids, generator=torch.Generator().manual_seed(0)).loss.backward()
    assert [key for key, parameter in model.named_parameters() if parameter.grad is None] == []


@pytest.mark.parametrize(
    "predictor, clock", [("bert", "shared"), ("two_stream", "ramp:2"), ("two_stream", "blocks:1")]
)
@pytest.mark.parametrize("name", MODELS)
def test_cross_entropy_trains_the_predictor_alone(name, predictor, clock, input_ids):
    model = make_model(name, predictor=predictor, clock=clock, **EVERYTHING)
    output = model(input_ids, generator=torch.Generator().manual_seed(0), cross_entropy=True)
    output.loss.backward()
    trained = {key.split(".")[0] for key, parameter in model.named_parameters() if parameter.grad is not None}
    assert trained == {"predictor", "prediction", "token_bias"}
    assert output.bound is None and torch.allclose(output.loss, output.cross_entropy.mean())


@pytest.mark.parametrize("predictor", PREDICTORS)
def test_cross_entropy_is_that_of_the_predicted_tokens(predictor, input_ids):
    model = make_model("diffusion-lm", predictor=predictor, **EVERYTHING)
    draws = model.draw(len(input_ids), torch.Generator().manual_seed(0))
    t = torch.rand(input_ids.shape, dtype=torch.float64)
    output = model(input_ids, t=t, draws=draws, cross_entropy=True)
    z = model.forward_process.marginal(model.embed(input_ids), t).sample(draws.noise)
    prediction = model.denoise(z, t)
    probabilities = torch.softmax(prediction.logits, -1)
    expected = [
        -sum(math.log(probabilities[i, j, input_ids[i, j]].item()) for j in range(LENGTH))
        for i in range(len(input_ids))
    ]
    assert torch.allclose(output.cross_entropy, torch.tensor(expected, dtype=torch.float64), rtol=1e-10)
    assert torch.allclose(prediction.embeddings, probabilities @ model.embedding_table(), rtol=1e-10)


def test_cross_entropy_is_refused_for_embedding_prediction(input_ids):
    with pytest.raises(ValueError, match="`cross_entropy` is True with `prediction_type` 'embedding'"):
        make_model("nfdm")(input_ids, cross_entropy=True)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("sphere", [True, False])
def test_without_the_network_the_logits_are_the_posterior_by_bayes(name, sphere):
    """`p(k | z) ∝ π_k N(z; α e_k, σ²)`, token by token."""
    model = make_model(name, prediction_type="categorical", embedding_sphere=sphere)
    with torch.no_grad():
        model.predictor.output.weight.zero_()
        model.predictor.output.bias.zero_()
        model.prediction.gate.weight.zero_()
        model.prediction.gate.bias.zero_()
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(3, LENGTH, DIM, generator=generator, dtype=torch.float64)
    t = torch.tensor([[0.2, 0.4, 0.6, 0.8, 0.9], [0.5] * 5, [0, 0, 0.7, 1, 1]], dtype=torch.float64)
    context = torch.randn(3, CONTEXT, generator=generator, dtype=torch.float64) if model.context_dim else None
    alpha, sigma = model.forward_process.alpha_sigma(t, context)
    likelihood = torch.distributions.Normal(
        alpha[..., None] * model.embedding_table(), sigma[..., None].expand(3, -1, -1, 1)
    ).log_prob(z[:, :, None, :])
    expected = torch.softmax(likelihood.sum(-1) + model.token_bias, -1)
    assert torch.allclose(torch.softmax(model.denoise(z, t, context).logits, -1), expected, rtol=1e-8, atol=1e-12)


# --- tokens of which nothing is seen ---


@pytest.mark.parametrize("self_conditioning", [False, True])
@pytest.mark.parametrize("predictor", PREDICTORS)
@pytest.mark.parametrize("name", ["nfdm", "nfdm-additive", "nfdm-head", "mulan"])
def test_nothing_is_seen_of_a_masked_token(name, predictor, self_conditioning):
    """Where z_1 is only noise: of MuLAN, with an end that is far away."""
    schedule = {"gamma_max": 200.0} if name == "mulan" else {}
    options = {**EVERYTHING, **schedule, "self_conditioning": self_conditioning}
    model = make_model(name, predictor=predictor, **options)
    z, context = make_inputs(name, 3)
    t = torch.full((3, LENGTH), 0.01 if name == "mulan" else 0.3, dtype=torch.float64)
    shown = model.denoise(z, t, context).logits
    t[:, 1] = 1
    moved = z.clone()
    moved[:, 1] += 1
    before, after = (model.denoise(latents, t, context).logits for latents in (z, moved))
    assert torch.equal(before, after)
    assert not torch.isclose(before, shown, rtol=1e-3).all(-1).any(0)[1]


@pytest.mark.parametrize("predictor", PREDICTORS)
def test_where_latents_are_only_noise_the_posterior_is_the_prior(predictor):
    """Computed once for all such tokens; at times just before 1 it is the same."""
    model = make_model("nfdm", predictor=predictor, **EVERYTHING)
    z, t = make_inputs("nfdm", 6)[0], torch.rand(6, LENGTH, dtype=torch.float64)
    terminal = torch.rand(6, LENGTH, generator=seeded(0)) < 0.5
    terminal[:, :2] = False
    at, before = (model.denoise(z, t.masked_fill(terminal, end)).logits for end in (1.0, 1.0 - 1e-12))
    assert relative_error(at, before) < 1e-9


# --- tokens that move alone ---


def test_a_token_moves_alone_if_all_others_of_its_window_stand_still():
    t = torch.tensor([[0.0, 0.5, 1.0, 0.0], [0.5, 0.5, 1.0, 0.3], [0.0, 1.0, 0.0, 1.0], [0.9, 0.0, 0.0, 0.1]])
    yes, no = True, False
    in_text = [[no, yes, no, no], [no, no, no, no], [no, no, no, no], [no, no, no, no]]
    in_pairs = [[no, yes, no, no], [no, no, no, yes], [no, no, no, no], [yes, no, no, yes]]
    single = [[no, yes, no, no], [yes, yes, no, yes], [no, no, no, no], [yes, no, no, yes]]
    assert moves_alone(t, 4, None).tolist() == in_text
    assert moves_alone(t, 4, Places.whole(4)).tolist() == in_text
    for block_size, expected in ((2, in_pairs), (1, single)):
        starts = BlockClock(block_size).fixed_windows(4).starts[0]
        assert moves_alone(t, 4, Places.whole(4)._replace(starts=starts)).tolist() == expected
    assert moves_alone(t[:, :1], 4, None) is None
    assert moves_alone(t[:, :1], 1, None).tolist() == [[no], [yes], [no], [yes]]


@pytest.mark.parametrize("predictor", PREDICTORS)
@pytest.mark.parametrize("name", MODELS)
def test_a_token_that_moves_alone_is_seen_in_its_own_posterior_and_nowhere_else(name, predictor):
    """`p(x_i | z) ∝ p(z_i | x_i) p(x_i | z_j for j ≠ i)`: in the predictor's share of the logits it is noise."""
    model = make_model(name, predictor=predictor, prediction_type="categorical")
    z, context = make_inputs(name, 3)
    t = torch.tensor([0, 1, 0.4, 0, 1], dtype=torch.float64).expand(3, -1)
    moved = z.clone()
    moved[:, 2] += 1
    size = model.config.hidden_size
    before, after = (model.denoise(latents, t, context).factors[0] for latents in (z, moved))
    assert torch.equal(before[..., :size], after[..., :size])
    assert not torch.isclose(before[:, 2, size:-1], after[:, 2, size:-1]).any()
    # With another one in motion it is seen; in two streams not by what stands still as text.
    t = torch.tensor([0, 1, 0.7, 0.7, 1], dtype=torch.float64).expand(3, -1)
    before, after = (model.denoise(latents, t, context).factors[0][..., :size] for latents in (z, moved))
    sees = (t > 0) | (predictor == "bert")
    assert torch.equal(before[~sees], after[~sees])
    assert not torch.isclose(before, after)[sees].all(-1).any()


def test_its_time_is_not_seen_either():
    model = make_model("nfdm", prediction_type="categorical")
    z, size = make_inputs("nfdm", 3)[0], model.config.hidden_size
    states = [
        model.denoise(z, torch.tensor([0, 1, t, 0, 1], dtype=torch.float64).expand(3, -1)).factors[0][..., :size]
        for t in (0.1, 0.9, 1.0)
    ]
    assert torch.equal(states[0], states[1]) and torch.equal(states[0], states[2])
