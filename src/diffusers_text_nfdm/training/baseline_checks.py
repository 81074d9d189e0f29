"""Settings that have no meaning for a baseline."""

from __future__ import annotations

from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from .arguments import TrainingArguments


OF_DIFFUSION = ("known_texts", "jump_clocks", "lattice_clocks", "forward_learning_rate", "context_warmup_steps")
# What must be left out, by model type.
UNUSED = {
    "autoregressive": (
        "cross_entropy_steps",
        "clocks",
        "next_token_weight",
        "next_token_steps",
        "growth_steps",
        "scheduler_config",
        *OF_DIFFUSION,
    ),
    "masked": OF_DIFFUSION,
}


def check_baseline(arguments: TrainingArguments) -> None:
    """Raise a ValueError for settings that the baseline, if the model is one, has no use for."""
    for name in UNUSED.get(arguments.model_type, ()):
        value = getattr(arguments, name)
        if value:
            raise ValueError(
                f"`{name}` is {value!r}, but it is for diffusion models; with `model_type` {arguments.model_type!r} "
                "leave it out."
            )
