"""What the schedulers share that write tokens themselves, without latents in between."""

from __future__ import annotations

import torch
from diffusers import ConfigMixin, SchedulerMixin
from torch import Tensor

from ..devices import widened
from ..models.token_choice import draw_from, token_probabilities
from .base import TextDiffusionScheduler
from .token_choice import DrawsTokens


class TokenScheduler(DrawsTokens, SchedulerMixin, ConfigMixin):
    """A token goes from noise to text in one step, when its turn comes. It needs a model with a clean stream.

    At temperature 0 the most probable one is taken.
    """

    order = 1
    init_noise_sigma = 1.0

    @staticmethod
    def _check_count(name: str, value: int, least: int = 1) -> None:
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ValueError(f"`{name}` is {value!r}; it must be an integer of at least {least}.")

    @classmethod
    def _get_compatibles(cls) -> list[type]:
        return TextDiffusionScheduler._get_compatibles()

    def probabilities(self, logits: Tensor) -> Tensor:
        """The distribution that tokens are drawn from."""
        return token_probabilities(widened(logits), **self.choice)

    def draw_by_noise(self, logits: Tensor, noise: Tensor, order: Tensor) -> Tensor:
        """Tokens `(...)` from logits `(..., vocab)` by their noise `(...)`, in an order of token ids.

        The noise decides by the whole distribution, as in training, so that what reads it finds the token that was
        drawn. Only where that token is cut off another one is drawn, by where the noise lies in what is cut
        off: together they have the distribution `probabilities`. With another temperature than 1 noise and tokens
        agree less.
        """
        whole = token_probabilities(widened(logits), self.config.temperature)
        tokens = draw_from(whole, noise, order)
        if not self.config.min_p and self.config.top_k is None and self.config.top_p is None:
            return tokens
        kept = self.probabilities(logits)
        again = kept.gather(-1, tokens[..., None])[..., 0] == 0
        # Mostly none.
        if again.any():
            tokens[again] = self._draw_again(whole[again], kept[again], tokens[again], noise[again], order)
        return tokens

    @staticmethod
    def _draw_again(whole: Tensor, kept: Tensor, tokens: Tensor, noise: Tensor, order: Tensor) -> Tensor:
        """Tokens out of `kept` for those that are cut off, by where their noise lies in what is cut off."""
        cut_off = whole.masked_fill(kept > 0, 0)
        below = cut_off[..., order].cumsum(-1) - cut_off[..., order]
        place = order.argsort()[tokens][..., None]
        into = noise - (whole[..., order].cumsum(-1) - whole[..., order]).gather(-1, place)[..., 0]
        inside = (below.gather(-1, place)[..., 0] + into) / cut_off.sum(-1).clamp_min(torch.finfo(whole.dtype).tiny)
        return draw_from(kept, inside.clamp(0, 1), order)
