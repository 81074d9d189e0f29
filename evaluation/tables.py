"""The paper's tables: train the models by one equal budget, evaluate them, write tables and plots.

    python evaluation/tables.py tiny                                  # the embedded stories, two CPU cores
    python evaluation/tables.py rocstories --data folder              # small models on ROCStories
    python evaluation/tables.py paper --data folder                   # the published recipes, on GPUs
    python evaluation/tables.py tiny --only NFDM MuLAN                # some rows now, the others another time

The output folder gets `tables.md`, `results.json`, `plots/`, one training run for each model in `runs/`, and samples
and scores in `evaluations/`. The pages are written after every row, and say which rows are finished and which are not.
Started again, the command goes on where it stopped. Commands for different rows may run side by side. Ctrl-C ends it
with a checkpoint and the exit code 3.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import shutil
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from experiment import Evaluation, Experiment, ModelRun, read_experiment
from table_pages import render
from table_plots import save_plots
from transformers.utils import logging

from diffusers_text_nfdm.baseline import AutoregressiveConfig, MaskedDiffusionConfig, matching_config
from diffusers_text_nfdm.checks import check_one_of
from diffusers_text_nfdm.files import output_folder, write_file
from diffusers_text_nfdm.metrics import evaluate_checkpoint
from diffusers_text_nfdm.metrics.judge import judge_files
from diffusers_text_nfdm.metrics.results_folder import made_once
from diffusers_text_nfdm.metrics.sampling import Sampling
from diffusers_text_nfdm.training import TrainingArguments, train
from diffusers_text_nfdm.training.arguments import CONFIGS
from diffusers_text_nfdm.training.preparation import TrainingData


# Steps of the short run that measures how long a step takes; the first of its three parts warms up.
MEASURED_STEPS = 24
PARTS = 3
# Settings that are a share of the steps: a recipe that gets more or fewer of them keeps the share.
PHASES = ("next_token_steps", "growth_steps", "decay_steps", "context_warmup_steps")
STOPPED = 3


def make_tables(
    experiment: Experiment, output: Path, data_folder: str | None = None, only: Sequence[str] = ()
) -> dict | None:
    """Do what is not done yet, of all rows or of some, and write everything; `None` where a signal ended a training
    run.
    """
    names = [model.name for model in experiment.models]
    for name in only:
        check_one_of("only", name, names)
    data = experiment.data(data_folder)
    for evaluation in experiment.evaluations.values():
        if evaluation.judge is not None:
            # A judge that cannot be loaded is told before hours of training.
            judge_files(evaluation.judge)
    models = [model for model in experiment.models if model.name in (only or names)]
    settings = {model.name: size_settings(experiment, model, data) for model in models}
    dataset = experiment.arguments(experiment.models[0], data, None).dataset
    texts = {"train": data["dataset"], "validation": data["validation_file"]} if data else dataset
    torch.set_num_threads(experiment.threads)
    # Softmax over a vocabulary makes denormal numbers, which are slow on CPUs.
    torch.set_flush_denormal(True)
    results = None
    for number, model in enumerate(models, 1):
        print(f"\n[{number}/{len(models)}] {model.name}", flush=True)
        arguments, run = settings[model.name], output / "runs" / model.folder
        trained = train_once(with_budget(arguments, experiment, output / "speed" / model.folder), run)
        if trained is None:
            return None
        evaluations = {
            name: evaluate_checkpoint(
                run / "pipeline",
                texts,
                output / "evaluations" / model.folder / name.replace(" ", "-"),
                evaluation.protocol(f"{experiment.name}-{name.replace(' ', '-')}"),
                usable_samplings(model.samplings or evaluation.samplings, arguments),
                judge_cache=output / "judge",
            )
            for name, evaluation in wanted_evaluations(experiment, arguments.model_type).items()
        }
        # Read anew, because another command may have finished other rows in the meantime.
        rows = finished_rows(experiment, output)
        rows[model.name] = {"name": model.name, "config": model.config, **trained, "evaluations": evaluations}
        results = write_pages(experiment, rows, dataset, output)
    return results


def finished_rows(experiment: Experiment, output: Path) -> dict[str, dict]:
    """The rows that an earlier command finished with the same budget, by name."""
    path = output / "results.json"
    results = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {"budget": None}
    return {row["name"]: row for row in results["models"]} if results["budget"] == experiment.budget else {}


def write_pages(experiment: Experiment, rows: dict[str, dict], dataset: str, output: Path) -> dict:
    """`results.json`, `tables.md` and the plots of the finished rows, in the order of the experiment."""
    results = {
        "scale": experiment.name,
        "dataset": ", ".join(experiment.files.values()) if experiment.files else dataset,
        "budget": experiment.budget,
        "threads": experiment.threads,
        "models": [rows[model.name] for model in experiment.models if model.name in rows],
        "unfinished": {
            model.name: progress(output / "runs" / model.folder)
            for model in experiment.models
            if model.name not in rows
        },
    }
    write_file(output / "results.json", json.dumps(results, indent=2) + "\n")
    write_file(output / "tables.md", render(results))
    save_plots(results, output / "plots")
    return results


def progress(run: Path) -> str:
    """How far an unfinished row is."""
    if (run / "summary.json").is_file():
        return "trained, not evaluated"
    checkpoints, settings = sorted(run.glob("checkpoint-*[0-9]")), run / "training_arguments.json"
    if not checkpoints or not settings.is_file():
        return "not begun"
    steps = json.loads(settings.read_text(encoding="utf-8"))["max_steps"]
    return f"step {int(checkpoints[-1].name.split('-')[1]):,} of {steps:,}"


def size_settings(experiment: Experiment, model: ModelRun, data: dict[str, str]) -> TrainingArguments:
    """The training settings of a row, at the size of another where it says so."""
    arguments = experiment.arguments(model, data, None)
    if model.as_large_as is None:
        return arguments
    other = next(one for one in experiment.models if one.name == model.as_large_as)
    target = experiment.arguments(other, data, None)
    vocabulary = len(TrainingData(target).tokenizer)
    like = CONFIGS[target.model_type](vocab_size=vocabulary, max_length=target.max_length, **target.model_config)
    match = matching_config(like)
    names = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "dropout")
    sizes = {name: getattr(match, name) for name in names}
    return dataclasses.replace(arguments, model_config={**arguments.model_config, **sizes})


def with_budget(arguments: TrainingArguments, experiment: Experiment, folder: Path) -> TrainingArguments:
    """The settings with as many steps as the budget allows, and an evaluation at the end only."""
    (kind, amount), period = next(iter(experiment.budget.items())), arguments.cross_entropy_steps + 1
    if kind == "steps":
        steps = int(amount)
    else:
        # A whole number of rounds of steps on the cross-entropy and one on the bound.
        steps = max(1, int(amount / seconds_per_step(arguments, folder) / period)) * period
    checkpoints = max(1, steps // 8) if kind == "cpu_seconds" else arguments.checkpoint_every
    phases = {name: value for name in PHASES if (value := getattr(arguments, name))}
    return dataclasses.replace(
        arguments,
        **{name: max(1, round(value * steps / arguments.max_steps)) for name, value in phases.items()},
        max_steps=steps,
        evaluate_every=steps,
        checkpoint_every=checkpoints,
        checkpoints_total_limit=1,
        warmup_steps=min(arguments.warmup_steps, steps // 4),
    )


def seconds_per_step(arguments: TrainingArguments, folder: Path) -> float:
    """CPU seconds of a training step, summed over threads, measured once; where the first steps are on the next token
    alone, the mean of both kinds.
    """
    seconds = measured_seconds(dataclasses.replace(arguments, next_token_steps=0), folder)
    if not arguments.next_token_steps:
        return seconds
    alone = dataclasses.replace(arguments, next_token_steps=MEASURED_STEPS)
    share = arguments.next_token_steps / arguments.max_steps
    return share * measured_seconds(alone, folder / "next-token") + (1 - share) * seconds


def measured_seconds(arguments: TrainingArguments, folder: Path) -> float:
    """CPU seconds of one of the first steps."""
    short = dataclasses.replace(
        arguments,
        output_dir=str(folder / "run"),
        stop_after_steps=MEASURED_STEPS,
        log_every=MEASURED_STEPS // PARTS,
        evaluation_texts=1,
        num_samples=0,
        save_plots=False,
        link_steps=0,
    )

    def measure() -> dict:
        shutil.rmtree(folder / "run", ignore_errors=True)
        train(short)
        entries = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
        parts = [entry["train/cpu_seconds_per_step"] for entry in entries if "train/loss" in entry]
        shutil.rmtree(folder / "run")
        return {"cpu_seconds_per_step": statistics.mean(parts[1:])}

    made_from = {"settings": short.to_dict(), "threads": torch.get_num_threads()}
    return made_once(folder / "speed.json", made_from, measure)["cpu_seconds_per_step"]


def train_once(arguments: TrainingArguments, run: Path) -> dict | None:
    """Train, or go on, or find it done: `parameters`, `steps` and the CPU seconds they took. `None` where it was
    stopped.
    """
    arguments = dataclasses.replace(arguments, output_dir=str(run), resume="latest")
    summary_file, settings_file = run / "summary.json", run / "training_arguments.json"
    if summary_file.is_file():
        differences = arguments.differences(json.loads(settings_file.read_text(encoding="utf-8")))
        # What `accelerate` or the device decided is recorded in its place.
        differences = [line for line in differences if not line.startswith("mixed_precision:")]
        if differences:
            raise ValueError(
                f"The folder {run} holds a run with other settings; choose another output folder, or remove it:\n  "
                + "\n  ".join(differences)
            )
        summary = json.loads(summary_file.read_text(encoding="utf-8"))
    else:
        summary = train(arguments)
    if summary is None:
        return None
    entries = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    parts = [entry["train/cpu_seconds_per_step"] for entry in entries if "train/loss" in entry]
    return {
        "parameters": summary["parameters"],
        "steps": summary["steps"],
        "cpu_seconds": statistics.mean(parts) * summary["steps"] + summary.get("link_cpu_seconds", 0.0),
    }


def wanted_evaluations(experiment: Experiment, model_type: str) -> dict[str, Evaluation]:
    """All of them, or for a baseline, which has other samplings, the first."""
    number = 1 if model_type in (AutoregressiveConfig.model_type, MaskedDiffusionConfig.model_type) else None
    return dict(list(experiment.evaluations.items())[:number])


def usable_samplings(samplings: Sequence[str], arguments: TrainingArguments) -> list[str] | None:
    """Those that the model has: NFDM has no signal-to-noise ratio, tokens are drawn from a categorical prediction, a
    text in blocks takes at least one step for each; a baseline has ways of its own."""
    baselines = {AutoregressiveConfig.model_type: "ancestral", MaskedDiffusionConfig.model_type: "masked"}
    kind = baselines.get(arguments.model_type, "diffusion")
    samplings = [one for one in samplings if Sampling.parse(one).kind == kind]
    if kind != "diffusion":
        # Without any, the evaluation's own default.
        return samplings or None
    categorical = arguments.model_config.get("prediction_type") == "categorical"
    return [
        one
        for one in samplings
        if not (arguments.model_type == "nfdm" and "noise_fraction=snr" in one)
        and (categorical or "prediction=tokens" not in one)
        and Sampling.parse(one).num_inference_steps >= arguments.min_sampling_steps
    ]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scale", help="the name of a file in evaluation/scales, or a YAML file")
    parser.add_argument("--data", help="folder with the texts, for the scales that need one")
    parser.add_argument("--output", type=output_folder, help="(default: runs/tables-<scale>)")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="rows to work on (default: all)")
    args = parser.parse_args(argv)
    logging.disable_progress_bar()
    try:
        experiment = read_experiment(args.scale)
        output = args.output or Path("runs") / f"tables-{experiment.name}"
        results = make_tables(experiment, output, args.data, args.only)
    except (ValueError, OSError, FloatingPointError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if results is None:
        print("Stopped; the same command goes on from here.")
        return STOPPED
    print("\n" + render(results))
    print(f"Tables: {output / 'tables.md'}\nPlots: {output / 'plots'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
