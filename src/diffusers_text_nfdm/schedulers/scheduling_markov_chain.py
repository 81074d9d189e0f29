"""Conditional Markov chain: star sampling, deterministic sampling, and everything between."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from diffusers import SchedulerMixin  # noqa: F401  (diffusers' loader looks for this name here)
from diffusers.configuration_utils import register_to_config
from torch import Tensor

from ..checks import check_integers, is_number
from ..clocks import BatchClock
from ..forward_processes import ForwardProcess
from ..models.prediction import Prediction
from .base import Generators, TextDiffusionScheduler, TextDiffusionSchedulerOutput
from .token_choice import WITHOUT_CONTRAST, DrawsTokens


class MarkovChainScheduler(DrawsTokens, TextDiffusionScheduler):
    """One step from t to s < t keeps a share of the old noise and draws the rest anew:

        ε_old = (z_t - mean(Ê, t)) / std(Ê, t)
        ε     = sqrt(1-ρ) ε_old + sqrt(ρ) ε_new
        z_s   = mean(Ê, s) + std(Ê, s) ε

    Every ρ keeps the marginals. ρ = 1 is star sampling (the paper's "DDIM-style"), where z_t is forgotten and the
    forward process is called once a step; ρ = 0 is deterministic (what DDIM means elsewhere); `ρ* = 1 - SNR(t)/SNR(s)`
    is the ancestral posterior of VDM and DDPM.

    With `prediction="tokens"` a step draws tokens from the predicted distribution and takes their embeddings in place
    of the mean Ê. A token drawn from `p(x | z_t)` and the noise that z_t then has are a draw from their joint
    distribution. So for a single token a step of any length keeps the marginals exactly, where the mean needs short
    steps. For several tokens it ignores the dependence between them.

    Args:
        noise_fraction: ρ in [0, 1], a fraction of the variance; or `"snr"` for ρ*, which needs a process with a
            signal-to-noise ratio.
        time_grid: `"uniform"` or `"learned"`.
        prediction: `"mean"`, or `"tokens"`, for a model with categorical prediction.
        temperature: of the distribution that tokens are drawn from.
        min_p: tokens with less than this share of the probability of the most probable one are not drawn. It cuts off
            what the model has not quite unlearned and leaves the odds of the rest as they are, which a lower
            temperature does not.
        top_k, top_p: only the k most probable tokens are drawn, and of these the fewest with this probability.
        finish_time: along the shared clock, the time at which a model with a `joint_decoder` decodes the text, which
            draws tokens that agree (`pipelines/finishing.py`); by default the last step takes each by itself.
        finish_calls: most calls of the decoder; by default as many as it takes until no token changes.
    """

    # A contrast would act in every step anew, on tokens that it has favoured before.
    knobs = WITHOUT_CONTRAST
    # A config may still hold the `start_time` of the scheduler that this one was exchanged for.
    start_time = 1.0

    @register_to_config
    def __init__(
        self,
        noise_fraction: float | str = 1.0,
        time_grid: str = "uniform",
        prediction: str = "mean",
        temperature: float = 1.0,
        min_p: float = 0.0,
        top_k: int | None = None,
        top_p: float | None = None,
        finish_time: float | None = None,
        finish_calls: int | None = None,
    ):
        self._check_config()
        if finish_time is not None and not (is_number(finish_time) and 0 < finish_time < 1):
            raise ValueError(f"`finish_time` is {finish_time!r}; it must be a number in (0, 1).")
        if finish_calls is not None:
            check_integers(1, finish_calls=finish_calls)
            if finish_time is None:
                raise ValueError(f"`finish_calls` is {finish_calls} without a `finish_time`, whose calls it limits.")
        named = isinstance(noise_fraction, str) and noise_fraction == "snr"
        if not named and not (is_number(noise_fraction) and 0 <= noise_fraction <= 1):
            raise ValueError(f"`noise_fraction` is {noise_fraction!r}; it must be a number in [0, 1] or 'snr'.")
        if prediction not in ("mean", "tokens"):
            raise ValueError(f"`prediction` is {prediction!r}; it must be 'mean' or 'tokens'.")
        self._check_choice()

    def _time_grid(
        self, num_steps: int | None, timesteps: Sequence[float] | None, clock: BatchClock | None
    ) -> list[float]:
        grid, finish = super()._time_grid(num_steps, timesteps, clock), self.config.finish_time
        if finish is None or timesteps is not None:
            return grid
        return [1 - (1 - finish) * u / max(num_steps - 1, 1) for u in range(num_steps)] + [0.0]

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
        """From `z_t` and the prediction to `z_s`; a token that ends at 0 gets the mean there, without noise."""
        u, next_u = self._interval(timestep)
        t, s = self.token_times(u, sample).value, self.token_times(next_u, sample).value
        prediction = self._estimate(model_output, generator)
        if next_u == 0:
            final = forward_process.initial_marginal(prediction, context).mean
            return self._output(final, sample, t, s, return_dict)
        mixing = self._mixing
        rho = self.config.noise_fraction
        if rho == "snr":
            rho = 1 - forward_process.snr(t, context) / forward_process.snr(s, context)
            # Where a learned SNR rises towards noise there is no such posterior; nothing is drawn anew there.
            rho = rho.clamp(0, 1)
        if isinstance(rho, Tensor) or 0 < rho < 1:
            rho = torch.as_tensor(rho, device=sample.device, dtype=sample.dtype)
            kept = forward_process.marginal(prediction, t, context, mixing).noise(sample)
            noise = (1 - rho).sqrt() * kept + rho.sqrt() * self._noise(sample, generator)
        elif rho == 0:
            noise = forward_process.marginal(prediction, t, context, mixing).noise(sample)
        else:
            noise = self._noise(sample, generator)
        moved = forward_process.marginal(prediction, s, context, mixing).sample(noise)
        if s.shape[1] > 1:
            final = forward_process.initial_marginal(prediction, context).mean
            moved = torch.where((s > 0)[..., None], moved, final)
        return self._output(moved, sample, t, s, return_dict)

    def _estimate(self, model_output: Tensor | Prediction, generator: Generators) -> Tensor:
        """Ê: the mean, or the embeddings of tokens drawn from the prediction."""
        if self.config.prediction == "mean":
            return self._mean(model_output)
        if not isinstance(model_output, Prediction) or not model_output.is_categorical:
            raise ValueError(
                "`prediction` is 'tokens', which needs a model with `prediction_type` 'categorical': only it has a "
                "distribution "
                "to draw them from."
            )
        return model_output.embeddings_of(model_output.draw(generator, **self.choice))
