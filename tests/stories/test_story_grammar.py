"""The embedded stories: entropy, uniqueness of derivations, coherence, shape and speed."""

import math
import re
import time
from collections import Counter, defaultdict
from functools import cache

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from diffusers_text_nfdm.stories import StoryGrammar
from diffusers_text_nfdm.stories.content import RULES
from diffusers_text_nfdm.stories.lexing import join, lead, tokenize


GRAMMAR = StoryGrammar()
POOL = GRAMMAR.sample(400, seed="pool")


@pytest.fixture(scope="module")
def stories():
    return GRAMMAR.sample(20_000, seed=1)


@pytest.fixture(scope="module")
def derivations(stories):
    return [GRAMMAR.derivation(story) for story in stories[:5_000]]


FEATURES = {(rule, option.text): option.features for rule, options in RULES.items() for option in options}


@cache
def reversed_pieces(template):
    parts = list(enumerate(re.split(r"\{(.*?)\}", template)))
    return [(i % 2, piece) for i, part in reversed(parts) for piece in ([part] if i % 2 else tokenize(part)[::-1])]


def count_derivations(text):
    """All derivations of ``text``, by trying every option of every choice, apart from the parser of the library."""
    tokens = tokenize(text)

    def pieces(template, rest):
        for braces, piece in reversed_pieces(template):
            rest = (braces, piece, rest)
        return rest

    def count(stack, place, memory):
        if stack is None:
            return int(place == len(tokens))
        braces, piece, rest = stack
        if not braces:
            return count(rest, place + 1, memory) if tokens[place : place + 1] == [piece] else 0
        if piece.startswith("@"):
            var, _, name = piece[1:].partition(".")
            rule, option = memory[var]
            return count(pieces(FEATURES[rule, option][name] if name else option, rest), place, memory)
        var, _, rule = piece.rpartition("=")
        if piece.startswith("*"):
            steering, _, name = piece[1:].partition(".")
            rule = FEATURES[memory[steering]][name]
        return sum(
            count(pieces(o.text, rest), place, {**memory, var: (rule, o.text)} if var else memory) for o in RULES[rule]
        )

    return count(pieces("{story}", None), 0, {})


def test_entropy_agrees_with_samples(stories):
    surprisals = [-GRAMMAR.log_prob(story) for story in stories]
    assert all(map(math.isfinite, surprisals))
    mean = math.fsum(surprisals) / len(surprisals)
    variance = math.fsum((s - mean) ** 2 for s in surprisals) / (len(surprisals) - 1)
    assert abs(mean - GRAMMAR.entropy()) < 3 * math.sqrt(variance / len(surprisals))
    assert 40 < GRAMMAR.entropy() < 60


def test_every_story_has_exactly_one_derivation(stories):
    assert {count_derivations(story) for story in stories[:3_000]} == {1}
    assert count_derivations(stories[0] + " The end.") == 0


def test_derivation_multiplies_to_the_probability(stories, derivations):
    for story, steps in zip(stories[:500], derivations):
        assert math.log(math.prod(step.probability for step in steps)) == pytest.approx(GRAMMAR.log_prob(story))
        assert all(GRAMMAR.choices[step.choice][step.option] == step.probability for step in steps)


def test_choices_have_the_probabilities_of_the_grammar(derivations):
    counts = defaultdict(Counter)
    for steps in derivations:
        for step in steps:
            counts[step.choice][step.option] += 1
    total, freedom = 0.0, 0
    for choice, options in GRAMMAR.choices.items():
        visits = counts[choice].total()
        expected = GRAMMAR.expected_visits[choice] * len(derivations)
        assert abs(visits - expected) <= 6 * math.sqrt(expected) + 1e-9
        if len(options) > 1 and visits * min(options.values()) > 5:
            chi2 = sum((counts[choice][o] - visits * p) ** 2 / (visits * p) for o, p in options.items())
            df = len(options) - 1
            # Wilson and Hilferty: the cube root of chi2 / df is nearly normal.
            assert ((float(chi2) / df) ** (1 / 3) - 1 + 2 / (9 * df)) / math.sqrt(2 / (9 * df)) < 4.5
            total, freedom = total + float(chi2), freedom + df
    assert freedom > 300
    assert abs(total - freedom) < 4 * math.sqrt(2 * freedom)


SWAP = {"She": "He", "he": "she", "her": "his", "Her": "His", "him": "her"}
SWAP |= {"He": "She", "she": "he", "his": "her", "His": "Her"}


def changed(tokens, place, word):
    """The text with another word at ``place``, and the character where that word begins."""
    text = join([*tokens[:place], word, *tokens[place + 1 :]])
    return text, len(join(tokens[:place])) + len(lead(word) if place else "")


def assert_leaves_at(tokens, place, word, reason):
    text, offset = changed(tokens, place, word)
    assert GRAMMAR.log_prob(text) == -math.inf
    departure = GRAMMAR.explain(text)
    assert (departure.offset, departure.found) == (offset, word)
    assert reason in departure.reason


def test_every_pronoun_must_agree():
    for story in POOL:
        tokens = tokenize(story)
        for place in (place for place, token in enumerate(tokens) if token in SWAP):
            assert_leaves_at(tokens, place, SWAP[tokens[place]], "does not agree with")


@pytest.mark.parametrize("role", ["hero", "friend"])
def test_names_must_come_back(role):
    names = list(GRAMMAR.choices[role])
    for story in POOL:
        tokens = tokenize(story)
        places = [place for place, token in enumerate(tokens) if token in names]
        assert len(places) > (role == "hero")
        for place in places[1:]:
            other = names[(names.index(tokens[place]) + 1) % len(names)]
            assert_leaves_at(tokens, place, other, "")


THINGS = {
    "{bake}": "cake",
    "{borrow}": "tool",
    "{buy}": "gadget",
    "{lose}": "item",
    "{find}": "animal",
    "{build}": "craft",
    "{practice}": "instrument",
}


def test_things_must_come_back():
    plots = Counter()
    for story in POOL:
        steps = {step.choice: step.option for step in GRAMMAR.derivation(story)}
        if steps["plot"] in THINGS:
            tokens, options = tokenize(story), list(GRAMMAR.choices[THINGS[steps["plot"]]])
            thing = next(token for token in tokens if token in options)
            for place in [place for place, token in enumerate(tokens) if token == thing][1:]:
                other = options[(options.index(thing) + 1) % len(options)]
                assert_leaves_at(tokens, place, other, f"{other!r} is not the ")
                plots[steps["plot"]] += 1
    assert set(plots) == set(THINGS)


def test_explanations_in_plain_words():
    start = "One quiet Monday, Anna built a huge kite out of red boxes. Only her boss Otto thought it would"
    assert GRAMMAR.explain(f"{start} float.").reason == "'float' does not agree with 'kite' (fly)"
    assert GRAMMAR.explain(f"{start} fly. It flew for two feet and then sank.").reason == "'sank' does not fit 'kite'"
    start = "One quiet Monday, Anna baked a huge pie for her boss Otto. Soon, it leaned like a shy camel."
    assert "found 'he', expected 'she': 'he' does not agree with 'Anna' (she)" in str(
        GRAMMAR.explain(f"{start} So he")
    )


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.sampled_from(POOL), st.integers(0, 10_000), st.sampled_from([*GRAMMAR.vocabulary, "xylophone", "'s"]))
def test_changing_one_token(story, place, word):
    """What precedes the change still begins a story, so a text leaves the language there or later, and nowhere else:
    up to the departure it can be continued with each expected token, and with the one found it cannot."""
    tokens = tokenize(story)
    place %= len(tokens)
    text, offset = changed(tokens, place, word)
    assume(tokenize(text) == [*tokens[:place], word, *tokens[place + 1 :]])
    departure = GRAMMAR.explain(text)
    if departure is None:
        assert math.isfinite(GRAMMAR.log_prob(text))
        return
    assert GRAMMAR.log_prob(text) == -math.inf
    assert departure.offset >= offset
    assert departure.found not in departure.expected
    before = tokenize(text[: departure.offset])
    for token in departure.expected[:3]:
        longer = join([*before, token])
        after = GRAMMAR.explain(longer)
        assert after is None or (after.found is None and after.offset == len(longer))


def test_shape_of_the_stories(stories):
    assert 200 <= len(GRAMMAR.vocabulary) <= 500
    low, high = GRAMMAR.length_bounds
    assert 30 <= low and high <= 60
    seen = set()
    for story in stories:
        tokens = tokenize(story)
        seen.update(tokens)
        assert low <= len(tokens) <= high
        assert join(tokens) == story and story.isascii()
        assert story.count(".") == 5 and story.endswith(".")
        assert all(sentence[0].isupper() for sentence in story.split(". "))
        assert not re.search(r"\b[Aa] [aeiou]|\b[Aa]n (?!hour)[^aeiou]", story)
    assert seen == set(GRAMMAR.vocabulary)


def test_seeds():
    assert GRAMMAR.sample(50, seed=3) == GRAMMAR.sample(50, seed=3) == StoryGrammar().sample(80, seed=3)[:50]
    assert not set(GRAMMAR.sample(50, seed=3)) & set(GRAMMAR.sample(50, seed=4))
    assert GRAMMAR.sample(0) == []


@pytest.mark.parametrize("n", [-1, 1.5, None, True])
def test_bad_sample_sizes(n):
    with pytest.raises(ValueError, match=f"n is {n!r}; an integer >= 0"):
        GRAMMAR.sample(n)


def test_bad_seeds_and_texts():
    with pytest.raises(ValueError, match="seed is 1.5"):
        GRAMMAR.sample(1, seed=1.5)
    for method in (GRAMMAR.log_prob, GRAMMAR.explain, GRAMMAR.derivation):
        with pytest.raises(ValueError, match="text is 3; a string"):
            method(3)


def test_speed():
    start = time.process_time()
    stories = GRAMMAR.sample(10_000, seed=9)
    assert time.process_time() - start < 4
    start = time.process_time()
    for story in stories[:2_000]:
        GRAMMAR.log_prob(story)
    assert time.process_time() - start < 4


# --- beginnings ---


@given(st.sampled_from(POOL), st.integers(0, 80))
@settings(max_examples=40, deadline=None)
def test_the_tokens_that_may_follow_a_beginning_share_its_probability(story, number):
    tokens = tokenize(story)
    beginning = tokens[: number % len(tokens)]
    whole = GRAMMAR.prefix_log_prob(join(beginning))
    following = [GRAMMAR.prefix_log_prob(join([*beginning, token])) for token in GRAMMAR.vocabulary]
    assert math.fsum(math.exp(log - whole) for log in following) == pytest.approx(1, abs=1e-9)


def test_a_whole_story_is_as_probable_as_what_begins_with_it():
    for story in POOL[:50]:
        assert GRAMMAR.prefix_log_prob(story) == pytest.approx(GRAMMAR.log_prob(story), abs=1e-9)
    assert GRAMMAR.prefix_log_prob("") == 0
    assert GRAMMAR.prefix_log_prob("Leo one windy") == -math.inf
    with pytest.raises(ValueError, match="text is 3; a string is needed"):
        GRAMMAR.prefix_log_prob(3)


def test_beginnings_are_as_frequent_as_their_probability(stories):
    for length in (1, 3, 6):
        counts = Counter(join(tokenize(story)[:length]) for story in stories)
        for beginning, count in counts.most_common(5):
            p = math.exp(GRAMMAR.prefix_log_prob(beginning))
            assert abs(count - len(stories) * p) < 5 * math.sqrt(len(stories) * p)
