"""Local text files: which of them make up a dataset, and the texts in them."""

from __future__ import annotations

import csv
import hashlib
import json
import logging
import os
import random
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any


if TYPE_CHECKING:
    from datasets import DatasetDict, IterableDatasetDict


logger = logging.getLogger(__name__)

MAX_HELD_OUT = 5_000
FILE_TYPES = (".txt", ".json", ".jsonl", ".csv", ".parquet")
SPLIT_NAMES = {
    "train": "train",
    "validation": "validation",
    "valid": "validation",
    "val": "validation",
    "dev": "validation",
    "test": "test",
}
_AFTER_CR = re.compile(r"(?<=\r)(?!\n)")
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


def local_files(source: str | Path | Mapping[str, str | Path]) -> dict[str, tuple[str, ...]] | None:
    """The files of each split, or None where `source` can only be a name on the Hub."""
    if isinstance(source, Mapping):
        unknown = [name for name in source if name not in SPLIT_NAMES]
        if unknown or "train" not in source or len({SPLIT_NAMES[name] for name in source}) < len(source):
            raise ValueError(
                f"The splits of `source` are {list(source)}, but train and perhaps validation and test are needed."
            )
        return {SPLIT_NAMES[name]: (_checked_file(Path(path)),) for name, path in source.items()}
    if not isinstance(source, (str, Path)) or not str(source):
        raise ValueError(f"source is {source!r}, but a name, a path or a mapping from split to path is needed.")
    path = Path(source).expanduser()
    # `Path.is_dir` raises where a name is too long for a file.
    if os.path.isdir(path):
        splits: dict[str, list[str]] = {}
        for file in sorted(path.iterdir()):
            if file.suffix.lower() in FILE_TYPES:
                named = [word for word in re.split(r"[^a-z]+", file.stem.lower()) if word in SPLIT_NAMES]
                splits.setdefault(SPLIT_NAMES[named[-1]] if named else "train", []).append(_checked_file(file))
        if "train" not in splits:
            raise ValueError(f"The folder {path} holds no training text: {', '.join(FILE_TYPES)} files are needed.")
        return {name: tuple(found) for name, found in splits.items()}
    looks_local = isinstance(source, Path) or str(source)[0] in "./~" or path.suffix.lower() in FILE_TYPES
    return {"train": (_checked_file(path),)} if os.path.exists(path) or looks_local else None


def _checked_file(path: Path) -> str:
    path = path.expanduser()
    if not os.path.exists(path):
        raise FileNotFoundError(f"There is no file or folder {path}.")
    if path.suffix.lower() not in FILE_TYPES:
        raise ValueError(f"{path} is not a text file that can be read: one of {', '.join(FILE_TYPES)} is needed.")
    return str(path.resolve())


def load_files(
    files: dict[str, tuple[str, ...]], columns: dict[str, str], streaming: bool, validation_fraction: float, seed: int
) -> DatasetDict | IterableDatasetDict:
    """Read every file once to check it, then build the splits; where validation is missing, it is held out.

    `columns` gives each column of the dataset, `text` and perhaps `condition`, its name in the files. No condition of
    the texts held out is one of the others.
    """
    from datasets import Dataset, DatasetDict, Features, IterableDataset, IterableDatasetDict, NamedSplit, Value
    from datasets.fingerprint import Hasher

    counts, digests, groups = {}, {}, {}
    for name, paths in files.items():
        digest = hashlib.sha256()
        counts[name] = 0
        for row in read_rows(paths, columns):
            digest.update("\0".join((*row.values(), "")).encode())
            counts[name] += 1
            if name == "train":
                groups.setdefault(row.get("condition", counts[name]), None)
        digests[name] = digest.hexdigest()
    parts = {name: {"paths": paths, "columns": columns} for name, paths in files.items()}
    if "validation" not in files and validation_fraction > 0:
        held_out = held_out_size(len(groups), validation_fraction, files["train"][0])
        choice = {"count": len(groups), "held_out": held_out, "seed": seed}
        parts["validation"] = parts["train"] | choice | {"keep_held_out": True}
        parts["train"] = parts["train"] | choice | {"keep_held_out": False}
        digests["validation"] = digests["train"]
        held = "conditions" if "condition" in columns else "training texts"
        logger.info("Held out %d of %d %s for validation (seed %d).", held_out, len(groups), held, seed)
    features = Features({name: Value("string") for name in columns})
    if streaming:
        return IterableDatasetDict(
            {
                name: IterableDataset.from_generator(_rows, features=features, gen_kwargs=part)
                for name, part in parts.items()
            }
        )
    return DatasetDict(
        {
            name: Dataset.from_generator(
                _rows,
                features=features,
                gen_kwargs=part,
                split=NamedSplit(name),
                # The content decides what is cached: a file that changed is read again, one that moved is not.
                fingerprint=Hasher.hash(
                    [name, digests[name], sorted((k, v) for k, v in part.items() if k != "paths")]
                ),
            )
            for name, part in parts.items()
        }
    )


def held_out_size(count: int, fraction: float, origin: str) -> int:
    """How many of `count` training texts are held out for validation."""
    if count < 2:
        raise ValueError(
            f"{origin} holds a single text, so none can be held out: give a validation file or validation_fraction=0."
        )
    return min(max(1, round(count * fraction)), MAX_HELD_OUT, count - 1)


def _rows(
    paths: Sequence[str],
    columns: dict[str, str],
    count: int = 0,
    held_out: int = 0,
    seed: int = 0,
    keep_held_out: bool = False,
) -> Iterator[dict[str, str]]:
    """The rows of the files: only those held out, or all others. They are chosen one by one, or by condition."""
    chosen, groups = set(random.Random(seed).sample(range(count), held_out)), {}
    for index, row in enumerate(read_rows(paths, columns)):
        group = groups.setdefault(row.get("condition", index), len(groups))
        if (group in chosen) == keep_held_out:
            yield row


def read_rows(paths: Sequence[str], columns: dict[str, str]) -> Iterator[dict[str, str]]:
    """The rows of the files one after another; those with a missing or blank text are left out."""
    for path in paths:
        found = False
        read = _READERS[Path(path).suffix.lower()]
        for cells in zip(*(read(path, column) for column in columns.values())):
            row = {}
            for name, (place, text) in zip(columns, cells):
                if text is not None and not isinstance(text, str):
                    raise ValueError(f"{path}, {place}: a {type(text).__name__} stands where text is needed.")
                if text is not None and _LONE_SURROGATE.search(text):
                    raise ValueError(f"{path}, {place}: half of a surrogate pair, which is no character.")
                row[name] = text or ""
            if row["text"].strip():
                found = True
                yield row
        if not found:
            raise ValueError(f"{path} holds no text.")


def _lines(path: str) -> Iterator[str]:
    offset = 0
    with open(path, "rb") as file:
        for line in file:
            try:
                text = line.decode("utf-8")
            except UnicodeDecodeError as error:
                raise ValueError(f"{path} is not UTF-8 text: the byte at offset {offset + error.start}.") from error
            text = text if offset else text.removeprefix("\ufeff")
            # Files of old Macs end their lines in CR alone.
            yield from filter(None, _AFTER_CR.split(text))
            offset += len(line)


def _read_txt(path: str, column: str) -> Iterator[tuple[str, Any]]:
    if column != "text":
        raise ValueError(f"{path} has no column {column!r}: a text file has one text a line, under the name 'text'.")
    return ((f"line {number}", line.rstrip("\r\n")) for number, line in enumerate(_lines(path), 1))


def _read_json_lines(path: str, column: str) -> Iterator[tuple[str, Any]]:
    for number, line in enumerate(_lines(path), 1):
        if line.strip():
            try:
                record = json.loads(line)
            except json.JSONDecodeError as error:
                raise ValueError(f"{path}, line {number}: not JSON ({error}).") from error
            yield f"line {number}", _field(record, column, path)


def _read_json(path: str, column: str) -> Iterator[tuple[str, Any]]:
    try:
        records = json.loads("".join(_lines(path)).strip() or "[]")
    except json.JSONDecodeError as error:
        if error.msg != "Extra data":
            raise ValueError(f"{path} is not JSON ({error}).") from error
        yield from _read_json_lines(path, column)
    else:
        for number, record in enumerate(records if isinstance(records, list) else [records], 1):
            yield f"record {number}", _field(record, column, path)


def _field(record: Any, column: str, path: str) -> Any:
    if isinstance(record, dict):
        check_column(record, column, path)
        return record[column]
    return record[0] if isinstance(record, list) and len(record) == 1 else record


def _read_csv(path: str, column: str) -> Iterator[tuple[str, Any]]:
    # Strict: a quote that is not closed would take in the rest of the file.
    rows = csv.DictReader(_lines(path), strict=True)
    line = 0
    try:
        check_column(rows.fieldnames or [], column, path)
        line = rows.line_num
        for row in rows:
            if None in row or None in row.values():
                raise ValueError(
                    f"{path}, line {line + 1}: {'more' if None in row else 'fewer'} than the "
                    f"{len(rows.fieldnames)} fields of the header; a text with commas needs quotes."
                )
            line = rows.line_num
            yield f"line {line}", row[column]
    except csv.Error as error:
        raise ValueError(f"{path}: not CSV from line {line + 1} on ({error}); a quote may be open.") from error


def _read_parquet(path: str, column: str) -> Iterator[tuple[str, Any]]:
    from pyarrow import ArrowInvalid, parquet

    try:
        file = parquet.ParquetFile(path)
    except ArrowInvalid as error:
        raise ValueError(f"{path} is not a parquet file ({error}).") from error
    check_column(file.schema_arrow.names, column, path)
    batches = file.iter_batches(columns=[column])
    values = (value for batch in batches for value in batch.column(0).to_pylist())
    yield from ((f"row {number}", value) for number, value in enumerate(values, 1))


_READERS = {
    ".txt": _read_txt,
    ".json": _read_json,
    ".jsonl": _read_json_lines,
    ".csv": _read_csv,
    ".parquet": _read_parquet,
}


def check_column(columns: Iterable[str], column: str, origin: str) -> None:
    """Raise a ValueError that names the columns there are, if `column` is not among them."""
    if column not in columns:
        raise ValueError(f"{origin} has no column {column!r}; its columns are {', '.join(columns) or 'none'}.")
