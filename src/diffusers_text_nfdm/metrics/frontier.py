"""One way of sampling: how many calls it takes, what its texts are worth, and how long it takes."""

from __future__ import annotations

import time

import torch
from torch import Tensor

from .sampling import Sampling
from .story_language import story_language


def measure_sampling(
    pipeline,
    sampling: Sampling,
    num_samples: int,
    batch_size: int = 64,
    seed: int = 0,
    stories: bool = True,
    **given: Tensor,
) -> dict:
    """Samples of a pipeline, which keeps the scheduler of the sampling; `given` are tokens that it gets.

    Returns the mean and the largest number of calls, the share of distinct texts, the seconds of a text in these
    batches, two texts, and for the embedded stories `validity`, `coverage` with `tested_choices`, and the
    `log_probability` of the valid ones (`story_language`).
    """
    options = sampling.prepare(pipeline)
    generator, started = torch.Generator().manual_seed(seed), time.perf_counter()
    output = pipeline(num_samples=num_samples, **options, **given, batch_size=batch_size, generator=generator)
    seconds = time.perf_counter() - started
    row = {
        "sampling": sampling.name,
        "calls": output.calls.double().mean().item(),
        "most_calls": int(output.calls.max()),
        "distinct": len(set(output.texts)) / len(output.texts),
        "seconds_per_text": seconds / num_samples,
        "texts": output.texts[:2],
    }
    if stories:
        scores = story_language(output.texts)
        names = ("validity", "coverage", "tested_choices", "log_probability")
        row |= {name: scores[name] for name in names}
    return row
