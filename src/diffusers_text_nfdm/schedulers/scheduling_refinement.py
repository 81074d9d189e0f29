"""Refinement: of a window of tokens those are committed that the model is sure of, call by call."""

from __future__ import annotations

from typing import NamedTuple

import torch
from diffusers import SchedulerMixin  # noqa: F401  (diffusers' loader looks for this name here)
from diffusers.configuration_utils import register_to_config
from torch import Tensor

from ..checks import is_number
from ..devices import widened
from ..models.token_choice import draw_from, token_probabilities
from .token_scheduler import TokenScheduler


class Refinement(NamedTuple):
    """What a step has drawn.

    Args:
        tokens: `(batch, seq)`.
        committed: `(batch, seq)`, those that stay.
        log_probability: `(batch,)`, of these together: they were drawn independently.
    """

    tokens: Tensor
    committed: Tensor
    log_probability: Tensor


class RefinementScheduler(TokenScheduler):
    """A clock that each text makes for itself: tokens of a window wait as noise until they are sure.

    A call predicts all tokens of the window that starts at the first open one. That one is drawn, and with it as many
    others, in the order of their entropies `H_i`, as have at most `entropy_budget` together. Independent draws of
    tokens miss at most the sum of their entropies but one, so a step is off the model's joint distribution by no more
    than that, in nats (Ben-Hamu et al. 2025 bound masked diffusion in this way). Tokens may settle in any order, and
    known ones may stand anywhere: it fills gaps.

    With several `candidates` each text is drawn as often, with a probability q that is known, and one is taken in
    proportion to p/q, where p is the clean stream's exact probability of the whole text (sampling by importance
    resampling, Rubin 1987): what was drawn does not have to be right, only one of the candidates. The more there are,
    the closer is the distribution to p, given what is known. With a temperature T and a contrast λ, p is
    `p(text)^(1/T) / Π_i p(x_i)^λ`.

    Args:
        block_length: tokens of the window.
        entropy_budget: nats. At 0 one token is drawn a call.
        temperature: of the distribution that tokens are drawn from; 0 takes the most probable one.
        min_p: tokens with less than this share of the probability of the most probable one are not drawn.
        candidates: of each text. They are written side by side; the calls of all of them are counted.
        top_k, top_p: only the k most probable tokens are drawn, and of these the fewest with this probability.
        contrast: how much rare tokens are favoured among those that `min_p`, `top_k` or `top_p` leave.
    """

    @register_to_config
    def __init__(
        self,
        block_length: int = 8,
        entropy_budget: float = 0.05,
        temperature: float = 1.0,
        min_p: float = 0.0,
        candidates: int = 1,
        top_k: int | None = None,
        top_p: float | None = None,
        contrast: float = 0.0,
    ):
        self._check_choice()
        self._check_count("block_length", block_length)
        self._check_count("candidates", candidates)
        if not is_number(entropy_budget) or not 0 <= entropy_budget < float("inf"):
            raise ValueError(f"`entropy_budget` is {entropy_budget!r}; it must be a number of at least 0.")

    def step(self, logits: Tensor, open_tokens: Tensor, uniforms: Tensor) -> Refinement:
        """Draw tokens from logits `(batch, seq, vocab)`, by random numbers `(batch, seq)`, and commit some of those
        that are open, `(batch, seq)`: the first of each text at least.
        """
        drawn_from = self.probabilities(logits)
        tokens = draw_from(drawn_from, uniforms)
        # What is cut off is not drawn, but it is doubt; and so it is where the most probable token is taken.
        p = token_probabilities(widened(logits), self.config.temperature or 1.0)
        entropy = torch.special.entr(p).sum(-1).masked_fill(~open_tokens, torch.inf)
        first = torch.zeros_like(open_tokens).scatter(1, open_tokens.long().argmax(1, keepdim=True), True)
        # The first costs nothing: it is the one by which the others are drawn too early.
        cost, order = entropy.masked_fill(first, 0).sort(dim=-1, stable=True)
        within = cost.cumsum(-1) <= self.config.entropy_budget
        committed = torch.zeros_like(open_tokens).scatter(1, order, within) | first
        committed &= open_tokens
        log_q = drawn_from.gather(-1, tokens[..., None])[..., 0].log()
        return Refinement(tokens, committed, log_q.masked_fill(~committed, 0).sum(-1))
