"""Calls of the network against what stories are worth: validity, variety, exact log-probability, and wall time.

    python evaluation/few_calls.py checkpoints/nfdm-stories-jumps --num_samples 1000 --output docs/few_calls

Every checkpoint is sampled in the ways of its kind (`--samplings` chooses others) and measured with one thread: texts
in batches of 64 for what they are worth, and a few in batches of 1, 16 and 64 for the time of one. It prints a table
and writes it as JSON, Markdown and a picture. `--guidance_model FOLDER --guidance_scale 2` guides every call away from
what a weaker model says.
"""

import argparse
import json
from pathlib import Path

import torch

from diffusers_text_nfdm.files import output_file, write_file
from diffusers_text_nfdm.metrics.checkpoint import load_pipeline, pipeline_kind
from diffusers_text_nfdm.metrics.frontier import measure_sampling
from diffusers_text_nfdm.metrics.sampling import Sampling


BATCHES = (1, 16, 64)
JUMPS = (
    "jump:64:min_p=0.02",
    "jump:64:jump_length=8:min_p=0.02",
    "jump:16:min_p=0.02",
    "jump:8:min_p=0.02",
    "jump:6:min_p=0.02",
    "jump:4:min_p=0.02",
)
CLOCKS = (
    "draft:64:block_size=8:min_p=0.02",
    "refine:64:min_p=0.02",
    "star:64:time_grid=learned:clock=ramp:8",
    "star:64:time_grid=learned:clock=ramp:8:prediction=tokens",
    "star:32:time_grid=learned:clock=ramp:8",
)
# All tokens of a text in motion: until all are settled, and in at most 32, 16 and 8 calls, which are the steps, two
# more for the first, and those of the decoder.
WHOLE_TEXT = (
    "star:30:clock=shared:finish_time=0.85:min_p=0.02",
    "star:20:clock=shared:finish_time=0.8:finish_calls=10:min_p=0.02",
    "star:9:clock=shared:finish_time=0.75:finish_calls=5:min_p=0.02",
    "star:4:clock=shared:finish_time=0.7:finish_calls=2:min_p=0.02",
)
# A block takes a call at least.
MASKED = tuple(
    f"masked:{steps}:block_size={max(8, 64 // steps)}:min_p=0.02{remasking}"
    for remasking in ("", ":remasking=random")
    for steps in (64, 32, 16, 8, 4)
)


def default_samplings(pipeline) -> tuple[str, ...]:
    """The ways in which a checkpoint is sampled."""
    kind = pipeline_kind(pipeline)
    if kind == "ancestral":
        return ("ancestral:min_p=0.02",)
    if kind == "masked":
        return MASKED
    if not pipeline.model.has_clean_stream:
        return ("star:64", "star:32")
    config = pipeline.model.config
    return CLOCKS + (JUMPS if config.jumps else ()) + (WHOLE_TEXT if config.joint_decoder else ())


def measure(
    checkpoint: str, samplings: list[str] | None, num_samples: int, timed: int, seed: int, **guidance
) -> list[dict]:
    pipeline, path = load_pipeline(checkpoint, "cpu"), Path(checkpoint)
    # A run has its pipeline in a folder of that name.
    label, rows = path.parent.name if path.name == "pipeline" else path.name, []
    for name in samplings or default_samplings(pipeline):
        sampling = Sampling.parse(name)
        row = {"checkpoint": label, **measure_sampling(pipeline, sampling, num_samples, 64, seed, **guidance)}
        for size in BATCHES:
            number = max(size, timed)
            timing = measure_sampling(pipeline, sampling, number, size, seed + 1, **guidance)
            row[f"seconds_{size}"] = timing["seconds_per_text"]
        rows.append(row)
        print(line(row), flush=True)
    return rows


def line(row: dict) -> str:
    choices = "-" if row["coverage"] is None else f"{row['coverage']:.1%} of {row['tested_choices']}"
    nats = "-" if row["log_probability"] is None else f"{-row['log_probability']:.2f}"
    seconds = " | ".join(f"{1000 * row[f'seconds_{size}']:.0f}" for size in BATCHES)
    return (
        f"| {row['checkpoint']} | `{row['sampling']}` | {row['calls']:.1f} | {row['most_calls']} | "
        f"{row['validity']:.1%} | {row['distinct']:.1%} | {choices} | {nats} | {seconds} |"
    )


def table(rows: list[dict]) -> str:
    head = (
        "| checkpoint | sampling | calls | most | valid | distinct | choices right | nats of the valid | "
        + " | ".join(f"ms, batch {size}" for size in BATCHES)
        + " |\n|"
        + "---|" * (8 + len(BATCHES))
    )
    return "\n".join([head, *map(line, rows)]) + "\n"


def plot(rows: list[dict]):
    from diffusers_text_nfdm.plots.few_calls import plot_few_calls

    return plot_few_calls(rows)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoints", nargs="+", help="folders or repositories of pipelines")
    parser.add_argument("--samplings", nargs="+", help="instead of those of the checkpoint's kind")
    parser.add_argument("--num_samples", type=int, default=1000, help="texts of each sampling (default: 1000)")
    parser.add_argument("--timed_samples", type=int, default=32, help="texts that are timed (default: 32)")
    parser.add_argument("--guidance_model", help="pipeline of a weaker model of the same kind (default: none)")
    parser.add_argument("--guidance_scale", type=float, default=2.0, help="its weight, with one (default: 2)")
    parser.add_argument("--seed", type=int, default=0, help="(default: 0)")
    parser.add_argument("--output", type=output_file, help="file to write, without its ending: .json, .md and .png")
    args = parser.parse_args(arguments)
    if args.output is not None and not args.output.absolute().parent.is_dir():
        parser.error(f"there is no folder {args.output.parent} to write into")
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    rows, guidance = [], {}
    try:
        if args.guidance_model is not None:
            weaker = load_pipeline(args.guidance_model, "cpu").model
            guidance = {"guidance_model": weaker, "guidance_scale": args.guidance_scale}
        print(table([]), end="")
        for checkpoint in args.checkpoints:
            rows += measure(checkpoint, args.samplings, args.num_samples, args.timed_samples, args.seed, **guidance)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    if args.output is not None:
        write_file(args.output.with_suffix(".json"), json.dumps(rows, indent=2) + "\n")
        write_file(args.output.with_suffix(".md"), table(rows))
        plot(rows).savefig(args.output.with_suffix(".png"), dpi=130)


if __name__ == "__main__":
    main()
