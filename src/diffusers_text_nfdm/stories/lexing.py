"""Text to tokens and back: punctuation is a token of its own, and "didn't" is the two tokens "did" "n't"."""

import re
from collections.abc import Iterable
from typing import NamedTuple


PUNCTUATION = frozenset(".,!?;:")
CLITICS = frozenset({"n't", "'s", "'ll", "'d", "'re", "'ve", "'m"})

_NT = r"n't(?![A-Za-z])"
_WORD = r"[A-Za-z]+(?:-[A-Za-z]+)*"
_TOKEN = re.compile(rf"[A-Za-z]+?(?={_NT})|{_NT}|'(?:s|ll|d|re|ve|m)(?![A-Za-z])|{_WORD}|\S")


class Token(NamedTuple):
    """A token, the offset of its first character, and whether the space before it is as :func:`join` writes it."""

    text: str
    offset: int
    spaced: bool


def lead(token: str) -> str:
    """The space written before ``token`` inside a text: none before punctuation and contractions."""
    return "" if token in PUNCTUATION or token in CLITICS else " "


def join(tokens: Iterable[str]) -> str:
    """The text of a token sequence: one space between words, none before punctuation or contractions."""
    return "".join(lead(token) + token for token in tokens).removeprefix(" ")


def scan(text: str) -> list[Token]:
    """The tokens of any text, each marked with whether its spacing is that of :func:`join`."""
    tokens, end = [], 0
    for match in _TOKEN.finditer(text):
        word, start = match.group(), match.start()
        tokens.append(Token(word, start, text[end:start] == (lead(word) if end else "")))
        end = match.end()
    return tokens


def tokenize(text: str) -> list[str]:
    """The token texts alone."""
    return _TOKEN.findall(text)


def is_token(word: str) -> bool:
    """Whether ``word`` may stand in a template: an ASCII word, a contraction or a punctuation mark."""
    return word in PUNCTUATION or word in CLITICS or re.fullmatch(_WORD, word) is not None
