"""Euler-Maruyama on the reverse SDE."""

from __future__ import annotations

import math

import torch
from diffusers import SchedulerMixin  # noqa: F401  (diffusers' loader looks for this name here)
from diffusers.configuration_utils import register_to_config
from torch import Tensor

from ..forward_processes import ForwardProcess
from .base import Generators, TextDiffusionScheduler, TextDiffusionSchedulerOutput


class ReverseSDEScheduler(TextDiffusionScheduler):
    """`z_{t-h} = z_t - f_B(z_t) h + g sqrt(h) w`, `f_B = f - (g²/2) s`, with Ê in place of E in drift and score.

    Any g keeps the marginals of the exact process, so it may be scaled, and it is limited to `g² <= std²/h`: above that the step throws
    z beyond its target and Euler-Maruyama is unstable. The limit falls away as h -> 0.

    Args:
        volatility_scale: factor on g. 0 gives the ODE (Euler).
        start_time: first time. At t = 1 itself the drift of a schedule with `α ~ sqrt(1-t)` is infinite.
        time_grid: `"uniform"` or `"learned"`.
    """

    @register_to_config
    def __init__(self, volatility_scale: float = 1.0, start_time: float = 0.999, time_grid: str = "uniform"):
        self._check_config()
        if (
            isinstance(volatility_scale, bool)
            or not isinstance(volatility_scale, (int, float))
            or not volatility_scale >= 0
        ):
            raise ValueError(f"`volatility_scale` is {volatility_scale!r}; it must be a number of at least 0.")

    def step(
        self,
        model_output: Tensor,
        timestep: Tensor | float,
        sample: Tensor,
        *,
        forward_process: ForwardProcess,
        context: Tensor | None = None,
        generator: Generators = None,
        return_dict: bool = True,
    ) -> TextDiffusionSchedulerOutput | tuple[Tensor]:
        """From `z_t` and `Ê = model_output` to `z_{t-h}`; the last step adds no noise. `volatility_scale=0` is an Euler step of the ODE."""
        time, next_time = self._interval(timestep)
        h = time - next_time
        t = self._times(time, sample)
        path = forward_process.moving_marginal(model_output, t, context)
        if self.config.volatility_scale == 0:
            return self._output(sample - h * path.ode_drift(sample), return_dict)
        squared_volatility = forward_process.squared_volatility(t, context) * self.config.volatility_scale**2
        squared_volatility = torch.minimum(squared_volatility, path.std.square() / h)
        sample = sample - h * path.reverse_drift(sample, squared_volatility)
        if next_time > 0:
            sample = sample + (squared_volatility.sqrt() * math.sqrt(h)) * self._noise(sample, generator)
        return self._output(sample, return_dict)
