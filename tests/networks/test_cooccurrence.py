"""Embeddings to start from: words that keep the same company lie close to each other."""

import math

import torch

from diffusers_text_nfdm.networks.cooccurrence import cooccurrence_embeddings


def test_words_with_the_same_company_start_close_together():
    generator = torch.Generator().manual_seed(0)
    # Words 0-3 stand before 8, words 4-7 before 9.
    first = torch.randint(8, (500, 1), generator=generator)
    ids = torch.cat([first, 8 + (first >= 4).long(), torch.full((500, 1), 10)], dim=1)
    table = cooccurrence_embeddings(ids, vocab_size=11, dim=6)
    assert torch.allclose(table.norm(dim=-1), torch.full((11,), math.sqrt(6)), rtol=1e-5)
    distances = torch.cdist(table, table)
    within = torch.stack([distances[i, j] for i in range(4) for j in range(i)])
    across = distances[:4, 4:8].flatten()
    assert within.max() < across.min() and within.min() > 0
    assert torch.equal(table, cooccurrence_embeddings(ids, vocab_size=11, dim=6))
    assert not torch.equal(table, cooccurrence_embeddings(ids, vocab_size=11, dim=6, seed=1))


def test_cooccurrences_work_with_more_dimensions_than_words():
    ids = torch.tensor([[0, 1, 2], [2, 1, 0]])
    assert torch.isfinite(cooccurrence_embeddings(ids, vocab_size=3, dim=8)).all()
