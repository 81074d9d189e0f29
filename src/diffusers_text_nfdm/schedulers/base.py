"""What the schedulers share: time grids, noise, and the diffusers contract."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from diffusers import ConfigMixin, SchedulerMixin
from diffusers.utils import BaseOutput
from diffusers.utils.torch_utils import randn_tensor
from torch import Tensor

from ..checks import check_one_of, is_number
from ..clocks import BatchClock
from ..models.prediction import Prediction
from ..networks.dual import Dual


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
    """Global times u from 1 down to 0, and one call of `step` for each predictor call.

    `timesteps` are the times u at which the predictor is called; the last step ends at 0. The clock maps them to token
    times, and a step moves token i from `c_i(u)` to `c_i(u')`. Tokens that do not move stay as they are, bit for bit.
    Time grids: token times as the clock gives them (`"uniform"`), by the model's learned time density (`"learned"`),
    or u given to `set_timesteps`.
    """

    order = 1
    init_noise_sigma = 1.0
    # Steps of a call that names no number.
    default_steps = 64

    def _check_config(self) -> None:
        check_one_of("time_grid", self.config.time_grid, TIME_GRIDS)
        if not is_number(self.start_time) or not 0 < self.start_time <= 1:
            raise ValueError(f"`start_time` is {self.start_time!r}; it must be in (0, 1].")

    @property
    def start_time(self) -> float:
        """Time of a token that has not started."""
        return self.config.start_time

    @classmethod
    def _get_compatibles(cls) -> list[type]:
        # diffusers looks for compatible schedulers among its own only.
        from . import SCHEDULERS

        return list(SCHEDULERS)

    def scale_model_input(self, sample: Tensor, timestep: Tensor | float | None = None) -> Tensor:
        """The predictor takes z as it is."""
        return sample

    def set_timesteps(
        self,
        num_inference_steps: int | None = None,
        device: str | torch.device | None = None,
        timesteps: Sequence[float] | None = None,
        time_sampler: torch.nn.Module | None = None,
        clock: BatchClock | None = None,
    ) -> None:
        """Set the times of the predictor calls.

        Args:
            num_inference_steps: number of steps from 1 to 0.
            timesteps: the times u themselves, decreasing, in (0, 1], instead of a number of steps. 0 is added at the
                end.
            time_sampler: the model's time sampler, which the `"learned"` grid needs.
            clock: the clock of the batch; by default all tokens have the time u.
        """
        self._grid = self._time_grid(num_inference_steps, timesteps, clock)
        learned = self.config.time_grid == "learned" and timesteps is None
        self._time_sampler = time_sampler if learned else None
        if learned and time_sampler is None:
            raise ValueError("`time_grid` is 'learned', which needs the model's `time_sampler` in `set_timesteps`.")
        self._clock = clock
        # A step asks for the times of both its ends several times.
        self._known_times: dict[tuple, Dual] = {}
        self.num_inference_steps = len(self._grid) - 1
        self._device = device
        self._step_index = None
        self.timesteps = self._as_timesteps(self._grid[:-1], device)

    def _time_grid(
        self, num_steps: int | None, timesteps: Sequence[float] | None, clock: BatchClock | None
    ) -> list[float]:
        if (num_steps is None) == (timesteps is None):
            raise ValueError("Give either `num_inference_steps` or `timesteps`, one of the two.")
        if timesteps is not None:
            try:
                if isinstance(timesteps, Mapping):
                    raise TypeError("keys are no times")
                grid = [float(time) for time in timesteps] + [0.0]
            except (TypeError, ValueError) as error:
                raise ValueError(f"`timesteps` is {timesteps!r}; it must be decreasing times in (0, 1].") from error
            if len(grid) == 1 or not 1 >= grid[0] or any(not a > b for a, b in zip(grid, grid[1:])):
                raise ValueError(f"`timesteps` is {list(timesteps)}; it must be decreasing times in (0, 1].")
            if clock is not None and clock.block_size is not None:
                blocks = clock.length // clock.block_size
                ends = [block / blocks for block in range(1, blocks) if block / blocks < grid[0]]
                if not all(any(abs(time - end) < 1e-6 for time in grid) for end in ends):
                    raise ValueError(
                        f"`timesteps` is {list(timesteps)}; along the clock {str(clock.clock)!r} a step ends where a "
                        "block does: "
                        f"they must hold all of {', '.join(f'{end:.4g}' for end in reversed(ends))}."
                    )
            return grid
        if isinstance(num_steps, bool) or not isinstance(num_steps, int) or num_steps <= 0:
            raise ValueError(f"`num_inference_steps` is {num_steps!r}; it must be an integer above 0.")
        if clock is None:
            return torch.linspace(1, 0, num_steps + 1, dtype=torch.float64).tolist()
        return clock.clock.time_grid(num_steps, clock.length)

    def token_times(self, u: Tensor | float, sample: Tensor) -> Dual:
        """Token times and rates, `(batch, seq)` or `(batch, 1)`, at a global time, or at one for each sample."""
        if isinstance(u, Tensor) and (u.ndim or u.device.type != "cpu"):
            return self._token_times(u, sample)
        key = float(u), len(sample), sample.device, sample.dtype
        if key not in self._known_times:
            self._known_times[key] = self._token_times(float(u), sample)
        return self._known_times[key]

    def _token_times(self, u: Tensor | float, sample: Tensor) -> Dual:
        u = torch.as_tensor(u, device=sample.device, dtype=sample.dtype).reshape(-1, 1).expand(len(sample), 1)
        times = Dual(u, torch.ones_like(u)) if self._clock is None else self._clock(u)
        if self._time_sampler is not None:
            times = self._time_sampler(times)
        if self.start_time == 1:
            return times
        # Before it starts a token waits at the first time, where its drift is finite.
        t, rate = times
        return Dual(t.clamp_max(self.start_time), torch.where(t > self.start_time, 0, rate))

    @property
    def _mixing(self) -> int | None:
        return None if self._clock is None else self._clock.mixing

    @staticmethod
    def _as_timesteps(times: list[float], device: str | torch.device | None) -> Tensor:
        # Not every accelerator has float64.
        dtype = torch.float64 if device is None or torch.device(device).type == "cpu" else torch.float32
        return torch.tensor(times, dtype=dtype, device=device)

    def _require_timesteps(self) -> None:
        if getattr(self, "_grid", None) is None:
            raise ValueError("`set_timesteps` must be called before `step`.")

    def step_bounds(self, timestep: Tensor | float) -> tuple[float, float]:
        """The step `(u, u')` that the next call of `step` is part of.

        Only the first call looks at the time: none after it waits for a device.
        """
        self._require_timesteps()
        if self._step_index is None:
            distances = [abs(time - float(timestep)) for time in self._grid[:-1]]
            self._step_index = distances.index(min(distances))
        if self._step_index == self.num_inference_steps:
            raise ValueError("`step` has reached time 0: call `set_timesteps` before another run.")
        return self._grid[self._step_index], self._grid[self._step_index + 1]

    def _interval(self, timestep: Tensor | float) -> tuple[float, float]:
        """The step that begins at `timestep`; the next call is part of the one behind it."""
        bounds = self.step_bounds(timestep)
        self._step_index += 1
        return bounds

    @staticmethod
    def _noise(sample: Tensor, generator: Generators) -> Tensor:
        return randn_tensor(sample.shape, generator=generator, device=sample.device, dtype=sample.dtype)

    @staticmethod
    def _mean(model_output: Tensor | Prediction) -> Tensor:
        """Ê."""
        return model_output.embeddings if isinstance(model_output, Prediction) else model_output

    @staticmethod
    def _output(
        moved: Tensor, sample: Tensor, t: Tensor, s: Tensor, return_dict: bool
    ) -> TextDiffusionSchedulerOutput | tuple[Tensor]:
        """`moved` for the tokens that go from t to s < t, `sample` for those that stand still."""
        if t.shape[1] > 1:
            moved = torch.where((t > s)[..., None], moved, sample)
        return TextDiffusionSchedulerOutput(prev_sample=moved) if return_dict else (moved,)
