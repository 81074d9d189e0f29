"""Likelihoods along other clocks, of texts of which a part is known, and of the clean stream."""

import math
import warnings

import pytest
import torch
from exact_models import exact_model, sample_tokens
from tiny import LENGTH, MODELS, VOCAB, make_ids, make_model

from diffusers_text_nfdm import RampClock
from diffusers_text_nfdm.likelihood import estimate_likelihood, exact_likelihood, importance_weighted_bound
from diffusers_text_nfdm.likelihood.estimation import moving_share


TWO_STREAM = {"predictor": "two_stream", "prediction_type": "categorical"}
CLOCKS = ["shared", "ramp:0.5", "ramp:4", "random:4", "blocks:1"]


def some_known(texts: int) -> torch.Tensor:
    known = torch.rand(texts, LENGTH) < 0.5
    known[:, 2] = False
    return known


# --- clocks ---


@pytest.mark.parametrize("clock", CLOCKS)
@pytest.mark.parametrize("name", MODELS)
def test_along_every_clock_the_bound_of_the_exact_model_is_the_truth(name, clock):
    """Independent tokens: what a clock shows of the others does not matter."""
    model, log_frequencies = exact_model(name, predictor="two_stream")
    ids, information = sample_tokens(log_frequencies, 512)
    # Where the whole text is at one time, along a steep clock few tokens of it move.
    draws = 8 if name.startswith("nfdm") else 96 if clock == "random:4" else 16
    bound = estimate_likelihood(model, ids, clock=clock, num_draws=draws, batch_size=512).nats_per_story
    assert bound.monte_carlo_error < 0.05 * information.mean().item()
    assert abs(bound.value - information.mean().item()) < 4 * bound.monte_carlo_error


def test_the_clock_is_the_models_own_unless_another_is_given():
    model, ids = make_model("nfdm", torch.float32, clock="ramp:2"), make_ids(8)
    own, same, object_, other = (
        estimate_likelihood(model, ids, clock=clock, num_draws=2) for clock in (None, "ramp:2", RampClock(2), "shared")
    )
    assert own == same == object_ and own.nats_per_story != other.nats_per_story
    assert (own.protocol["clock"], other.protocol["clock"]) == ("ramp:2", "shared")


@pytest.mark.parametrize("name", MODELS)
def test_a_ramp_of_width_zero_is_the_shared_clock(name):
    model, ids = make_model(name), make_ids(8)
    shared, ramp = (
        estimate_likelihood(model, ids, clock=clock, num_draws=2).nats_per_story.value
        for clock in ("shared", "ramp:0")
    )
    assert ramp == pytest.approx(shared, rel=1e-9)


@pytest.mark.parametrize("clock", ["blocks:1", "ramp:4", "random:4"])
@pytest.mark.parametrize("name", ["nfdm", "mulan", "diffusion-lm"])
def test_importance_weighted_bounds_follow_other_clocks_too(name, clock):
    model, log_frequencies = exact_model(name, predictor="two_stream")
    ids, information = sample_tokens(log_frequencies, 144)
    one, eight = (
        importance_weighted_bound(model, ids, clock=clock, num_draws=k, num_steps=24, batch_size=144) - information
        for k in (1, 8)
    )
    assert (one - eight).mean() > 3 * (one - eight).std() / 12
    assert eight.mean() > -3 * eight.std() / 12


@pytest.mark.parametrize("estimate", [estimate_likelihood, importance_weighted_bound])
def test_clocks_that_the_model_cannot_follow_are_refused(estimate):
    with pytest.raises(ValueError, match="The clock 'blocks:1' is one of blocks, .*'bert', not 'two_stream'"):
        estimate(make_model("diffusion-lm"), make_ids(2), clock="blocks:1")
    with pytest.raises(ValueError, match="`size` of blocks is 2; it must divide the 5 tokens"):
        estimate(make_model("diffusion-lm", **TWO_STREAM), make_ids(2), clock="blocks:2")


# --- known tokens ---


@pytest.mark.parametrize("clock", CLOCKS)
@pytest.mark.parametrize("name", ["nfdm", "mulan", "diffusion-lm"])
def test_given_known_tokens_the_bound_of_the_exact_model_is_that_of_the_others(name, clock):
    model, log_frequencies = exact_model(name, predictor="two_stream")
    ids, _ = sample_tokens(log_frequencies, 512)
    known = some_known(512)
    truth = -log_frequencies[torch.arange(LENGTH), ids].masked_fill(known, 0).sum(-1).mean().item()
    draws = 8 if name.startswith("nfdm") else 64 if clock == "random:4" else 16
    bound = estimate_likelihood(model, ids, clock=clock, known=known, num_draws=draws, batch_size=512).nats_per_story
    assert bound.monte_carlo_error < 0.05 * truth
    assert abs(bound.value - truth) < 4 * bound.monte_carlo_error


def test_units_are_counted_over_the_unknown_tokens():
    model, ids, known = make_model("nfdm", torch.float32), make_ids(12), some_known(12)
    known[:, 0] = True
    # START, then the real tokens, then padding.
    tokens = torch.randint(2, LENGTH, (12,))
    estimate = estimate_likelihood(model, ids, tokens, known=known, num_draws=2)
    story = estimate.nats_per_story.value
    unknown = sum(int((~known[i, 1 : n + 1]).sum()) for i, n in enumerate(tokens.tolist()))
    assert estimate.nats_per_position.value == pytest.approx(12 * story / int((~known).sum()), rel=1e-12)
    assert estimate.nats_per_token.value == pytest.approx(12 * story / unknown, rel=1e-12)
    assert estimate.bits_per_token.value == pytest.approx(12 * story / unknown / math.log(2), rel=1e-12)
    assert estimate.bits_per_character is None
    assert estimate.protocol["known"].startswith(f"{known.double().mean():.1%} of the tokens")


def test_nothing_known_is_the_bound_of_the_whole_text():
    model, ids = make_model("mulan"), make_ids(6)
    none, all_false = (
        estimate_likelihood(model, ids, known=known, num_draws=2) for known in (None, torch.zeros(6, LENGTH).bool())
    )
    assert all_false.nats_per_story.value == pytest.approx(none.nats_per_story.value, rel=1e-9)
    assert all_false.nats_per_position.value == pytest.approx(none.nats_per_position.value, rel=1e-9)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"known": torch.zeros(2, LENGTH)}, "`known` is of type torch.float32; it must be a tensor of booleans"),
        ({"known": [[False] * LENGTH] * 2}, "`known` is of type list"),
        ({"known": torch.zeros(2, LENGTH - 1).bool()}, r"`known` has shape \(2, 4\); it must be \(2, 5\)"),
        ({"known": torch.ones(2, LENGTH).bool()}, "`known` is True for every token of text 0"),
        ({"known": torch.eye(LENGTH).bool()[:2], "num_chars": [5, 5]}, "`num_chars` is of whole texts"),
        (
            {"known": torch.tensor([[False, True, True, False, False]] * 2), "num_tokens": [3, 2]},
            "`known` is True for every real token of text 1",
        ),
    ],
)
def test_bad_known_tokens_are_refused_by_name(arguments, message):
    model, calls = make_model("diffusion-lm"), []
    model.predictor.register_forward_hook(lambda *_: calls.append(1))
    with pytest.raises(ValueError, match=message):
        estimate_likelihood(model, make_ids(2), **arguments)
    assert not calls


# --- the clean stream ---


@pytest.mark.parametrize("name", MODELS)
def test_exact_likelihood_of_the_clean_stream_is_the_sum_of_its_next_token_losses(name):
    model, ids = make_model(name, **TWO_STREAM), make_ids(7)
    tokens = torch.randint(1, LENGTH, (7,))
    estimate = exact_likelihood(model, ids, tokens, batch_size=3)
    losses = model(ids, clock="blocks:1", next_token_weight=1.0).next_token
    assert estimate.nats_per_story.value == pytest.approx(losses.mean().item(), rel=1e-12)
    assert estimate.nats_per_story.monte_carlo_error == 0
    assert estimate.nats_per_token.value == pytest.approx(losses.sum().item() / tokens.sum().item(), rel=1e-12)
    # By hand, one token after the other from the tokens before it alone.
    nats = torch.zeros(7, dtype=torch.float64)
    for i in range(1, LENGTH):
        states, _ = model.read_clean(ids[:, :i])
        hidden, weight, bias = model.next_token_factors(states[:, -1])
        logits = hidden @ weight.T + bias
        assert logits.shape == (7, VOCAB)
        nats -= torch.log_softmax(logits, -1).gather(-1, ids[:, i : i + 1])[:, 0]
    torch.testing.assert_close(losses, nats, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("options", [{}, {"prediction_type": "categorical"}, {"predictor": "two_stream"}])
def test_a_model_without_next_tokens_has_no_exact_likelihood(options):
    with pytest.raises(ValueError, match="Only the clean stream of `predictor` 'two_stream'"):
        exact_likelihood(make_model("diffusion-lm", **options), make_ids(2))


@pytest.mark.parametrize(
    ("clock", "share"), [("shared", 1), ("ramp:9", 1), ("ramp:1000", 1), ("blocks:4", 1), ("blocks:4:random:99", 0.04)]
)
def test_a_clock_that_mostly_stands_still_is_warned_of(clock, share):
    """Along `random:w` in a block of n tokens each moves for 1/(1 + w) of the time."""
    model = make_model("nfdm", max_length=8, **TWO_STREAM)
    assert moving_share(model, model.clock(clock)) == pytest.approx(share, abs=0.005)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        estimate_likelihood(model, torch.randint(VOCAB, (2, 8)), clock=clock, num_draws=2)
    assert any("neither the estimate nor its error can be trusted" in str(one.message) for one in caught) == (
        share < 1
    )
