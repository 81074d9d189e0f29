"""Reading a text left to right with all derivations that are still possible, and saying where it leaves a language."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from .checks import Analysis
from .lexing import Token, join, lead, scan, tokenize
from .templates import Branch, Choose, Follow, Recall, Word


# Linked lists: what is still to be written, and the options chosen so far (last first).
Stack = tuple[Any, Any] | None


# One derivation in progress: what is to be written, what is remembered, what was chosen.
Thread = tuple[Stack, dict[str, Branch], Stack]


@dataclass(frozen=True)
class Departure:
    """Where a text leaves the language: the text before ``offset`` still begins some story of the language.

    ``found`` is the token at ``offset`` (None at the end of the text), ``expected`` the tokens which would go on
    (empty where the story is complete) and ``reason`` says in plain words what is wrong.
    """

    offset: int
    found: str | None
    expected: tuple[str, ...]
    reason: str

    def __str__(self) -> str:
        shown = ", ".join(map(repr, self.expected[:8])) + (", ..." if len(self.expected) > 8 else "")
        found = "the end of the text" if self.found is None else repr(self.found)
        return f"at character {self.offset}, found {found}, expected {shown or 'the end of the text'}: {self.reason}"


class Reader:
    """The parser of an analysed grammar.

    Threads follow every derivation side by side. As the options of a choice differ within the look-ahead, threads
    die within that many tokens of their birth and their number stays small. Every partial derivation can be
    completed (a choice never runs out of options), so a text begins some story exactly as long as a thread lives.
    """

    def __init__(self, analysis: Analysis, start: str):
        self.analysis, self.start = analysis, start
        self._recalled: dict[tuple[Recall, Branch], tuple[Word, ...]] = {}

    def derivations(self, text: str) -> list[list[Branch]]:
        """The options chosen, in order, in every derivation of ``text``."""
        return [_unwind(trace) for stack, _, trace in self._read(text) if stack is None]

    def beginnings(self, text: str) -> list[list[Branch]]:
        """The options chosen so far in every derivation that begins with the tokens of ``text``: each stands for all
        its continuations, and none is in two of them.
        """
        return [_unwind(trace) for _, _, trace in self._read(text)]

    def _read(self, text: str) -> list[Thread]:
        tokens = tokenize(text)
        threads = [self._begin()] if join(tokens) == text else []
        for token in tokens:
            if not threads:
                return []
            threads = self._advance(threads, token)
        return threads

    def departure(self, text: str) -> Departure | None:
        """The first place where ``text`` leaves the language, None if it does not."""
        threads, end = [self._begin()], 0
        for token in scan(text):
            survivors = self._advance(threads, token.text) if token.spaced else []
            if not survivors:
                return self._explain(threads, token, end)
            threads, end = survivors, token.offset + len(token.text)
        if any(stack is None for stack, _, _ in threads):
            if end == len(text):
                return None
            return Departure(end, text[end:], (), "nothing may follow the last token of a story")
        return Departure(end, None, self._expected(threads), "the story stops before it is complete")

    def _begin(self) -> Thread:
        return (Choose(self.start, None), None), {}, None

    def _advance(self, threads: list[Thread], token: str) -> list[Thread]:
        starts = self.analysis.starts
        survivors, work = [], list(threads)
        while work:
            stack, memory, trace = work.pop()
            if stack is None:
                continue
            symbol, rest = stack
            kind = type(symbol)
            if kind is Word:
                if symbol.token == token:
                    survivors.append((rest, memory, trace))
            elif kind is Recall:
                work.append((_push(self._recall(symbol, memory), rest), memory, trace))
            else:
                rule = symbol.rule if kind is Choose else memory[symbol.var].features[symbol.feature]
                for branch in starts[rule].get(token, ()):
                    work.append(self._enter(symbol, branch, rest, memory, trace))
        return survivors

    def _enter(
        self, symbol: Choose | Follow, branch: Branch, rest: Stack, memory: dict[str, Branch], trace: Stack
    ) -> Thread:
        if type(symbol) is Choose and symbol.var is not None:
            memory = {**memory, symbol.var: branch}
        return _push(branch.symbols, rest), memory, (branch, trace)

    def _recall(self, symbol: Recall, memory: dict[str, Branch]) -> tuple[Word, ...]:
        branch = memory[symbol.var]
        words = self._recalled.get((symbol, branch))
        if words is None:
            tokens = tokenize(branch.recalled(symbol.feature))
            words = tuple(Word(token, symbol, branch, place) for place, token in enumerate(tokens))
            self._recalled[symbol, branch] = words
        return words

    def _frontier(self, threads: list[Thread]) -> Iterator[tuple[Word, list[tuple[Follow, Branch]]]]:
        """Every word that may come next, with the steered choices that were made on the way to it."""
        work = [(thread, []) for thread in threads]
        while work:
            (stack, memory, trace), steered = work.pop()
            if stack is None:
                continue
            symbol, rest = stack
            if isinstance(symbol, Word):
                yield symbol, steered
            elif isinstance(symbol, Recall):
                work.append(((_push(self._recall(symbol, memory), rest), memory, trace), steered))
            else:
                if isinstance(symbol, Follow):
                    rule = memory[symbol.var].features[symbol.feature]
                    steered = [*steered, (symbol, memory[symbol.var])]
                else:
                    rule = symbol.rule
                for branch in self.analysis.rules[rule]:
                    work.append((self._enter(symbol, branch, rest, memory, trace), steered))

    def _expected(self, threads: list[Thread]) -> tuple[str, ...]:
        return tuple(sorted({word.token for word, _ in self._frontier(threads)}))

    def _explain(self, threads: list[Thread], token: Token, end: int) -> Departure:
        expected = self._expected(threads)
        if not token.spaced:
            kind = "one space" if end and lead(token.text) else "no space"
            return Departure(end, token.text, expected, f"there is {kind} before {token.text!r} in a story")
        return Departure(token.offset, token.text, expected, self._reason(threads, token.text, expected))

    def _reason(self, threads: list[Thread], found: str, expected: tuple[str, ...]) -> str:
        if not expected:
            return "the story is already complete"
        for word in expected:
            if word.lower() == found.lower():
                return f"{found!r} is written {word!r} here"
        for word, steered in self._frontier(threads):
            if word.recall is not None and (len(expected) == 1 or self._could_recall(word, found)):
                if word.recall.feature is None:
                    return f"{found!r} is not the {word.recall.var} of this story, which is {word.branch.text!r}"
                return f"{found!r} does not agree with {word.branch.text!r} ({word.token})"
            for follow, branch in steered:
                if any(found in self.analysis.starts[rule] for rule in self.analysis.targets(follow)):
                    return f"{found!r} does not fit {branch.text!r}"
        return f"{found!r} does not go on any story that begins like this"

    def _could_recall(self, word: Word, found: str) -> bool:
        """Whether ``found`` is what ``word`` would be if another option were remembered."""
        for value in self.analysis.values[word.recall.var]:
            if tokenize(value.recalled(word.recall.feature))[word.place : word.place + 1] == [found]:
                return True
        return False


def _push(symbols: tuple[Any, ...], rest: Stack) -> Stack:
    for symbol in symbols[::-1]:
        rest = (symbol, rest)
    return rest


def _unwind(trace: Stack) -> list[Branch]:
    branches = []
    while trace is not None:
        branch, trace = trace
        branches.append(branch)
    return branches[::-1]
