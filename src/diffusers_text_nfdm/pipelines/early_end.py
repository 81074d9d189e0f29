"""Texts that end before the last step: their tokens are decided."""

from __future__ import annotations

import torch
from torch import Tensor

from ..models import Prediction


class EarlyEnd:
    """Which texts of a batch are decided, and by which tokens.

    A text is decided when two predictions in a row have the same most probable token at every open position, and in
    the second one each has a probability above `threshold`. A token is open while it is neither known nor settled.
    What is behind END is padding. Tokens behind a window have no prediction yet: there a text is decided in its last
    window at the earliest, or by END.

    Texts that are decided stay in the batch until all are: without them the rounding of the others would change.

    Args:
        threshold: in [0, 1).
        end, padding: token ids; `end` is `None` where texts have no END.
        size: `(batch, seq)`.

    Attributes:
        decided: which texts, `(batch,)`.
        tokens: the texts, `(batch, seq)`.
        chosen: which of their tokens were open, or became padding, `(batch, seq)`.
    """

    def __init__(self, threshold: float, end: int | None, padding: int, size: tuple[int, int], device: torch.device):
        self.threshold, self.end, self.padding = threshold, end, padding
        self.decided = torch.zeros(size[0], dtype=torch.bool, device=device)
        self.tokens = torch.zeros(size, dtype=torch.long, device=device)
        self.chosen = torch.zeros(size, dtype=torch.bool, device=device)
        # No token: nothing is the same as in the prediction before the first.
        self._best = torch.full_like(self.tokens, -2)

    def look(self, prediction: Prediction, written: Tensor, open_tokens: Tensor, known: Tensor | None) -> None:
        """Take in a prediction.

        Args:
            written: token ids `(batch, seq)`, of those that are not open.
            open_tokens: which are open, `(batch, seq)`.
            known: which are known; they come back as they are, even behind END.
        """
        probability, best = torch.softmax(prediction.logits, -1).max(-1)
        # Where nothing is predicted the token is -1, with probability 0.
        best = torch.where(open_tokens, prediction.place(best + 1) - 1, written)
        sure = ~open_tokens | (best == self._best) & (prediction.place(probability) > self.threshold)
        self._best, tokens, needless = best, best, torch.zeros_like(sure)
        if self.end is not None:
            is_end = best == self.end
            needless = is_end.cumsum(-1) > is_end.long()
            if known is not None:
                needless &= ~known
            tokens = best.masked_fill(needless, self.padding)
        now = ~self.decided & (sure | needless).all(-1)
        self.tokens = torch.where(now[:, None], tokens, self.tokens)
        self.chosen |= now[:, None] & (open_tokens | needless)
        self.decided |= now
