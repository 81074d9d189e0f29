"""Measure speed and print ratios: `make bench`."""

import argparse
import json
import platform
from pathlib import Path

import sampler_steps
import torch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=15, help="turns of every contestant (default: 15)")
    parser.add_argument("--sizes", nargs="+", default=["tiny", "paper"], choices=list(sampler_steps.SIZES))
    parser.add_argument("--output", type=Path, default=Path("runs/bench.json"), help="(default: runs/bench.json)")
    arguments = parser.parse_args()
    torch.set_flush_denormal(True)
    torch.manual_seed(0)
    results = {}
    for size in arguments.sizes:
        results[size] = sampler_steps.measure(size, arguments.repeats)
        print(
            f"One sampling step over one predictor call, NFDM, {size} size, batch {sampler_steps.BATCH_SIZES[size]}:"
        )
        for name, ratio in results[size].items():
            print(f"  {name:36s}{ratio:6.3f}x")
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    machine = {"threads": torch.get_num_threads(), "processor": platform.processor() or platform.machine()}
    record = {"sampler_steps": results, "repeats": arguments.repeats, "torch": torch.__version__, "machine": machine}
    arguments.output.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    print(f"Saved to {arguments.output}.")


if __name__ == "__main__":
    main()
