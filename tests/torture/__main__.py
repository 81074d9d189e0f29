"""`make torture`: all kinds of faults, and a table of what became of them."""

from __future__ import annotations

import argparse
import importlib
import logging
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path

import datasets
import diffusers
import torch
import transformers

from .tally import Campaign, Tally, report


# Kinds and their share of the time. Each has a least amount of work; hostile and threads have no more than that.
KINDS = {
    "kills": 0.36,
    "full_disk": 0.05,
    "damaged": 0.1,
    "hostile": 0.11,
    "hub": 0.1,
    "fuzz": 0.15,
    "threads": 0.1,
    "memory": 0.03,
}
SECONDS = 1000


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="torture", description=__doc__)
    parser.add_argument("--only", choices=KINDS, nargs="+", default=list(KINDS), metavar="KIND", help=", ".join(KINDS))
    parser.add_argument("--seconds", type=float, help=f"for all kinds that run (default: {SECONDS} for all there are)")
    parser.add_argument("--seed", type=int, default=0, help="the same faults in the same order (default: 0)")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    datasets.disable_progress_bars()
    transformers.utils.logging.disable_progress_bar()
    diffusers.utils.logging.disable_progress_bar()
    share = sum(KINDS[kind] for kind in options.only)
    seconds = SECONDS * share if options.seconds is None else options.seconds
    tallies = []
    with tempfile.TemporaryDirectory(prefix="torture-") as folder:
        for kind in options.only:
            (path := Path(folder) / kind).mkdir()
            tallies.append(one_kind(kind, Campaign(path, options.seed, seconds * KINDS[kind] / share)))
            print(
                f"{kind}: {tallies[-1].tried} tried, {len(tallies[-1].failures)} failed", file=sys.stderr, flush=True
            )
    print(report(tallies))
    return 1 if any(tally.failures for tally in tallies) else 0


def one_kind(kind: str, campaign: Campaign) -> Tally:
    started = time.monotonic()
    try:
        tally = importlib.import_module(f".{kind}", __package__).run(campaign)
    except Exception:
        # The other kinds have their turn, and the table is printed.
        tally = Tally(kind)
        tally.fail("obscure", "the campaign itself", traceback.format_exc())
    tally.seconds = time.monotonic() - started
    return tally


if __name__ == "__main__":
    sys.exit(main())
