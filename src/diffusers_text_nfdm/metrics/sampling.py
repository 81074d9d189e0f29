"""A way of sampling by name: `star:64`, `chain:64:noise_fraction=0.5`, `sde:256`, `ode:32:method=heun`, `draft:64`,
`refine:64:entropy_budget=0.1`, `jump:8:jump_length=16`, `ancestral:min_p=0.02`, `masked:64:remasking=random`.

An option `clock` is the clock that the texts follow: `star:64:clock=blocks:8:min_p=0.02`, and `confidence_threshold`
ends texts that are decided: `star:64:clock=shared:confidence_threshold=0.9`.
Options of `ancestral` and `masked` are those of a call of their pipeline:
`masked:64:remasking=confidence:block_size=8`.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field

from .. import schedulers
from ..checks import is_number
from ..models.token_choice import CHOICE
from ..pipelines.checks import draws_tokens
from ..schedulers import (
    DraftVerifyScheduler,
    JumpScheduler,
    MarkovChainScheduler,
    RefinementScheduler,
    ReverseODEScheduler,
    ReverseSDEScheduler,
    TextDiffusionScheduler,
    TokenScheduler,
)


ANCESTRAL, MASKED, DIFFUSION = "ancestral", "masked", "diffusion"
ANCESTRAL_OPTIONS = CHOICE
MASKED_OPTIONS = ("remasking", "block_size", *CHOICE)
SCHEDULERS = {scheduler.__name__: scheduler for scheduler in schedulers.SCHEDULERS}
METHODS = {
    "star": MarkovChainScheduler,
    "chain": MarkovChainScheduler,
    "sde": ReverseSDEScheduler,
    "ode": ReverseODEScheduler,
    "refine": RefinementScheduler,
    "jump": JumpScheduler,
    "draft": DraftVerifyScheduler,
}
FORM = (
    "method:steps or method:steps:option=value, with a method of star, chain, sde, ode, refine, jump, draft and "
    "masked; or ancestral or ancestral:option=value"
)


@dataclass(frozen=True)
class Sampling:
    """A scheduler with its settings and a number of steps.

    Args:
        name: what the sampling is called beside its scores.
        scheduler: class of the scheduler; `"masked"` for masked diffusion, None for ancestral sampling from an
            autoregressive model.
        config: its settings; what is not named has the default of the class. Of the baselines, what their pipeline is
            called with.
        num_inference_steps: number of steps, of a scheduler that writes tokens the most calls; None for ancestral
            sampling.
        clock: the clock that the texts follow; None for the model's own. Of masked diffusion, its blocks.
        confidence_threshold: of a call of the pipeline; None for the whole way.
    """

    name: str
    scheduler: str | None
    config: Mapping[str, float | str] = field(default_factory=dict)
    num_inference_steps: int | None = None
    clock: str | None = None
    confidence_threshold: float | None = None

    def __post_init__(self):
        for name, kind in (("name", str), ("scheduler", str | None), ("clock", str | None), ("config", Mapping)):
            if not isinstance(getattr(self, name), kind):
                raise ValueError(f"`{name}` of a sampling is {getattr(self, name)!r}, which is of a wrong kind.")
        threshold = self.confidence_threshold
        if threshold is not None and (not is_number(threshold) or not 0 <= threshold < 1):
            raise ValueError(f"`confidence_threshold` is {threshold!r}; it must be a number in [0, 1).")
        if (self.scheduler is None) != (self.num_inference_steps is None):
            raise ValueError(
                f"The sampling {self.name!r} needs both `scheduler` and `num_inference_steps`, or neither."
            )
        if self.scheduler not in (*SCHEDULERS, MASKED, None):
            raise ValueError(
                f"`scheduler` is {self.scheduler!r}; it must be one of {', '.join(SCHEDULERS)}, or {MASKED!r}."
            )
        steps = self.num_inference_steps
        if self.scheduler is not None and (not isinstance(steps, int) or isinstance(steps, bool) or steps < 1):
            raise ValueError(f"`num_inference_steps` is {steps!r}; it must be an integer of at least 1.")
        allowed = ANCESTRAL_OPTIONS if self.kind == ANCESTRAL else MASKED_OPTIONS
        if self.kind == DIFFUSION:
            parameters = inspect.signature(SCHEDULERS[self.scheduler].__init__).parameters
            allowed = [name for name in parameters if name != "self"]
        for option in self.config:
            if option not in allowed:
                raise ValueError(
                    f"The `config` of the sampling {self.name!r} has the option {option!r}; "
                    f"{self.scheduler or ANCESTRAL} has {', '.join(allowed)}."
                )
        if self.kind == DIFFUSION:
            self._check_choice(self.build())

    def _check_choice(self, scheduler: TextDiffusionScheduler | TokenScheduler) -> None:
        for option in CHOICE:
            if option in self.config and not draws_tokens(scheduler):
                raise ValueError(
                    f"The sampling {self.name!r} has `{option}`, but its chain follows a mean; only with "
                    "`prediction=tokens` or a `finish_time` are tokens drawn."
                )

    @property
    def kind(self) -> str:
        """The models that it is for: `"diffusion"`, `"masked"`, or `"ancestral"` for autoregressive ones."""
        return {None: ANCESTRAL, MASKED: MASKED}.get(self.scheduler, DIFFUSION)

    @classmethod
    def parse(cls, text: str) -> Sampling:
        """From its name."""
        method, *parts = text.split(":")
        steps = None
        if method != ANCESTRAL:
            if method not in (*METHODS, MASKED) or not parts or not parts[0].isdigit():
                raise ValueError(f"The sampling is {text!r}; it must be of the form {FORM}.")
            steps = int(parts.pop(0))
        options, option = {}, None
        for part in parts:
            name, sign, value = part.partition("=")
            if option == "clock" and part and not sign:
                # A clock has colons of its own.
                options["clock"] += f":{part}"
                continue
            if not (name and sign and value):
                raise ValueError(f"The sampling {text!r} has {part!r}, which is not of the form option=value.")
            option, options[name] = name, value
        clock = options.pop("clock", None)
        config = {name: _value(value) for name, value in options.items()}
        if method == ANCESTRAL:
            if clock is not None:
                raise ValueError(f"The sampling {text!r} has a clock; an autoregressive model has none.")
            return cls(text, None, config)
        if method == MASKED:
            if clock is not None:
                raise ValueError(f"The sampling {text!r} has a clock; masked diffusion has a block_size instead.")
            clock = f"blocks:{config['block_size']}" if "block_size" in config else None
            return cls(text, MASKED, config, steps, clock)
        if method == "star":
            if "noise_fraction" in config:
                raise ValueError(
                    f"The sampling is {text!r}, but star is the chain with noise_fraction=1: write chain."
                )
            config["noise_fraction"] = 1.0
        elif method == "chain" and "noise_fraction" not in config:
            raise ValueError(
                f"The sampling is {text!r}, but a chain needs its noise_fraction: chain:{steps}:noise_fraction=0.5."
            )
        threshold = config.pop("confidence_threshold", None)
        return cls(text, METHODS[method].__name__, config, steps, clock, threshold)

    def build(self) -> TextDiffusionScheduler | TokenScheduler:
        """A scheduler with these settings."""
        return SCHEDULERS[self.scheduler](**self.config)

    def prepare(self, pipeline) -> dict:
        """Give the pipeline its scheduler, where it has one; returns what else it is to be called with."""
        if self.kind == ANCESTRAL:
            return dict(self.config)
        if self.kind == MASKED:
            return {"num_inference_steps": self.num_inference_steps, **self.config}
        pipeline.scheduler = self.build()
        options = {"num_inference_steps": self.num_inference_steps, "clock": self.clock}
        return options | self._threshold()

    def _threshold(self) -> dict:
        """Left out where there is none, so that records without it stay as they are."""
        return {} if self.confidence_threshold is None else {"confidence_threshold": self.confidence_threshold}

    def to_dict(self) -> dict:
        return {
            "name": self.name,
            "scheduler": self.scheduler,
            "config": dict(self.config),
            "num_inference_steps": self.num_inference_steps,
            "clock": self.clock,
            **self._threshold(),
        }


def _value(text: str) -> float | int | str:
    try:
        return int(text) if text.isdigit() else float(text)
    except ValueError:
        return text
