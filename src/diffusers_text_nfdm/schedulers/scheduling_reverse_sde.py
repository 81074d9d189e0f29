"""Euler-Maruyama on the reverse SDE."""

from __future__ import annotations

import math

import torch
from diffusers import SchedulerMixin  # noqa: F401  (diffusers' loader looks for this name here)
from diffusers.configuration_utils import register_to_config
from torch import Tensor

from ..checks import is_number
from ..forward_processes import ForwardProcess
from ..models.prediction import Prediction
from ..networks.dual import Dual
from .base import Generators, TextDiffusionScheduler, TextDiffusionSchedulerOutput


class ReverseSDEScheduler(TextDiffusionScheduler):
    """`z_{t-h} = z_t - f_B(z_t) h + g sqrt(h) w`, `f_B = f - (g²/2) s`, with Ê in place of E in drift and score.

    Any g keeps the marginals of the exact process, so it may be scaled, and it is limited to `g² <= std²/h`: above
    that the step throws z beyond its target and Euler-Maruyama is unstable. The limit falls away as h -> 0.

    Args:
        volatility_scale: factor on g. 0 gives the ODE (Euler).
        start_time: time of a token that has not started. At t = 1 itself the drift of a schedule with `α ~ sqrt(1-t)`
            is infinite.
        time_grid: `"uniform"` or `"learned"`.
    """

    # Euler-Maruyama is right for small steps only.
    default_steps = 512

    @register_to_config
    def __init__(self, volatility_scale: float = 1.0, start_time: float = 0.999, time_grid: str = "uniform"):
        self._check_config()
        if isinstance(volatility_scale, bool) or not is_number(volatility_scale) or not volatility_scale >= 0:
            raise ValueError(f"`volatility_scale` is {volatility_scale!r}; it must be a number of at least 0.")

    def step(
        self,
        model_output: Tensor | Prediction,
        timestep: Tensor | float,
        sample: Tensor,
        *,
        forward_process: ForwardProcess,
        context: Tensor | None = None,
        generator: Generators = None,
        return_dict: bool = True,
    ) -> TextDiffusionSchedulerOutput | tuple[Tensor]:
        """From `z_t` and `Ê = model_output` to `z_{t-h}`; a token that ends at 0 gets no noise.

        `volatility_scale=0` is an Euler step of the ODE.
        """
        u, next_u = self._interval(timestep)
        h = u - next_u
        t, s = self.token_times(u, sample).value, self.token_times(next_u, sample).value
        # The mean rate of the step, with which every token arrives where its clock says.
        times = Dual(t, (t - s) / h)
        path = forward_process.path(times, context, self._mixing)(self._mean(model_output))
        if self.config.volatility_scale == 0:
            return self._output(sample - h * path.ode_drift(sample), sample, t, s, return_dict)
        squared_volatility = forward_process.squared_volatility(times, context) * self.config.volatility_scale**2
        squared_volatility = torch.minimum(squared_volatility, path.std.square() / h)
        moved = sample - h * path.reverse_drift(sample, squared_volatility)
        if next_u > 0:
            noise = (squared_volatility.sqrt() * math.sqrt(h)) * self._noise(sample, generator)
            moved = moved + torch.where((s > 0)[..., None], noise, 0)
        return self._output(moved, sample, t, s, return_dict)
