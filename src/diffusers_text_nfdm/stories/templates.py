"""The notation of a grammar with memory: options written as templates, and the symbols they are compiled to.

A template is plain text with four kinds of braces:

``{rule}``           choose an option of ``rule`` and write it here;
``{var=rule}``       the same, and remember the option under ``var``;
``{@var}``           write the remembered option's text again (``{@var.feature}``: one of its features);
``{*var.feature}``   choose from the rule which that feature of the remembered option names.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from math import log

from .lexing import is_token, lead, tokenize


_BRACES = re.compile(r"\{([^{}]*)\}")
_CHOOSE = re.compile(r"(?:(\w+)=)?(\w+)")
_RECALL = re.compile(r"@(\w+)(?:\.(\w+))?")
_FOLLOW = re.compile(r"\*(\w+)\.(\w+)")


@dataclass(frozen=True)
class Option:
    """One way to make a choice: a template, its integer weight among its rule's options, and its features."""

    text: str
    weight: int = 1
    features: Mapping[str, str] = field(default_factory=dict)


def pick(listing: str, **features: str) -> list[Option]:
    """Options from a readable listing ``"goose*3 | duck | old crow*2"``; ``*n`` is a weight, 1 where absent."""
    options = []
    for entry in listing.split("|"):
        text, weight = re.fullmatch(r"\s*(.*?)\s*(?:\*(\d+))?\s*", entry, re.DOTALL).groups()
        options.append(Option(text, int(weight or 1), features))
    return options


@dataclass(frozen=True, eq=False)
class Word:
    """A token to write. ``recall`` and ``branch`` say which memory it comes from, ``place`` where it stands in it."""

    token: str
    recall: "Recall | None" = None
    branch: "Branch | None" = None
    place: int = 0


@dataclass(frozen=True)
class Choose:
    """``{rule}`` or ``{var=rule}``."""

    rule: str
    var: str | None


@dataclass(frozen=True)
class Recall:
    """``{@var}`` or ``{@var.feature}``."""

    var: str
    feature: str | None


@dataclass(frozen=True)
class Follow:
    """``{*var.feature}``."""

    var: str
    feature: str


Symbol = Word | Choose | Recall | Follow


@dataclass(frozen=True, eq=False)
class Branch:
    """A compiled option; ``written`` is its text with leading space where it is fixed, else None."""

    rule: str
    text: str
    probability: Fraction
    log_probability: float
    symbols: tuple[Symbol, ...]
    features: Mapping[str, str]
    written: str | None

    def recalled(self, feature: str | None) -> str:
        """What ``{@var}`` or ``{@var.feature}`` writes when this option is the one remembered."""
        return self.text if feature is None else self.features[feature]


def _words(text: str, where: str) -> list[Word]:
    for token in tokenize(text):
        if not is_token(token):
            raise ValueError(f"{where}: {token!r} is not an ASCII word, a contraction or one of . , ! ? ; :")
    return [Word(token) for token in tokenize(text)]


def _brace(inside: str, where: str) -> Symbol:
    if match := _RECALL.fullmatch(inside):
        return Recall(*match.groups())
    if match := _FOLLOW.fullmatch(inside):
        return Follow(*match.groups())
    if match := _CHOOSE.fullmatch(inside):
        return Choose(match.group(2), match.group(1))
    raise ValueError(
        f"{where}: {{{inside}}} is none of {{rule}}, {{var=rule}}, {{@var}}, {{@var.feature}}, {{*var.feature}}"
    )


def compile_rule(name: str, options: list[Option]) -> tuple[Branch, ...]:
    """The branches of a rule, with probability ``weight / sum of weights`` each."""
    if not options:
        raise ValueError(f"rule {name!r} has no options; at least one is needed")
    for option in options:
        if not isinstance(option, Option):
            raise ValueError(f"rule {name!r}: {option!r} is not an Option")
        if not isinstance(option.weight, int) or isinstance(option.weight, bool) or option.weight < 1:
            raise ValueError(
                f"rule {name!r}, option {option.text!r}: weight is {option.weight!r}, not an integer >= 1"
            )
    total = sum(option.weight for option in options)
    branches = []
    for option in options:
        where = f"rule {name!r}, option {option.text!r}"
        symbols: list[Symbol] = []
        for index, part in enumerate(_BRACES.split(option.text)):
            symbols += [_brace(part, where)] if index % 2 else _words(part, where)
        probability = Fraction(option.weight, total)
        fixed = all(isinstance(symbol, Word) for symbol in symbols)
        written = "".join(lead(symbol.token) + symbol.token for symbol in symbols) if fixed else None
        branches.append(
            Branch(name, option.text, probability, log(probability), tuple(symbols), dict(option.features), written)
        )
    return tuple(branches)
