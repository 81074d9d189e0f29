"""Categorical prediction and what goes with it: cross-entropy steps, posterior features, neighbours, embeddings to start from."""

import math

import pytest
import torch
from tiny import CONTEXT, DIM, LENGTH, MODELS, VOCAB, make_config, randomize

from diffusers_text_nfdm.networks.cooccurrence import cooccurrence_embeddings
from diffusers_text_nfdm.networks.token_layer import RelativePositionBias


EVERYTHING = {
    "prediction_type": "categorical",
    "decoder": "gaussian",
    "embedding_sphere": True,
    "posterior_features": True,
    "neighbor_mixing": 1,
    "relative_position_bias": True,
}


def make_model(name, **options):
    model_class, _, _ = MODELS[name]
    return randomize(model_class(make_config(name, **options)).double())


@pytest.fixture
def input_ids():
    return torch.randint(VOCAB, (6, LENGTH), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("name", MODELS)
def test_every_parameter_gets_a_gradient_with_all_options(name, input_ids):
    model = make_model(name, **EVERYTHING)
    model(input_ids, generator=torch.Generator().manual_seed(0)).loss.backward()
    assert [key for key, parameter in model.named_parameters() if parameter.grad is None] == []


@pytest.mark.parametrize("name", MODELS)
def test_cross_entropy_trains_the_predictor_alone(name, input_ids):
    model = make_model(name, **EVERYTHING)
    output = model(input_ids, generator=torch.Generator().manual_seed(0), cross_entropy=True)
    output.loss.backward()
    trained = {key.split(".")[0] for key, parameter in model.named_parameters() if parameter.grad is not None}
    assert trained == {"predictor", "prediction", "token_bias"}
    assert output.bound is None and torch.allclose(output.loss, output.cross_entropy.mean())


def test_cross_entropy_is_that_of_the_predicted_tokens(input_ids):
    model = make_model("diffusion-lm", **EVERYTHING)
    draws = model.draw(len(input_ids), torch.Generator().manual_seed(0))
    t = torch.linspace(0.1, 0.9, len(input_ids), dtype=torch.float64)
    output = model(input_ids, t=t, draws=draws, cross_entropy=True)
    z = model.forward_process.marginal(model.embed(input_ids), t).sample(draws.noise)
    probabilities = torch.softmax(model.predict_logits(z, t), -1)
    expected = [
        -sum(math.log(probabilities[i, j, input_ids[i, j]].item()) for j in range(LENGTH))
        for i in range(len(input_ids))
    ]
    assert torch.allclose(output.cross_entropy, torch.tensor(expected, dtype=torch.float64), rtol=1e-10)
    assert torch.allclose(model.predict(z, t), probabilities @ model.embedding_table(), rtol=1e-10)


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
    t = torch.tensor([0.2, 0.5, 0.8], dtype=torch.float64)
    context = torch.randn(3, CONTEXT, generator=generator, dtype=torch.float64) if model.context_dim else None
    alpha, sigma = model.forward_process.linear_base(t, context)
    likelihood = torch.distributions.Normal(
        alpha[..., None] * model.embedding_table(), sigma[..., None].expand(3, -1, -1, 1)
    ).log_prob(z[:, :, None, :])
    expected = torch.softmax(likelihood.sum(-1) + model.token_bias, -1)
    assert torch.allclose(torch.softmax(model.predict_logits(z, t, context), -1), expected, rtol=1e-8, atol=1e-12)


def test_relative_bias_depends_on_the_distance_alone():
    positions = torch.arange(4)
    text = RelativePositionBias(max_length=4, num_heads=2)(positions, positions)
    assert text.shape == (2, 4, 4)
    for distance in range(-3, 4):
        diagonal = text.diagonal(distance, -2, -1)
        assert torch.equal(diagonal, diagonal[:, :1].expand_as(diagonal))
    assert len(text.detach().unique()) == 2 * 7


def test_words_with_the_same_company_start_close_together():
    generator = torch.Generator().manual_seed(0)
    # Words 0-3 stand before 8, words 4-7 before 9.
    first = torch.randint(8, (500, 1), generator=generator)
    ids = torch.cat([first, 8 + (first >= 4).long(), torch.full((500, 1), 10)], dim=1)
    table = cooccurrence_embeddings(ids, vocab_size=11, dim=6)
    assert torch.allclose(table.norm(dim=-1), torch.full((11,), math.sqrt(6)), rtol=1e-5)
    distances = torch.cdist(table, table)
    within = torch.stack([distances[i, j] for i in range(4) for j in range(i)])
    across = distances[:4, 4:8].flatten()
    assert within.max() < across.min() and within.min() > 0
    assert torch.equal(table, cooccurrence_embeddings(ids, vocab_size=11, dim=6))
    assert not torch.equal(table, cooccurrence_embeddings(ids, vocab_size=11, dim=6, seed=1))


def test_cooccurrences_work_with_more_dimensions_than_words():
    ids = torch.tensor([[0, 1, 2], [2, 1, 0]])
    assert torch.isfinite(cooccurrence_embeddings(ids, vocab_size=3, dim=8)).all()


@pytest.mark.parametrize(
    "options, message",
    [
        ({"posterior_features": True}, "`posterior_features` is True with `prediction_type` 'embedding'"),
        ({"neighbor_mixing": -1}, "`neighbor_mixing` is -1"),
        ({"neighbor_mixing": True}, "`neighbor_mixing` is True"),
        (
            {"self_conditioning": True, "block_size": 1, "prediction_type": "categorical"},
            "`self_conditioning` is True",
        ),
    ],
)
def test_options_that_cannot_work_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        make_config("nfdm", **options)
