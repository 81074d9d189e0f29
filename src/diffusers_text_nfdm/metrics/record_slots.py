"""Whether texts say what records say: the slots of the E2E data, and texts against references."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from ..conditions import read_record


def _any(*patterns: str) -> str:
    return "|".join(patterns)


# How a value is told where it is not told in its own words. A value of a slot without an entry is told by its words.
_CHEAP = _any(
    r"cheap|inexpensive|affordabl|low prices?",
    r"low(?:er)?[- ](?:priced?|cost)",
    r"(?:less|lower|under|below)[^.]{0,12}20",
)
_MODERATE = _any(
    r"moderate|reasonabl[ey]|average price|20[^.]{0,8}25",
    r"mid[- ]?(?:range|price|dle)",
    r"average(?:ly)?[- ](?:priced?|cost)",
)
_DEAR = _any(
    r"expensive|pric[ei]y|high (?:price|cost)",
    r"high(?:er|ly)?[- ](?:end )?(?:priced?|cost|range)",
    r"(?:more|over|above)[^.]{0,12}30",
)
_LOW = _any(
    r"\b1\b|one[ -](?:out of|star|of)|poor|bad",
    r"low(?:ly)?[- ](?:customer|rat|rev)|rat[^.]{0,20}\blow",
)
_MIDDLE = r"\b3\b|three[ -](?:out of|star|of)|average|decent|mediocre"
_HIGH = _any(
    r"(?<!of )\b5\b|five[ -](?:out of|star|of)|excellent|great|top|well[- ]rated",
    r"high(?:ly)?[- ](?:customer|rat|rev|recommend|regard)|rat[^.]{0,20}\bhigh",
)
_CHILDREN = r"famil|kid|child"
_NOT = r"(?:\bnot?\b|n['’]t|\bnon\b|\bnor\b|\bwithout\b|\bunfriendly|\bun-)"
PATTERNS: dict[str, dict[str, str]] = {
    "food": {"English": r"english|british"},
    "area": {"city centre": r"cent(?:re|er)", "riverside": r"river"},
    "priceRange": {
        "cheap": _CHEAP, "less than £20": _CHEAP, "moderate": _MODERATE, "£20-25": _MODERATE, "high": _DEAR,
        "more than £30": _DEAR,
    },
    "customer rating": {
        "low": _LOW, "1 out of 5": _LOW, "average": _MIDDLE, "3 out of 5": _MIDDLE, "high": _HIGH, "5 out of 5": _HIGH,
    },
    "familyFriendly": {
        "yes": rf"(?:{_CHILDREN})",
        "no": rf"{_NOT}[^.,;]{{0,40}}(?:{_CHILDREN})|(?:{_CHILDREN})[^.,;]{{0,40}}{_NOT}|\badults?\b",
    },
}  # fmt: skip


def tells(text: str, slot: str, value: str) -> bool:
    """Whether a text tells the value of a slot."""
    patterns = PATTERNS.get(slot, {})
    if value in patterns:
        told = re.search(patterns[value], text, re.IGNORECASE) is not None
        if slot == "familyFriendly" and value == "yes":
            return told and not tells(text, slot, "no")
        return told
    return re.search(rf"(?<!\w){re.escape(value)}(?!\w)", text, re.IGNORECASE) is not None


def _check_strings(name: str, texts: Sequence[str]) -> None:
    if isinstance(texts, str) or not isinstance(texts, Sequence) or not all(isinstance(text, str) for text in texts):
        raise ValueError(f"`{name}` has {str(texts)[:60]!r}; it must be a list of strings.")


def slots_realised(texts: Sequence[str], records: Sequence[str]) -> dict[str, float]:
    """What the texts tell of their records, such as `name[Aromi], area[riverside]`.

    A blank text tells nothing. Returns `mentioned`, the share of the values that are told; `complete`, the share of
    texts that tell all of theirs; `added`, of the slots that a record does not have, the share of which a text tells a
    value all the same, out of the values in `records`; and `mentioned_<slot>` for each slot.
    """
    for name, several in (("texts", texts), ("records", records)):
        _check_strings(name, several)
    records = [read_record(record) for record in records]
    if len(texts) != len(records):
        raise ValueError(f"There are {len(texts)} texts for {len(records)} records; each needs one.")
    values: dict[str, set[str]] = {}
    for record in records:
        for slot, value in record.items():
            values.setdefault(slot, set()).add(value)
    if not values:
        raise ValueError("`records` has no slots, such as 'name[Aromi], area[riverside]'.")
    told: dict[str, list[bool]] = {slot: [] for slot in values}
    complete, added = [], []
    for text, record in zip(texts, records):
        said = {slot: tells(text, slot, value) for slot, value in record.items()}
        for slot, value in said.items():
            told[slot].append(value)
        complete.append(all(said.values()))
        # What another slot says, a name like "Browns Cambridge", does not count.
        rest = text
        for value in record.values():
            rest = re.sub(re.escape(value), " ", rest, flags=re.IGNORECASE)
        added += [any(tells(rest, slot, value) for value in values[slot]) for slot in values if slot not in record]
    every = [value for one in told.values() for value in one]
    return {
        "mentioned": sum(every) / len(every),
        "complete": sum(complete) / len(complete),
        "added": sum(added) / len(added) if added else 0.0,
        **{f"mentioned_{slot}": sum(one) / len(one) for slot, one in told.items()},
    }


def against_references(texts: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, float]:
    """BLEU (`sacrebleu`) and ROUGE-L (`rouge_score`, the best reference of each text), in percent."""
    _check_strings("texts", texts)
    if isinstance(references, str) or not isinstance(references, Sequence):
        raise ValueError(f"`references` is {references!r}; it must hold a list of texts for each text.")
    for several in references:
        _check_strings("references", several)
    if len(texts) != len(references) or not all(references):
        raise ValueError(f"There are {len(references)} lists of references for {len(texts)} texts; each needs one.")
    try:
        from rouge_score.rouge_scorer import RougeScorer
        from sacrebleu import corpus_bleu
    except ImportError as error:
        raise ImportError("BLEU and ROUGE need `pip install diffusers_text_nfdm[references]`.") from error
    most = max(map(len, references))
    columns = [[one[i] if i < len(one) else None for one in references] for i in range(most)]
    scorer = RougeScorer(["rougeL"])
    rouge = [
        max(scorer.score(one, text)["rougeL"].fmeasure for one in several) for text, several in zip(texts, references)
    ]
    return {"bleu": corpus_bleu(list(texts), columns).score, "rouge_l": 100 * sum(rouge) / len(rouge)}


def by_record(rows: Sequence[Mapping[str, str]]) -> dict[str, list[str]]:
    """The references of each record, of rows with `condition` and `text`."""
    references: dict[str, list[str]] = {}
    for row in rows:
        references.setdefault(row["condition"], []).append(row["text"])
    return references
