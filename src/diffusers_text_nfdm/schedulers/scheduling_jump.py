"""Jumps: tokens are drawn by the noise that decides them, many in a call, and again until they are verified."""

from __future__ import annotations

from diffusers import SchedulerMixin  # noqa: F401  (diffusers' loader looks for this name here)
from diffusers.configuration_utils import register_to_config
from torch import Tensor

from .token_choice import WITHOUT_CONTRAST
from .token_scheduler import TokenScheduler


# Of an equal share of the tokens, or of a whole jump, what is left for each of the calls that follow.
LATER_SHARE = 7 / 8


class JumpScheduler(TokenScheduler):
    """Every token has noise u_i that decides it, and the text of given noise is the solution x of

        x_i = F⁻¹(u_i | x_<i),   F the cumulative distribution of the clean stream's p(x_i | x_<i).

    One call reads from left to right

        the tokens before a front, as they were drawn before, and behind it the noise of further tokens,

    and draws by its noise the token that follows each of them. Before the front this is a step of the fixed-point
    iteration `x ← F⁻¹(u | x)`. Behind it, it is a jump: what the tokens are is in their noise, so that they agree,
    though none was known.

    A token that is drawn as before, as all tokens before it are, is *verified*: it is the clean stream's, and so is
    the one behind it. After call c of `num_inference_steps` N the front is at

        max(verified + jump_length, L - (N - c) m),   m = 7/8 max(jump_length, (L - given) / N)

    in a text of L tokens, of which some may be given: at most m tokens are left for each of the further calls. The
    last jumps are the shorter ones, since nothing draws their tokens again. What was drawn beyond the front is
    forgotten: far from what is verified noise is a better guide than a guess. A text ends when all of it is verified,
    or after N calls. Without a limit it is the clean stream's, token by token.

    It needs a model with `jumps`.

    Args:
        jump_length: how many tokens the front is ahead of what is verified, at least.
        temperature: of the distribution that tokens are drawn from; 0 takes the most probable one.
        min_p: tokens with less than this share of the probability of the most probable one are not drawn.
        top_k, top_p: only the k most probable tokens are drawn, and of these the fewest with this probability.
    """

    # Its noise decides a token by the whole distribution, which a contrast would weigh anew.
    knobs = WITHOUT_CONTRAST

    @register_to_config
    def __init__(
        self,
        jump_length: int = 16,
        temperature: float = 1.0,
        min_p: float = 0.0,
        top_k: int | None = None,
        top_p: float | None = None,
    ):
        self._check_choice()
        self._check_count("jump_length", jump_length)

    def front(self, call: int | Tensor, num_calls: int | None, given: Tensor, verified: Tensor, length: int) -> Tensor:
        """How many tokens are before the front after a call, the first one having number 1, `(batch,)`."""
        front = verified + self.config.jump_length
        if num_calls is not None:
            later = LATER_SHARE * ((length - given) / num_calls).clamp_min(self.config.jump_length)
            front = front.maximum(length - ((num_calls - call) * later).floor().long())
        return front.clamp_max(length)

    def step(
        self, draft: Tensor, drafted: Tensor, logits: Tensor, noise: Tensor, token_order: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Draw tokens, and verify those that were drawn before.

        Args:
            draft: tokens behind those that are verified, `(batch, tokens)`.
            drafted: which of them were drawn before, `(batch, tokens)`.
            logits: `(batch, tokens, vocab)`.
            noise: `(batch, tokens)`.

        Returns:
            the tokens, `(batch, tokens)`, and how many of the draft's are verified, `(batch,)`; the one behind these
            is right, too.
        """
        tokens = self.draw_by_noise(logits, noise, token_order)
        return tokens, ((tokens == draft) & drafted).long().cumprod(-1).sum(-1)
