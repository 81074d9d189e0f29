"""What a predictor's output is made of: token rows or embeddings, and small parts that the predictors share."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from torch import Tensor, nn


if TYPE_CHECKING:
    from ..models.configuration import TextDiffusionConfig


def tanh_mlp(input_dim: int, hidden_size: int, output_dim: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(input_dim, hidden_size), nn.Tanh(), nn.Linear(hidden_size, output_dim))


class TokenLayer(nn.Linear):
    """Logits `h Wᵀ + b` over the vocabulary, and the same rows of W, of length about one, for reading tokens."""

    def read(self, probabilities: Tensor) -> Tensor:
        """`sqrt(size) p W`, of size one for certain tokens, from distributions `(..., vocab)`."""
        return probabilities @ self.weight * math.sqrt(self.in_features)

    def read_ids(self, ids: Tensor) -> Tensor:
        """`read` of tokens that are certain."""
        return nn.functional.embedding(ids, self.weight) * math.sqrt(self.in_features)


def output_layer(config: TextDiffusionConfig) -> nn.Module:
    """From the hidden states to logits, or to embeddings."""
    if config.prediction_type == "categorical":
        return TokenLayer(config.hidden_size, config.vocab_size)
    return tanh_mlp(config.hidden_size, config.hidden_size, config.embedding_dim)


def self_condition_input(config: TextDiffusionConfig) -> nn.Linear | None:
    """What reads an Ê made before, for self-conditioning; without a bias, so that Ê = 0 is none."""
    return nn.Linear(config.embedding_dim, config.hidden_size, bias=False) if config.self_conditioning else None
