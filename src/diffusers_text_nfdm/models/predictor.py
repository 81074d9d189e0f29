"""The predictor: a BERT encoder, trained from scratch, from noisy latents to clean embeddings or tokens."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from transformers.models.bert.modeling_bert import BertEncoder

from .configuration import TextDiffusionConfig
from .time_embedding import TimeEmbedding


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


def estimate_input(config: TextDiffusionConfig) -> nn.Linear | None:
    """What reads an Ê made before, for self-conditioning; without a bias, so that Ê = 0 is none."""
    return nn.Linear(config.embedding_dim, config.hidden_size, bias=False) if config.self_conditioning else None


class RelativePositionBias(nn.Module):
    """One number per head and distance, added to the attention scores."""

    def __init__(self, max_length: int, num_heads: int):
        super().__init__()
        self.max_length = max_length
        self.distances = nn.Embedding(2 * max_length - 1, num_heads)

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        """`(heads, queries, keys)` for tokens at these positions."""
        return self.distances(queries[:, None] - keys + self.max_length - 1).permute(2, 0, 1)


class Predictor(nn.Module):
    """`net(z, t, c)`: latents `(batch, seq, embedding_dim)` to the same shape, or to logits `(batch, seq, vocab)`.

    Positions, time and, if configured, the one-token posterior are added to the projected input; the context, if there is one, is one
    more token.
    """

    reads_latents = True

    def __init__(self, config: TextDiffusionConfig, context_dim: int | None = None):
        super().__init__()
        self.input = tanh_mlp(config.embedding_dim, config.hidden_size, config.hidden_size)
        self.positions = nn.Embedding(config.max_length, config.hidden_size)
        self.time_embedding = TimeEmbedding(config.hidden_size, config.hidden_size)
        window = config.neighbor_mixing
        self.neighbors = (
            nn.Conv1d(config.hidden_size, config.hidden_size, 2 * window + 1, padding=window) if window else None
        )
        self.relative_positions = (
            RelativePositionBias(config.max_length, config.num_attention_heads)
            if config.relative_position_bias
            else None
        )
        self.estimate = estimate_input(config)
        self.context = None if context_dim is None else nn.Linear(context_dim, config.hidden_size)
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.encoder = BertEncoder(config)
        self.output = output_layer(config)

    def forward(self, z: Tensor, *inputs: Tensor | None) -> Tensor:
        """The output for the arguments of `states`."""
        return self.output(self.states(z, *inputs)).to(z.dtype)

    def states(
        self,
        z: Tensor,
        t: Tensor,
        context: Tensor | None = None,
        features: Tensor | None = None,
        estimate: Tensor | None = None,
    ) -> Tensor:
        """What the output layer gets.

        Args:
            features: those of the posterior, `(batch, seq, hidden_size)`, if configured.
            estimate: an Ê made before, of the shape of `z`, for self-conditioning.
        """
        dtype = self.positions.weight.dtype
        hidden = self.input(z.to(dtype)) + self.positions.weight + self.time_embedding(t).value[:, None]
        if features is not None:
            hidden = hidden + features
        if self.estimate is not None:
            hidden = hidden + self.estimate(estimate.to(dtype))
        if self.neighbors is not None:
            hidden = hidden + self.neighbors(hidden.transpose(1, 2)).transpose(1, 2)
        if self.context is not None:
            hidden = torch.cat([hidden, self.context(context.to(dtype))[:, None]], dim=1)
        bias = self._attention_bias(hidden)
        hidden = self.encoder(self.dropout(self.norm(hidden)), bias).last_hidden_state
        return hidden[:, : z.shape[1]]

    def _attention_bias(self, hidden: Tensor) -> Tensor | None:
        """The bias of distances, `(1, heads, n, n)`; the context token has no position and no bias."""
        if self.relative_positions is None:
            return None
        backend = self.encoder.config._attn_implementation
        if backend not in ("sdpa", "eager"):
            raise ValueError(
                f"`relative_position_bias` needs attention 'sdpa' or 'eager', which can add a bias; it is {backend!r}."
            )
        positions = torch.arange(len(self.positions.weight), device=hidden.device)
        bias = self.relative_positions(positions, positions).to(hidden.dtype)
        if self.context is not None:
            bias = nn.functional.pad(bias, (0, 1, 0, 1))
        return bias[None]
