"""Samples of the embedded corpus against its grammar: valid or not, their exact probability, and what they cover."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np

from ..checks import check_integers, check_seed, check_text
from ..stories import StoryGrammar
from ..stories.grammar import MemoryGrammar, Step


LEVEL = 0.01


def story_language(
    texts: Sequence[str], grammar: MemoryGrammar | None = None, *, num_draws: int = 9999, seed: int = 0
) -> dict:
    """How the texts sit in a language whose probabilities are known.

    * `validity`: share of texts that are stories of the language.
    * `log_probability`: mean of `log p(story)` over the valid ones, in nats; for samples of the grammar itself it is
      `-entropy`. Higher means that the samples keep to the probable stories.
    * `distinct_stories`: distinct valid stories over valid stories.
    * `coverage`: share of the grammar's choices whose options the valid stories take as often as the grammar does,
      that is, whose test (`choice_p_values`) is not rejected at 1%; about 0.99 for samples of the grammar itself.
    * `tested_choices`, `untested_choices`: choices with more than one option, by whether there were enough visits for
      any outcome to be rejected.
    * `p_values`: of each tested choice.

    What is not defined without a valid story or a tested choice is None.
    """
    if isinstance(texts, str) or not isinstance(texts, Sequence) or not texts:
        raise ValueError(f"`texts` is {texts!r}; it must be a list of at least one text.")
    for text in texts:
        check_text("texts", text)
    grammar = StoryGrammar() if grammar is None else grammar
    log_probabilities = {text: grammar.log_prob(text) for text in dict.fromkeys(texts)}
    valid = [text for text in texts if log_probabilities[text] > -math.inf]
    p_values, untested = choice_p_values(
        [grammar.derivation(text) for text in valid], grammar, num_draws=num_draws, seed=seed
    )
    return {
        "validity": len(valid) / len(texts),
        "log_probability": math.fsum(log_probabilities[text] for text in valid) / len(valid) if valid else None,
        "entropy": grammar.entropy(),
        "distinct_stories": len(set(valid)) / len(valid) if valid else None,
        "coverage": sum(p > LEVEL for p in p_values.values()) / len(p_values) if p_values else None,
        "tested_choices": len(p_values),
        "untested_choices": len(untested),
        "p_values": p_values,
    }


def choice_p_values(
    derivations: Sequence[Sequence[Step]], grammar: MemoryGrammar, *, num_draws: int = 9999, seed: int = 0
) -> tuple[dict[str, float], list[str]]:
    """For each choice a test that its options are taken with the grammar's probabilities; and the choices that cannot
    be tested.

    Of each story only the first visit of a choice counts. Whether it happens depends on earlier choices alone, so
    given the number n of stories with such a visit the options are exactly multinomial(n, p) under the grammar. (All
    visits together need not be: an option may decide whether its choice comes again.) The statistic is Pearson's
    `Σ (count - n p)² / (n p)`, and its p-value comes from `num_draws` draws of the same multinomial,
    `(1 + #{draws at least as large}) / (1 + num_draws)`: at most the nominal size for any n, without a limit theorem.

    A choice is left out where even the most extreme outcome (all visits at the rarest option) has a probability above
    1%.
    """
    counts: dict[str, Counter] = {name: Counter() for name, options in grammar.choices.items() if len(options) > 1}
    for derivation in derivations:
        for choice, option in _first_options(derivation).items():
            if choice in counts:
                counts[choice][option] += 1
    check_integers(1, num_draws=num_draws)
    check_seed(seed)
    p_values, untested = {}, []
    generator = np.random.default_rng(seed)
    for choice, taken in counts.items():
        probabilities = np.array([float(p) for p in grammar.choices[choice].values()])
        n, rarest = sum(taken.values()), probabilities.min()
        if n == 0 or np.isclose(probabilities, rarest).sum() * rarest**n > LEVEL:
            untested.append(choice)
            continue
        observed = _pearson(np.array([taken[option] for option in grammar.choices[choice]]), probabilities)
        drawn = _pearson(generator.multinomial(n, probabilities, size=num_draws), probabilities)
        # Equal counts in another order of summation must count as equal.
        extreme = (drawn >= observed * (1 - 1e-9) - 1e-9).sum()
        p_values[choice] = float((1 + extreme) / (1 + num_draws))
    return p_values, untested


def paired_choice_p_values(
    derivations: Sequence[Sequence[Step]],
    others: Sequence[Sequence[Step]],
    grammar: MemoryGrammar,
    *,
    num_draws: int = 9999,
    seed: int = 0,
) -> dict[str, float]:
    """For each choice a test that two derivations of every pair are exchangeable: a story, and another text that was
    completed from a part of it.

    A story of the grammar is itself an exact draw of its missing part given the rest. So if completions are, too, it
    does not matter which of the two is which, and swapping them at random in every pair gives the exact distribution
    of `Σ_options (n - n')² / (n + n')`, the numbers of pairs that differ in which the option was the first taken of
    its choice.
    Choices that are the same in all pairs (of what is known) are left out, and those in which no outcome could be
    rejected at 1%.
    """
    taken = [[_first_options(derivation) for derivation in side] for side in (derivations, others)]
    p_values, generator = {}, np.random.default_rng(seed)
    for choice, options in grammar.choices.items():
        names = [None, *options]
        pairs = [(names.index(a.get(choice)), names.index(b.get(choice))) for a, b in zip(*taken)]
        pairs = np.array([pair for pair in pairs if pair[0] != pair[1]])
        if len(pairs) == 0:
            continue
        difference = np.zeros((len(pairs), len(names)))
        rows = np.arange(len(pairs))
        difference[rows, pairs[:, 0]] += 1
        difference[rows, pairs[:, 1]] -= 1
        total = np.abs(difference).sum(0)
        swaps = 1.0 - 2.0 * generator.integers(0, 2, size=(num_draws, len(pairs)))
        weights = 1 / np.where(total > 0, total, 1)
        observed, drawn = difference.sum(0) ** 2 @ weights, (swaps @ difference) ** 2 @ weights
        if (drawn >= drawn.max() * (1 - 1e-9)).mean() > LEVEL:
            continue
        extreme = (drawn >= observed * (1 - 1e-9) - 1e-9).sum()
        p_values[choice] = float((1 + extreme) / (1 + num_draws))
    return p_values


def _first_options(derivation: Sequence[Step]) -> dict[str, str]:
    """The option of the first visit of each choice."""
    first: dict[str, str] = {}
    for step in derivation:
        first.setdefault(step.choice, step.option)
    return first


def _pearson(counts: np.ndarray, probabilities: np.ndarray) -> np.ndarray:
    expected = counts.sum(-1, keepdims=True) * probabilities
    return ((counts - expected) ** 2 / expected).sum(-1)
