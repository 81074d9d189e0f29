"""The joint decoder: what it sees, its limits, its training, and the bound of texts that it decodes."""

import itertools
import math

import pytest
import torch
from tiny import LENGTH, VOCAB, make_config, make_ids, make_model, seeded

from diffusers_text_nfdm import objective
from diffusers_text_nfdm.likelihood import estimate_likelihood
from diffusers_text_nfdm.likelihood.control_variate import lone_token_costs
from diffusers_text_nfdm.models import Prediction
from diffusers_text_nfdm.networks.dual import Dual


DOUBLE = {"dtype": torch.float64}
DECODER = {
    "predictor": "two_stream",
    "prediction_type": "categorical",
    "decoder": "gaussian",
    "self_conditioning": True,
    "lattice_candidates": 2,
    "joint_decoder": True,
    "forward_num_layers": 0,
    "clock": "shared",
}


def decoder(**options):
    return make_model("nfdm", **{**DECODER, **options})


def predicted(model, ids, t, known=None):
    draws = model.draw(len(ids), seeded(0))
    t = torch.full((len(ids), 1), t, **DOUBLE)
    t = t if known is None else torch.where(known, 0, t)
    z = model.forward_process.marginal(model.embed(ids), t).sample(draws.noise)
    return model.denoise(z, t, known=known)


def joint_logits(model, ids, prediction):
    return Prediction(factors=model.joint_factors(ids, prediction)).logits


@torch.no_grad()
def test_a_token_is_decoded_from_those_before_it_and_all_latents():
    model, ids = decoder(), make_ids(2)
    t = torch.full((2, 1), 0.7, **DOUBLE)
    z = torch.randn(2, LENGTH, 4, generator=seeded(1), **DOUBLE)
    logits = joint_logits(model, ids, model.denoise(z, t))
    for i in range(LENGTH):
        other = ids.clone()
        other[:, i] = (ids[:, i] + 1) % VOCAB
        changed = (joint_logits(model, other, model.denoise(z, t)) != logits).any(-1)
        assert changed.tolist() == [[j > i for j in range(LENGTH)]] * 2
        noise = z.clone()
        noise[:, i] += 0.5
        assert (joint_logits(model, ids, model.denoise(noise, t)) != logits).any(-1).all()


@torch.no_grad()
def test_texts_of_a_batch_are_decoded_by_themselves():
    model, ids = decoder(), make_ids(3)
    prediction = predicted(model, ids, 0.6)
    whole, rows = joint_logits(model, ids, prediction), torch.tensor([2, 0])
    some = Prediction(factors=model.joint_factors(ids[rows], prediction, rows)).logits
    assert torch.allclose(some, whole[rows], atol=1e-12)


@torch.no_grad()
def test_near_the_text_its_own_latent_decides_each_token():
    model, ids = decoder(delta=0.01), make_ids(4)
    prediction = predicted(model, ids, 1e-3)
    # The decoder is told wrong tokens before.
    assert torch.equal(joint_logits(model, make_ids(4), prediction).argmax(-1), ids)


def test_what_it_costs_is_trained_beside_the_cross_entropy():
    model, ids = decoder(), make_ids(3)
    draws = model.draw(3, seeded(0))
    output = model(ids, clock="shared", draws=draws, cross_entropy=True)
    plain = decoder(joint_decoder=False)
    plain.load_state_dict({name: w for name, w in model.state_dict().items() if name in plain.state_dict()})
    without = plain(ids, clock="shared", draws=draws, cross_entropy=True)
    assert without.joint is None and torch.equal(output.cross_entropy, without.cross_entropy)
    assert torch.allclose(output.loss, without.loss + output.joint.mean())
    model.train()(ids, clock="shared", draws=draws, cross_entropy=True).loss.backward()
    assert model.predictor.joint_input.weight.grad.any() and model.embeddings.weight.grad is None
    # In windows the text before them is given; there is nothing to decode jointly.
    assert model(ids, clock="ramp:2", draws=draws, cross_entropy=True).joint is None


def test_given_tokens_cost_nothing_and_are_seen():
    model, ids = decoder(), make_ids(2)
    known = torch.tensor([[False, True, False, False, True]] * 2)
    draws = model.draw(2, seeded(0))
    times, _ = model.token_times(model.clock("shared"), draws, known)
    _, _, joint = objective.cross_entropy(model, ids, times.value, draws, known)
    assert not joint[known].any() and (joint[~known] > 0).all()
    bound = objective.bound(model, ids, times, draws, known, finish_time=0.4)
    assert not bound.reconstruction[known].any() and (bound.reconstruction[~known] > 0).all()


def test_the_bound_ends_where_the_text_is_decoded():
    model, ids = decoder(), make_ids(2)
    draws = model.draw(2, seeded(0))
    for t, counted in ((0.39, False), (0.41, True)):
        times = Dual(torch.full((2, 1), t, **DOUBLE), torch.ones(2, 1, **DOUBLE))
        terms = objective.bound(model, ids, times, draws, finish_time=0.4)
        whole = objective.bound(model, ids, times, draws)
        assert torch.equal(terms.diffusion, whole.diffusion) if counted else not terms.diffusion.any()
        assert torch.equal(terms.prior, whole.prior)
    tau = torch.full((2, 1), 0.4, **DOUBLE)
    z = model.forward_process.marginal(model.embed(ids), tau).sample(draws.initial_noise)
    logits = torch.log_softmax(joint_logits(model, ids, model.denoise(z, tau)), -1)
    assert torch.allclose(terms.reconstruction, -logits.gather(-1, ids[..., None])[..., 0])


@torch.no_grad()
def test_decoded_from_noise_the_bound_is_the_likelihood_of_the_decoder():
    """At the time 1 nothing is left for the diffusion, and p(x | z_1) adds up to 1 over all texts."""
    model = decoder(vocab_size=3, max_length=3, delta=0.5)
    texts = torch.tensor(list(itertools.product(range(3), repeat=3)))
    prediction = predicted(model, texts[:1], 0.999)
    many = Prediction(factors=tuple(x.expand(27, *x.shape[1:]) if x.ndim == 3 else x for x in prediction.factors))
    many.noisy = prediction.noisy.rows(torch.zeros(27, dtype=torch.long))
    logits = torch.log_softmax(joint_logits(model, texts, many), -1)
    assert math.isclose(logits.gather(-1, texts[..., None]).sum((1, 2)).exp().sum(), 1, rel_tol=1e-9)
    estimate = estimate_likelihood(model, texts, clock="shared", finish_time=0.999, num_draws=2)
    assert estimate.terms["diffusion"].value < 0.05 * estimate.nats_per_story.value


def test_the_control_variate_has_the_mean_zero_from_the_finish_time_on():
    model, ids = decoder(), make_ids(1)
    n, first = 40_000, 0.3
    draws, batch = model.draw(n, seeded(0)), ids.expand(n, -1)
    t = first + (1 - first) * (torch.arange(n, **DOUBLE)[:, None] + 0.5) / n
    times = Dual(t, torch.full_like(t, 1 - first))
    estimate, ends = lone_token_costs(model, batch, times, draws, first)
    difference = estimate - ends
    assert ((difference.mean(0) / difference.std(0).clamp_min(1e-9) * n**0.5).abs() < 4).all()
    before = Dual(torch.full((2, 1), 0.2, **DOUBLE), torch.ones(2, 1, **DOUBLE))
    assert not lone_token_costs(model, make_ids(2), before, model.draw(2, seeded(1)), first)[0].any()


def test_the_estimate_is_that_of_the_clock_and_the_finish():
    model, ids = decoder(), make_ids(4)
    estimates = [
        estimate_likelihood(model, ids, clock="shared", finish_time=0.6, num_draws=256, seed=seed, time_sampler=times)
        for seed, times in ((0, "pilot"), (1, "learned"))
    ]
    first, second = (estimate.nats_per_story for estimate in estimates)
    error = math.hypot(first.monte_carlo_error, second.monte_carlo_error)
    assert abs(first.value - second.value) < 4 * error < 0.1 * first.value
    assert estimates[0].protocol["clock"] == "shared, decoded jointly at 0.6"
    # A prediction of three calls at the time and one at the finish, and the decoder.
    assert estimates[1].num_function_evaluations == 4 * 256 * 7


@pytest.mark.parametrize(
    ("options", "arguments", "message"),
    [
        ({}, {"finish_time": 1.0}, "`finish_time` is 1.0; it must be a number in"),
        ({}, {"finish_time": "late"}, "`finish_time` is 'late'; it must be a number in"),
        ({}, {"finish_time": 0.5, "clock": "ramp:2"}, "and the clock is 'ramp:2'"),
        ({"joint_decoder": False}, {"finish_time": 0.5}, "this one has no joint decoder"),
    ],
)
def test_finish_times_that_cannot_be_are_refused(options, arguments, message):
    with pytest.raises(ValueError, match=message):
        estimate_likelihood(decoder(**options), make_ids(2), num_draws=2, **{"clock": "shared", **arguments})


def test_it_needs_a_reading_from_left_to_right():
    with pytest.raises(ValueError, match="`joint_decoder` is True without `lattice_candidates`"):
        make_config("nfdm", **{**DECODER, "lattice_candidates": 0})
