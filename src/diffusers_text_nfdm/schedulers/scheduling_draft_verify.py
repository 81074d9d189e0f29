"""Draft and verify: the noisy stream drafts several tokens, the clean stream accepts or corrects them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from diffusers import SchedulerMixin  # noqa: F401  (diffusers' loader looks for this name here)
from diffusers.configuration_utils import register_to_config
from torch import Tensor

from ..models.token_choice import draw_from
from .token_scheduler import TokenScheduler


class Verdict(NamedTuple):
    """What became of drafts.

    Args:
        accepted: how many tokens of each draft stay, `(batch,)`.
        token: the token that follows them, `(batch,)`.
    """

    accepted: Tensor
    token: Tensor


class DraftVerifyScheduler(TokenScheduler):
    """Tokens of a draft with probabilities q are accepted by the rule of speculative sampling (Leviathan et al. 2023).

    Token d is accepted with probability `min(1, p(d) / q(d))`, where p is the clean stream's `p(x_i | x_<i)`. The
    first one that is refused is drawn anew from the positive part of `p - q`, and where all are accepted one more is
    drawn from p. So the texts have exactly the clean stream's distribution, whatever the drafts are worth; these only
    decide how many calls it takes.

    One call of the predictor reads the text with its draft, which verifies it, and makes the next draft: a block of
    tokens of which nothing is seen, for every place where the present draft may end.

    Args:
        block_size: tokens that a call may write at most.
        temperature: of the distribution that tokens are drawn from; 0 takes the most probable one.
        min_p: tokens with less than this share of the probability of the most probable one are not drawn.
        top_k, top_p: only the k most probable tokens are drawn, and of these the fewest with this probability.
        contrast: how much rare tokens are favoured among those that `min_p`, `top_k` or `top_p` leave.
    """

    @register_to_config
    def __init__(
        self,
        block_size: int = 8,
        temperature: float = 1.0,
        min_p: float = 0.0,
        top_k: int | None = None,
        top_p: float | None = None,
        contrast: float = 0.0,
    ):
        self._check_choice()
        self._check_count("block_size", block_size, least=2)

    def step(self, draft: Tensor, q: Tensor, p: Tensor, uniforms: Tensor) -> Verdict:
        """Verify drafts of K tokens.

        Args:
            draft: tokens `(batch, K)`.
            q: the distributions that they were drawn from, `(batch, K, vocab)`.
            p: those of the clean stream after each of them, `(batch, K + 1, vocab)`.
            uniforms: `(batch, K + 1)` random numbers in [0, 1).
        """
        chances = p[:, :-1].gather(-1, draft[..., None])[..., 0] / q.gather(-1, draft[..., None])[..., 0]
        accepted = (uniforms[:, :-1] < chances).long().cumprod(-1).sum(-1)
        rows = torch.arange(len(draft), device=draft.device)
        # Where all are accepted there is no draft to correct.
        drafted = torch.cat([q, torch.zeros_like(q[:, :1])], dim=1)[rows, accepted]
        rest = (p[rows, accepted] - drafted).clamp_min(0)
        return Verdict(accepted, draw_from(rest, uniforms[:, -1]))
