"""Our predictor: one pre-norm trunk for a stream of clean tokens and a stream of noisy ones.

Both streams have the same weights. The clean stream reads the text from left to right; the noisy one reads it block by block:

    a clean token sees the clean tokens up to itself;
    a noisy token sees the clean tokens of earlier blocks and all noisy tokens of its own block.

So all blocks of a text are predicted in one call as if each were alone, the clean stream is an autoregressive model, and in
sampling the keys and values of what is written are kept. Where the whole text is one block there is no clean stream.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn
from transformers.activations import ACT2FN
from transformers.modeling_layers import GradientCheckpointingLayer

from .dual import Dual
from .time_embedding import TimeEmbedding
from .token_layer import output_layer, self_condition_input, tanh_mlp


if TYPE_CHECKING:
    from ..models.configuration import TextDiffusionConfig


def sees_clean(queries: Tensor, keys: Tensor, block_size: int | None) -> Tensor:
    """Which clean tokens, at positions `keys`, those at `queries` see: noisy ones in blocks, or with `None` clean ones."""
    if block_size is None:
        return keys <= queries[:, None]
    return keys // block_size < queries[:, None] // block_size


def sees_noisy(queries: Tensor, keys: Tensor, block_size: int) -> Tensor:
    """Which noisy tokens a noisy one sees: those of its own block."""
    return keys // block_size == queries[:, None] // block_size


class CleanTokens(NamedTuple):
    """What noisy tokens see of the clean ones.

    Args:
        keys_values: of every layer, `(batch, heads, length, head_dim)` each, for the positions from 0 on.
        block_size: tokens of a block.
        first: position of the first noisy token of a call.
    """

    keys_values: tuple[tuple[Tensor, Tensor], ...]
    block_size: int
    first: int = 0

    @property
    def length(self) -> int:
        return self.keys_values[0][0].shape[-2]


class RelativePositionBias(nn.Module):
    """One number per head and distance, added to the attention scores."""

    def __init__(self, max_length: int, num_heads: int):
        super().__init__()
        self.max_length = max_length
        self.distances = nn.Embedding(2 * max_length - 1, num_heads)

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        """`(heads, queries, keys)` for tokens at these positions."""
        return self.distances(queries[:, None] - keys + self.max_length - 1).permute(2, 0, 1)


class PredictorLayer(GradientCheckpointingLayer):
    """`x + attention(norm(x))`, then `x + mlp(norm(x))`."""

    def __init__(self, config: TextDiffusionConfig):
        super().__init__()
        size = config.hidden_size
        self.num_heads = config.num_attention_heads
        self.attention_norm = nn.LayerNorm(size, eps=config.layer_norm_eps)
        self.query_key_value = nn.Linear(size, 3 * size)
        self.attention_output = nn.Linear(size, size)
        self.mlp_norm = nn.LayerNorm(size, eps=config.layer_norm_eps)
        self.mlp_input = nn.Linear(size, config.intermediate_size)
        self.activation = ACT2FN[config.hidden_act]
        self.mlp_output = nn.Linear(config.intermediate_size, size)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.attention_dropout = config.attention_probs_dropout_prob

    def forward(
        self, x: Tensor, bias: Tensor, clean: tuple[Tensor, Tensor] | None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """The new states, and the keys and values of these tokens.

        `clean` are keys and values of clean tokens, which come before those of x in `bias`, `(heads, x, clean + x)`.
        """
        query, key, value = (
            self.query_key_value(self.attention_norm(x)).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        )
        keys, values = (
            (key, value) if clean is None else (torch.cat(pair, dim=-2) for pair in zip(clean, (key, value)))
        )
        dropout = self.attention_dropout if self.training else 0.0
        attended = nn.functional.scaled_dot_product_attention(query, keys, values, attn_mask=bias, dropout_p=dropout)
        x = x + self.dropout(self.attention_output(attended.transpose(1, 2).flatten(2)))
        x = x + self.dropout(self.mlp_output(self.activation(self.mlp_input(self.mlp_norm(x)))))
        return x, (key, value)


class TwoStreamPredictor(nn.Module):
    """`net(z, t, c)` of noisy tokens, given clean ones before them.

    The input of a token is its latent, its time, its place and, with categorical prediction, the mean of the token rows under
    the posterior of its own latent; for a clean token that is its row.
    """

    def __init__(self, config: TextDiffusionConfig, context_dim: int | None = None):
        super().__init__()
        size = config.hidden_size
        self.config = config
        self.reads_tokens = config.prediction_type == "categorical"
        self.input = tanh_mlp(config.embedding_dim, size, size)
        self.positions = nn.Embedding(config.max_length, size)
        self.relative_positions = RelativePositionBias(config.max_length, config.num_attention_heads)
        self.time_embedding = TimeEmbedding(size, size)
        self.self_condition = self_condition_input(config)
        self.context = None if context_dim is None else nn.Linear(context_dim, size)
        self.layers = nn.ModuleList(PredictorLayer(config) for _ in range(config.num_hidden_layers))
        self.norm = nn.LayerNorm(size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.output = output_layer(config)

    def forward(
        self,
        z: Tensor,
        t: Tensor,
        context: Tensor | None = None,
        tokens: Tensor | None = None,
        self_condition: Tensor | None = None,
        clean: CleanTokens | None = None,
    ) -> Tensor:
        """The states that the output layer gets, `(batch, seq, hidden_size)`.

        Args:
            z: latents, `(batch, seq, embedding_dim)`.
            t: their times, `(batch, seq or 1)`.
            context: MuLAN's c, `(batch, context_dim)`.
            tokens: mean token rows, `(batch, seq, hidden_size)`, with categorical prediction.
            self_condition: an Ê made before, of the shape of `z`, for self-conditioning.
            clean: what is seen of clean tokens, where the text is in blocks.
        """
        length = self.config.max_length
        first, block_size = (0, length) if clean is None else (clean.first, clean.block_size)
        noisy = torch.arange(first, first + z.shape[1], device=z.device)
        x = self._input(z, t, tokens, noisy)
        if self.self_condition is not None:
            x = x + self.self_condition(self_condition.to(x.dtype))
        if self.context is not None:
            x = x + self.context(context.to(x.dtype))[:, None]
        keys, seen = noisy, sees_noisy(noisy, noisy, block_size)
        if clean is not None:
            before = torch.arange(clean.length, device=z.device)
            keys = torch.cat([before, keys])
            seen = torch.cat([sees_clean(noisy, before, block_size), seen], dim=1)
        bias = self._attention_bias(noisy, keys, seen, x)
        x = self.dropout(x)
        for index, layer in enumerate(self.layers):
            x, _ = layer(x, bias, None if clean is None else clean.keys_values[index])
        return self.norm(x)

    def read_clean(
        self, ids: Tensor, embeddings: Tensor, block_size: int, before: CleanTokens | None = None
    ) -> tuple[Tensor, CleanTokens]:
        """States of clean tokens, and what noisy tokens see of them.

        Args:
            ids, embeddings: of the clean tokens that follow those of `before`.
            before: what was read already; the result then holds both.
        """
        start = 0 if before is None else before.length
        positions = torch.arange(start, start + ids.shape[1], device=ids.device)
        tokens = self.output.read_ids(ids) if self.reads_tokens else None
        x = self._input(embeddings, embeddings.new_zeros(1, 1), tokens, positions)
        keys = torch.arange(start + ids.shape[1], device=ids.device)
        bias = self._attention_bias(positions, keys, sees_clean(positions, keys, None), x)
        x, keys_values = self.dropout(x), []
        for index, layer in enumerate(self.layers):
            past = None if before is None else before.keys_values[index]
            x, new = layer(x, bias, past)
            keys_values.append(new if past is None else tuple(torch.cat(pair, dim=-2) for pair in zip(past, new)))
        return self.norm(x), CleanTokens(tuple(keys_values), block_size)

    def _input(self, latents: Tensor, t: Tensor, tokens: Tensor | None, positions: Tensor) -> Tensor:
        x = self.input(latents.to(self.positions.weight.dtype)) + self.positions(positions)
        x = x + self.time_embedding(Dual(t)).value
        return x if tokens is None else x + tokens

    def _attention_bias(self, queries: Tensor, keys: Tensor, seen: Tensor, x: Tensor) -> Tensor:
        """What is added to the attention scores, `(heads, queries, keys)`: the bias of distances, and -∞ for what is not seen."""
        if self.config._attn_implementation not in (None, "sdpa"):
            raise ValueError(
                "The two-stream predictor needs attention 'sdpa', which adds a bias to the scores; it is "
                f"{self.config._attn_implementation!r}."
            )
        bias = self.relative_positions(queries, keys).to(x.dtype)
        return bias.masked_fill(~seen, torch.finfo(x.dtype).min)
