"""What the tables at one scale are made of: models, one equal budget, evaluations. Read from a YAML file."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from diffusers_text_nfdm.metrics import Protocol, Sampling
from diffusers_text_nfdm.training import TrainingArguments
from diffusers_text_nfdm.training.recipe_files import read_yaml


SCALES = Path(__file__).parent / "scales"
BUDGETS = ("steps", "cpu_seconds")


def _check_kinds(part: ModelRun | Experiment, **kinds: Any) -> None:
    """Raise a ValueError for a field that is of another kind."""
    for name, kind in kinds.items():
        value = getattr(part, name)
        if not isinstance(value, kind):
            raise ValueError(f"`{name}` is {value!r}; it must be of type {getattr(kind, '__name__', kind)}.")


@dataclass(frozen=True)
class ModelRun:
    """One row of the tables.

    Args:
        name: of the row.
        config: the recipe that it starts from.
        settings: training settings that differ from the experiment's.
        model_config: fields of the configuration that differ from the recipe's.
        as_large_as: name of the row whose number of parameters an autoregressive model is to have.
        samplings: ways of sampling from this model, instead of those of the evaluations.
    """

    name: str
    config: str
    settings: dict[str, Any] = field(default_factory=dict)
    model_config: dict[str, Any] = field(default_factory=dict)
    as_large_as: str | None = None
    samplings: list[str] = field(default_factory=list)

    def __post_init__(self):
        _check_kinds(self, name=str, config=str, settings=dict, model_config=dict, samplings=list)
        for sampling in self.samplings:
            Sampling.parse(sampling)

    @property
    def folder(self) -> str:
        return re.sub(r"[^a-z0-9]+", "-", self.name.lower())


@dataclass(frozen=True)
class Evaluation:
    """Samples and scores under one protocol.

    Args:
        num_samples, judge, detokenisation, memorization_texts, likelihood_texts, likelihood_draws: as in `Protocol`.
        repeats: number of seeds.
        samplings: ways of sampling from the diffusion models; the autoregressive model has its own.
    """

    num_samples: int
    repeats: int
    judge: str | None
    detokenisation: str
    memorization_texts: int | None
    likelihood_texts: int
    likelihood_draws: int
    samplings: list[str]

    def __post_init__(self):
        for sampling in self.samplings:
            Sampling.parse(sampling)

    def protocol(self, name: str) -> Protocol:
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        del values["repeats"], values["samplings"]
        return Protocol(name, seeds=tuple(range(self.repeats)), **values)


@dataclass(frozen=True)
class Experiment:
    """The models of one scale, and what is measured on them.

    Args:
        name: of the scale.
        threads: CPU threads of training and evaluation.
        budget: the one thing that all training runs have the same amount of: `{"steps": n}` or `{"cpu_seconds": s}`.
        settings: training settings of all models.
        models, evaluations: the rows, and what is measured on each. The first sampling of the first evaluation is the
            main one.
        files: names of the training and validation file in the data folder; without them the dataset is that of the
            settings.
    """

    name: str
    threads: int
    budget: dict[str, float]
    settings: dict[str, Any]
    models: list[ModelRun]
    evaluations: dict[str, Evaluation]
    files: dict[str, str] | None = None

    def __post_init__(self):
        _check_kinds(self, threads=int, budget=dict, settings=dict, files=dict | None)
        if len(self.budget) != 1 or next(iter(self.budget)) not in BUDGETS or not next(iter(self.budget.values())) > 0:
            raise ValueError(
                f"`budget` is {self.budget!r}; it must be one of {', '.join(BUDGETS)} with a number above 0."
            )
        names = [model.name for model in self.models]
        if len({model.folder for model in self.models}) < len(names):
            raise ValueError(f"`models` has the names {names}; no two may be the same.")
        for model in self.models:
            if model.as_large_as is not None and model.as_large_as not in names:
                raise ValueError(f"`as_large_as` is {model.as_large_as!r}; it must be one of {', '.join(names)}.")

    def data(self, folder: str | Path | None) -> dict[str, str]:
        """The settings that name the texts."""
        if self.files is None:
            if folder is not None:
                raise ValueError(f"A data folder is given, {str(folder)!r}, but the scale {self.name!r} needs none.")
            return {}
        if folder is None:
            raise ValueError(
                f"The scale {self.name!r} needs a data folder with {' and '.join(self.files.values())}: DATA=folder."
            )
        paths = {split: Path(folder) / name for split, name in self.files.items()}
        for path in paths.values():
            if not path.is_file():
                raise ValueError(
                    f"There is no file {str(path)!r}; the data folder must hold {' and '.join(self.files.values())}."
                )
        return {"dataset": str(paths["train"]), "validation_file": str(paths["validation"])}

    def arguments(self, model: ModelRun, data: dict[str, str], output_dir: Path | None) -> TrainingArguments:
        """The training settings of a row, without its budget."""
        return TrainingArguments.from_config(
            model.config,
            **{**self.settings, **model.settings, **data},
            model_config=model.model_config,
            output_dir=None if output_dir is None else str(output_dir),
        )


def read_experiment(name_or_path: str) -> Experiment:
    """The experiment of a scale, by name, or from a YAML file; one that is `based_on` another has all that it does not
    say from there.
    """
    try:
        values, name = _read_values(name_or_path)
        models = [ModelRun(**model) for model in values.pop("models")]
        evaluations = {name: Evaluation(**options) for name, options in values.pop("evaluations").items()}
        return Experiment(name=name, models=models, evaluations=evaluations, **values)
    except (TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ValueError(f"The scale {name_or_path} has a missing or unknown entry: {error}.") from error


def _read_values(name_or_path: str) -> tuple[dict[str, Any], str]:
    path = SCALES / f"{name_or_path}.yaml"
    path = path if path.is_file() else Path(name_or_path)
    if not path.is_file():
        known = ", ".join(sorted(one.stem for one in SCALES.glob("*.yaml")))
        raise ValueError(f"`scale` is {name_or_path!r}; it must be a YAML file or one of {known}.")
    values = read_yaml(path)
    if "based_on" in values:
        values = {**_read_values(values.pop("based_on"))[0], **values}
    return values, path.stem
