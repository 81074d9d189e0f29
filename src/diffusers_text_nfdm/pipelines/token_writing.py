"""Texts from schedulers that write tokens themselves: which of them writes what, and how."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import TYPE_CHECKING

from torch import Tensor

from ..models import TextDiffusionModel
from ..models.token_choice import log_frequencies
from ..schedulers import (
    DraftVerifyScheduler,
    JumpScheduler,
    RefinementScheduler,
    TextDiffusionScheduler,
    TokenScheduler,
)
from .checks import draws_tokens
from .draft_verify import write_verified
from .jumps import token_noise, write_jumps
from .refinement import write_refined


if TYPE_CHECKING:
    from .batches import TextBatch

# Of a gap that is filled in place of a scheduler that cannot.
CANDIDATES = 8


def needs_filling(scheduler: TextDiffusionScheduler | TokenScheduler, known: Tensor | None) -> bool:
    """Whether a scheduler that writes from left to right is asked for texts of which more is known than their
    beginnings.
    """
    if not isinstance(scheduler, (DraftVerifyScheduler, JumpScheduler)):
        return False
    if not isinstance(known, Tensor) or known.ndim != 2:
        return False
    return not bool(begins(known).all())


def begins(known: Tensor) -> Tensor:
    """Whether the known tokens of each text are its beginning, `(texts,)`."""
    return known[:, 0] & (known[:, :-1] >= known[:, 1:]).all(-1)


def filling_scheduler(scheduler: TokenScheduler) -> RefinementScheduler:
    """What fills gaps in its place, by the same knobs: of several candidates one that the clean stream finds
    probable.
    """
    return RefinementScheduler(**{name: scheduler.config[name] for name in scheduler.knobs}, candidates=CANDIDATES)


def with_choice(
    scheduler: TextDiffusionScheduler | TokenScheduler, choice: dict, model: TextDiffusionModel
) -> TextDiffusionScheduler | TokenScheduler:
    """A copy of a scheduler that draws tokens of a model, if it does so itself, by the given knobs."""
    scheduler = copy(scheduler)
    if draws_tokens(scheduler):
        for name in choice:
            if name not in scheduler.knobs:
                raise ValueError(f"`{name}` has no meaning for {type(scheduler).__name__}; leave it out.")
        scheduler.register_to_config(**choice)
        scheduler.log_frequencies = log_frequencies(model)
    return scheduler


def write_tokens(
    model: TextDiffusionModel,
    scheduler: TokenScheduler,
    batch: TextBatch,
    num_calls: int | None,
    on_call: Callable[[Tensor, Tensor], None],
) -> tuple[Tensor, Tensor]:
    """Token ids `(batch, max_length)`, and how many calls of the predictor each text took."""
    limits = {"excluded": batch.excluded, "on_call": on_call}
    if isinstance(scheduler, RefinementScheduler):
        return write_refined(
            model, scheduler, batch.generators, batch.context, num_calls, batch.given, batch.known, **limits
        )
    num_given = None if batch.known is None else batch.known.sum(-1)
    if isinstance(scheduler, JumpScheduler):
        return write_jumps(model, scheduler, token_noise(batch.z), num_calls, batch.given, num_given, **limits)
    return write_verified(
        model, scheduler, batch.generators, batch.context, num_calls, batch.given, num_given, **limits
    )
