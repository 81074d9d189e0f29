"""Words, and what is refused."""

import pytest

from diffusers_text_nfdm.metrics import check_same_form, diversity, memorization, split_words
from diffusers_text_nfdm.metrics.texts import text_form


STORIES = [
    "Tom saw a fox, and ran. It didn't follow!",
    "The pie was gone. Ella felt sad.",
    "Why? Nobody knew: it rained.",
]


def test_words_are_those_of_spacy():
    assert split_words("Tom's fox didn't run, it flew.") == [
        "Tom",
        "'s",
        "fox",
        "did",
        "n't",
        "run",
        ",",
        "it",
        "flew",
        ".",
    ]


def test_form_tells_tokens_from_text_and_lower_case_from_case():
    assert text_form(STORIES) == {"spaced punctuation": 0.0, "lower-cased texts": 0.0}
    spaced = [" ".join(split_words(story)) for story in STORIES]
    assert text_form(spaced) == {"spaced punctuation": 1.0, "lower-cased texts": 0.0}
    assert text_form([story.lower() for story in STORIES]) == {"spaced punctuation": 0.0, "lower-cased texts": 1.0}
    check_same_form(spaced, spaced, "a", "b")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (str.lower, "lower-cased texts 0% against 100%"),
        (lambda s: " ".join(split_words(s)), "spaced punctuation 0% against 100%"),
    ],
    ids=["lower-cased", "tokens"],
)
def test_texts_in_different_forms_are_refused(change, said):
    with pytest.raises(ValueError, match=f"`texts` and `training_texts` are written in different forms: {said}"):
        memorization(STORIES, [change(story) for story in STORIES])


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        ([], "`texts` has 0 texts; at least 1"),
        (["Tom ran home.", "  "], r"`texts\[1\]` is blank"),
        (["Tom ran home.", None], r"`texts\[1\]` is a NoneType"),
        ("Tom ran home.", "`texts` is a str"),
        (["Tom ran.", "No."], "no text of 4 words"),
    ],
    ids=["none", "blank", "no string", "one string", "too short"],
)
def test_texts_that_cannot_be_scored_are_refused(texts, said):
    with pytest.raises(ValueError, match=said):
        diversity(texts)
