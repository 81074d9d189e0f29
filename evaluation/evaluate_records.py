"""Measure how well a pipeline writes what records say: slots told, and texts against references.

    python evaluation/evaluate_records.py runs/e2e/pipeline e2e_devset.csv --held_out 0.15 --guidance_scale 1 2

One text is written for each record of a file with the columns `mr` and `ref`, as in the E2E data. With `--held_out`
only those count that training with seed 0 and this `validation_fraction` held out.
"""

import argparse
import json
import time

import torch

from diffusers_text_nfdm import NFDMTextPipeline
from diffusers_text_nfdm.data import load_text_dataset
from diffusers_text_nfdm.files import output_file, write_file
from diffusers_text_nfdm.metrics.checkpoint import load_pipeline
from diffusers_text_nfdm.metrics.record_slots import against_references, by_record, slots_realised
from diffusers_text_nfdm.metrics.sampling import Sampling


COLUMNS = ("mentioned", "complete", "added", "bleu", "rouge_l", "calls", "distinct")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", help="folder or repository of a pipeline")
    parser.add_argument("data", help="file with records and texts")
    parser.add_argument("--condition_column", default="mr", help="(default: mr)")
    parser.add_argument("--text_column", default="ref", help="(default: ref)")
    parser.add_argument("--held_out", type=float, default=0.0, help="share of the records that training held out")
    parser.add_argument("--guidance_scale", type=float, nargs="+", default=[1.0], help="(default: 1)")
    parser.add_argument("--sampling", help="such as refine:96:min_p=0.1 (default: the pipeline's scheduler)")
    parser.add_argument("--min_p", type=float, help="of a baseline (default: 0)")
    parser.add_argument("--seed", type=int, default=0, help="(default: 0)")
    parser.add_argument("--output", type=output_file, help="JSON file to write")
    args = parser.parse_args(arguments)
    torch.set_flush_denormal(True)
    try:
        references = read_references(args)
        pipeline = load_pipeline(args.checkpoint, "cpu")
        pipeline.set_progress_bar_config(disable=True)
        options = {} if args.sampling is None else Sampling.parse(args.sampling).prepare(pipeline)
        if args.min_p is not None:
            if isinstance(pipeline, NFDMTextPipeline):
                raise ValueError(
                    "`--min_p` is for baselines; a scheduler has its own: `--sampling refine:96:min_p=0.1`."
                )
            options["min_p"] = args.min_p
        results = {"references": slots_of_references(references)}
        print(f"{'':14s}" + "".join(f"{name:>11s}" for name in COLUMNS))
        print_row("references", results["references"])
        for scale in args.guidance_scale:
            name = f"guidance {scale:g}"
            guidance = {} if scale == 1 else {"guidance_scale": scale}
            if guidance and not isinstance(pipeline, NFDMTextPipeline):
                raise ValueError("A baseline has no guidance; leave `--guidance_scale` out.")
            results[name] = write_and_score(pipeline, references, args.seed, {**options, **guidance})
            print_row(name, results[name])
        print("\n" + "\n".join(results[name]["texts"][:5]))
    except (ValueError, OSError) as error:
        parser.error(str(error))
    if args.output is not None:
        write_file(args.output, json.dumps(results, indent=2) + "\n")


def read_references(args: argparse.Namespace) -> dict[str, list[str]]:
    """The texts of each record."""
    splits = load_text_dataset(
        args.data,
        column=args.text_column,
        condition_column=args.condition_column,
        validation_fraction=args.held_out,
    )
    return by_record(splits["validation" if args.held_out else "train"])


def slots_of_references(references: dict[str, list[str]]) -> dict[str, float]:
    """What the references themselves tell."""
    pairs = [(text, record) for record, texts in references.items() for text in texts]
    return slots_realised(*zip(*pairs))


def write_and_score(pipeline, references: dict[str, list[str]], seed: int, options: dict) -> dict:
    """One text for each record, and what it is worth."""
    records, started = list(references), time.perf_counter()
    output = pipeline(condition=records, generator=torch.Generator().manual_seed(seed), **options)
    return {
        **slots_realised(output.texts, records),
        **against_references(output.texts, list(references.values())),
        "calls": output.calls.double().mean().item(),
        "distinct": len(set(output.texts)) / len(output.texts),
        "seconds_per_text": (time.perf_counter() - started) / len(records),
        "texts": output.texts,
    }


def print_row(name: str, row: dict) -> None:
    shown = []
    for column in COLUMNS:
        if column not in row:
            shown.append("-")
        elif column in ("bleu", "rouge_l", "calls"):
            shown.append(f"{row[column]:.1f}")
        else:
            shown.append(f"{row[column]:.1%}")
    print(f"{name:14s}" + "".join(f"{value:>11s}" for value in shown))


if __name__ == "__main__":
    main()
