"""Timing on a noisy machine: contestants take turns, and medians of CPU time and their ratios are reported."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
from torch.utils.flop_counter import FlopCounterMode


def interleaved(
    contestants: dict[str, Callable[[], object]], repeats: int, warm_up: bool = True
) -> dict[str, list[float]]:
    """CPU seconds of every contestant, `repeats` times in turn, after one call each to warm up."""
    if warm_up:
        for run in contestants.values():
            run()
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(repeats):
        for name, run in contestants.items():
            start = time.process_time()
            run()
            seconds[name].append(time.process_time() - start)
    return seconds


def medians(seconds: dict[str, list[float]]) -> dict[str, float]:
    return {name: statistics.median(values) for name, values in seconds.items()}


def ratios(seconds: dict[str, list[float]], baseline: str) -> dict[str, float]:
    """Median of each contestant over the median of the baseline."""
    middle = medians(seconds)
    return {name: value / middle[baseline] for name, value in middle.items()}


def matrix_operations(run: Callable[[], object]) -> int:
    """Floating-point operations of all matrix products in `run`."""
    with FlopCounterMode(display=False) as counter:
        run()
    return counter.get_total_flops()


def measured_peak(repeats: int, size: int = 2048) -> float:
    """Floating-point operations per CPU second in large square matrix products: the best of `repeats`."""
    a, b = torch.randn(2, size, size)
    seconds = interleaved({"product": lambda: a @ b}, repeats)["product"]
    return 2 * size**3 / min(seconds)
