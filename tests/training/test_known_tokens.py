"""Which tokens training gives."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny import seeded

from diffusers_text_nfdm.training.known_tokens import KINDS, draw_known


TEXTS, LENGTH = 4000, 16


def is_prefix(known):
    return (known[:, :-1] >= known[:, 1:]).all(-1) & known[:, 0]


def unknown_spans(known):
    """How many runs of unknown tokens a text has."""
    unknown = torch.nn.functional.pad((~known).long(), (1, 1))
    return (unknown.diff(dim=1) == 1).sum(-1)


def test_a_prefix_is_a_beginning_of_any_length():
    known = draw_known({"prefix": 1.0}, TEXTS, LENGTH, seeded(0))
    assert is_prefix(known).all()
    counts = known.sum(-1).bincount(minlength=LENGTH + 1)
    assert counts[0] == counts[LENGTH] == 0
    assert (counts[1:LENGTH] / TEXTS - 1 / (LENGTH - 1)).abs().max() < 0.02


def test_of_a_span_all_is_known_but_up_to_half_of_the_text():
    known = draw_known({"span": 1.0}, TEXTS, LENGTH, seeded(0))
    assert (unknown_spans(known) == 1).all()
    counts = (~known).sum(-1).bincount(minlength=LENGTH + 1)
    assert counts[0] == 0 and not counts[LENGTH // 2 + 1 :].any()
    assert (counts[1 : LENGTH // 2 + 1] / TEXTS - 2 / LENGTH).abs().max() < 0.03
    # Anywhere: at the beginning, at the end, and between.
    assert (~known).any(0).all() and is_prefix(known).any() and (~known[:, 0]).any()


def test_scattered_tokens_are_known_with_any_probability():
    known = draw_known({"scattered": 1.0}, TEXTS, LENGTH, seeded(0))
    counts = known.sum(-1)
    # As many with few as with many, of 16 tokens of which one is never known.
    assert abs(counts.double().mean() - (LENGTH - 1) / 2) < 0.3 and counts.double().std() > 4
    assert (known.double().mean(0) - known.double().mean()).abs().max() < 0.05
    assert (unknown_spans(known) > 2).double().mean() > 0.4


def test_each_kind_has_its_share():
    known = draw_known({"prefix": 0.2, "span": 0.3}, TEXTS, LENGTH, seeded(0))
    nothing = ~known.any(-1)
    assert abs(nothing.double().mean() - 0.5) < 0.03
    # A span may end the text, which a prefix does, too.
    alone = draw_known({"span": 1.0}, TEXTS, LENGTH, seeded(1))
    expected = 0.2 + 0.3 * is_prefix(alone).double().mean()
    assert abs(is_prefix(known).double().mean() - expected) < 0.03


@given(st.dictionaries(st.sampled_from(KINDS), st.floats(0.01, 1 / 3)), st.integers(2, 40), st.integers(0, 2**31))
def test_one_token_at_least_is_unknown(shares, length, seed):
    known = draw_known(shares, 64, length, seeded(seed))
    assert known.shape == (64, length) and known.dtype == torch.bool
    assert not known.all(-1).any()
    assert shares or not known.any()
    assert torch.equal(known, draw_known(shares, 64, length, seeded(seed)))


@pytest.mark.parametrize("kind", KINDS)
def test_the_largest_random_numbers_leave_a_token_unknown(kind, monkeypatch):
    largest = 1 - 2.0**-24
    monkeypatch.setattr(torch, "rand", lambda *shape, **options: torch.full(shape, largest))
    for length in (2, 3, 64, 1000):
        assert not draw_known({kind: 1.0}, 2, length, seeded(0)).all(-1).any()
