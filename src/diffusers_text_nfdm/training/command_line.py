"""Settings from the command line."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from typing import Any

import torch
from transformers.utils import logging

from .arguments import TrainingArguments, setting_types
from .recipe_files import DEFAULT_RECIPE, recipe_names, scalar
from .trainer import train


def run(description: str, default_recipe: str = DEFAULT_RECIPE) -> int:
    """A training script: settings from the command line, a run, and its exit code.

    It is 0 after a finished run, 1 after an error, 2 for wrong arguments and 3 where a run was stopped before its end.
    """
    arguments = parse_arguments(description=description, default_recipe=default_recipe)
    if arguments is None:
        return 0
    # Softmax over a vocabulary makes denormal numbers, which are slow on CPUs.
    torch.set_flush_denormal(True)
    logging.disable_progress_bar()
    try:
        summary = train(arguments)
    except (ValueError, OSError, FloatingPointError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0 if summary is not None else 3


def parse_arguments(
    argv: list[str] | None = None, description: str | None = None, default_recipe: str = DEFAULT_RECIPE
) -> TrainingArguments | None:
    """Settings from the command line: the recipe or YAML file of `--config`, then what is given besides. `None` after
    `--print_config`.
    """
    defaults = _defaults(argv, default_recipe)
    parser = argparse.ArgumentParser(
        # An error shows it, too: with all settings in it the message would be hard to find.
        usage="%(prog)s [--config CONFIG] [--SETTING VALUE ...]",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--config",
        default=default_recipe,
        help=f"a YAML file, or a recipe: {', '.join(recipe_names())} (default: {default_recipe})",
    )
    parser.add_argument("--print_config", action="store_true", help="print the whole configuration and stop")
    groups: dict[str, Any] = {}
    for f in dataclasses.fields(TrainingArguments):
        name = f.metadata["group"]
        group = groups.setdefault(name, parser.add_argument_group(name) if name not in groups else None)
        options: dict[str, Any] = {"default": argparse.SUPPRESS, "help": f.metadata["help"] + _shown(defaults[f.name])}
        if setting_types()[f.name] is bool:
            group.add_argument(f"--{f.name}", action=argparse.BooleanOptionalAction, **options)
        elif setting_types()[f.name] is dict:
            group.add_argument(f"--{f.name}", nargs="+", metavar="KEY=VALUE", **options)
        elif setting_types()[f.name] is list:
            group.add_argument(f"--{f.name}", nargs="*", metavar="VALUE", **options)
        else:
            group.add_argument(f"--{f.name}", metavar="VALUE", **options)
    given = vars(parser.parse_args(argv))
    print_config = given.pop("print_config")
    try:
        arguments = TrainingArguments.from_config(
            given.pop("config"),
            **{key: _pairs(key, value) if setting_types()[key] is dict else value for key, value in given.items()},
        )
    except ValueError as error:
        parser.error(str(error))
    if print_config:
        print(arguments.to_yaml(), end="")
        return None
    return arguments


def _defaults(argv: list[str] | None, default_recipe: str) -> dict[str, Any]:
    """What settings are unless they are given: those of the recipe or file that the command line names."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--config", nargs="?", default=default_recipe)
    try:
        return TrainingArguments.from_config(parser.parse_known_args(argv)[0].config or default_recipe).to_dict()
    except (ValueError, OSError):
        # The file is read again, and what is wrong with it is told.
        return TrainingArguments.from_config(default_recipe).to_dict()


def _shown(value: Any) -> str:
    """A default behind its help. What is empty is said there in words."""
    if value is None or value in ({}, []):
        return ""
    if isinstance(value, dict):
        value = " ".join(f"{key}={item}" for key, item in value.items())
    elif isinstance(value, bool):
        value = "yes" if value else "no"
    return f" (default: {value})".replace("%", "%%")


def _pairs(name: str, items: list[str]) -> dict[str, Any]:
    pairs = {}
    for item in items:
        key, equals, value = item.partition("=")
        if not equals:
            raise ValueError(f"`{name}` has {item!r}; it must be KEY=VALUE.")
        pairs[key] = scalar(value)
    return pairs
