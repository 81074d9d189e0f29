"""Perplexity of texts under a judge."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .judge import Judge


def perplexity(texts: Sequence[str], judge: Judge) -> dict:
    """Two perplexities, which differ and have names of their own.

    * `perplexity`: `exp(Σ nats / Σ tokens)`, every predicted token counted once.
    * `mean_text_perplexity`: the mean over texts of `exp(nats / tokens)`, as `evaluate` and LD4LG report it; a few odd
      texts can carry it away.
    """
    nats, tokens = judge.negative_log_probabilities(texts)
    return {
        "perplexity": float(np.exp(nats.sum() / tokens.sum())),
        "mean_text_perplexity": float(np.exp(nats / tokens).mean()),
        "settings": {**judge.settings, "texts": len(nats), "predicted_tokens": int(tokens.sum())},
    }
