"""What is proved about a grammar when it is built: finite, memory always filled, one derivation for each text."""

from collections import defaultdict
from collections.abc import Mapping
from fractions import Fraction

from .lexing import is_token, tokenize
from .templates import Branch, Choose, Follow, Recall, Symbol, Word


Rules = Mapping[str, tuple[Branch, ...]]
Prefix = tuple[str, ...]
# For every remembered variable: the rule it was chosen from and the values of its features that steer later choices.
State = frozenset[tuple[str, str, tuple[str, ...]]]


class Analysis:
    """Static facts of a set of rules; building it raises ValueError for a grammar which breaks one of them.

    ``visits[rule]``   the expected number of times ``rule`` is chosen from in a story, exactly;
    ``starts[rule]``   first token -> the options that can begin with it;
    ``values[var]``    all options that ``var`` may ever remember.
    """

    def __init__(self, rules: Rules, start: str, lookahead: int):
        self.rules, self.lookahead = rules, lookahead
        symbols = [(b, s) for branches in rules.values() for b in branches for s in b.symbols]
        self.values: dict[str, list[Branch]] = defaultdict(list)
        for branch, symbol in symbols:
            if isinstance(symbol, Choose):
                if symbol.rule not in rules:
                    raise ValueError(f"rule {branch.rule!r}, option {branch.text!r}: no rule named {symbol.rule!r}")
                if symbol.var is not None:
                    known = self.values[symbol.var]
                    known += [value for value in rules[symbol.rule] if value not in known]
        self._steering: dict[str, list[str]] = defaultdict(list)
        for _, symbol in symbols:
            if isinstance(symbol, Follow) and symbol.feature not in self._steering[symbol.var]:
                self._steering[symbol.var].append(symbol.feature)
        for branch, symbol in symbols:
            if isinstance(symbol, (Recall, Follow)):
                self._check_memory(branch, symbol)
        self._check_finite()
        self.visits: dict[str, Fraction] = defaultdict(Fraction)
        self._flow((Choose(start, None),), {frozenset(): Fraction(1)}, "the start")
        for name in rules:
            if not self.visits[name]:
                raise ValueError(f"rule {name!r} cannot be reached from {start!r}")
        self._prefixes: dict[tuple[Branch, int], set[Prefix]] = {}
        self.starts = {name: self._check_separable(branches) for name, branches in rules.items()}

    def targets(self, symbol: Choose | Follow) -> list[str]:
        """The rules a choice may turn to."""
        if isinstance(symbol, Choose):
            return [symbol.rule]
        return sorted({value.features[symbol.feature] for value in self.values[symbol.var]})

    def _check_memory(self, branch: Branch, symbol: Recall | Follow) -> None:
        where = f"rule {branch.rule!r}, option {branch.text!r}"
        for value in self.values.get(symbol.var, ()):
            if symbol.feature is not None and symbol.feature not in value.features:
                raise ValueError(f"{where}: {value.text!r} of rule {value.rule!r} has no feature {symbol.feature!r}")
            if isinstance(symbol, Recall) and symbol.feature is not None:
                bad = [token for token in tokenize(value.features[symbol.feature]) if not is_token(token)]
                if bad:
                    raise ValueError(
                        f"{where}: feature {symbol.feature!r} of {value.text!r} has {bad[0]!r}, not a word"
                    )
            if symbol.feature is None and value.written is None:
                raise ValueError(f"{where}: {value.text!r} of rule {value.rule!r} is not fixed text to write again")
            if isinstance(symbol, Follow) and value.features[symbol.feature] not in self.rules:
                raise ValueError(f"{where}: no rule named {value.features[symbol.feature]!r}")

    def _check_finite(self) -> None:
        done: set[str] = set()

        def visit(name: str, above: tuple[str, ...]) -> None:
            if name in above:
                raise ValueError(f"rule {name!r} contains itself: {' -> '.join((*above, name))}")
            if name not in done:
                for branch in self.rules[name]:
                    for symbol in branch.symbols:
                        if isinstance(symbol, (Choose, Follow)):
                            for target in self.targets(symbol):
                                visit(target, (*above, name))
                done.add(name)

        for name in self.rules:
            visit(name, ())

    def _flow(self, symbols: tuple[Symbol, ...], states: dict[State, Fraction], where: str) -> dict[State, Fraction]:
        """Push a distribution of memory states through ``symbols``, adding up the expected visits of every rule."""
        for symbol in symbols:
            if isinstance(symbol, Word):
                continue
            if isinstance(symbol, (Recall, Follow)):
                for state in states:
                    if symbol.var not in {var for var, _, _ in state}:
                        raise ValueError(f"{where}: {symbol.var!r} is used where nothing may be remembered under it")
            if isinstance(symbol, Recall):
                continue
            after: dict[State, Fraction] = defaultdict(Fraction)
            for rule, arriving in self._split(symbol, states).items():
                self.visits[rule] += sum(arriving.values())
                for branch in self.rules[rule]:
                    entering: dict[State, Fraction] = defaultdict(Fraction)
                    for state, mass in arriving.items():
                        entering[self._remember(state, symbol, branch)] += mass * branch.probability
                    inside = f"rule {rule!r}, option {branch.text!r}"
                    for state, mass in self._flow(branch.symbols, entering, inside).items():
                        after[state] += mass
            states = after
        return states

    def _split(self, symbol: Choose | Follow, states: dict[State, Fraction]) -> dict[str, dict[State, Fraction]]:
        if isinstance(symbol, Choose):
            return {symbol.rule: states}
        place = self._steering[symbol.var].index(symbol.feature)
        parts: dict[str, dict[State, Fraction]] = defaultdict(dict)
        for state, mass in states.items():
            (values,) = [values for var, _, values in state if var == symbol.var]
            parts[values[place]][state] = mass
        return parts

    def _remember(self, state: State, symbol: Choose | Follow, branch: Branch) -> State:
        if isinstance(symbol, Follow) or symbol.var is None:
            return state
        steering = tuple(branch.features[feature] for feature in self._steering.get(symbol.var, ()))
        return frozenset({entry for entry in state if entry[0] != symbol.var} | {(symbol.var, branch.rule, steering)})

    def prefixes(self, branch: Branch, length: int) -> set[Prefix]:
        """All beginnings of ``length`` tokens (whole yields where shorter) of an option, over every memory."""
        if (branch, length) not in self._prefixes:
            found: set[Prefix] = {()}
            for symbol in branch.symbols:
                short = {prefix for prefix in found if len(prefix) < length}
                if not short:
                    break
                nexts = self._symbol_prefixes(symbol, length)
                found = (found - short) | {(prefix + more)[:length] for prefix in short for more in nexts}
            self._prefixes[branch, length] = found
        return self._prefixes[branch, length]

    def _symbol_prefixes(self, symbol: Symbol, length: int) -> set[Prefix]:
        if isinstance(symbol, Word):
            return {(symbol.token,)}
        if isinstance(symbol, Recall):
            return {tuple(tokenize(value.recalled(symbol.feature))[:length]) for value in self.values[symbol.var]}
        branches = [branch for target in self.targets(symbol) for branch in self.rules[target]]
        return set().union(*(self.prefixes(branch, length) for branch in branches))

    def _check_separable(self, branches: tuple[Branch, ...]) -> dict[str, tuple[Branch, ...]]:
        """Options of a rule must differ within ``lookahead`` tokens, at a place which both of them have."""
        for branch in branches:
            if () in self.prefixes(branch, 1):
                raise ValueError(f"rule {branch.rule!r}, option {branch.text!r} can be empty; it must write a token")
        tied = list(branches)
        for length in range(1, self.lookahead + 1):
            holders: dict[Prefix, set[Branch]] = defaultdict(set)
            for branch in tied:
                for prefix in self.prefixes(branch, length):
                    for end in range(1, len(prefix) + 1):
                        holders[prefix[:end]].add(branch)
            clash: set[Branch] = set()
            for branch in tied:
                for prefix in self.prefixes(branch, length):
                    if len(holders[prefix]) > 1:
                        clash |= holders[prefix]
                        if len(prefix) < length or length == self.lookahead:
                            first, second = sorted(holders[prefix], key=branches.index)[:2]
                            raise ValueError(
                                f"rule {branch.rule!r} is ambiguous: options {first.text!r} and {second.text!r} "
                                f"cannot be told apart after {' '.join(prefix)!r}"
                            )
            if not clash:
                break
            tied = [branch for branch in tied if branch in clash]
        starts: dict[str, list[Branch]] = defaultdict(list)
        for branch in branches:
            for (token,) in self.prefixes(branch, 1):
                starts[token].append(branch)
        return {token: tuple(found) for token, found in starts.items()}
