"""Recipes: settings in YAML files."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import yaml


RECIPES = Path(__file__).parent / "recipes"
DEFAULT_RECIPE = "stories-tiny"


def recipe_names() -> list[str]:
    return sorted(path.stem for path in RECIPES.glob("*.yaml"))


def read_config(name_or_path: str, known: Sequence[str]) -> dict[str, Any]:
    """Settings from a recipe by name, or from a YAML file, which may hold those of these names."""
    path = RECIPES / f"{name_or_path}.yaml"
    if not path.is_file():
        path = Path(name_or_path)
    if not path.is_file():
        raise ValueError(
            f"`config` is {name_or_path!r}; it must be a YAML file or one of the recipes {', '.join(recipe_names())}."
        )
    values = read_yaml(path)
    for key in values:
        if key not in known:
            raise ValueError(
                f"{path} has the unknown setting {key!r}{suggest(key, known)} `--help` lists all settings."
            )
    return values


def read_yaml(path: Path) -> dict[str, Any]:
    """The settings in a file; a ValueError where it holds none."""
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    # A date such as 2020-99-99 is a ValueError, and so is a file in another encoding.
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ValueError(f"{path} is no valid YAML: {error}") from error
    if not isinstance(values, dict):
        raise ValueError(f"{path} holds a {type(values).__name__}; it must hold settings as `name: value`.")
    return values


def scalar(text: str) -> Any:
    """The value of a setting on the command line; what is no YAML is a string."""
    try:
        value = yaml.safe_load(text)
    # A date such as 2020-99-99 is a ValueError.
    except (yaml.YAMLError, ValueError, RecursionError):
        value = text
    # YAML 1.1 reads 1e-3 as a string.
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return value
    return value


def suggest(key: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(str(key), list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else "."
