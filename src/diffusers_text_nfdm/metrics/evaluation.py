"""One checkpoint, a grid of sampling methods, a protocol: samples, scores, a table."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from ..files import write_file
from ..model_card import update_model_index, variant_name
from ..stories import StoryGrammar
from ..version import __version__
from .checkpoint import checkpoint_fingerprint, checkpoint_folder, load_pipeline, pipeline_kind
from .judge import Judge, judge_files
from .likelihood_bound import bound
from .protocol import Protocol, get_protocol
from .real_texts import STORIES, RealTexts, in_form, load_real_texts, texts_hash
from .report import aggregate, markdown_report
from .results_folder import file_name, made_once, samples_once
from .sampling import ANCESTRAL, DIFFUSION, MASKED, Sampling
from .scoring import METRICS, Scorer


DEFAULT_SAMPLINGS = {DIFFUSION: "star:64", MASKED: "masked:64", ANCESTRAL: ANCESTRAL}
# What a file of samples says of them. One with other reports is made again.
SAMPLE_REPORTS = ("seconds", "function_evaluations", "mean_function_evaluations")
KINDS = {
    DIFFUSION: "a diffusion model",
    MASKED: "masked diffusion, which has 'masked:STEPS' only",
    ANCESTRAL: "an autoregressive model, which has 'ancestral' only",
}


def evaluate_checkpoint(
    checkpoint: str | Path,
    dataset: str | Path | Mapping[str, str | Path] = STORIES,
    output_dir: str | Path = "evaluation_results",
    protocol: Protocol | str = "ld4lg",
    samplings: Sequence[Sampling | str] | None = None,
    *,
    column: str = "text",
    batch_size: int = 64,
    judge_batch_size: int = 16,
    judge_cache: str | Path | None = None,
    device: str | torch.device | None = None,
    update_card: bool = True,
    progress: bool = True,
) -> dict:
    """Sample from a checkpoint, score the samples, and write `results.json` and `results.md` into `output_dir`.

    What is there already and was made from the same checkpoint, texts and settings is not made again: one file of
    samples (`samples/`) and one of scores (`scores/`) for each sampling and seed.

    Args:
        checkpoint: folder or Hub repository of an `NFDMTextPipeline`, `AutoregressivePipeline` or
            `MaskedDiffusionPipeline`.
        dataset: as in `load_text_dataset`.
        output_dir: folder for this checkpoint's results.
        protocol: a `Protocol` or the name of one.
        samplings: ways of sampling, or their names (`Sampling.parse`); `star:64` by default, of masked
            diffusion `masked:64`. An autoregressive checkpoint has one, `ancestral`.
        judge_cache: folder where the judge keeps its log-probabilities, by default within `output_dir`; several
            checkpoints can share one.
        update_card: write the scores as `model-index` into the card of a checkpoint that is a local folder.

    Returns:
        The contents of `results.json`: `checkpoint`, `model`, `parameters`, `dataset`, `protocol`, `dataset_row` (real
        texts in the place of samples), `likelihood`, `entropy` (of the embedded corpus), `samplers` and `notes`.
        Scores are `{metric: {"mean", "sd"}}`; `seconds` is the time that `num_samples` samples took.
    """
    protocol = get_protocol(protocol) if isinstance(protocol, str) else protocol
    given = [Sampling.parse(one) if isinstance(one, str) else one for one in samplings or []]
    judge = None if protocol.judge is None else judge_files(protocol.judge)
    folder, output, stories = checkpoint_folder(checkpoint), Path(output_dir), dataset == STORIES
    pipeline = load_pipeline(folder, device)
    samplings = _check_samplings(given, pipeline)
    as_they_are = load_real_texts(dataset, protocol, column)
    real = in_form(as_they_are, pipeline, protocol.detokenisation)

    def load_judge() -> Judge:
        cache = judge_cache or output / "judge"
        return Judge.from_pretrained(
            protocol.judge, device=device, batch_size=judge_batch_size, cache_dir=cache, progress=progress
        )

    scorer = Scorer(protocol, real.training, None if judge is None else load_judge, stories, progress)
    sampled_from = {"checkpoint": checkpoint_fingerprint(folder), "version": __version__}
    reports = {"reports": list(SAMPLE_REPORTS)}
    scored_with = {
        "num_samples": protocol.num_samples,
        "detokenisation": protocol.detokenisation,
        "memorization_texts": protocol.memorization_texts,
        "training": texts_hash(real.training),
        "judge": judge,
        "mauve": protocol.to_dict()["mauve"],
        "stories": stories,
        "version": __version__,
    }

    def scores(name: str, seed: int, texts: Sequence[str], references: Sequence[str]) -> dict:
        made_from = {"texts": texts_hash(texts), "references": texts_hash(references), **scored_with}
        path = output / "scores" / f"{file_name(name, seed)}.json"
        return made_once(path, made_from, lambda: scorer.score(texts, references))

    pairs = [(seed, *real.repeat(index)) for index, seed in enumerate(protocol.seeds)]
    scored = {"Dataset": [scores("dataset", seed, texts, references) for seed, references, texts in pairs]}
    samplers = {}
    for sampling in samplings:
        name = sampling.name
        made = [
            samples_once(
                output / "samples" / f"{file_name(name, seed)}.jsonl",
                {
                    **sampled_from,
                    **reports,
                    "sampling": sampling.to_dict(),
                    "seed": seed,
                    "num_samples": protocol.num_samples,
                },
                lambda sampling=sampling, seed=seed: draw_samples(
                    pipeline, sampling, protocol.num_samples, seed, batch_size, progress
                ),
            )
            for seed in protocol.seeds
        ]
        scored[name] = [
            scores(name, seed, texts, references) for (seed, references, _), (texts, _) in zip(pairs, made)
        ]
        samplers[name] = {
            "sampling": sampling.to_dict(),
            "function_evaluations": max(about["function_evaluations"] for _, about in made),
            "mean_function_evaluations": statistics.mean(about["mean_function_evaluations"] for _, about in made),
            "seconds": statistics.mean(about["seconds"] for _, about in made),
            "scores": aggregate([entry["scores"] for entry in scored[name]]),
        }

    result = {
        "checkpoint": str(checkpoint),
        "model": variant_name(pipeline.model.config),
        "parameters": sum(parameter.numel() for parameter in pipeline.model.parameters()),
        "dataset": {split: str(path) for split, path in dataset.items()}
        if isinstance(dataset, Mapping)
        else str(dataset),
        "protocol": {
            **protocol.to_dict(),
            "num_references": protocol.num_samples,
            "reference_splits": list(real.splits),
            "num_held_out_texts": len(real.held_out),
            "num_training_texts": len(real.training),
        },
        "dataset_row": aggregate([entry["scores"] for entry in scored["Dataset"]]),
        "likelihood": _likelihood(output, pipeline, as_they_are, protocol, sampled_from, batch_size, progress),
        "entropy": StoryGrammar().entropy() if stories else None,
        "samplers": samplers,
        "notes": _notes(scored, protocol, real),
        "version": __version__,
    }
    write_file(output / "results.json", json.dumps(result, indent=2) + "\n")
    write_file(output / "results.md", markdown_report(result))
    if update_card and Path(checkpoint).is_dir() and (folder / "README.md").is_file():
        update_model_index(
            folder / "README.md", result["model"], _dataset_name(result["dataset"]), card_results(result)
        )
    return result


def draw_samples(
    pipeline, sampling: Sampling, num_samples: int, seed: int, batch_size: int, progress: bool
) -> tuple[list[str], dict]:
    """Samples of a pipeline, the time they took, and the network calls of a text: the most, and their mean."""
    options = {"num_samples": num_samples, "batch_size": batch_size, "generator": torch.Generator().manual_seed(seed)}
    options |= sampling.prepare(pipeline)
    pipeline.set_progress_bar_config(disable=not progress, desc=f"{sampling.name}, seed {seed}")
    start = time.perf_counter()
    output = pipeline(**options)
    seconds = time.perf_counter() - start
    reports = seconds, output.num_function_evaluations, output.calls.double().mean().item()
    return output.texts, dict(zip(SAMPLE_REPORTS, reports))


def card_results(result: dict) -> list[tuple[str, str, float]]:
    """Metric, its name with sampling and protocol, and value: what the card of the checkpoint records."""
    protocol = result["protocol"]["name"]
    rows = [
        (metric, f"{METRICS[metric]} ({name}, {protocol})", score["mean"])
        for name, entry in result["samplers"].items()
        for metric, score in entry["scores"].items()
    ]
    likelihood = result["likelihood"]
    if likelihood is not None:
        for unit in ("nats_per_story", "nats_per_token", "bits_per_character"):
            rows.append((unit, f"{unit.replace('_', ' ')} ({protocol})", likelihood[unit]["value"]))
    return rows


def _check_samplings(samplings: list[Sampling], pipeline) -> list[Sampling]:
    kind = pipeline_kind(pipeline)
    samplings = samplings or [Sampling.parse(DEFAULT_SAMPLINGS[kind])]
    for sampling in samplings:
        if sampling.kind != kind:
            raise ValueError(f"The sampling {sampling.name!r} does not fit the checkpoint: it is {KINDS[kind]}.")
    names = [sampling.name for sampling in samplings]
    if len(set(names)) < len(names):
        raise ValueError(f"`samplings` has the names {names}; none may come twice.")
    return samplings


def _likelihood(
    output: Path, pipeline, real: RealTexts, protocol: Protocol, sampled_from: dict, batch_size: int, progress: bool
) -> dict | None:
    if protocol.likelihood_texts == 0:
        return None
    # Not in the tokenizer's form: read again, a written `<UNK>` would be several tokens.
    texts, draws = real.held_out[: protocol.likelihood_texts], protocol.likelihood_draws
    return made_once(
        output / "likelihood.json",
        {**sampled_from, "texts": texts_hash(texts), "draws": draws},
        lambda: bound(pipeline, texts, num_draws=draws, batch_size=batch_size, progress=progress).to_dict(),
    )


def _notes(scored: dict[str, list[dict]], protocol: Protocol, real: RealTexts) -> list[str]:
    notes = []
    if protocol.judge is None:
        notes.append("No judge: perplexity and MAUVE are left out.")
    if protocol.assumptions:
        notes.append(protocol.assumptions)
    if not real.disjoint and real.num_repeats > 1:
        notes.append(
            f"The {len(real.held_out)} held-out texts are too few for {real.num_repeats} repeats of their own: "
            "repeats share references and real "
            "texts, which makes the standard deviations of the row Dataset too small."
        )
    for name, entries in scored.items():
        seeds: dict[str, list[str]] = {}
        for seed, entry in zip(protocol.seeds, entries):
            for note in entry["notes"]:
                seeds.setdefault(note, []).append(str(seed))
        notes += [f"{name}, seed {', '.join(of_note)}: {note}" for note, of_note in seeds.items()]
    return notes


def _dataset_name(dataset: str | dict[str, str]) -> str:
    # A path says where a file was on one machine; its name says what it is.
    return " and ".join(Path(path).name for path in (dataset.values() if isinstance(dataset, dict) else [dataset]))
