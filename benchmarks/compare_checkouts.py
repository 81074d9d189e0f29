"""Speed of this checkout against another one, side by side: a training step and star sampling of NFDM.

    git worktree add ../other COMMIT
    python benchmarks/compare_checkouts.py ../other

Each checkout runs in a process of its own; they take turns, and medians of CPU time are compared.
"""

import argparse
import statistics
import subprocess
import sys
from pathlib import Path


HERE = Path(__file__).resolve().parents[1]
STEPS = {"tiny": 8, "mid": 4, "paper": 2}
# Runs in either checkout: it may only use what both have.
WORKER = """
import sys, time
root, size, steps = sys.argv[1], sys.argv[2], int(sys.argv[3])
sys.path[:0] = [root + "/src", root + "/benchmarks"]
import torch
from sizes import BATCH_SIZES, make_model
from transformers.utils import logging
from diffusers_text_nfdm import MarkovChainScheduler, NFDMTextPipeline
import diffusers_text_nfdm
assert diffusers_text_nfdm.__file__.startswith(root), diffusers_text_nfdm.__file__
torch.set_num_threads(1)
torch.set_flush_denormal(True)
logging.set_verbosity_error()
model, batch = make_model(size), BATCH_SIZES[size]
ids = torch.randint(model.config.vocab_size, (batch, model.config.max_length))
draws = model.draw(batch)
pipe = NFDMTextPipeline(model, None, MarkovChainScheduler(1.0))
pipe.set_progress_bar_config(disable=True)

def step():
    model.train()
    model.zero_grad(set_to_none=True)
    model(ids, draws=draws).loss.backward()

def sample():
    options = {"num_samples": batch, "num_inference_steps": steps, "output_type": "latent"}
    pipe(**options, generator=torch.Generator().manual_seed(0))

contestants = {"step": step, "star": sample}
for line in sys.stdin:
    start = time.process_time()
    contestants[line.strip()]()
    print(time.process_time() - start, flush=True)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path, help="folder of the other checkout")
    parser.add_argument("--sizes", nargs="+", default=list(STEPS), choices=STEPS)
    parser.add_argument("--repeats", type=int, default=9, help="turns of each (default: 9)")
    args = parser.parse_args()
    print("| size | measure | other, s | this, s | speed of this / other |\n|---|---|---|---|---|")
    for size in args.sizes:
        workers = [
            subprocess.Popen(
                [sys.executable, "-c", WORKER, str(root), size, str(STEPS[size])],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for root in (args.other.resolve(), HERE)
        ]
        for name in ("step", "star"):
            seconds = [[], []]
            # The first turn warms up.
            for turn in range(args.repeats + 1):
                for worker, times in zip(workers, seconds):
                    worker.stdin.write(name + "\n")
                    worker.stdin.flush()
                    value = float(worker.stdout.readline())
                    if turn:
                        times.append(value)
            other, this = map(statistics.median, seconds)
            print(f"| {size} | {name} | {other:.3f} | {this:.3f} | {other / this:.3f} |", flush=True)
        for worker in workers:
            worker.stdin.close()
            worker.wait()


if __name__ == "__main__":
    main()
