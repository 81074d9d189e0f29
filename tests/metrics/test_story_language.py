"""The grammar as a judge of samples: its tests have the right size, and see what is wrong."""

import math

import numpy as np
import pytest
from scipy import stats

from diffusers_text_nfdm.metrics import choice_p_values, story_language
from diffusers_text_nfdm.stories import Option, StoryGrammar, pick
from diffusers_text_nfdm.stories.grammar import Step


def test_samples_of_the_grammar_are_what_it_says(grammar):
    result = story_language(grammar.sample(1000, seed=5), grammar)
    assert result["validity"] == 1 and result["distinct_stories"] > 0.99
    assert result["log_probability"] == pytest.approx(-grammar.entropy(), abs=0.5)
    assert result["coverage"] >= 0.95 and result["tested_choices"] > 100
    assert result["tested_choices"] + result["untested_choices"] == sum(len(o) > 1 for o in grammar.choices.values())


def test_one_in_a_hundred_tests_rejects_the_grammar_itself(grammar):
    derivations = [grammar.derivation(text) for text in grammar.sample(5000, seed=11)]
    values = []
    for start in range(0, 5000, 250):
        values += choice_p_values(derivations[start : start + 250], grammar, num_draws=999, seed=start)[0].values()
    n, rejected = len(values), sum(p <= 0.01 for p in values)
    # Counts are whole numbers, so the size is a little below 1%.
    assert n > 2000 and 0.005 < rejected / n < 0.015
    assert np.mean(np.array(values) <= 0.5) == pytest.approx(0.5, abs=0.05)


def test_a_sampler_with_a_taste_is_rejected_where_it_has_one(grammar):
    stories = grammar.sample(3000, seed=2)
    choice = max(
        (name for name, options in grammar.choices.items() if len(options) > 4), key=grammar.expected_visits.get
    )
    favourite = next(iter(grammar.choices[choice]))
    kept = [
        story
        for place, story in enumerate(stories)
        if place % 2 or Step(choice, favourite, grammar.choices[choice][favourite]) in grammar.derivation(story)
    ]
    result = story_language(kept, grammar)
    assert result["p_values"][choice] < 0.001 and result["validity"] == 1
    one_story = story_language(stories[:1] * 500, grammar)
    assert one_story["coverage"] < 0.2 and one_story["distinct_stories"] == 1 / 500


def step(choice, option, grammar):
    return Step(choice, option, grammar.choices[choice][option])


def test_p_values_are_those_of_exact_and_of_asymptotic_tests():
    grammar = StoryGrammar({"story": pick("{x} {y}."), "x": pick("a | b*2"), "y": pick("e*2 | f*3 | g*5")})
    counts = {"a": 9, "b": 6}
    derivations = [[step("x", option, grammar)] for option, n in counts.items() for _ in range(n)]
    values, untested = choice_p_values(derivations, grammar, num_draws=40_000)
    pearson = [(k - 5) ** 2 for k in range(16)]
    exact = sum(stats.binom.pmf(k, 15, 1 / 3) for k in range(16) if pearson[k] >= pearson[9])
    assert values["x"] == pytest.approx(exact, abs=4 * math.sqrt(exact / 40_000)) and untested == ["y"]

    counts = {"e": 230, "f": 310, "g": 460}
    derivations = [[step("y", option, grammar)] for option, n in counts.items() for _ in range(n)]
    expected = stats.chisquare([230, 310, 460], [200, 300, 500]).pvalue
    assert choice_p_values(derivations, grammar, num_draws=40_000)[0]["y"] == pytest.approx(expected, abs=0.005)


def test_only_the_first_visit_counts_since_an_option_may_bring_its_choice_back():
    rules = {
        "story": pick("{v=x} and {*v.then}."),
        "x": [Option("a", 1, {"then": "more"}), Option("b", 1, {"then": "stop"})],
        "more": pick("also {x}"),
        "stop": pick("nothing | little"),
    }
    grammar = StoryGrammar(rules)
    stories = ["a and also a."] * 10 + ["b and nothing."] * 5 + ["b and little."] * 5
    # Ten a and ten b at the first visits, where all visits together have twenty and ten.
    assert story_language(stories, grammar)["p_values"] == {"x": 1.0, "stop": 1.0}


def test_without_valid_stories_nothing_is_made_up(grammar):
    result = story_language(["Tom ran.", "", grammar.sample(1)[0].lower()], grammar)
    assert result["validity"] == 0 and result["tested_choices"] == 0 and result["p_values"] == {}
    assert result["log_probability"] is result["coverage"] is result["distinct_stories"] is None
    with pytest.raises(ValueError, match="`texts` is"):
        story_language([], grammar)


def test_a_choice_that_no_outcome_could_reject_is_not_tested(grammar):
    few = story_language(grammar.sample(3), grammar)
    assert few["validity"] == 1 and few["untested_choices"] > few["tested_choices"]
    for choice in few["p_values"]:
        rarest = float(min(grammar.choices[choice].values()))
        assert rarest**3 <= 0.01
