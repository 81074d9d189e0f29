"""What every metric asks of its texts: words, checks, and whether two sets are written in the same form."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache

from ..checks import check_text
from ..tokenization import word_splitter


_MARK = re.compile(r"(\s?)[.,!?;:](?=\s|$)")
# Two sets of ordinary English differ by a few percent; one that was lower-cased or left in tokens differs by nearly
# all.
FORM_TOLERANCE = 0.5


@cache
def _splitter():
    return word_splitter()


def split_words(text: str) -> list[str]:
    """Words and punctuation marks as spaCy's English tokenizer splits them, case kept."""
    check_text("text", text)
    return [word for word, _ in _splitter().pre_tokenize_str(text)]


def check_texts(texts: Sequence[str], name: str, minimum: int = 1) -> list[str]:
    """The texts as a list; ValueError where there are too few, or one is no string or blank."""
    if isinstance(texts, str) or not isinstance(texts, Sequence):
        raise ValueError(f"`{name}` is a {type(texts).__name__}; it must be a list of strings.")
    if len(texts) < minimum:
        raise ValueError(f"`{name}` has {len(texts)} texts; at least {minimum} are needed.")
    for index, text in enumerate(texts):
        check_text(f"{name}[{index}]", text)
        if not text.strip():
            raise ValueError(
                f"`{name}[{index}]` is blank, which has no words to score. Count blank texts, report their number, "
                "and leave them out."
            )
    return list(texts)


def text_form(texts: Sequence[str]) -> dict[str, float]:
    """Share of punctuation marks that stand after a space, and share of texts with letters but no capital."""
    marks = [match.group(1) != "" for text in texts for match in _MARK.finditer(text)]
    lettered = [text for text in texts if any(map(str.isalpha, text))]
    return {
        "spaced punctuation": sum(marks) / len(marks) if marks else 0.0,
        "lower-cased texts": sum(not any(map(str.isupper, text)) for text in lettered) / max(len(lettered), 1),
    }


def check_same_form(texts: Sequence[str], others: Sequence[str], name: str, other_name: str) -> None:
    """ValueError where one set is lower-cased or has spaces between its tokens and the other does not: every n-gram
    and every probability would then differ for the form alone."""
    form, other_form = text_form(texts), text_form(others)
    for property, share in form.items():
        if abs(share - other_form[property]) > FORM_TOLERANCE:
            raise ValueError(
                f"`{name}` and `{other_name}` are written in different forms: {property} {share:.0%} against "
                f"{other_form[property]:.0%}. "
                "Bring both into the same form first (`diffusers_text_nfdm.tokenization.detokenize` joins words and "
                "marks into running text)."
            )
