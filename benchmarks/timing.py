"""Timing on a noisy machine: contestants take turns, and medians of CPU time and their ratios are reported."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable

import torch
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count


def _added_product(added: tuple, a: tuple, b: tuple, **_) -> int:
    return 2 * math.prod(a) * b[-1]


def _attention(query: tuple, key: tuple, value: tuple, *_, **__) -> int:
    return sdpa_flop_count(query, key, value)


def _attention_backward(gradient: tuple, query: tuple, key: tuple, value: tuple, *_, **__) -> int:
    return sdpa_backward_flop_count(gradient, query, key, value)


aten = torch.ops.aten
# Operations of the matrix products that PyTorch's counter misses, from the shapes of their arguments: those in place,
# and the fused attention of CPUs. Its backward pass computes the scores again, which counts.
FURTHER_PRODUCTS = {
    aten.addmm_: _added_product,
    aten.baddbmm_: _added_product,
    aten._scaled_dot_product_flash_attention_for_cpu: _attention,
    aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward,
}


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
    with FlopCounterMode(display=False, custom_mapping=FURTHER_PRODUCTS) as counter:
        run()
    return counter.get_total_flops()


def measured_peak(repeats: int, size: int = 2048) -> float:
    """Floating-point operations per CPU second in large square matrix products: the best of `repeats`."""
    a, b = torch.randn(2, size, size)
    seconds = interleaved({"product": lambda: a @ b}, repeats)["product"]
    return 2 * size**3 / min(seconds)
