"""N-gram metrics against counting by hand."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_rocstories import roc_stories

from diffusers_text_nfdm.metrics import TrainingNgrams, diversity, memorization, split_words


WORDS = st.lists(st.sampled_from(["Tom", "fox", "ran", "a"]), min_size=4, max_size=9).map(" ".join)
TEXTS = st.lists(WORDS, min_size=1, max_size=6)


def occurrences(texts, n):
    """Every n-gram as a string, one position after the other."""
    found = []
    for text in texts:
        words = text.split()
        for start in range(len(words)):
            if start + n <= len(words):
                found.append("|".join(words[start : start + n]))
    return found


@given(TEXTS)
def test_diversity_is_the_product_of_distinct_shares(texts):
    expected = 1.0
    for n in (2, 3, 4):
        grams = occurrences(texts, n)
        distinct = sum(gram not in grams[:place] for place, gram in enumerate(grams))
        assert diversity(texts)[f"distinct_{n}"] == pytest.approx(distinct / len(grams))
        expected *= distinct / len(grams)
    assert diversity(texts)["diversity"] == pytest.approx(expected)


@given(TEXTS, TEXTS)
def test_memorization_is_the_share_of_known_4_grams(texts, training):
    grams, known = occurrences(texts, 4), occurrences(training, 4)
    expected = sum(any(gram == other for other in known) for gram in grams) / len(grams)
    assert TrainingNgrams(training).memorization(texts) == pytest.approx(expected)


@given(TEXTS, TEXTS, st.randoms(use_true_random=False))
def test_order_does_not_matter_and_more_training_texts_never_lower_memorization(texts, training, randomness):
    shuffled = randomness.sample(texts, len(texts))
    assert diversity(shuffled) == diversity(texts)
    assert (
        TrainingNgrams(training).memorization(texts) <= TrainingNgrams(training + texts[:1]).memorization(texts) <= 1
    )
    assert TrainingNgrams(texts).memorization(texts) == 1


def test_grams_do_not_cross_texts():
    assert memorization(["Tom saw a fox"], ["Then Tom saw", "a fox ran home"])["memorization"] == 0


def test_a_text_without_four_words_has_no_memorization():
    with pytest.raises(ValueError, match="no text of 4 words"):
        memorization(["Tom ran"], ["Tom saw a fox"])
    with pytest.raises(ValueError, match="no text of 4 words"):
        memorization(["Tom saw a fox"], ["Tom ran"])


@pytest.mark.slow
def test_values_of_real_rocstories():
    """They depend on the numbers of texts: what a table must say beside its figures."""
    train, valid = roc_stories("train"), roc_stories("valid")
    assert len(split_words(valid[0])) > 30
    sample = random.Random(0).sample(valid, 1000)
    assert diversity(sample)["diversity"] == pytest.approx(0.42, abs=0.01)
    assert diversity(valid)["diversity"] == pytest.approx(0.22, abs=0.01)
    assert TrainingNgrams(train[:1000]).memorization(sample) == pytest.approx(0.06, abs=0.01)
    assert TrainingNgrams(train).memorization(sample) == pytest.approx(0.28, abs=0.01)
