"""Texts in the making, how they are to be made, and what a pipeline returns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from diffusers.utils import BaseOutput
from torch import Tensor
from tqdm import tqdm

from ..clocks import Clock
from ..models import TextDiffusionModel
from ..networks.two_stream_predictor import CleanTokens
from ..schedulers import TextDiffusionScheduler, TokenScheduler


if TYPE_CHECKING:
    from .guidance import GuidedModel


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
        calls: predictor calls that each sample took, `(num_samples,)`. With a `confidence_threshold`, those until it
            was decided.
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
    """How texts are to be made, with a scheduler of the call's own."""

    model: TextDiffusionModel | GuidedModel
    scheduler: TextDiffusionScheduler | TokenScheduler
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
        excluded: tokens that each text must not have, `(batch, vocab)`, `None` for none.
        written: tokens that are chosen: those before the windows, in the end all.
        uniforms: random numbers by which they are chosen, one for each; `None` for the most probable tokens.
        clean: what the predictor keeps of them.
        shown: what self-conditioning shows the next call of the one before.
    """

    generators: list[torch.Generator]
    z: Tensor
    context: Tensor | None
    given: Tensor | None
    known: Tensor | None
    excluded: Tensor | None
    written: Tensor
    uniforms: Tensor | None = None
    clean: CleanTokens | None = None
    shown: Tensor | None = None
    trajectory: list[Tensor] = field(default_factory=list)
    times: list[Tensor] = field(default_factory=list)
    calls: int | Tensor = 0

    def known_tokens(self, tokens: Tensor) -> Tensor:
        """Which of the tokens `(batch, seq)` were given."""
        return torch.zeros_like(tokens, dtype=torch.bool) if self.known is None else self.known.clone()


def read_before(
    model: TextDiffusionModel | GuidedModel, kept: CleanTokens | None, written: Tensor, unfinished: Tensor
) -> tuple[CleanTokens | None, CleanTokens | None]:
    """What noisy tokens see of the tokens before their windows: what is `kept` for the next call, and all.

    Args:
        kept: what the call before kept.
        written: the tokens, from the first on, that are finished in all texts; they are kept.
        unfinished: those behind them that some texts see, not finished in others; they are read anew in every call.
    """
    start = 0 if kept is None else len(kept)
    if start < written.shape[1]:
        new = written[:, start:]
        if start and not unfinished.shape[1]:
            kept = model.read_later(new, kept)
        else:
            _, kept = model.read_clean(new, kept)
    return kept, model.read_clean(unfinished, kept)[1] if unfinished.shape[1] else kept


def join_outputs(parts: dict[Tensor, NFDMTextPipelineOutput]) -> NFDMTextPipelineOutput:
    """One output of several, whose keys are the texts that each has."""
    order = torch.cat(list(parts)).argsort()
    outputs = list(parts.values())
    trajectory, times = None, None
    if outputs[0].trajectory is not None:
        trajectory, times = _side_by_side([(list(one.trajectory), list(one.trajectory_times)) for one in outputs])
        trajectory, times = trajectory[:, order], times[:, order]
    texts = None if outputs[0].texts is None else [text for one in outputs for text in one.texts]
    calls = torch.cat([one.calls for one in outputs])[order]
    return NFDMTextPipelineOutput(
        texts=None if texts is None else [texts[i] for i in order],
        sequences=torch.cat([one.sequences for one in outputs])[order],
        trajectory=trajectory,
        trajectory_times=times,
        num_function_evaluations=int(calls.max()),
        calls=calls,
    )


def join_trajectories(batches: list[TextBatch]) -> tuple[Tensor, Tensor]:
    """Tokens and times of all calls, `(calls, samples, ...)`."""
    return _side_by_side([(batch.trajectory, batch.times) for batch in batches])


def _side_by_side(parts: list[tuple[list[Tensor], list[Tensor]]]) -> tuple[Tensor, Tensor]:
    """Stack calls and join samples; those that finished early stay at their last tokens."""
    longest = max(len(tokens) for tokens, _ in parts)

    def join(lists: list[list[Tensor]]) -> Tensor:
        return torch.cat([torch.stack(one + one[-1:] * (longest - len(one))) for one in lists], dim=1)

    tokens, times = zip(*parts)
    return join(list(tokens)), join(list(times))
