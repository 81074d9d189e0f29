"""What became of every fault: counts by kind, and the stories of those that did not end well."""

from __future__ import annotations

import random
import re
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path


# A wrong result without a word; an error that does not say what to do; a file that is neither the old nor the new one.
FAILURES = ("silent", "obscure", "half-written")
SHOWN = 40


@dataclass
class Tally:
    """Counts of one kind of fault. `parts` counts what was tried by a finer name, such as the moment of a kill."""

    kind: str
    survived: int = 0
    failures: list[tuple[str, str]] = field(default_factory=list)
    parts: Counter = field(default_factory=Counter)
    seconds: float = 0.0
    note: str = ""

    @property
    def tried(self) -> int:
        return self.survived + len(self.failures)

    def count(self, verdict: str) -> int:
        return sum(1 for found, _ in self.failures if found == verdict)

    def survive(self, part: str, number: int = 1) -> None:
        self.parts[part] += number
        self.survived += number

    def fail(self, verdict: str, part: str, story: str) -> None:
        assert verdict in FAILURES
        self.parts[part] += 1
        self.failures.append((verdict, f"{part}: {story}"))

    def judge(self, part: str, found: tuple[str, str] | None) -> None:
        """Note a verdict with its story, or `None` where the fault did no harm."""
        if found is None:
            self.survive(part)
        else:
            self.fail(found[0], part, found[1])


@dataclass
class Campaign:
    """What a kind of fault has to work with: a folder of its own, random numbers from the seed, and a time to end."""

    folder: Path
    seed: int
    seconds: float

    def __post_init__(self):
        self.random = random.Random(self.seed)
        self.deadline = time.monotonic() + self.seconds

    @property
    def over(self) -> bool:
        return time.monotonic() > self.deadline


def is_sentence(message: str, names: Iterable[str] = ()) -> bool:
    """Whether an error tells a user something: several words, no traceback, and one of the names, if there are any."""
    names = list(names)
    if "Traceback" in message or len(message.split()) < 4:
        return False
    return not names or any(re.search(rf"(?<![\w]){re.escape(name)}(?![\w])", message) for name in names)


def said(printed: str) -> str:
    """The error with which a script ended, from what it printed."""
    found = [match.start() for match in re.finditer(r"^error: ", printed, re.MULTILINE)]
    return printed[found[-1] :].strip() if found else ""


def describe(error: BaseException) -> str:
    """An error in a line, with the place that raised it."""
    place, frame = "", error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    if frame is not None:
        place = f" ({Path(frame.tb_frame.f_code.co_filename).name}:{frame.tb_lineno})"
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}{place}"


def table(tallies: Iterable[Tally]) -> str:
    """Markdown: a row per kind, and the sum."""
    rows = [
        [tally.kind, tally.tried, tally.survived, *(tally.count(name) for name in FAILURES), round(tally.seconds)]
        for tally in tallies
    ]
    rows.append(["all", *(sum(row[column] for row in rows) for column in range(1, 7))])
    header = ["kind", "tried", "survived", *FAILURES, "seconds"]
    lines = [header, ["---"] + ["---:"] * 6, *rows]
    return "\n".join(
        "| " + " | ".join(f"{cell:,}" if isinstance(cell, int) else cell for cell in row) + " |" for row in lines
    )


def different(stories: Iterable[str]) -> list[str]:
    """The first story of each part and place, so that one defect does not hide the others."""
    first = {}
    for story in stories:
        place = re.search(r"\(\S+:\d+\)$", story)
        first.setdefault((story.split(":")[0], place and place[0]), story)
    return list(first.values())


def report(tallies: list[Tally]) -> str:
    """The table, what each kind consisted of, and a story of each thing that went wrong."""
    lines = [table(tallies), ""]
    for tally in tallies:
        parts = ", ".join(f"{name} {number}" for name, number in sorted(tally.parts.items()))
        lines.append(f"{tally.kind}: {parts}.{' ' + tally.note if tally.note else ''}")
    for tally in tallies:
        for verdict in FAILURES:
            stories = [story for found, story in tally.failures if found == verdict]
            shown = different(stories)[:SHOWN]
            if stories:
                lines += ["", f"{tally.kind}, {verdict}:", *(f"  {story}" for story in shown)]
            if len(stories) > len(shown):
                lines.append(f"  and {len(stories) - len(shown)} more")
    # Some of the inputs cannot be printed.
    return "\n".join(lines).encode(errors="backslashreplace").decode()
