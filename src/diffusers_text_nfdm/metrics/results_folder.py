"""Files that are made once: each says what it was made from, and is made again only when that has changed."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from ..files import write_file
from .real_texts import texts_hash


def file_name(name: str, seed: int) -> str:
    """A file name for a sampling and a seed: `chain-64-noise_fraction-0.5.seed0`."""
    return f"{re.sub(r'[^A-Za-z0-9_.]+', '-', name)}.seed{seed}"


def made_once(path: Path, made_from: Mapping, make: Callable[[], dict]) -> dict:
    """The value in a JSON file if it was `made_from` the same, else what `make` gives, which is then written there."""
    # As JSON gives it back: tuples are lists there.
    made_from = json.loads(json.dumps(made_from))
    stored = _read(path)
    if stored is not None and stored.get("made_from") == made_from:
        return stored["value"]
    value = make()
    write_file(path, json.dumps({"made_from": made_from, "value": value}, indent=2) + "\n")
    return value


def samples_once(path: Path, made_from: Mapping, make: Callable[[], tuple[list[str], dict]]) -> tuple[list[str], dict]:
    """Texts in a JSON Lines file at `path`, and what is known about them in a JSON file beside it; `make` gives
    both.
    """
    beside, texts = path.with_suffix(".json"), None
    if path.is_file():
        texts = [json.loads(line)["text"] for line in path.read_text(encoding="utf-8").split("\n") if line]
        made_from = {**made_from, "texts": texts_hash(texts)}
        stored = _read(beside)
        if stored is not None and stored.get("made_from") == json.loads(json.dumps(made_from)):
            return texts, stored["value"]
    texts, value = make()
    write_file(path, "".join(json.dumps({"text": text, "index": index}) + "\n" for index, text in enumerate(texts)))
    made_from = {**made_from, "texts": texts_hash(texts)}
    return texts, made_once(beside, made_from, lambda: value)


def _read(path: Path) -> dict | None:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError):
        return None
