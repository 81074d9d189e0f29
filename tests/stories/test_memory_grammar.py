"""The machinery, on a language small enough to write down completely."""

import math
from fractions import Fraction

import pytest

from diffusers_text_nfdm.stories import Option, StoryGrammar, pick
from diffusers_text_nfdm.stories.lexing import join, lead, scan, tokenize


SMALL = {
    "story": pick("{who=name} saw {a} {pet=pet}. {end}"),
    "name": [*pick("Anna*2", They="She", their="her"), *pick("Ben | Tom", They="He", their="his")],
    "a": pick("a big*2 | a shy | an old"),
    "pet": [*pick("goose*3", act="bird"), *pick("goat | pony*2", act="beast")],
    "bird": pick("flew home*2 | flew away"),
    "beast": pick("ran*3 | ate {@who.their} hat | didn't move"),
    "end": pick("The {@pet} {*pet.act}, and {@who} smiled.*2 | {@who.They} didn't mind.| {@who.They} fed the {@pet}."),
}


@pytest.fixture(scope="module")
def small():
    return StoryGrammar(SMALL)


@pytest.fixture(scope="module")
def language(small):
    return list(small.enumerate())


def test_enumerated_probabilities_sum_to_exactly_one(language):
    assert sum(probability for _, probability in language) == Fraction(1)
    assert len({text for text, _ in language}) == len(language)


def test_entropy_is_that_of_the_enumerated_language(small, language):
    enumerated = -math.fsum(float(p) * math.log(p) for _, p in language)
    assert small.entropy() == pytest.approx(enumerated, rel=1e-13)


def test_expected_visits_are_exact(small, language):
    for rule in small.choices:
        visits = sum(p * sum(step.choice == rule for step in small.derivation(text)) for text, p in language)
        assert small.expected_visits[rule] == visits


def test_probabilities_of_all_texts(small, language):
    for text, probability in language:
        assert small.log_prob(text) == pytest.approx(math.log(probability), rel=1e-12)
        assert small.explain(text) is None
        assert math.prod(step.probability for step in small.derivation(text)) == probability


def test_vocabulary_and_lengths_are_those_of_the_language(small, language):
    tokens = [tokenize(text) for text, _ in language]
    assert set(small.vocabulary) == {token for story in tokens for token in story}
    assert small.length_bounds == (min(map(len, tokens)), max(map(len, tokens)))


def test_explain_stops_at_the_longest_prefix_of_any_text(small, language):
    stories = [tokenize(text) for text, _ in language]
    prefixes = {tuple(story[:end]) for story in stories for end in range(len(story) + 1)}
    whole = {tuple(story) for story in stories}
    for story in stories[::7]:
        for place in range(len(story)):
            for token in small.vocabulary:
                changed = [*story[:place], token, *story[place + 1 :]]
                if tokenize(join(changed)) != changed:
                    continue  # "n'tn't" is not read as two contractions
                departure = small.explain(join(changed))
                if tuple(changed) in whole:
                    assert departure is None
                    continue
                end = max(end for end in range(len(changed) + 1) if tuple(changed[:end]) in prefixes)
                before = join(changed[:end])
                if end < len(changed):
                    assert departure.found == changed[end]
                    assert departure.offset == len(before) + len(lead(changed[end]) if end else "")
                else:
                    assert departure.found is None and departure.offset == len(before)
                goes_on = {p[end] for p in prefixes if len(p) == end + 1 and p[:end] == tuple(changed[:end])}
                assert set(departure.expected) == goes_on


@pytest.mark.parametrize(
    ("text", "offset", "found", "reason"),
    [
        ("Anna saw a big goose. He fed the goose.", 22, "He", "'He' does not agree with 'Anna' (She)"),
        ("Ben saw a shy goat. He fed the pony.", 31, "pony", "'pony' is not the pet of this story, which is 'goat'"),
        ("Tom saw an old pony. The pony flew home, and Tom smiled.", 30, "flew", "'flew' does not fit 'pony'"),
        ("Anna saw a old pony. She fed the pony.", 11, "old", "'old' does not go on any story that begins like this"),
        ("Ben saw a shy goat. he didn't mind.", 20, "he", "'he' is written 'He' here"),
        ("Ben saw a shy goat", 18, None, "the story stops before it is complete"),
        ("", 0, None, "the story stops before it is complete"),
        ("Ben saw a shy goat. He didn't mind. The", 36, "The", "the story is already complete"),
        ("Ben  saw a shy goat. He didn't mind.", 3, "saw", "there is one space before 'saw' in a story"),
        ("Ben saw a shy goat . He didn't mind.", 18, ".", "there is no space before '.' in a story"),
        (" Ben saw a shy goat. He didn't mind.", 0, "Ben", "there is no space before 'Ben' in a story"),
        ("Ben saw a shy goat. He didn't mind.\n", 35, "\n", "nothing may follow the last token of a story"),
    ],
)
def test_explain_says_where_and_why(small, text, offset, found, reason):
    departure = small.explain(text)
    assert (departure.offset, departure.found, departure.reason) == (offset, found, reason)
    assert reason in str(departure)
    assert small.log_prob(text) == -math.inf
    with pytest.raises(ValueError, match="not of the language"):
        small.derivation(text)


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({"story": pick("a dog | a dog")}, "ambiguous"),
        ({"story": pick("a dog | a dog barks")}, "ambiguous"),
        ({"story": pick("{x} {y}"), "x": pick("a | a b"), "y": pick("b c | c")}, "'a' and 'a b'"),
        ({"story": pick("{x=x} {@x} a | {x=x} {@x} b"), "x": pick("c d e")}, "cannot be told apart"),
        ({"story": pick("a {story}")}, "contains itself"),
        ({"story": pick("a {b}")}, "no rule named 'b'"),
        ({"story": pick("a"), "b": pick("c")}, "cannot be reached"),
        ({"story": pick("a {@x}")}, "nothing may be remembered"),
        ({"story": pick("{b} {@x}"), "b": pick("c {x=d} | e"), "d": pick("f | g")}, "nothing may be remembered"),
        ({"story": pick("{x=b} {@x.plural}"), "b": pick("c")}, "no feature 'plural'"),
        ({"story": pick("{x=b} {*x.then}"), "b": pick("c", then="z")}, "no rule named 'z'"),
        ({"story": pick("{x=b} {@x}"), "b": pick("{c}"), "c": pick("d")}, "not fixed text"),
        ({"story": pick("a | ")}, "can be empty"),
        ({"story": []}, "no options"),
        ({"story": pick("a {b")}, "'{' is not an ASCII word"),
        ({"story": pick("a {-}")}, "is none of"),
        ({"story": pick("caf\u00e9")}, "not an ASCII word"),
        ({"story": [Option("a", 0)]}, "weight is 0"),
        ({"story": [Option("a", True)]}, "weight is True"),
        ({"story": ["a"]}, "not an Option"),
        ({"tale": pick("a")}, "start is 'story'"),
        ({}, "rules is"),
    ],
)
def test_grammars_that_cannot_be_are_refused(rules, message):
    with pytest.raises(ValueError, match=message):
        StoryGrammar(rules)


def test_lookahead_is_respected():
    rules = {"story": pick("a b c d | a b c e")}
    assert StoryGrammar(rules, lookahead=4).entropy() == pytest.approx(math.log(2))
    with pytest.raises(ValueError, match="ambiguous"):
        StoryGrammar(rules, lookahead=3)
    with pytest.raises(ValueError, match="lookahead is 0"):
        StoryGrammar(rules, lookahead=0)


def test_tokens_of_contractions():
    text = "She didn't say Otto's goose can't sing, I'm sure!"
    tokens = ["She", "did", "n't", "say", "Otto", "'s", "goose", "ca", "n't", "sing", ",", "I", "'m", "sure", "!"]
    assert tokenize(text) == tokens and join(tokens) == text
    assert all(token.spaced for token in scan(text))
