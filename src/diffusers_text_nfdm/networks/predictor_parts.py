"""Small parts that the predictors share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn


if TYPE_CHECKING:
    from ..models.configuration import TextDiffusionConfig


def tanh_mlp(input_dim: int, hidden_size: int, output_dim: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(input_dim, hidden_size), nn.Tanh(), nn.Linear(hidden_size, output_dim))


def output_layer(config: TextDiffusionConfig) -> nn.Module:
    """From the hidden states to logits, or to embeddings."""
    if config.prediction_type == "categorical":
        return nn.Linear(config.hidden_size, config.vocab_size)
    return tanh_mlp(config.hidden_size, config.hidden_size, config.embedding_dim)


def self_condition_input(config: TextDiffusionConfig) -> nn.Linear | None:
    """What reads an Ê made before, for self-conditioning; without a bias, so that Ê = 0 is none."""
    return nn.Linear(config.embedding_dim, config.hidden_size, bias=False) if config.self_conditioning else None
