"""Jumps: windows of tokens that are written in one call each, by the noise that decides them."""

from __future__ import annotations

import math

from diffusers import SchedulerMixin  # noqa: F401  (diffusers' loader looks for this name here)
from diffusers.configuration_utils import register_to_config
from torch import Tensor

from .token_scheduler import TokenScheduler


# Of a text, where neither their length nor the number of calls is given.
JUMPS = 16


class JumpScheduler(TokenScheduler):
    """A text is a row of windows. The tokens of a window are drawn in one call, each by its own noise u_i:

        x_i = F⁻¹(u_i),   F the cumulative distribution of p(x_i | x_<start, u_start..u_i-1).

    The noise of the window's tokens before i says what they will be. So tokens of one call agree with each other,
    which independent draws cannot. With `calls_per_jump` above 1 a further call reads the tokens that the one before
    it has drawn, beside their noise, and draws them anew.

    It needs a model with `jumps`.

    Args:
        jump_length: tokens of a window, where a call of the pipeline does not say `num_inference_steps`; `None` for a
            sixteenth of the text.
        calls_per_jump: calls for each window.
        temperature: of the distribution that tokens are drawn from.
        min_p: tokens with less than this share of the probability of the most probable one are not drawn.
    """

    @register_to_config
    def __init__(
        self,
        jump_length: int | None = None,
        calls_per_jump: int = 1,
        temperature: float = 1.0,
        min_p: float = 0.0,
    ):
        self._check_choice()
        self._check_count("calls_per_jump", calls_per_jump)
        if jump_length is not None:
            self._check_count("jump_length", jump_length)

    def window_length(self, num_inference_steps: int | None, max_length: int) -> int:
        """Tokens of a window of a text of `max_length` tokens, the first of them START."""
        if num_inference_steps is None and self.config.jump_length is not None:
            return self.config.jump_length
        calls = JUMPS * self.config.calls_per_jump if num_inference_steps is None else num_inference_steps
        windows = calls // self.config.calls_per_jump
        if windows < 1:
            raise ValueError(
                f"`num_inference_steps` is {num_inference_steps}; with `calls_per_jump` {self.config.calls_per_jump} "
                "it must be at least that."
            )
        return math.ceil((max_length - 1) / windows)

    def step(self, logits: Tensor, noise: Tensor, token_order: Tensor) -> Tensor:
        """Tokens `(...)` from logits `(..., vocab)` and their noise `(...)`, in the model's order of tokens."""
        return self.draw_by_noise(logits, noise, token_order)
