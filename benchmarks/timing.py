"""Timing on a noisy machine: contestants take turns, and ratios of medians are reported."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable


def interleaved(contestants: dict[str, Callable[[], object]], repeats: int) -> dict[str, list[float]]:
    """CPU seconds of every contestant, `repeats` times in turn, after one call each to warm up."""
    for run in contestants.values():
        run()
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(repeats):
        for name, run in contestants.items():
            start = time.process_time()
            run()
            seconds[name].append(time.process_time() - start)
    return seconds


def ratios(seconds: dict[str, list[float]], baseline: str) -> dict[str, float]:
    """Median of each contestant over the median of the baseline."""
    reference = statistics.median(seconds[baseline])
    return {name: statistics.median(values) / reference for name, values in seconds.items()}
