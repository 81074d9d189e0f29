"""What the schedulers share: time grids, noise, and the diffusers contract."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from diffusers import ConfigMixin, SchedulerMixin
from diffusers.utils import BaseOutput
from diffusers.utils.torch_utils import randn_tensor
from torch import Tensor


TIME_GRIDS = ("uniform", "learned")
Generators = torch.Generator | list[torch.Generator] | None


@dataclass
class TextDiffusionSchedulerOutput(BaseOutput):
    """
    Args:
        prev_sample: the latents at the next time, which is where the predictor is called next.
    """

    prev_sample: Tensor


class TextDiffusionScheduler(SchedulerMixin, ConfigMixin):
    """Continuous times from `start_time` down to 0, and one call of `step` for each predictor call.

    `timesteps` are the times at which the predictor is called; the last step ends at 0. Time grids: equally spaced (`"uniform"`), with equal
    shares of the model's learned time density between neighbours (`"learned"`), or given to `set_timesteps`.
    """

    order = 1
    init_noise_sigma = 1.0
    # Whether Ê is to be tokens drawn from the prediction, instead of their mean.
    samples_tokens = False

    def _check_config(self) -> None:
        if self.config.time_grid not in TIME_GRIDS:
            raise ValueError(
                f"`time_grid` is {self.config.time_grid!r}; it must be one of {', '.join(map(repr, TIME_GRIDS))}."
            )
        if not isinstance(self.start_time, (int, float)) or not 0 < self.start_time <= 1:
            raise ValueError(f"`start_time` is {self.start_time!r}; it must be in (0, 1].")

    @property
    def start_time(self) -> float:
        """Time of the first predictor call."""
        return self.config.start_time

    @classmethod
    def _get_compatibles(cls) -> list[type]:
        # diffusers looks for compatible schedulers among its own only.
        from . import MarkovChainScheduler, ReverseODEScheduler, ReverseSDEScheduler

        return [MarkovChainScheduler, ReverseODEScheduler, ReverseSDEScheduler]

    def scale_model_input(self, sample: Tensor, timestep: Tensor | float | None = None) -> Tensor:
        """The predictor takes z as it is."""
        return sample

    def set_timesteps(
        self,
        num_inference_steps: int | None = None,
        device: str | torch.device | None = None,
        timesteps: Sequence[float] | None = None,
        time_sampler: torch.nn.Module | None = None,
    ) -> None:
        """Set the times of the predictor calls.

        Args:
            num_inference_steps: number of steps from `start_time` to 0.
            timesteps: the times themselves, decreasing, in (0, 1], instead of a number of steps. 0 is added at the end.
            time_sampler: the model's time sampler, which the `"learned"` grid needs.
        """
        self._grid = self._time_grid(num_inference_steps, timesteps, time_sampler)
        self.num_inference_steps = len(self._grid) - 1
        self._device = device
        self._step_index = None
        self.timesteps = torch.tensor(self._grid[:-1], dtype=torch.float32, device=device)

    def _time_grid(
        self, num_steps: int | None, timesteps: Sequence[float] | None, time_sampler: torch.nn.Module | None
    ) -> list[float]:
        if (num_steps is None) == (timesteps is None):
            raise ValueError("Give either `num_inference_steps` or `timesteps`, one of the two.")
        if timesteps is not None:
            grid = [float(time) for time in timesteps] + [0.0]
            if len(grid) == 1 or not 1 >= grid[0] or any(not a > b for a, b in zip(grid, grid[1:])):
                raise ValueError(f"`timesteps` is {list(timesteps)}; it must be decreasing times in (0, 1].")
            return grid
        if isinstance(num_steps, bool) or not isinstance(num_steps, int) or num_steps <= 0:
            raise ValueError(f"`num_inference_steps` is {num_steps!r}; it must be an integer above 0.")
        if self.config.time_grid == "uniform":
            grid = torch.linspace(1, 0, num_steps + 1, dtype=torch.float64)
        elif time_sampler is None:
            raise ValueError("`time_grid` is 'learned', which needs the model's `time_sampler` in `set_timesteps`.")
        else:
            grid = time_sampler.time_grid(num_steps)
        return (grid * self.start_time).tolist()

    def _require_timesteps(self) -> None:
        if getattr(self, "_grid", None) is None:
            raise ValueError("`set_timesteps` must be called before `step`.")

    def _interval(self, timestep: Tensor | float) -> tuple[float, float]:
        """The step `(t, s)` that begins at `timestep`. Only the first call looks at its value, so that none after it waits for the device."""
        self._require_timesteps()
        if self._step_index is None:
            distances = [abs(time - float(timestep)) for time in self._grid[:-1]]
            self._step_index = distances.index(min(distances))
        if self._step_index == self.num_inference_steps:
            raise ValueError("`step` has reached time 0: call `set_timesteps` before another run.")
        t, s = self._grid[self._step_index], self._grid[self._step_index + 1]
        self._step_index += 1
        return t, s

    @staticmethod
    def _noise(sample: Tensor, generator: Generators) -> Tensor:
        return randn_tensor(sample.shape, generator=generator, device=sample.device, dtype=sample.dtype)

    @staticmethod
    def _times(time: float, sample: Tensor) -> Tensor:
        return torch.full((len(sample),), time, device=sample.device, dtype=sample.dtype)

    @staticmethod
    def _output(sample: Tensor, return_dict: bool) -> TextDiffusionSchedulerOutput | tuple[Tensor]:
        return TextDiffusionSchedulerOutput(prev_sample=sample) if return_dict else (sample,)
