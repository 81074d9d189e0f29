"""Measure speed and memory, print Markdown tables and save JSON: `make bench`."""

import argparse
import json
import platform
from pathlib import Path

import autoregressive
import long_texts
import memory
import precision
import result_tables
import sampler_steps
import torch
import training_steps
import window_sampling
from transformers.utils import logging

from diffusers_text_nfdm.devices import multiplies_bfloat16
from diffusers_text_nfdm.files import output_file
from diffusers_text_nfdm.networks.compilation import missing_compiler


PARTS = ("training", "samplers", "windows", "memory", "long", "precision", "autoregressive")
SIZES = ["tiny", "mid", "paper"]


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=PARTS)
    parser.add_argument("--sizes", nargs="+", default=SIZES, choices=SIZES)
    parser.add_argument("--repeats", type=int, default=7, help="turns of every contestant (default: 7)")
    parser.add_argument("--threads", type=int, default=1, help="(default: 1, as CPU time of waiting threads counts)")
    parser.add_argument(
        "--quick", action="store_true", help="try everything but the compiler out, at a size that proves nothing"
    )
    parser.add_argument("--output", type=output_file, default="runs/bench.json", help="(default: runs/bench.json)")
    arguments = parser.parse_args(argv)
    for name in ("repeats", "threads"):
        if getattr(arguments, name) < 1:
            parser.error(f"`{name}` is {getattr(arguments, name)}; it must be at least 1.")
    torch.set_num_threads(arguments.threads)
    torch.set_flush_denormal(True)
    logging.set_verbosity_error()

    sizes, repeats = (["quick"], 1) if arguments.quick else (arguments.sizes, arguments.repeats)
    record = {"repeats": repeats, "torch": torch.__version__, "threads": torch.get_num_threads(), **_machine()}
    print(
        f"{record['processor']}, {record['threads']} thread(s), torch {record['torch']}; medians of {repeats} turns, "
        "CPU time."
    )

    def finish(part: str, result: dict, table: str) -> None:
        record[part] = result
        print("\n" + table, flush=True)
        arguments.output.parent.mkdir(parents=True, exist_ok=True)
        arguments.output.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")

    if "training" in arguments.parts:
        missing = missing_compiler(torch.device("cpu"))
        if missing is not None:
            print(f"\nWithout a column for compiled blocks: there is no {missing}.")
        compiled = missing is None and not arguments.quick
        result = {size: training_steps.measure(size, repeats, compiled) for size in sizes}
        finish("training", result, result_tables.training(result))
    if "samplers" in arguments.parts:
        result = {size: sampler_steps.measure(size, 2 * repeats) for size in sizes}
        finish("samplers", result, result_tables.samplers(result))
    if "windows" in arguments.parts:
        size, batch_sizes = ("quick", [1, 2]) if arguments.quick else ("stories", [1, 16])
        result = window_sampling.measure(size, batch_sizes, min(repeats, 3))
        finish("windows", result, result_tables.windows(result))
    if "memory" in arguments.parts:
        result = memory.measure(sizes[0], memory.QUICK_AXES if arguments.quick else memory.AXES)
        finish("memory", result, result_tables.memory(result))
    if "long" in arguments.parts:
        axes, usual = long_texts.AXES, long_texts.USUAL
        if arguments.quick:
            axes, usual = long_texts.QUICK_AXES, long_texts.QUICK_USUAL
        result = long_texts.measure(axes, usual, min(repeats, 3))
        finish("long", result, result_tables.long(result))
        chart = arguments.output.with_suffix(".png")
        long_texts.plot(result).savefig(chart, dpi=120)
        print(f"\nChart: {chart}.")
    if "precision" in arguments.parts:
        sizes_of_texts = ([50], 2, 16) if arguments.quick else (precision.VOCABULARIES, 32, 64)
        result = precision.measure(*sizes_of_texts, min(repeats, 5))
        finish("precision", result, result_tables.precision(result, multiplies_bfloat16("cpu")))
    if "autoregressive" in arguments.parts:
        # One turn: a batch of texts takes ten seconds at the largest size, and the figures are far apart.
        batch_sizes = [1, 2] if arguments.quick else [1, 16, 64]
        result = {size: autoregressive.measure(size, batch_sizes, 1) for size in sizes}
        finish("autoregressive", result, result_tables.autoregressive(result))
    print(f"\nSaved to {arguments.output}.")


def _machine() -> dict[str, str]:
    names = [line.split(":")[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")]
    return {"processor": names[0] if names else platform.processor() or platform.machine()}


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines() if Path(path).exists() else []


if __name__ == "__main__":
    main()
