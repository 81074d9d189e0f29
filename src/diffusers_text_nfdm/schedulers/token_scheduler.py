"""What the schedulers share that write tokens themselves, without latents in between."""

from __future__ import annotations

from diffusers import ConfigMixin, SchedulerMixin
from torch import Tensor

from ..checks import is_number
from ..models.token_choice import token_probabilities
from .base import TextDiffusionScheduler


class TokenScheduler(SchedulerMixin, ConfigMixin):
    """A token goes from noise to text in one step, when its turn comes. It needs a model with a clean stream.

    A subclass has `temperature` and `min_p` in its config: tokens with less than this share of the probability of the
    most probable one are not drawn.
    """

    order = 1
    init_noise_sigma = 1.0

    def _check_choice(self) -> None:
        temperature, min_p = self.config.temperature, self.config.min_p
        if not is_number(temperature) or not temperature > 0:
            raise ValueError(f"`temperature` is {temperature!r}; it must be a number above 0.")
        if not is_number(min_p) or not 0 <= min_p < 1:
            raise ValueError(f"`min_p` is {min_p!r}; it must be a number in [0, 1).")

    @staticmethod
    def _check_count(name: str, value: int, least: int = 1) -> None:
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ValueError(f"`{name}` is {value!r}; it must be an integer of at least {least}.")

    @classmethod
    def _get_compatibles(cls) -> list[type]:
        return TextDiffusionScheduler._get_compatibles()

    def probabilities(self, logits: Tensor) -> Tensor:
        """The distribution that tokens are drawn from."""
        return token_probabilities(logits.double(), self.config.temperature, min_p=self.config.min_p)
