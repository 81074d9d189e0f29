"""Texts in blocks, each given the clean tokens before it; and clocks along which one token moves at a time."""

from dataclasses import fields

import pytest
import torch
from tiny import MODELS, VOCAB, gradients, make_config, make_model, relative_error, seeded

from diffusers_text_nfdm import BlockClock, RampClock, objective
from diffusers_text_nfdm.models import Draws
from diffusers_text_nfdm.networks.dual import Dual


LENGTH, BLOCK, TEXTS = 6, 2, 3
EXTRAS = {"embedding": {}, "categorical": {"prediction_type": "categorical", "decoder": "gaussian"}}


def block_model(name, extras, clock="blocks:2", **overrides):
    options = {"max_length": LENGTH, "predictor": "two_stream", "clock": clock, **EXTRAS[extras], **overrides}
    return make_model(name, **options)


def texts():
    return torch.randint(VOCAB, (TEXTS, LENGTH), generator=seeded(0))


# --- the bound ---


@pytest.mark.parametrize("extras", EXTRAS)
@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_the_bound_is_the_sum_of_the_blocks_bounds(name, extras):
    """Each term of one block at a time, in a text whose other blocks are noise, given the clean tokens before it."""
    model, ids = block_model(name, extras), texts()
    draws, process = model.draw(TEXTS, seeded(3)), model.forward_process
    t = torch.linspace(0.1, 0.9, TEXTS * LENGTH // BLOCK, dtype=torch.float64).view(TEXTS, -1)
    t = t.repeat_interleave(BLOCK, 1)
    output = model(ids, t=t, draws=draws)
    embeddings = model.embed(ids)
    context, _ = model.encode_context(embeddings, draws.context_noise)
    squared_error, diffusion, log_loss, clean = 0, 0, 0, None
    windows = BlockClock(BLOCK).fixed_windows(LENGTH)
    for start in range(0, LENGTH, BLOCK):
        part = slice(start, start + BLOCK)
        alone, times, rates = torch.randn_like(embeddings), torch.rand_like(t), torch.rand_like(t)
        alone[:, part], times[:, part], rates[:, part] = embeddings[:, part], t[:, part], 1
        path = process.path(Dual(times, rates), context, BLOCK)
        z = path(alone).sample(draws.noise)
        prediction = model.denoise(z, times, context, clean, windows=windows, window=part).embeddings
        squared_error = squared_error + (alone - prediction)[:, part].square().sum((1, 2))
        g2 = process.squared_volatility(Dual(times, rates), context)[:, part]
        error = path(alone).ode_drift(z) - path(prediction).ode_drift(z)
        score_error = path(alone).score(z) - path(prediction).score(z)
        error = error[:, part] - 0.5 * g2 * score_error[:, part]
        diffusion = diffusion + (error.square() / (2 * g2)).sum((1, 2))
        z_0 = process.initial_marginal(embeddings, context).sample(draws.initial_noise)
        logs = torch.log_softmax(model.decode(z_0, context), -1)[:, part]
        log_loss = log_loss - logs.gather(-1, ids[:, part, None])[..., 0].sum(1)
        _, clean = model.read_clean(ids[:, part], clean)
    assert relative_error(output.rescaled_diffusion, squared_error) < 1e-12
    assert relative_error(output.diffusion, diffusion) < 1e-9
    assert (output.reconstruction - log_loss).abs().max() < 1e-9
    assert (
        relative_error(output.bound, output.diffusion + output.reconstruction + output.prior + output.context) < 1e-14
    )


@pytest.mark.parametrize("extras", EXTRAS)
@pytest.mark.parametrize("name", MODELS)
def test_one_block_of_the_whole_length_is_the_model_without_blocks(name, extras):
    whole, one = block_model(name, extras, clock="shared"), block_model(name, extras, clock=f"blocks:{LENGTH}")
    one.load_state_dict(whole.state_dict())
    draws = whole.draw(TEXTS, seeded(4))
    torch.testing.assert_close(one(texts(), draws=draws).bound, whole(texts(), draws=draws).bound, rtol=1e-12, atol=0)


@pytest.mark.parametrize("clock", ["blocks:2", "blocks:3:random:1"])
def test_without_a_network_the_blocks_cost_the_unigram_cross_entropy(clock):
    """`h = 0` and the exact posterior: the bound of every block size is that of independent tokens."""
    torch.manual_seed(0)
    frequencies = torch.distributions.Dirichlet(torch.ones(VOCAB, dtype=torch.float64)).sample()
    options = {"embedding_sphere": True, "embedding_dim": 8, "time_sampler": "uniform"}
    model = block_model("diffusion-lm", "categorical", clock, **options)
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


# --- one token at a time ---


def exact_model(name, predictor, **options):
    """An undeformed process and an open gate, tokens far apart at t = 0, and a predictor that says something."""
    if name == "nfdm":
        options = {"delta": 0.01, "volatility": "markovian", "forward_num_layers": 1, **options}
    model = make_model(
        name,
        max_length=LENGTH,
        predictor=predictor,
        embedding_dim=8,
        embedding_sphere=True,
        num_time_buckets=20,
        **EXTRAS["categorical"],
        **options,
    )
    silent = [model.prediction.gate]
    if name == "nfdm":
        silent += [model.forward_process.network.output, model.forward_process.volatility.mlp[-1]]
    with torch.no_grad():
        for layer in silent:
            layer.weight.zero_()
            layer.bias.zero_()
    return model


@torch.no_grad()
def measure_bound(model, clock, repeats, batches):
    """The mean bound of the texts and its standard error, with times where the diffusion term is."""
    clock, ids = model.clock(clock), texts().repeat(repeats, 1)
    torch.nn.init.zeros_(model.time_sampler.log_terms)
    draws = model.draw(len(ids), seeded(0))
    times, windows = model.token_times(clock, draws)
    terms = objective.bound(model, ids, times, draws, None, windows).diffusion
    moving = times.rate > 0
    model.time_sampler.set_terms(times.value[moving], (terms / times.rate)[moving])
    bounds = torch.cat([model(ids, clock=clock, generator=seeded(1 + i)).bound for i in range(batches)])
    return bounds.mean().item(), bounds.std().item() / len(bounds) ** 0.5


@pytest.mark.parametrize("name", ["nfdm", "diffusion-lm"])
def test_the_bound_of_blocks_of_one_token_is_the_cross_entropy_of_the_tokens(name):
    """With the exact posterior inside nothing is lost, whatever the predictor says, but 1e-4 nats for z_0 and z_1."""
    model, ids = exact_model(name, "two_stream", clock="blocks:1"), texts()
    exact = model(ids, t=torch.ones(TEXTS), cross_entropy=True).cross_entropy.mean().item()
    bound, error = measure_bound(model, None, repeats=1500, batches=2)
    assert error < 0.01 * exact
    assert bound == pytest.approx(exact, abs=4 * error)


@torch.no_grad()
def cross_entropy_in_order(model, ids, ranks):
    """`-log p(x_i | the others)` where those before it in the order are at time 0, and those from it on at time 1."""
    total = 0
    for rank in range(LENGTH):
        t = (ranks >= rank).double()
        losses, *_ = objective.cross_entropy(model, ids, t, model.draw(len(ids), seeded(rank)))
        total = total + losses.masked_fill(ranks != rank, 0).sum(-1)
    return total


@pytest.mark.parametrize("order", ["left_to_right", "random"])
@pytest.mark.parametrize("predictor", ["bert", "two_stream"])
@pytest.mark.parametrize("name", ["nfdm", "diffusion-lm"])
def test_the_bound_along_a_ramp_that_moves_one_token_at_a_time_is_the_cross_entropy_in_its_order(
    name, predictor, order
):
    model, ids = exact_model(name, predictor), texts().repeat(400, 1)
    ranks = torch.arange(LENGTH).expand_as(ids)
    if order == "random":
        ranks = torch.rand(ids.shape, generator=seeded(8)).argsort(-1).argsort(-1)
    exact = cross_entropy_in_order(model, ids, ranks).view(-1, TEXTS)
    # In windows a draw sees every token move once.
    batches = 1 if (predictor, order) == ("two_stream", "left_to_right") else 4
    bound, error = measure_bound(model, RampClock(float(LENGTH), order), repeats=2500, batches=batches)
    # The other part is of the noise at time 0, and of the orders.
    error = (error**2 + ((exact - exact.mean(0)).std().item() ** 2 / exact.numel())) ** 0.5
    exact = exact.mean().item()
    assert error < 0.02 * exact
    assert bound == pytest.approx(exact, abs=4 * error)


# --- training and saving ---


@pytest.mark.parametrize("extras", EXTRAS)
@pytest.mark.parametrize("clock", ["shared", "random:2", "blocks:1", "blocks:2"])
@pytest.mark.parametrize("name", MODELS)
def test_every_parameter_learns_from_the_bound(name, clock, extras):
    """With gradient checkpointing as without."""
    model, ids = block_model(name, extras, clock).train(), texts()
    draws = model.draw(TEXTS, seeded(0))
    plain = gradients(model(ids, draws=draws).loss, model)
    assert {name for name, _ in model.named_parameters()} == set(plain)
    model.gradient_checkpointing_enable()
    again = gradients(model(ids, draws=draws).loss, model)
    for key, value in plain.items():
        assert torch.allclose(again[key], value, rtol=1e-9, atol=1e-12), key


CLOCKS = [
    "shared",
    "ramp:3",
    "random:0.5",
    "blocks:1",
    "blocks:2",
    {"name": "ramp", "width": 2.0, "offsets": [0.0, 1.0, 0.5, 0.5, 1.0, 0.0]},
]


@pytest.mark.parametrize("clock", CLOCKS, ids=str)
def test_a_saved_model_is_the_same(clock, tmp_path):
    model, ids = block_model("nfdm", "categorical", clock), texts()
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path, dtype=torch.float64)
    assert loaded.config.clock == clock and loaded.clock() == model.clock()
    for parameter in loaded.parameters():
        # Mapped from a file they start at any address, and the last bit of a product depends on the alignment.
        parameter.data = parameter.data.clone()
    draws = model.draw(TEXTS, seeded(0))
    assert torch.equal(model(ids, draws=draws).bound, loaded(ids, draws=draws).bound)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_blocks_in_low_precision(dtype):
    """With the same weights, which bfloat16 rounds."""
    model, ids = block_model("nfdm", "categorical", dtype=dtype), texts()
    exact = block_model("nfdm", "categorical")
    exact.load_state_dict(model.state_dict())
    draws = exact.draw(TEXTS, seeded(0))
    expected = exact(ids, draws=draws).bound
    draws = Draws(
        *(None if value is None else value.float() for value in (getattr(draws, f.name) for f in fields(draws)))
    )
    assert relative_error(model(ids, draws=draws).bound.double(), expected) < (
        1e-4 if dtype == torch.float32 else 0.05
    )


def test_of_categorical_models_the_forward_process_starts_as_the_one_whose_posterior_is_known():
    config = make_config("nfdm", max_length=LENGTH, predictor="two_stream", clock="blocks:2", **EXTRAS["categorical"])
    model, ids = MODELS["nfdm"][0](config).double(), texts()
    t = torch.rand(TEXTS, LENGTH, dtype=torch.float64)
    embeddings, process = model.embed(ids), model.forward_process
    marginal, (alpha, sigma) = process.marginal(embeddings, t, block_size=BLOCK), process.alpha_sigma(t)
    assert torch.equal(marginal.mean, alpha * embeddings)
    assert torch.equal(marginal.std, sigma.expand_as(embeddings))


# --- what is refused ---


@pytest.mark.parametrize("size", ["0", "-2", "4", "2.0", "True", ""])
def test_the_size_of_blocks_must_divide_the_length(size):
    with pytest.raises(ValueError, match="The `size` of blocks is|The clock is 'blocks:"):
        make_config("nfdm", max_length=LENGTH, predictor="two_stream", clock=f"blocks:{size}")


def test_blocks_are_refused_for_a_predictor_that_reads_no_clean_tokens():
    model = make_model("nfdm", max_length=LENGTH)
    with pytest.raises(ValueError, match="'blocks:2'.*`predictor` 'bert', not 'two_stream'"):
        model(texts(), clock="blocks:2")
    with pytest.raises(ValueError, match="'blocks:2'.*`predictor` 'bert'.*'two_stream'"):
        make_config("nfdm", max_length=LENGTH, clock="blocks:2")
