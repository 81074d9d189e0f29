"""The bound: each term against an independent computation, and the whole where the truth is known."""

import math

import pytest
import torch
from tiny import (
    CONTEXT,
    LENGTH,
    MODELS,
    VARIANCE_PRESERVING,
    VOCAB,
    at_rate_one,
    make_ids,
    make_inputs,
    make_model,
    make_process,
    relative_error,
    seeded,
)
from torch import nn
from torch.distributions import Normal, kl_divergence

from diffusers_text_nfdm import objective
from diffusers_text_nfdm.forward_processes import MuLANProcess
from diffusers_text_nfdm.networks.dual import Dual


# --- the terms ---


@pytest.mark.parametrize("decoder", ["linear", "gaussian"])
@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_reconstruction_is_the_negative_log_probability_of_each_token(name, decoder):
    model, ids = make_model(name, decoder=decoder), make_ids(3)
    draws = model.draw(3, seeded(0))
    terms, output = objective.bound(model, ids, at_rate_one(draws.uniforms), draws), model(ids, draws=draws)
    context, _ = model.encode_context(model.embed(ids), draws.context_noise)
    z_0 = model.forward_process.initial_marginal(model.embed(ids), context).sample(draws.initial_noise)
    logits = model.decode(z_0, context)
    probabilities = torch.softmax(logits, -1)
    expected = [[-math.log(probabilities[i, j, ids[i, j]]) for j in range(LENGTH)] for i in range(3)]
    torch.testing.assert_close(terms.reconstruction, torch.tensor(expected, dtype=torch.float64))
    torch.testing.assert_close(output.reconstruction, terms.reconstruction.sum(-1))
    torch.testing.assert_close(output.reconstruction_accuracy, (logits.argmax(-1) == ids).double().mean(-1))


@pytest.mark.parametrize("name", MODELS)
def test_rescaled_diffusion_is_the_squared_distance(name):
    model, ids = make_model(name), make_ids(3)
    draws, embeddings = model.draw(3, seeded(0)), model.embed(ids)
    output = model(ids, draws=draws)
    context, _ = model.encode_context(embeddings, draws.context_noise)
    z = model.forward_process.marginal(embeddings, output.t, context).sample(draws.noise)
    prediction = model.denoise(z, output.t, context).embeddings
    expected = torch.stack([(x - y).norm() ** 2 for x, y in zip(embeddings, prediction)])
    torch.testing.assert_close(output.rescaled_diffusion, expected)


def test_context_divergence_is_that_of_torch_distributions():
    mean, log_variance = torch.randn(2, 4, CONTEXT, dtype=torch.float64)
    expected = kl_divergence(Normal(mean, (0.5 * log_variance).exp()), Normal(torch.zeros_like(mean), 1.0)).sum(-1)
    torch.testing.assert_close(objective.context_divergence(mean, log_variance), expected)


@pytest.mark.parametrize("name", MODELS)
def test_prior_is_the_kl_of_the_terminal_marginal_and_zero_for_nfdm(name):
    model, ids = make_model(name), make_ids(3)
    draws, embeddings = model.draw(3, seeded(0)), model.embed(ids)
    context, _ = model.encode_context(embeddings, draws.context_noise)
    end = model.forward_process.marginal(embeddings, torch.ones(3, 1, dtype=torch.float64), context)
    expected = kl_divergence(Normal(end.mean, end.std), Normal(torch.zeros_like(end.mean), 1.0)).sum((-1, -2))
    prior = model(ids, draws=draws).prior
    # The KL is of order α² or less: torch's own formula has lost its last digits there.
    torch.testing.assert_close(prior, expected, rtol=1e-6, atol=1e-14)
    if name.startswith("nfdm"):
        assert torch.equal(prior, torch.zeros(3, dtype=torch.float64))
    else:
        assert (prior > 0).all()


@pytest.mark.parametrize("kind", ["embedding", "categorical"])
@pytest.mark.parametrize("name", MODELS)
def test_bound_is_the_sum_of_its_terms_and_loss_its_mean(name, kind):
    model, ids = make_model(name, prediction_type=kind), make_ids(4)
    draws = model.draw(4, seeded(0))
    output = model(ids, draws=draws)
    total = output.reconstruction + output.diffusion + output.prior + output.context
    torch.testing.assert_close(output.bound, total, rtol=1e-14, atol=0)
    torch.testing.assert_close(output.loss, output.bound.mean(), rtol=1e-12, atol=0)
    assert output.context.any() == name.startswith("mulan")

    half = model(ids, draws=draws, context_weight=0.5)
    torch.testing.assert_close(half.loss, output.loss - 0.5 * output.context.mean(), rtol=1e-12, atol=0)
    assert torch.equal(half.bound, output.bound)


@pytest.mark.parametrize("clock", ["shared", "ramp:1", "random:3"])
@pytest.mark.parametrize("name", MODELS)
def test_terms_of_the_model_are_those_of_the_formulas(name, clock):
    # `forward` once more, by the definitions and one example at a time.
    model, ids = make_model(name, clock=clock), make_ids(3)
    draws, process = model.draw(3, seeded(0)), model.forward_process
    output = model(ids, draws=draws)
    for i in range(3):
        one = draws.slice(i, i + 1)
        embeddings = model.embeddings.weight[ids[i : i + 1]]
        context, _ = model.encode_context(embeddings, one.context_noise)
        times = model.clock().token_times(one.uniforms[:, None], LENGTH, None, one.order)
        times = model.time_sampler(times).map_linear(lambda x: x.expand(1, LENGTH))
        moving = times.rate[0] > 0
        assert moving.any()
        z = process.marginal(embeddings, times.value, context).sample(one.noise)
        prediction = model.denoise(z, times.value, context).embeddings
        g2 = process.squared_volatility(times, context)

        def reverse_drift(embeddings, z=z, times=times, context=context, g2=g2):
            path = process.path(times, context)(embeddings)
            flow = path.mean_rate + path.log_std_rate * (z - path.mean)
            return flow + 0.5 * g2 * (z - path.mean) / path.std**2

        error = (reverse_drift(embeddings) - reverse_drift(prediction))[0]
        # What stands still is not moved by what is in motion.
        assert not error[~moving].any()
        expected = (error**2 / (2 * g2.expand(1, LENGTH, -1)[0]))[moving].sum()
        torch.testing.assert_close(output.diffusion[i], expected, rtol=1e-8, atol=1e-10)

        start = process.initial_marginal(embeddings, context)
        z_0 = start.mean + start.std * one.initial_noise
        log_p = torch.log_softmax(z_0 @ model.embeddings.weight.T + model.token_bias, -1)[0]
        expected = -sum(log_p[j, ids[i, j]] for j in range(LENGTH))
        torch.testing.assert_close(output.reconstruction[i], expected, rtol=1e-10, atol=0)


@pytest.mark.parametrize("name", VARIANCE_PRESERVING)
def test_rescaled_objective_trains_on_the_unweighted_distance_and_leaves_the_bound_alone(name):
    ids, outputs = make_ids(4), {}
    for kind in ("bound", "rescaled"):
        model = make_model(name, objective=kind)
        draws = model.draw(4, seeded(0))
        outputs[kind] = model(ids, draws=draws)
    weight = model.time_sampler(at_rate_one(draws.uniforms)).rate[:, 0]
    output = outputs["rescaled"]
    expected = (weight * output.rescaled_diffusion + output.reconstruction + output.prior + output.context).mean()
    torch.testing.assert_close(output.loss, expected, rtol=1e-12, atol=0)
    assert torch.equal(output.bound, outputs["bound"].bound)


# --- the general form and the short form ---


def crossing_schedules():
    """MuLAN-Rescaled with such different positions that, while one rises fast, γ of others has to fall."""
    process = MuLANProcess(
        context_dim=CONTEXT, max_length=LENGTH, hidden_size=4, gamma_min=-4.6, gamma_max=13.8, rescaled=True
    ).double()
    rows = torch.tensor([[0, 0, 1.0], [5, 0, 0], [5, -10, 5], [0, 3, 0], [-20, 20, 0]], dtype=torch.float64)
    with torch.no_grad():
        process.coefficients[-1].weight.mul_(0.1)
        process.coefficients[-1].bias.copy_((rows - torch.tensor([0.0, 0.0, 1.0])).flatten())
    return process


PROCESSES = {name: make_process(name) for name in VARIANCE_PRESERVING} | {"crossing": crossing_schedules()}


GRID = torch.linspace(0, 1, 101, dtype=torch.float64)
TIMES = {
    "one time": at_rate_one(GRID),
    "a time for every token": Dual(
        torch.stack([GRID[torch.randperm(101, generator=seeded(i))] for i in range(LENGTH)], 1),
        3 * torch.rand(101, LENGTH, dtype=torch.float64, generator=seeded(LENGTH)),
    ),
}


@pytest.mark.parametrize("kind", TIMES)
@pytest.mark.parametrize("name", PROCESSES)
def test_drift_matching_equals_the_short_form(name, kind):
    process, times = PROCESSES[name], TIMES[kind]
    embeddings, context = make_inputs("diffusion-lm" if name == "diffusion-lm" else "mulan", len(GRID))
    prediction = embeddings + torch.randn_like(embeddings)
    path = process.path(times, context)
    z = path(embeddings).sample(torch.randn_like(embeddings))
    g2 = process.squared_volatility(times, context)
    assert (g2 > 0).all()
    general = objective.drift_matching(path(embeddings), path(prediction), z, g2)
    short = (process.diffusion_weight(times, context) * (embeddings - prediction).square()).sum(-1)
    torch.testing.assert_close(general.sum(-1), short.sum(-1), rtol=1e-8, atol=0)

    gamma, rate = process.gamma(times, context)
    rising = (rate[..., 0] > 0).expand_as(short)
    torch.testing.assert_close(general[rising], short[rising], rtol=1e-8, atol=0)
    textbook = (0.5 * torch.exp(-gamma) * rate * (embeddings - prediction).square()).sum((-1, -2))
    if name == "crossing":
        assert (rate < -0.1).any() and (short.sum(-1) > textbook * (1 + 1e-6)).any()
    elif name != "mulan-rescaled":
        assert rising.all()
        torch.testing.assert_close(short.sum(-1), textbook, rtol=1e-10, atol=0)


def test_a_token_that_stands_still_has_no_drift_to_match():
    process, (embeddings, context) = make_process("nfdm"), make_inputs("nfdm", 101)
    times = TIMES["a time for every token"]
    still = torch.rand(101, LENGTH, generator=seeded(9)) < 0.5
    path = process.path(Dual(times.value, times.rate.masked_fill(still, 0)), context)
    z, g2 = torch.randn_like(embeddings), process.squared_volatility(times).masked_fill(still[..., None], 0)
    matched = objective.drift_matching(path(embeddings), path(embeddings + 1), z, g2)
    assert torch.equal(matched == 0, still)


@pytest.mark.parametrize("share", [0.25, 4.0])
@pytest.mark.parametrize("name", PROCESSES)
def test_no_other_volatility_makes_the_integrand_smaller_where_gamma_rises(name, share):
    process, times = PROCESSES[name], TIMES["one time"]
    embeddings, context = make_inputs("diffusion-lm" if name == "diffusion-lm" else "mulan", len(GRID))
    prediction = embeddings + torch.randn_like(embeddings)
    path, predicted = map(process.path(times, context), (embeddings, prediction))
    z, g2 = path.sample(torch.randn_like(embeddings)), process.squared_volatility(times, context)
    own, other = (objective.drift_matching(path, predicted, z, s * g2) for s in (1.0, share))
    assert (other > own).all()


# --- where the truth is known ---


class MarkovianVolatility(nn.Module):
    """`g² = σ² γ̇ = 2 σ² (1/(1-t) - log δ)` of `(1-t) E + δ^(1-t) ε`, times `share`."""

    def __init__(self, delta, share=1.0):
        super().__init__()
        self.log_delta, self.share = math.log(delta), share

    def forward(self, t):
        t = t[..., None].clamp_max(1 - 1e-12)  # Finite for a token that has not started.
        variance = torch.exp(2 * (1 - t) * self.log_delta)
        return self.share * 2 * variance * (1 / (1 - t) - self.log_delta)


# Starting this noisy, z_0 leaves something to decode (the start of Diffusion-LM and of MuLAN-Rescaled is fixed).
# Over a small range of γ' the rescaled rates stay positive.
SCHEDULES = {
    "nfdm": {"delta": 0.6},
    "nfdm-additive": {"delta": 0.6},
    "nfdm-head": {"delta": 0.6},
    "mulan": {"gamma_min": -1.0, "gamma_max": 12.0},
    "mulan-rescaled": {"gamma_min": 0.0, "gamma_max": 5.0},
    "diffusion-lm": {},
}


def unigram_model(name, volatility_share=1.0):
    """A model whose prediction is the exact posterior mean of independent tokens, and their log frequencies."""
    model = make_model(
        name,
        prediction_type="categorical",
        decoder="gaussian",
        time_sampler="uniform",
        num_hidden_layers=1,
        **SCHEDULES[name],
    )
    log_frequencies = torch.log_softmax(torch.randn(VOCAB, dtype=torch.float64), 0)
    silent = [model.predictor.output, model.prediction.gate]
    if name.startswith("nfdm"):
        silent.append(model.forward_process.network.output)
        model.forward_process.volatility = MarkovianVolatility(model.config.delta, volatility_share)
    if name.startswith("mulan"):
        silent.append(model.context_encoder.head)  # c says nothing about x
        with torch.no_grad():
            # Different schedules for the positions, but not wildly so.
            for parameter in model.forward_process.coefficients[2].parameters():
                parameter.mul_(0.2)
    with torch.no_grad():
        for layer in silent:
            layer.weight.zero_()
            layer.bias.zero_()
        model.token_bias.copy_(log_frequencies)
    return model, log_frequencies


def sample_tokens(log_frequencies, n):
    ids = torch.multinomial(log_frequencies.exp(), n * LENGTH, replacement=True).view(n, LENGTH)
    return ids, -log_frequencies[ids].sum(-1)


@pytest.mark.parametrize("clock", ["shared", "random:1"])
@pytest.mark.parametrize("name", MODELS)
def test_bound_of_the_exact_posterior_is_the_entropy_of_independent_tokens(name, clock):
    model, log_frequencies = unigram_model(name)
    # As many as the error below asks for: the weights of the square root schedule vary most over time.
    texts = {"mulan-rescaled": 98304, "diffusion-lm": 98304, "mulan": 32768}.get(name, 8192)
    ids, information = sample_tokens(log_frequencies, texts)
    with torch.no_grad():
        output = model(ids, clock=clock, generator=seeded(0))
        if name == "mulan-rescaled":
            context, times = torch.randn(500, CONTEXT).double(), at_rate_one(torch.linspace(0, 1, 500).double())
            gamma, rate = model.forward_process.gamma(times, context)
            assert (rate > 0).all() and gamma[250].std() > 0.05
    entropy = -LENGTH * (log_frequencies.exp() * log_frequencies).sum().item()
    # The information of the drawn tokens is known, so only the randomness of the bound itself is left.
    excess = output.bound - information
    standard_error = (excess.std() / math.sqrt(len(ids))).item()
    assert standard_error < 0.015 * entropy
    assert abs(excess.mean().item()) < 3.5 * standard_error
    assert output.diffusion.mean() > 0.3 * entropy
    if name.startswith("nfdm") or name == "mulan":
        assert output.reconstruction.mean() > 0.05 * entropy


@pytest.mark.parametrize("name, clock", [("nfdm", "ramp:1"), ("mulan", "shared"), ("diffusion-lm", "ramp:1")])
def test_bound_of_the_exact_posterior_counts_the_unknown_tokens_alone(name, clock):
    model, log_frequencies = unigram_model(name)
    ids, _ = sample_tokens(log_frequencies, 32768)
    known = torch.rand(ids.shape, generator=seeded(1)) < 0.5
    known[known.all(-1), 0] = False
    information = -log_frequencies[ids].masked_fill(known, 0).sum(-1)
    with torch.no_grad():
        output = model(ids, known=known, clock=clock, generator=seeded(0))
    excess = output.bound - information
    standard_error = (excess.std() / math.sqrt(len(ids))).item()
    assert standard_error < 0.015 * information.mean()
    assert abs(excess.mean().item()) < 3.5 * standard_error


@pytest.mark.parametrize("share", [0.3, 3.0])
@pytest.mark.parametrize("name", ["nfdm", "nfdm-additive", "nfdm-head"])
def test_another_volatility_only_loosens_the_bound(name, share):
    model, log_frequencies = unigram_model(name)
    other, _ = unigram_model(name, volatility_share=share)
    other.load_state_dict(model.state_dict())
    ids, _ = sample_tokens(log_frequencies, 64)
    draws = model.draw(64, seeded(0))
    markovian, loose = (m(ids, draws=draws) for m in (model, other))
    # (1 + share)² / (4 share), draw by draw: the mean and the std are linear in E here.
    expected = markovian.diffusion * (1 + share) ** 2 / (4 * share)
    assert relative_error(loose.diffusion, expected) < 1e-9
    assert (loose.bound >= markovian.bound).all()


@pytest.mark.parametrize("kind", ["embedding", "categorical"])
@pytest.mark.parametrize("name", MODELS)
def test_bound_of_an_untrained_model_is_above_the_entropy(name, kind):
    model = make_model(name, prediction_type=kind, time_sampler="uniform")
    log_frequencies = torch.log_softmax(torch.randn(VOCAB, dtype=torch.float64), 0)
    ids, information = sample_tokens(log_frequencies, 1024)
    with torch.no_grad():
        output = model(ids, generator=seeded(0))
    # Near t = 0 the integrand varies too much. Cut off, it estimates something smaller, and that must be above too.
    excess = output.bound - output.diffusion + output.diffusion.clamp_max(500) - information
    assert excess.mean() - 4 * excess.std() / math.sqrt(len(ids)) > 0
