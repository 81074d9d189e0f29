"""Choosing tokens: argmax, temperature, top-k, top-p, min-p and contrast."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny import seeded

from diffusers_text_nfdm.models.token_choice import check_cuts, select_tokens, token_probabilities


NUM_DRAWS = 20_000
PROBABILITIES = torch.tensor([0.05, 0.4, 0.0, 0.15, 0.3, 0.1])


def draws(logits, **options):
    """Shares of each token in many draws from the same logits."""
    logits = logits.expand(1, NUM_DRAWS, -1)
    return select_tokens(logits, generators=[seeded(0)], **options)[0].bincount(minlength=logits.shape[-1]) / NUM_DRAWS


def assert_distributed(shares, expected):
    """Within 4.5 standard deviations, and tokens of probability zero never drawn."""
    deviation = (expected * (1 - expected) / NUM_DRAWS).sqrt()
    assert ((shares - expected).abs() <= 4.5 * deviation).all(), (shares, expected)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_tokens_are_drawn_from_the_softmax_at_the_temperature(temperature):
    expected = torch.softmax(PROBABILITIES.log() / temperature, -1)
    assert expected[2] == 0
    assert_distributed(draws(PROBABILITIES.log(), temperature=temperature), expected)


@pytest.mark.parametrize(
    "options, kept",
    [
        ({"top_k": 2}, [1, 4]),
        ({"top_k": 100}, [0, 1, 3, 4, 5]),
        ({"top_p": 0.69}, [1, 4]),
        ({"top_p": 0.71}, [1, 3, 4]),
        ({"top_p": 1.0}, [0, 1, 3, 4, 5]),
        ({"top_p": 0.01}, [1]),
        ({"top_k": 3, "top_p": 0.5}, [1, 4]),
        # The most probable has 0.4.
        ({"min_p": 0.74}, [1, 4]),
        ({"min_p": 0.76}, [1]),
        ({"min_p": 1e-9}, [0, 1, 3, 4, 5]),
        # 0.3 / 0.85 and 0.4 / 0.85 of what top-k left reach 0.82.
        ({"top_k": 3, "top_p": 0.83}, [1, 3, 4]),
    ],
)
def test_top_k_top_p_and_min_p_keep_the_most_probable_tokens_in_proportion(options, kept):
    expected = torch.zeros_like(PROBABILITIES)
    expected[kept] = PROBABILITIES[kept]
    assert_distributed(draws(PROBABILITIES.log(), temperature=1.0, **options), expected / expected.sum())


@given(
    st.lists(st.floats(1e-3, 1), min_size=5, max_size=5),
    st.lists(st.floats(1e-6, 1), min_size=5, max_size=5),
    st.floats(0.01, 2),
    st.sampled_from([{"min_p": 0.2}, {"top_k": 3}, {"top_p": 0.7}, {"top_k": 4, "min_p": 0.1}]),
    st.floats(0.3, 3),
)
def test_contrast_divides_what_a_cut_leaves_by_a_power_of_the_frequencies(weights, frequencies, contrast, cut, heat):
    logits, frequencies = torch.tensor(weights).double().log(), torch.tensor(frequencies).double()
    frequencies = frequencies / frequencies.sum()
    kept = token_probabilities(logits, heat, **cut)
    expected = kept / frequencies**contrast
    given = token_probabilities(logits, heat, **cut, contrast=contrast, log_frequencies=frequencies.log())
    torch.testing.assert_close(given, expected / expected.sum(), rtol=1e-10, atol=1e-300)


def test_a_large_contrast_takes_the_rarest_of_what_is_left():
    logits, frequencies = torch.tensor([5.0, 4.0, 3.0, -9.0]), torch.tensor([-1.0, -9.0, -12.0, -30.0])
    given = token_probabilities(logits, top_k=3, contrast=200.0, log_frequencies=frequencies)
    assert given.tolist() == [0.0, 0.0, 1.0, 0.0]


def test_contrast_needs_to_know_what_is_plausible():
    with pytest.raises(ValueError, match="`contrast` is 0.5, which favours rare tokens; it needs `min_p`"):
        check_cuts(1.0, contrast=0.5)
    with pytest.raises(ValueError, match="`contrast` is -1; it must be a number of at least 0"):
        check_cuts(1.0, contrast=-1, min_p=0.1)
    with pytest.raises(ValueError, match="need a `temperature` above 0"):
        check_cuts(0.0, contrast=0.5, min_p=0.1)
    for cut in ({"min_p": 0.1}, {"top_k": 5}, {"top_p": 0.9}):
        check_cuts(1.0, contrast=0.5, **cut)


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0.0},
        {"temperature": 1e-6},
        # The logits themselves would overflow when divided by it.
        {"temperature": 2e-38},
        {"temperature": 5.0, "top_k": 1},
        {"temperature": 5.0, "top_p": 1e-9},
        # Zero in float32.
        {"temperature": 1e-60},
        {"temperature": 5.0, "top_p": 1e-60},
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_limits_are_the_argmax(options, dtype):
    logits = 10 * torch.randn(3, 50, 11, generator=seeded(1), dtype=dtype)
    generators = [seeded(seed) for seed in range(3)]
    assert torch.equal(select_tokens(logits, generators=generators, **options), logits.argmax(-1))


@pytest.mark.parametrize("uniform", [0.0, 0.5, 1 - 2**-24, 1.0])
def test_tokens_of_probability_zero_are_not_reached_by_rounding(uniform, monkeypatch):
    monkeypatch.setattr(torch, "rand", lambda size, generator, device: torch.full(size, uniform))
    logits = torch.full((1, 4, 1000), -math.inf)
    logits[..., 300:700] = 0.0
    chosen = select_tokens(logits, temperature=1.0, generators=[seeded(0)])
    assert (chosen >= 300).all() and (chosen < 700).all()


def test_draws_of_a_sample_do_not_depend_on_the_others():
    logits = torch.randn(3, 20, 11, generator=seeded(1))
    together = select_tokens(logits, temperature=1.0, generators=[seeded(i) for i in range(3)])
    for i in range(3):
        alone = select_tokens(logits[i : i + 1], temperature=1.0, generators=[seeded(i)])
        assert torch.equal(alone[0], together[i])


def test_logits_are_left_as_they_are():
    logits = torch.randn(2, 3, 11)
    before = logits.clone()
    select_tokens(logits, temperature=0.7, top_k=2, top_p=0.5, generators=[seeded(0), seeded(1)])
    assert torch.equal(logits, before)


def test_what_is_drawn_for_a_token_does_not_depend_on_the_part_that_is_asked_for():
    logits = torch.randn(3, 7, 5, generator=seeded(0))
    whole = select_tokens(logits, 1.0, generators=[seeded(i) for i in range(3)])
    for part in (slice(0, 3), slice(2, 6), slice(6, 7)):
        options = {"part": part, "length": 7, "generators": [seeded(i) for i in range(3)]}
        assert torch.equal(select_tokens(logits[:, part], 1.0, **options), whole[:, part])
