"""Which tokens of a text training gives, so that a model learns to continue and to fill in."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


# Ways in which tokens are known.
KINDS = ("prefix", "span", "scattered")


def draw_known(
    shares: dict[str, float], batch_size: int, length: int, generator: torch.Generator, condition_length: int = 0
) -> Tensor:
    """`(batch_size, length)`, the tokens that are known; a share of the texts for each kind, nothing in the others.

    `prefix`: a beginning of any length. `span`: all but a span of up to half the text. `scattered`: each token with a
    probability that is drawn for the text. One token at least is unknown. A condition, which is part of the length, is
    known whatever is drawn.
    """
    length -= condition_length
    draw = {"generator": generator, "device": generator.device}
    positions = torch.arange(length, device=generator.device)
    kind, amount, place = (torch.rand(batch_size, 1, **draw) for _ in range(3))
    each = torch.rand(batch_size, length, **draw)
    span = 1 + (amount * (length // 2)).long()
    start = (place * (length - span + 1)).long()
    masks = {
        "prefix": positions < 1 + (amount * (length - 1)).long(),
        "span": (positions < start) | (positions >= start + span),
        "scattered": (each < amount) & (positions != (place * length).long()),
    }
    known, below = torch.zeros(batch_size, length, dtype=torch.bool, device=generator.device), 0.0
    for name, share in shares.items():
        known |= masks[name] & (kind >= below) & (kind < below + share)
        below += share
    return F.pad(known, (condition_length, 0), value=True)
