"""What a finished run tells: bound beside the truth, samples and what they are worth, plots, the released pipeline."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from huggingface_hub.errors import HfHubHTTPError, HFValidationError
from torch import Tensor
from tqdm.auto import tqdm

from ..files import write_file
from ..model_card import plain, variant_name, write_model_card
from ..pipelines.hub import create_repository, upload_pipeline
from ..text_files import FILE_TYPES
from .arguments import TrainingArguments
from .checkpoints import write_folder
from .frontier import measure_frontier, render_frontier
from .token_links import fit_token_link


if TYPE_CHECKING:
    from .trainer import Trainer


# Settings that may name a file or folder of this machine.
MAY_BE_LOCAL = ("model_name_or_path", "dataset", "validation_file", "tokenizer")


def finish(trainer: Trainer) -> dict:
    """Evaluate the averaged weights, write pipeline, card, plots and summary.json, and print something to read."""
    arguments, accelerator, run = trainer.arguments, trainer.accelerator, trainer.run
    trainer.ema.copy_to(trainer.released)
    link = _fit_link(trainer) if arguments.link_steps else {}
    estimate = trainer.validation_bound(2 * arguments.evaluation_texts, 2 * arguments.evaluation_draws)
    output = trainer.generate(arguments.final_samples, seed=arguments.seed, progress_bar=True)
    texts = output.texts
    summary = {
        "model": variant_name(trainer.released.config),
        "parameters": sum(parameter.numel() for parameter in trainer.released.parameters()),
        "steps": trainer.progress.step,
        **link,
        "quantity": trainer.family.quantity,
        "likelihood": estimate.to_dict(),
        "samples": describe_samples(trainer, texts, output.sequences),
        "pipeline": str(run / "pipeline"),
    }
    if arguments.dataset == "stories":
        from ..stories import StoryGrammar

        grammar = StoryGrammar()
        summary["entropy"] = grammar.entropy()
        if arguments.condition_column is not None:
            summary["entropy"] -= grammar.condition_entropy()
    if arguments.frontier:
        summary["frontier"] = measure_frontier(trainer, estimate)
    report = render(summary, texts)
    if accelerator.is_main_process:
        write_folder(run / "pipeline", lambda folder: _write_release(trainer, folder, summary, report, texts))
        write_file(run / "samples.jsonl", "".join(json.dumps({"text": text}) + "\n" for text in texts))
        if arguments.save_plots:
            from ..plots.training import save_plots

            plots = save_plots(trainer, summary.get("frontier", ()), summary.get("entropy"))
            summary["plots"] = [str(path) for path in plots]
            report += f"\nPlots: {run / 'plots'}"
        write_file(run / "summary.json", json.dumps(summary, indent=2) + "\n")
        tqdm.write("\n" + report, file=sys.stdout)
        if trainer.repository is not None:
            upload(run / "pipeline", trainer.repository)
            tqdm.write(f"Pushed to {trainer.repository}.", file=sys.stdout)
    accelerator.wait_for_everyone()
    return summary


def _fit_link(trainer: Trainer) -> dict[str, float]:
    """Link the drafts of the averaged weights; the CPU seconds that it took, summed over threads."""
    arguments, started = trainer.arguments, time.process_time()
    ids = trainer.data.train_ids()[:]["input_ids"].long()
    progress = trainer.accelerator.is_local_main_process
    fit_token_link(trainer.released, ids, arguments.link_steps, arguments.seed, progress)
    return {"link_cpu_seconds": time.process_time() - started}


def open_repository(arguments: TrainingArguments, run: Path) -> str | None:
    """Create the repository to push to, so that a wrong name or token is found before the training; returns its full
    name.
    """
    if not arguments.push_to_hub:
        return None
    name = arguments.hub_model_id or run.resolve().name
    try:
        return create_repository(name, arguments.hub_private or None)
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        raise ValueError(
            f"`push_to_hub` is set, but the repository {name!r} can be neither found nor created: {error}. Check "
            "`hub_model_id`, the "
            "connection and the token (`hf auth login`)."
        ) from error


def upload(folder: Path, repository: str) -> None:
    """Push the pipeline with its card."""
    try:
        upload_pipeline(folder, repository)
    except (HfHubHTTPError, OSError) as error:
        raise OSError(
            f"The run is finished, but {folder} could not be pushed to {repository}: {error}. Push it with `hf "
            f"upload {repository} {folder}`."
        ) from error


def describe_samples(trainer: Trainer, texts: list[str], sequences: Tensor) -> dict:
    """Number, distinct texts, copies of training texts and, for the embedded corpus, how many are stories of its
    language.
    """
    described: dict = {"number": len(texts), "distinct": len(set(texts))}
    if not trainer.arguments.streaming:
        described["copied_from_training"] = trainer.data.count_copies(sequences)
    if trainer.arguments.dataset == "stories":
        from ..metrics import story_language

        scores = story_language(texts)
        described["grammatical"] = round(scores["validity"] * len(texts))
        described["tested_choices"], described["coverage"] = scores["tested_choices"], scores["coverage"]
    return described


def with_error(value: float, error: float) -> str:
    """The value, and how far chance may have moved it, where chance is involved."""
    return f"{value:.2f}" + (f" ± {error:.2f}" if error else "")


def render(summary: dict, texts: list[str]) -> str:
    """The summary as text."""
    likelihood, samples = summary["likelihood"], summary["samples"]
    story = likelihood["nats_per_story"]
    lines = [
        f"{summary['model']}, {summary['parameters']:,} parameters, {summary['steps']:,} steps",
        "",
        f"{summary['quantity'].capitalize()} on the validation texts: "
        f"{with_error(story['value'], story['monte_carlo_error'])} nats per text, "
        f"{likelihood['nats_per_token']['value']:.3f} per token, {likelihood['bits_per_character']['value']:.3f} "
        "bits per character.",
    ]
    if "entropy" in summary:
        error = f" ± {story['monte_carlo_error'] / summary['entropy']:.3f}" if story["monte_carlo_error"] else ""
        lines.append(
            f"The truth beneath it: {summary['entropy']:.2f} nats per story; the {summary['quantity']} is "
            f"{story['value'] / summary['entropy']:.3f}{error} times that."
        )
    said = f"Samples: {samples['distinct']} of {samples['number']} distinct"
    if "copied_from_training" in samples:
        said += f", {samples['copied_from_training']} copied from the training texts"
    if "grammatical" in samples:
        said += f", {samples['grammatical'] / samples['number']:.1%} stories of the language"
    lines.append(said + ".")
    if samples.get("tested_choices"):
        lines.append(
            f"Of the grammar's {samples['tested_choices']} choices they make {samples['coverage']:.1%} as often as "
            "it does, by a test at 1%."
        )
    if summary.get("frontier"):
        lines += ["", render_frontier(summary["frontier"], summary.get("entropy"))]
    lines += ["", *(f"  {text}\n" for text in texts[:5]), f"Pipeline: {summary['pipeline']}"]
    return "\n".join(lines)


def _public_name(source: str) -> str:
    """The name of a dataset, tokenizer or checkpoint without the folders of this machine."""
    path = Path(source).expanduser()
    local = path.exists() or source.startswith((".", "/", "~")) or path.suffix.lower() in FILE_TYPES
    return path.resolve().name if local else source


def _write_release(trainer: Trainer, folder: Path, summary: dict, report: str, texts: list[str]) -> None:
    arguments = trainer.arguments
    pipeline = trainer.pipeline()
    pipeline.save_pretrained(folder)
    terms = {}
    if arguments.dataset == "stories":
        data = "The embedded stories of `diffusers_text_nfdm` (`StoryGrammar`), whose entropy is known exactly."
        terms = {"license": "apache-2.0", "language": "en"}
    else:
        data = f"{plain(_public_name(arguments.dataset))}."
    if trainer.data.reports:
        data += f" {trainer.data.reports['train']}"
    protocol = "\n".join(f"- {key}: {plain(str(value))}" for key, value in summary["likelihood"]["protocol"].items())
    recipe = {
        key: _public_name(value) if key in MAY_BE_LOCAL and value is not None else value
        for key, value in arguments.to_dict().items()
        if key not in ("output_dir", "resume", "hub_model_id")
    }
    write_model_card(
        pipeline,
        folder,
        title=f"{summary['model']} trained on {_public_name(arguments.dataset)}",
        repo=trainer.repository,
        data=data,
        recipe=recipe,
        results="```\n" + report.split("\n\n  ")[0] + "\n```\n\nProtocol of the likelihood:\n\n" + protocol,
        samples=texts[:5],
        **terms,
    )
