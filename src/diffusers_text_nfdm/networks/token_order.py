"""An order of the vocabulary in which like tokens stand together."""

from __future__ import annotations

import torch
from torch import Tensor


# A group is cut where its tokens are farthest apart, outside these shares at its two ends.
SMALLEST_SHARE = 0.1


@torch.no_grad()
def order_by_likeness(embeddings: Tensor) -> Tensor:
    """Token ids in an order in which neighbours have embeddings `(vocab, dim)` that lie close.

    A group of tokens is sorted along its direction of largest variance and cut at the widest gap; then each part is
    sorted in the same way.
    """
    embeddings = embeddings.cpu().double()
    groups, order = [torch.arange(len(embeddings))], []
    while groups:
        group = groups.pop()
        if len(group) <= 2:
            order.append(group)
            continue
        centred = embeddings[group] - embeddings[group].mean(0)
        direction = torch.linalg.eigh(centred.T @ centred).eigenvectors[:, -1]
        # One of the two signs, always the same.
        direction = direction * direction[direction.abs().argmax()].sign()
        along, places = (centred @ direction).sort(stable=True)
        first = max(1, int(SMALLEST_SHARE * len(group)))
        cut = first + int(along.diff()[first - 1 : len(group) - first].argmax())
        # The first part comes off the pile first.
        groups += [group[places[cut:]], group[places[:cut]]]
    return torch.cat(order)
