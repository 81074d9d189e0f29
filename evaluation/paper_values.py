"""The numbers of the paper's tables, from `paper_values.yaml`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import yaml

from diffusers_text_nfdm.metrics import Sampling


FILE = Path(__file__).with_name("paper_values.yaml")
DATASET = "Dataset"


@dataclass(frozen=True)
class PublishedValue:
    """A number with its error as printed: `"26.44 (0.22)"`, `"3.05 (-)"`, `"-"`."""

    printed: str

    def __post_init__(self):
        if not re.fullmatch(r"-|\d+\.\d+( \((-|\d+\.\d+)\))?", self.printed):
            raise ValueError(f"A published value is {self.printed!r}; it must look like '26.44 (0.22)'.")

    def __str__(self) -> str:
        return self.printed

    @property
    def value(self) -> float | None:
        return self._number(0)

    @property
    def error(self) -> float | None:
        return self._number(1)

    def _number(self, place: int) -> float | None:
        part = (*self.printed.rstrip(")").split(" ("), "-")[place]
        return None if part == "-" else float(part)


@dataclass(frozen=True)
class PublishedRow:
    """One row of a table.

    Args:
        row: the paper's name.
        model: the name of the model here; of the row Dataset, real texts, `"Dataset"`.
        setting: what the row varies, where the table varies something.
        sampling: how its samples were made, in the notation of `Sampling.parse`; None where none were.
        values: by column.
        source: a mark for a value that the paper quotes.
    """

    row: str
    model: str
    setting: str | None
    sampling: Sampling | None
    values: dict[str, PublishedValue]
    source: str = ""


@dataclass(frozen=True)
class PublishedTable:
    """A table of the paper: its label in the source, its number, its rows, and what may be compared with it."""

    label: str
    number: int
    columns: tuple[str, ...]
    compare: str
    rows: tuple[PublishedRow, ...]

    @property
    def note(self) -> str:
        return f"Published: table {self.number} (`{self.label}`). {self.compare}"


def read_tables() -> dict[str, PublishedTable]:
    """The paper's tables by label."""
    tables = yaml.safe_load(FILE.read_text(encoding="utf-8"))["tables"]
    return {table["label"]: _read_table(**table) for table in tables}


def _read_table(rows: list[dict], sampling: str | None, columns: list[str], **about) -> PublishedTable:
    return PublishedTable(
        columns=tuple(columns), rows=tuple(_read_row(columns, sampling, **row) for row in rows), **about
    )


def _read_row(
    columns: list[str],
    sampling: str | None,
    row: str,
    values: list[str],
    model: str | None = None,
    setting: str | None = None,
    source: str = "",
) -> PublishedRow:
    name = None if sampling is None or row == DATASET else sampling.format(setting=setting)
    return PublishedRow(
        row=row,
        model=model or row,
        setting=setting,
        sampling=None if name is None else Sampling.parse(name),
        values={column: PublishedValue(text) for column, text in zip(columns, values, strict=True)},
        source=source,
    )


PUBLISHED = read_tables()
