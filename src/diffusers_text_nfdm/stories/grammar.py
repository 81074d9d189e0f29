"""A probabilistic grammar with memory whose entropy, probabilities and derivations are exact."""

import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from functools import cache, cached_property
from itertools import accumulate
from random import Random
from typing import Any, NamedTuple

from .checks import Analysis
from .lexing import lead, tokenize
from .parsing import Departure, Reader
from .templates import Branch, Choose, Follow, Option, Recall, Symbol, Word, compile_rule


class Step(NamedTuple):
    """One choice of a derivation: the rule chosen from, the option taken (its template) and its probability."""

    choice: str
    option: str
    probability: Fraction


class MemoryGrammar:
    """A finite language with a probability for every text, from rules of weighted templates (see ``templates``).

    A derivation starts at the rule ``start`` and makes choices from left to right; what a template writes again from
    memory is determined, so a derivation is the sequence of its choices and ``p(derivation) = prod_i p(choice_i)``.

    Every text has exactly one derivation. Take two different ones and their first difference: a choice from one rule,
    at one position of the text and with one memory, resolved as options A and B. Building the grammar checks that
    all beginnings of A and B, over every memory, differ within ``lookahead`` tokens at a position which both have.
    So A and B would write different tokens at one position of the text, which cannot be. (ValueError names the
    options where the check fails; also for recursion, a memory which may be empty, and rules that are never used.)

    Therefore ``p(text) = p(derivation)``, and as choices from a rule are independent of the past given the rule,

        ``H(text) = sum_rules E[visits of rule] * H(rule)``,

    with the expected visits found by pushing the distribution of the memory through the rules, in rationals.
    """

    def __init__(self, rules: Mapping[str, Sequence[Option]], start: str = "story", lookahead: int = 6):
        if not isinstance(rules, Mapping) or not rules:
            raise ValueError(f"rules is {rules!r}; a non-empty mapping from rule names to Options is needed")
        if start not in rules:
            raise ValueError(f"start is {start!r}, which is not one of the rules")
        if not isinstance(lookahead, int) or lookahead < 1:
            raise ValueError(f"lookahead is {lookahead!r}; an integer >= 1 is needed")
        self._rules = {name: compile_rule(name, list(options)) for name, options in rules.items()}
        self._start = start
        self._analysis = Analysis(self._rules, start, lookahead)
        self._reader = Reader(self._analysis, start)
        self._thresholds = {
            name: list(accumulate(float(branch.probability) for branch in branches))[:-1]
            for name, branches in self._rules.items()
        }

    @cached_property
    def choices(self) -> dict[str, dict[str, Fraction]]:
        """Every rule with its options' templates and their probabilities."""
        return {name: {b.text: b.probability for b in branches} for name, branches in self._rules.items()}

    @cached_property
    def expected_visits(self) -> dict[str, Fraction]:
        """The expected number of choices from each rule in one text."""
        return dict(self._analysis.visits)

    @cached_property
    def vocabulary(self) -> tuple[str, ...]:
        """All tokens of the language, sorted."""
        tokens: set[str] = set()
        for branches in self._rules.values():
            for symbol in (symbol for branch in branches for symbol in branch.symbols):
                if isinstance(symbol, Word):
                    tokens.add(symbol.token)
                elif isinstance(symbol, Recall):
                    for value in self._analysis.values[symbol.var]:
                        tokens.update(tokenize(value.recalled(symbol.feature)))
        return tuple(sorted(tokens))

    @cached_property
    def length_bounds(self) -> tuple[int, int]:
        """Tokens that no text falls short of, and that none exceeds."""

        def of_branch(branch: Branch) -> tuple[int, int]:
            bounds = [of_symbol(symbol) for symbol in branch.symbols]
            return sum(low for low, _ in bounds), sum(high for _, high in bounds)

        @cache
        def of_symbol(symbol: Symbol) -> tuple[int, int]:
            if isinstance(symbol, Word):
                return 1, 1
            if isinstance(symbol, Recall):
                lengths = [len(tokenize(v.recalled(symbol.feature))) for v in self._analysis.values[symbol.var]]
                return min(lengths), max(lengths)
            names = self._analysis.targets(symbol)
            bounds = [of_branch(branch) for name in names for branch in self._rules[name]]
            return min(low for low, _ in bounds), max(high for _, high in bounds)

        return of_symbol(Choose(self._start, None))

    def entropy(self) -> float:
        """Entropy of a text in nats, ``sum_rules E[visits] * sum_options -p log p``."""
        return math.fsum(
            -float(visits * branch.probability) * branch.log_probability
            for name, visits in self._analysis.visits.items()
            for branch in self._rules[name]
        )

    def log_prob(self, text: str) -> float:
        """Natural logarithm of the probability of ``text``; ``-inf`` if it is not of the language."""
        derivations = self._reader.derivations(_checked_text(text))
        return math.fsum(branch.log_probability for branch in derivations[0]) if derivations else -math.inf

    def prefix_log_prob(self, text: str) -> float:
        """Natural logarithm of the probability that a text begins with the tokens of ``text``; ``-inf`` if none does.

        So ``exp(prefix_log_prob(a + b) - prefix_log_prob(a))`` is the exact probability that b follows a.
        """
        beginnings = self._reader.beginnings(_checked_text(text))
        if not beginnings:
            return -math.inf
        logs = [math.fsum(branch.log_probability for branch in branches) for branches in beginnings]
        largest = max(logs)
        return largest + math.log(math.fsum(math.exp(log - largest) for log in logs))

    def derivation(self, text: str) -> list[Step]:
        """The choices which make ``text``; ValueError, with :meth:`explain`'s words, if it is not of the language."""
        derivations = self._reader.derivations(_checked_text(text))
        if not derivations:
            raise ValueError(f"text is {text!r}, which is not of the language: {self.explain(text)}")
        return [_step(branch) for branch in derivations[0]]

    def explain(self, text: str) -> Departure | None:
        """None for a text of the language, else the end of its longest prefix that begins some text of it."""
        return self._reader.departure(_checked_text(text))

    def sample(self, n: int, seed: int | str = 0) -> list[str]:
        """``n`` independent texts; a larger ``n`` with the same ``seed`` begins with the same texts."""
        return [text for text, _ in self.sample_derivations(n, seed)]

    def sample_derivations(self, n: int, seed: int | str = 0) -> Iterator[tuple[str, list[Step]]]:
        """The texts of ``sample`` with their derivations."""
        if not isinstance(n, int) or isinstance(n, bool) or n < 0:
            raise ValueError(f"n is {n!r}; an integer >= 0 is needed")
        if not isinstance(seed, (int, str)) or isinstance(seed, bool):
            raise ValueError(f"seed is {seed!r}; an integer or a string is needed")
        # Only `random()` is promised to give the same stream in every Python version.
        draw = Random(f"stories:{seed}".encode(errors="backslashreplace").decode()).random
        for _ in range(n):
            parts: list[str] = []
            branches: list[Branch] = []
            self._write(Choose(self._start, None), {}, draw, parts, branches)
            yield "".join(parts).removeprefix(" "), [_step(branch) for branch in branches]

    def _write(
        self,
        symbol: Choose | Follow,
        memory: dict[str, Branch],
        draw: Any,
        parts: list[str],
        branches: list[Branch],
    ) -> None:
        steered = type(symbol) is Follow
        rule = memory[symbol.var].features[symbol.feature] if steered else symbol.rule
        branch = self._rules[rule][bisect_right(self._thresholds[rule], draw())]
        branches.append(branch)
        if not steered and symbol.var is not None:
            memory[symbol.var] = branch
        if branch.written is not None:
            parts.append(branch.written)
            return
        for inner in branch.symbols:
            kind = type(inner)
            if kind is Word:
                parts.append(lead(inner.token) + inner.token)
            elif kind is Recall:
                parts.append(_recalled_text(memory[inner.var], inner))
            else:
                self._write(inner, memory, draw, parts, branches)

    def enumerate(self) -> Iterator[tuple[str, Fraction]]:
        """Every text of the language with its probability, lazily; they sum to one."""
        for parts, _, probability in self._expand((Choose(self._start, None),), {}):
            yield "".join(parts).removeprefix(" "), probability

    def _expand(
        self, symbols: tuple[Symbol, ...], memory: dict[str, Branch]
    ) -> Iterator[tuple[tuple[str, ...], dict[str, Branch], Fraction]]:
        if not symbols:
            yield (), memory, Fraction(1)
            return
        symbol, rest = symbols[0], symbols[1:]
        if isinstance(symbol, (Word, Recall)):
            if isinstance(symbol, Word):
                part = lead(symbol.token) + symbol.token
            else:
                part = _recalled_text(memory[symbol.var], symbol)
            for parts, after, probability in self._expand(rest, memory):
                yield (part, *parts), after, probability
            return
        steered = isinstance(symbol, Follow)
        for branch in self._rules[memory[symbol.var].features[symbol.feature] if steered else symbol.rule]:
            inner = memory if steered or symbol.var is None else {**memory, symbol.var: branch}
            for first, middle, p in self._expand(branch.symbols, inner):
                for second, after, q in self._expand(rest, middle):
                    yield (*first, *second), after, branch.probability * p * q


def _step(branch: Branch) -> Step:
    return Step(branch.rule, branch.text, branch.probability)


def _recalled_text(branch: Branch, symbol: Recall) -> str:
    if symbol.feature is None:
        return branch.written
    return "".join(lead(token) + token for token in tokenize(branch.features[symbol.feature]))


def _checked_text(text: str) -> str:
    if not isinstance(text, str):
        raise ValueError(f"text is {text!r}; a string is needed")
    return text
