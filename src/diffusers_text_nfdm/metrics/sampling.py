"""A way of sampling by name: `star:64`, `chain:64:noise_fraction=0.5`, `sde:256`, `ode:32:method=heun`,
`ancestral`.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field

from ..schedulers import MarkovChainScheduler, ReverseODEScheduler, ReverseSDEScheduler, TextDiffusionScheduler


ANCESTRAL = "ancestral"
SCHEDULERS = {
    scheduler.__name__: scheduler for scheduler in (MarkovChainScheduler, ReverseSDEScheduler, ReverseODEScheduler)
}
METHODS = {
    "star": MarkovChainScheduler,
    "chain": MarkovChainScheduler,
    "sde": ReverseSDEScheduler,
    "ode": ReverseODEScheduler,
}
FORM = "method:steps or method:steps:option=value, with a method of star, chain, sde and ode; or ancestral"


@dataclass(frozen=True)
class Sampling:
    """A scheduler with its settings and a number of steps.

    Args:
        name: what the sampling is called beside its scores.
        scheduler: class of the scheduler; None for ancestral sampling from an autoregressive model.
        config: its settings; what is not named has the default of the class.
        num_inference_steps: number of steps; None for ancestral sampling.
    """

    name: str
    scheduler: str | None
    config: Mapping[str, float | str] = field(default_factory=dict)
    num_inference_steps: int | None = None

    def __post_init__(self):
        if (self.scheduler is None) != (self.num_inference_steps is None):
            raise ValueError(
                f"The sampling {self.name!r} needs both `scheduler` and `num_inference_steps`, or neither."
            )
        if self.scheduler is None:
            return
        if self.scheduler not in SCHEDULERS:
            raise ValueError(f"`scheduler` is {self.scheduler!r}; it must be one of {', '.join(SCHEDULERS)}.")
        steps = self.num_inference_steps
        if not isinstance(steps, int) or isinstance(steps, bool) or steps < 1:
            raise ValueError(f"`num_inference_steps` is {steps!r}; it must be an integer of at least 1.")
        allowed = [
            name for name in inspect.signature(SCHEDULERS[self.scheduler].__init__).parameters if name != "self"
        ]
        for option in self.config:
            if option not in allowed:
                raise ValueError(
                    f"The sampling {self.name!r} has the option {option!r}; {self.scheduler} has {', '.join(allowed)}."
                )
        self.build()

    @classmethod
    def parse(cls, text: str) -> Sampling:
        """From its name."""
        method, *parts = text.split(":")
        if method == ANCESTRAL and not parts:
            return cls(ANCESTRAL, None)
        if method not in METHODS or not parts or not parts[0].isdigit():
            raise ValueError(f"The sampling is {text!r}; it must be of the form {FORM}.")
        config = {}
        for part in parts[1:]:
            option, sign, value = part.partition("=")
            if not (option and sign and value):
                raise ValueError(f"The sampling {text!r} has {part!r}, which is not of the form option=value.")
            config[option] = _value(value)
        if method == "star":
            if "noise_fraction" in config:
                raise ValueError(
                    f"The sampling is {text!r}, but star is the chain with noise_fraction=1: write chain."
                )
            config["noise_fraction"] = 1.0
        elif method == "chain" and "noise_fraction" not in config:
            raise ValueError(
                f"The sampling is {text!r}, but a chain needs its noise_fraction: chain:{parts[0]}:noise_fraction=0.5."
            )
        return cls(text, METHODS[method].__name__, config, int(parts[0]))

    def build(self) -> TextDiffusionScheduler:
        """A scheduler with these settings."""
        return SCHEDULERS[self.scheduler](**self.config)

    def to_dict(self) -> dict:
        return {
            "name": self.name,
            "scheduler": self.scheduler,
            "config": dict(self.config),
            "num_inference_steps": self.num_inference_steps,
        }


def _value(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text
