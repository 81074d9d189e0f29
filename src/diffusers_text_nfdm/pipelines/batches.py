"""Texts in the making, how they are to be made, and what a pipeline returns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from diffusers.utils import BaseOutput
from torch import Tensor
from tqdm import tqdm

from ..clocks import Clock
from ..networks.two_stream_predictor import CleanTokens


@dataclass
class NFDMTextPipelineOutput(BaseOutput):
    """
    Args:
        texts: the generated texts (`output_type="text"`).
        sequences: token ids `(num_samples, max_length)` (`"text"` and `"seq"`).
        latents: z_0 `(num_samples, max_length, dim)` (`"latent"`).
        trajectory: best tokens of every Ê, `(predictions, num_samples, max_length)`, when asked for.
        trajectory_times: their global times u, `(predictions, num_samples)`; of schedulers that write tokens, the
            share of the text that is to be written.
        num_function_evaluations: the most predictor calls that a sample took.
        calls: predictor calls that each sample took, `(num_samples,)`: two for each time with self-conditioning. With
            a `confidence_threshold`, those until it was decided.
    """

    texts: list[str] | None = None
    sequences: Tensor | None = None
    latents: Tensor | None = None
    trajectory: Tensor | None = None
    trajectory_times: Tensor | None = None
    num_function_evaluations: int = 0
    calls: Tensor | None = None


@dataclass
class Options:
    """How texts are to be made."""

    num_steps: int | None
    timesteps: Sequence[float] | None
    clock: Clock
    choice: dict
    clamp_predictions: bool
    confidence_threshold: float | None
    keep_trajectory: bool
    callback: Callable | None
    callback_inputs: Sequence[str]
    bar: tqdm


@dataclass
class TextBatch:
    """Texts in the making.

    Args:
        generators: one per text.
        z: latents.
        context: MuLAN's c.
        given: token ids of which some are known.
        known: which they are, `None` for none.
        written: tokens that are chosen: those before the windows, in the end all.
        uniforms: random numbers by which they are chosen, one for each; `None` for the most probable tokens.
        clean: what the predictor keeps of them.
    """

    generators: list[torch.Generator]
    z: Tensor
    context: Tensor | None
    given: Tensor | None
    known: Tensor | None
    written: Tensor
    uniforms: Tensor | None = None
    clean: CleanTokens | None = None
    trajectory: list[Tensor] = field(default_factory=list)
    times: list[Tensor] = field(default_factory=list)
    calls: int | Tensor = 0


def join_trajectories(batches: list[TextBatch]) -> tuple[Tensor, Tensor]:
    """Stack calls and join samples; a batch that ended early stays at its last tokens."""
    longest = max(len(batch.trajectory) for batch in batches)
    tokens, times = [], []
    for batch in batches:
        missing = longest - len(batch.trajectory)
        tokens.append(torch.stack(batch.trajectory + batch.trajectory[-1:] * missing))
        times.append(torch.stack(batch.times + batch.times[-1:] * missing))
    return torch.cat(tokens, dim=1), torch.cat(times, dim=1)
