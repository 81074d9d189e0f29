"""Texts in blocks: each block is a diffusion of its own, given the clean blocks before it."""

from dataclasses import fields

import pytest
import torch
from tiny import MODELS, VOCAB, gradients, make_config, make_inputs, make_model, relative_error, seeded

from diffusers_text_nfdm import estimate_likelihood
from diffusers_text_nfdm.models.outputs import Draws
from diffusers_text_nfdm.networks.token_layer import TokenLayer


LENGTH, BLOCK, TEXTS = 6, 2, 3
EXTRAS = {
    "published": {},
    "categorical": {
        "prediction_type": "categorical",
        "posterior_features": True,
        "neighbor_mixing": 2,
        "relative_position_bias": True,
        "decoder": "gaussian",
    },
}


def block_model(name: str, extras: str, **overrides):
    return make_model(name, **{"max_length": LENGTH, "block_size": BLOCK, **EXTRAS[extras], **overrides})


def texts() -> torch.Tensor:
    return torch.randint(VOCAB, (TEXTS, LENGTH), generator=seeded(0))


def noisy_blocks(model) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Latents, times and contexts of all blocks of all texts."""
    count = TEXTS * LENGTH // BLOCK
    z = torch.randn(count, BLOCK, model.config.embedding_dim, dtype=torch.float64, generator=seeded(1))
    t = torch.linspace(0.1, 0.9, count, dtype=torch.float64)
    context = None
    if model.context_dim is not None:
        context = torch.randn(TEXTS, model.context_dim, dtype=torch.float64, generator=seeded(2))
    return z, t, model.per_block(context)


@pytest.mark.parametrize("extras", EXTRAS)
@pytest.mark.parametrize("name", MODELS)
def test_all_blocks_at_once_are_predicted_as_each_alone(name, extras):
    """What training computes in one call is what sampling computes block by block."""
    model, ids = block_model(name, extras), texts()
    z, t, context = noisy_blocks(model)
    together = model.predict(z, t, context, model.encode_all_previous(ids))
    for block in range(LENGTH // BLOCK):
        rows = slice(block, None, LENGTH // BLOCK)
        alone = model.predict(
            z[rows],
            t[rows],
            None if context is None else context[rows],
            model.encode_previous(ids[:, : block * BLOCK]),
        )
        assert relative_error(together[rows], alone) < 1e-12


@pytest.mark.parametrize("extras", EXTRAS)
@pytest.mark.parametrize("name", ["nfdm", "mulan"])
def test_a_block_depends_on_the_texts_before_it_alone(name, extras):
    model, ids = block_model(name, extras), texts()
    z, t, context = noisy_blocks(model)
    before = model.predict(z, t, context, model.encode_all_previous(ids))
    changed, other = ids.clone(), z.clone()
    # Block 1 of text 0: its tokens, and its latents.
    changed[0, BLOCK : 2 * BLOCK] = (changed[0, BLOCK : 2 * BLOCK] + 1) % VOCAB
    other[1] += 1
    after_tokens = model.predict(z, t, context, model.encode_all_previous(changed))
    after_latents = model.predict(other, t, context, model.encode_all_previous(ids))
    moved_by_tokens = (after_tokens - before).abs().amax((1, 2)) > 1e-9
    moved_by_latents = (after_latents - before).abs().amax((1, 2)) > 1e-9
    assert moved_by_tokens.nonzero().flatten().tolist() == [2]
    assert moved_by_latents.nonzero().flatten().tolist() == [1]


@pytest.mark.parametrize("extras", EXTRAS)
@pytest.mark.parametrize("name", MODELS)
def test_the_bound_is_the_sum_of_the_blocks_bounds(name, extras):
    """Each term, from the forward process and the prediction of one block at a time."""
    model, ids = block_model(name, extras), texts()
    draws, t = model.draw(TEXTS, seeded(3)), torch.tensor([0.2, 0.5, 0.8], dtype=torch.float64)
    output = model(ids, t=t, draws=draws)
    embeddings = model.embed(ids)
    context, _ = model.encode_context(embeddings, draws.context_noise)
    process, squared_error, log_loss = model.forward_process, 0, 0
    for start in range(0, LENGTH, BLOCK):
        part = slice(start, start + BLOCK)
        z = process.marginal(embeddings[:, part], t, context).sample(draws.noise[:, part])
        prediction = model.predict(z, t, context, model.encode_previous(ids[:, :start]))
        squared_error = squared_error + (embeddings[:, part] - prediction).square().sum((1, 2))
        z_0 = process.initial_marginal(embeddings[:, part], context).sample(draws.initial_noise[:, part])
        logs = torch.log_softmax(model.decode(z_0, context), -1)
        log_loss = log_loss - logs.gather(-1, ids[:, part, None])[..., 0].sum(1)
    assert relative_error(output.rescaled_diffusion, squared_error) < 1e-12
    assert (output.reconstruction - log_loss).abs().max() < 1e-9
    assert (
        relative_error(output.bound, output.diffusion + output.reconstruction + output.prior + output.context) < 1e-14
    )


@pytest.mark.parametrize("name", MODELS)
def test_one_block_of_the_whole_length_is_the_model_without_blocks(name):
    whole = make_model(name, max_length=LENGTH, **EXTRAS["categorical"])
    one = block_model(name, "categorical", block_size=LENGTH)
    one.load_state_dict(whole.state_dict())
    outputs = [model(texts(), draws=model.draw(TEXTS, seeded(4))) for model in (whole, one)]
    assert torch.equal(outputs[0].bound, outputs[1].bound)


def test_without_a_network_the_blocks_cost_the_unigram_cross_entropy():
    """`h = 0` and the exact posterior: the bound of every block size is that of independent tokens."""
    torch.manual_seed(0)
    frequencies = torch.distributions.Dirichlet(torch.ones(VOCAB, dtype=torch.float64)).sample()
    model = block_model("diffusion-lm", "categorical", embedding_sphere=True, embedding_dim=8, time_sampler="uniform")
    with torch.no_grad():
        model.token_bias.copy_(torch.log(frequencies))
        for parameter in (*model.predictor.output.parameters(), *model.prediction.gate.parameters()):
            parameter.zero_()
    ids = torch.multinomial(frequencies, 4000 * LENGTH, replacement=True, generator=seeded(5)).view(-1, LENGTH)
    with torch.no_grad():
        bound = model(ids, generator=seeded(6)).bound
    expected = -torch.log(frequencies)[ids].sum(1)
    difference = bound - expected
    assert abs(difference.mean()) < 4 * difference.std() / len(ids) ** 0.5 + 0.05


@pytest.mark.parametrize("block_size", [0, -2, 4, 2.0, True])
def test_block_size_must_divide_the_length(block_size):
    with pytest.raises(ValueError, match="`block_size` is"):
        make_config("nfdm", max_length=LENGTH, block_size=block_size)


@pytest.mark.parametrize("block_size", [None, BLOCK])
def test_hidden_share_is_the_share_of_the_positions_that_the_cross_entropy_hides(block_size):
    model, ids = block_model("mulan", "categorical", block_size=block_size), texts().repeat(100, 1)
    factors, seen = model.prediction_factors, []
    model.prediction_factors = lambda *inputs, **options: seen.append(inputs[5]) or factors(*inputs, **options)
    for share in (0.0, 0.25, 1.0):
        model(ids, generator=seeded(7), cross_entropy=True, hidden_share=share)
    none, some, everything = seen
    assert none is None and everything.all()
    assert some.shape == (len(ids) * model.config.num_blocks, model.config.block_length)
    assert some.double().mean().item() == pytest.approx(0.25, abs=0.03)
    with pytest.raises(ValueError, match="`hidden_share` is 0.25 without `cross_entropy`"):
        model(ids, hidden_share=0.25)


@pytest.mark.parametrize("self_conditioning", [False, True])
@pytest.mark.parametrize("block_size", [None, BLOCK])
@pytest.mark.parametrize("name", MODELS)
def test_nothing_is_seen_of_a_hidden_position(name, block_size, self_conditioning):
    model = block_model(name, "categorical", block_size=block_size, self_conditioning=self_conditioning)
    count, length = TEXTS * model.config.num_blocks, model.config.block_length
    z = torch.randn(count, length, model.config.embedding_dim, dtype=torch.float64)
    t, context = torch.full((count,), 0.3, dtype=torch.float64), make_inputs(name, count)[1]
    hidden = torch.zeros(count, length, dtype=torch.bool)
    hidden[:, 1] = True
    moved = z.clone()
    moved[:, 1] += 1
    previous = model.encode_all_previous(texts())
    before, after = (model.predict_logits(latents, t, context, previous, None, hidden) for latents in (z, moved))
    assert torch.equal(before, after)
    shown = model.predict_logits(z, t, context, previous)
    assert not torch.isclose(before, shown, rtol=1e-3).all(-1).any(0)[1]


def test_where_latents_are_only_noise_the_posterior_is_the_prior():
    """Computed once for all such blocks; at times just before 1 it is the same."""
    model, ids = block_model("nfdm", "categorical"), texts()
    z, t, _ = noisy_blocks(model)
    previous, terminal = model.encode_all_previous(ids), torch.arange(len(z)) % 2 == 0
    at, before = (model.predict_logits(z, t.masked_fill(terminal, end), None, previous) for end in (1.0, 1.0 - 1e-12))
    assert relative_error(at, before) < 1e-9


def test_of_categorical_models_the_forward_process_starts_as_the_one_whose_posterior_is_known():
    config = make_config("nfdm", max_length=LENGTH, block_size=BLOCK, **EXTRAS["categorical"])
    model, ids = MODELS["nfdm"][0](config).double(), texts()
    t = torch.full((TEXTS,), 0.6, dtype=torch.float64)
    embeddings = model.embed(ids)[:, :BLOCK]
    marginal, (alpha, sigma) = model.forward_process.marginal(embeddings, t), model.forward_process.linear_base(t)
    assert torch.equal(marginal.mean, alpha * embeddings)
    assert torch.equal(marginal.std, sigma.expand_as(embeddings))


@pytest.mark.parametrize("name", MODELS)
def test_of_its_own_latent_a_token_knows_its_posterior_alone(name):
    """`p(x_i | z) ∝ p(z_i | x_i) p(x_i | z_j for j ≠ i)`: in the predictor's share of the logits z_i is seen by the others only."""
    model, ids = block_model(name, "categorical"), texts()
    z, t, context = noisy_blocks(model)
    moved = z.clone()
    moved[:, 0] += 1
    size = model.config.hidden_size
    before, after = (
        model.prediction_factors(latents, t, context, model.encode_all_previous(ids))[0] for latents in (z, moved)
    )
    assert torch.equal(before[:, 0, :size], after[:, 0, :size])
    assert not torch.isclose(before[:, 1, :size], after[:, 1, :size]).all(-1).any()


def test_the_bound_of_blocks_of_one_token_is_the_cross_entropy_of_the_tokens():
    """With the exact posterior inside, nothing is lost, whatever the predictor says (up to what z_0 and z_1 tell, 1e-4 nats here)."""
    # Without noise to see, and with tokens far apart at t = 0.
    model = block_model(
        "nfdm", "categorical", block_size=1, embedding_dim=8, embedding_sphere=True, delta=0.01, volatility="markovian"
    )
    with torch.no_grad():
        for layer in (
            model.forward_process.network.output,
            model.forward_process.volatility.mlp[-1],
            model.prediction.gate,
        ):
            layer.weight.zero_()
            layer.bias.zero_()
    ids = texts()
    exact = model(ids, t=torch.ones(TEXTS), cross_entropy=True).cross_entropy.mean().item()
    bound = estimate_likelihood(model, ids, num_draws=4000, batch_size=TEXTS).nats_per_story
    assert bound.monte_carlo_error < 0.01 * exact
    assert bound.value == pytest.approx(exact, abs=4 * bound.monte_carlo_error)


@pytest.mark.parametrize("extras", EXTRAS)
@pytest.mark.parametrize("block_size", [1, BLOCK])
@pytest.mark.parametrize("name", MODELS)
def test_every_parameter_learns_from_the_bound(name, block_size, extras):
    """With gradient checkpointing as without."""
    model, ids = block_model(name, extras, block_size=block_size).train(), texts()
    draws = model.draw(TEXTS, seeded(0))
    plain = gradients(model(ids, draws=draws).loss, model)
    assert {name for name, _ in model.named_parameters()} == set(plain)
    model.gradient_checkpointing_enable()
    again = gradients(model(ids, draws=draws).loss, model)
    for key, value in plain.items():
        assert torch.allclose(again[key], value, rtol=1e-9, atol=1e-12), key


@pytest.mark.parametrize("block_size", [1, BLOCK])
def test_a_saved_model_is_the_same(block_size, tmp_path):
    model, ids = block_model("nfdm", "categorical", block_size=block_size), texts()
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path, dtype=torch.float64)
    draws = model.draw(TEXTS, seeded(0))
    assert torch.equal(model(ids, draws=draws).bound, loaded(ids, draws=draws).bound)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_blocks_in_low_precision(dtype):
    model, ids = block_model("nfdm", "categorical", dtype=dtype), texts()
    exact = block_model("nfdm", "categorical")
    draws = exact.draw(TEXTS, seeded(0))
    expected = exact(ids, draws=draws).bound
    draws = Draws(
        *(None if value is None else value.float() for value in (getattr(draws, f.name) for f in fields(draws)))
    )
    assert relative_error(model(ids, draws=draws).bound.double(), expected) < (
        1e-4 if dtype == torch.float32 else 0.05
    )


def test_attention_without_a_bias_is_refused():
    model = block_model("nfdm", "categorical")
    model.set_attn_implementation("eager")
    with pytest.raises(ValueError, match="needs attention 'sdpa'.*'eager'"):
        model(texts())


@pytest.mark.parametrize("block_size", [None, BLOCK])
@pytest.mark.parametrize("name", MODELS)
def test_the_modules_that_must_not_be_split_are_there(name, block_size):
    """Accelerate refuses to shard a model without them."""
    model = block_model(name, "categorical", block_size=block_size)
    present = {type(module).__name__ for module in model.modules()}
    assert model._no_split_modules and set(model._no_split_modules) <= present
    assert ("PredictorLayer" in model._no_split_modules) == (block_size is not None)


def test_tokens_are_read_as_distributions_that_are_certain():
    layer = TokenLayer(6, VOCAB).double()
    ids = torch.arange(VOCAB)
    certain = torch.nn.functional.one_hot(ids, VOCAB).double()
    assert torch.allclose(layer.read(certain), layer.read_ids(ids))
    assert torch.allclose(layer.read_ids(ids), layer.weight * 6**0.5)
