"""Peak memory of a training step, ours and the plain one's, against batch, length and vocabulary."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from plain_nfdm import plain_loss
from profiling import recorded
from sizes import make_model


AXES = {"batch": [4, 8, 16, 32], "length": [64, 256, 512, 1024, 2048], "vocabulary": [10_767, 43_068]}
QUICK_AXES = {"batch": [1, 2], "length": [8, 16], "vocabulary": [50, 100]}
# Of the axes that are not varied.
BATCH_SIZES = {"length": 2, "vocabulary": 8}
# The plain step is not measured beyond: attention held whole would need more than 5 GB at twice this length.
LONGEST_PLAIN = 1024


def measure(size: str, axes: dict[str, list[int]]) -> dict[str, list[dict[str, float]]]:
    """For each axis and value the peak in megabytes, weights and their gradients left out."""
    results = {}
    for axis, values in axes.items():
        results[axis] = [{"value": value, **_peaks(size, axis, value)} for value in values]
    return results


def _peaks(size: str, axis: str, value: int) -> dict[str, float]:
    options = {"length": {"max_length": value}, "vocabulary": {"vocab_size": value}}.get(axis, {})
    batch_size = BATCH_SIZES.get(axis, value)
    peaks = {}
    for name, attention in (("plain", "eager"), ("ours", "sdpa")):
        if name == "plain" and axis == "length" and value > LONGEST_PLAIN:
            continue
        model = make_model(size, attention, **options)
        input_ids = torch.randint(model.config.vocab_size, (batch_size, model.config.max_length))
        draws = model.draw(batch_size)

        def step(model=model, name=name, input_ids=input_ids, draws=draws) -> None:
            loss = plain_loss(model, input_ids, draws) if name == "plain" else model(input_ids, draws=draws).loss
            loss.backward()

        step()  # From now on the gradients are there.
        peaks[name] = peak_bytes(step) / 1e6
    peaks["embeddings"] = model.embeddings.weight.nbytes / 1e6
    return peaks


def growth(points: list[dict[str, float]]) -> float:
    """Slope of log memory against log value, ours, between the first and the last point: 1 is linear, 2 quadratic."""
    first, last = points[0], points[-1]
    return math.log(last["ours"] / first["ours"]) / math.log(last["value"] / first["value"])


def peak_bytes(run: Callable[[], object]) -> int:
    """The most that PyTorch held at once beyond what it held before, from its own record of allocations."""
    with recorded(profile_memory=True) as record:
        run()
    held = peak = 0
    events = [event for event in record.profiler.kineto_results.events() if event.name() == "[memory]"]
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return peak
