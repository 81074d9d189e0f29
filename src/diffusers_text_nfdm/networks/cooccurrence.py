"""Embeddings to start from: words that keep the same company lie close to each other."""

from __future__ import annotations

import math

import torch
from torch import Tensor


@torch.no_grad()
def cooccurrence_embeddings(
    input_ids: Tensor, vocab_size: int, dim: int, window: int = 2, noise: float = 0.3, seed: int = 0
) -> Tensor:
    """Embeddings `(vocab, dim)` of length `sqrt(dim)` from a truncated SVD of the positive pointwise mutual
    information

        max(0, log p(w, c at offset o) - log p(w) - log p(c)),    o = ±1, ..., ±window,

    of words and their neighbours. Noise of relative size `noise` keeps words apart that keep exactly the same company.
    """
    generator = torch.Generator().manual_seed(seed)
    input_ids = input_ids.long()
    rows, columns, values = [], [], []
    for index, offset in enumerate(o for o in range(-window, window + 1) if o):
        start, stop = max(0, -offset), input_ids.shape[1] - max(0, offset)
        words = input_ids[:, start:stop].flatten()
        neighbours = input_ids[:, start + offset : stop + offset].flatten()
        pairs, counts = torch.unique(words * vocab_size + neighbours, return_counts=True)
        word, neighbour = pairs // vocab_size, pairs % vocab_size
        total = counts.sum().double()
        word_counts = torch.bincount(words, minlength=vocab_size).double()
        neighbour_counts = torch.bincount(neighbours, minlength=vocab_size).double()
        information = torch.log(counts * total / (word_counts[word] * neighbour_counts[neighbour]))
        positive = information > 0
        rows.append(word[positive])
        columns.append(neighbour[positive] + index * vocab_size)
        values.append(information[positive].float())
    matrix = torch.sparse_coo_tensor(
        torch.stack([torch.cat(rows), torch.cat(columns)]),
        torch.cat(values),
        (vocab_size, 2 * window * vocab_size),
        check_invariants=False,
    ).coalesce()
    rank = min(dim, vocab_size)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        left, scales, _ = torch.svd_lowrank(matrix, q=min(rank + 8, vocab_size), niter=4)
    vectors = torch.zeros(vocab_size, dim)
    vectors[:, :rank] = left[:, :rank] * scales[:rank].sqrt()
    # A rotation spreads the leading directions over all coordinates.
    rotation, _ = torch.linalg.qr(torch.randn(dim, dim, generator=generator))
    vectors = torch.nn.functional.normalize(vectors @ rotation, dim=-1)
    vectors = vectors + noise / math.sqrt(dim) * torch.randn(vocab_size, dim, generator=generator)
    return torch.nn.functional.normalize(vectors, dim=-1) * math.sqrt(dim)
