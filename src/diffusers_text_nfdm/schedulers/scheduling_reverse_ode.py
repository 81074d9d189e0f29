"""The reverse ODE by explicit Runge-Kutta methods: Euler, Heun, and an adaptive embedded pair."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from diffusers import SchedulerMixin  # noqa: F401  (diffusers' loader looks for this name here)
from diffusers.configuration_utils import register_to_config
from torch import Tensor

from ..checks import is_number
from ..clocks import BatchClock
from ..forward_processes import ForwardProcess
from ..models.prediction import Prediction
from ..networks.dual import Dual
from .base import Generators, TextDiffusionScheduler, TextDiffusionSchedulerOutput


@dataclass(frozen=True)
class Tableau:
    """An explicit Runge-Kutta method: stage `i` is taken at `t - c_i h` from `z - h Σ_j a_ij k_j`; the step is
    `z - h Σ_j b_j k_j`.

    `error` are the weights of the embedded error estimate. With it the last stage is taken at the end of the step and
    is the first of the next one.
    """

    order: int
    a: tuple[tuple[float, ...], ...]
    b: tuple[float, ...]
    c: tuple[float, ...]
    error: tuple[float, ...] | None = None


TABLEAUS = {
    "euler": Tableau(1, a=((),), b=(1.0,), c=(0.0,)),
    "heun": Tableau(2, a=((), (1.0,)), b=(0.5, 0.5), c=(0.0, 1.0)),
    # Bogacki and Shampine, A 3(2) pair of Runge-Kutta formulas (1989).
    "adaptive": Tableau(
        3,
        a=((), (1 / 2,), (0.0, 3 / 4), (2 / 9, 1 / 3, 4 / 9)),
        b=(2 / 9, 1 / 3, 4 / 9, 0.0),
        c=(0.0, 1 / 2, 3 / 4, 1.0),
        error=(2 / 9 - 7 / 24, 1 / 3 - 1 / 4, 4 / 9 - 1 / 3, -1 / 8),
    ),
}


@dataclass
class _AdaptiveState:
    """Every sample has its own time and step size, so that it does not depend on the batch it is in."""

    u: Tensor
    h: Tensor
    origin: Tensor
    slopes: list[Tensor] = field(default_factory=list)


class ReverseODEScheduler(TextDiffusionScheduler):
    """`dz/du = f(z) = d mean/du + (d log std/du) (z - mean)`, with Ê in place of E, from `start_time` down to 0.

    Args:
        method: `"euler"` (order 1, one predictor call a step), `"heun"` (order 2, two calls, and one in the last
            step), or `"adaptive"`: the Bogacki-Shampine 3(2) pair (three calls a step), whose steps are chosen so that
            the estimated error stays below `atol + rtol |z|`; `num_inference_steps` then sets only the first step
            size, `1/num_inference_steps`.
        rtol, atol: tolerances of `"adaptive"`.
        start_time: time of a token that has not started. At t = 1 itself the drift of a schedule with `α ~ sqrt(1-t)`
            is infinite.
        time_grid: `"uniform"` or `"learned"`.
    """

    # Those of "adaptive" are as small as they must be.
    default_steps = 512

    @register_to_config
    def __init__(
        self,
        method: str = "euler",
        rtol: float = 1e-2,
        atol: float = 1e-2,
        start_time: float = 0.999,
        time_grid: str = "uniform",
    ):
        self._check_config()
        if not isinstance(method, str) or method not in TABLEAUS:
            raise ValueError(f"`method` is {method!r}; it must be one of {', '.join(map(repr, TABLEAUS))}.")
        if not all(is_number(value) for value in (rtol, atol)) or not (rtol >= 0 and atol > 0):
            raise ValueError(
                f"`rtol` is {rtol!r} and `atol` {atol!r}; they must be numbers of at least 0 and above 0."
            )
        self.order = TABLEAUS[method].order
        if method == "adaptive":
            self.default_steps = super().default_steps

    @property
    def tableau(self) -> Tableau:
        return TABLEAUS[self.config.method]

    def step_bounds(self, timestep: Tensor | float) -> tuple[float, float]:
        return (self._u, self._next_u) if self._slopes else super().step_bounds(timestep)

    def _tableau_of_step(self, u: float, next_u: float) -> Tableau:
        # At t = 0 the drift may be stiff (std is small there), so the last step, of a text or of a block, is Euler's.
        # One such step leaves Heun at order 2.
        block_size = None if self._clock is None else self._clock.block_size
        blocks = self._clock.length // block_size if block_size else 1
        last = abs(next_u * blocks - round(next_u * blocks)) < 1e-6
        return TABLEAUS["euler"] if last else self.tableau

    def set_timesteps(
        self,
        num_inference_steps: int | None = None,
        device: str | torch.device | None = None,
        timesteps: Sequence[float] | None = None,
        time_sampler: torch.nn.Module | None = None,
        clock: BatchClock | None = None,
    ) -> None:
        adaptive = self.config.method == "adaptive"
        if adaptive and timesteps is not None:
            raise ValueError("`timesteps` cannot be given with method 'adaptive', which chooses its own.")
        if adaptive and clock is not None and clock.has_windows:
            raise ValueError(
                f"Method 'adaptive' has a time for every sample; along the clock {str(clock.clock)!r} all samples "
                "have the same, so that the predictor can keep what is written."
            )
        super().set_timesteps(num_inference_steps, device, timesteps, time_sampler, clock)
        self.num_function_evaluations = 0
        self._slopes: list[Tensor] = []
        self._state: _AdaptiveState | None = None
        if adaptive:
            self.timesteps = _AdaptiveTimes(self)
        else:
            steps = zip(self._grid, self._grid[1:])
            stages = [u - c * (u - next_u) for u, next_u in steps for c in self._tableau_of_step(u, next_u).c]
            self.timesteps = self._as_timesteps(stages, device)

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
        """Take in the drift at one stage; give the point of the next stage, or after the last stage the point of the
        next step.

        `generator` is part of the common signature; an ODE draws nothing.
        """
        self._require_timesteps()
        self.num_function_evaluations += 1
        if self.config.method == "adaptive":
            moved = self._adaptive_step(self._mean(model_output), sample, forward_process, context)
            return TextDiffusionSchedulerOutput(prev_sample=moved) if return_dict else (moved,)
        if not self._slopes:
            self._u, self._next_u = self._interval(timestep)
            self._origin = sample
        h, tableau = self._u - self._next_u, self._tableau_of_step(self._u, self._next_u)
        t, s = self.token_times(self._u, sample).value, self.token_times(self._next_u, sample).value
        # Within a step the token times are on a straight line, so that every token arrives where its clock says.
        times = Dual(t - tableau.c[len(self._slopes)] * (t - s), (t - s) / h)
        path = forward_process.path(times, context, self._mixing)(self._mean(model_output))
        self._slopes.append(path.ode_drift(sample))
        stage = len(self._slopes)
        if stage < len(tableau.c):
            moved = self._advance(self._origin, h, self._slopes, tableau.a[stage])
        else:
            moved = self._advance(self._origin, h, self._slopes, tableau.b)
            self._slopes = []
        return self._output(moved, self._origin, t, s, return_dict)

    @staticmethod
    def _advance(origin: Tensor, h: float | Tensor, slopes: list[Tensor], weights: Sequence[float]) -> Tensor:
        return origin - h * sum(weight * slope for weight, slope in zip(weights, slopes) if weight)

    def _adaptive_step(
        self, prediction: Tensor, sample: Tensor, forward_process: ForwardProcess, context: Tensor | None
    ) -> Tensor:
        tableau = self.tableau
        if self._state is None:
            u = sample.new_full((len(sample),), self._grid[0])
            h = self._limit(u, torch.full_like(u, self._grid[0] - self._grid[1]), sample)
            self._state = _AdaptiveState(u=u, h=h, origin=sample)
        state = self._state
        stage = len(state.slopes)
        times = self.token_times(state.u - tableau.c[stage] * state.h, sample)
        path = forward_process.path(times, context, self._mixing)(prediction)
        # The marginal of a token that stands still may move with the others; the token does not.
        state.slopes.append(torch.where((times.rate > 0)[..., None], path.ode_drift(sample), 0))
        h = state.h[:, None, None]
        if stage + 1 < len(tableau.c):
            return self._advance(state.origin, h, state.slopes, tableau.a[stage + 1])

        # The last stage was taken at the end of the step: `sample` is the proposal.
        error = h * sum(weight * slope for weight, slope in zip(tableau.error, state.slopes))
        scale = self.config.atol + self.config.rtol * torch.maximum(state.origin.abs(), sample.abs())
        ratio = (error / scale).square().mean((-1, -2)).sqrt()
        # A step of 1e-4 is taken whatever its error: the predictor is only piecewise smooth, and the run must end.
        accepted = (ratio <= 1) | (state.h <= 1e-4)
        factor = torch.nan_to_num(0.9 * ratio.clamp_min(1e-8) ** (-1 / tableau.order), nan=0.2).clamp(0.2, 5.0)
        keep = accepted[:, None, None]
        state.u = torch.where(accepted, state.u - state.h, state.u)
        state.origin = torch.where(keep, sample, state.origin)
        first = torch.where(keep, state.slopes[-1], state.slopes[0])
        # Never past 0; a remainder too small to matter is taken with the step before it.
        finished = state.u <= 1e-6
        state.u = torch.where(finished, torch.zeros_like(state.u), state.u)
        state.h = torch.where(
            finished, torch.zeros_like(state.h), torch.minimum((state.h * factor).clamp_min(1e-4), state.u)
        )
        state.h = self._limit(state.u, state.h, sample)
        state.slopes = [first]
        # The first stage of the next step is known: ask for its second.
        return self._advance(state.origin, state.h[:, None, None], state.slopes, tableau.a[1])

    def _limit(self, u: Tensor, h: Tensor, sample: Tensor) -> Tensor:
        """Steps in which no token goes more than half of its way: between the stages of a longer one it could pass
        unseen.
        """
        while True:
            ways = self.token_times(u, sample).value - self.token_times(u - h, sample).value
            too_long = ways.amax(-1) > 0.5
            if not too_long.any():
                return h
            h = torch.where(too_long, h / 2, h)

    def _next_adaptive_time(self) -> Tensor | None:
        if self._state is None:
            return self._as_timesteps(self._grid[:1], self._device)[0]
        if not self._state.h.any():
            return None
        return self._state.u - self.tableau.c[len(self._state.slopes)] * self._state.h


class _AdaptiveTimes:
    """Iterates over the times at which the adaptive method wants the predictor, one time per sample, until all have
    reached 0.
    """

    def __init__(self, scheduler: ReverseODEScheduler):
        self._scheduler = scheduler

    def __iter__(self) -> Iterator[Tensor]:
        while (time := self._scheduler._next_adaptive_time()) is not None:
            yield time
