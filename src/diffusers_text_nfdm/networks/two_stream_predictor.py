"""Our predictor: one pre-norm trunk for a stream of clean tokens and a stream of noisy ones.

Both streams have the same weights. The clean stream reads the text from left to right; the noisy one reads it block by
block:

    a clean token sees the clean tokens up to itself;
    a noisy token sees the clean tokens of earlier blocks and all noisy tokens of its own block.

So all blocks of a text are predicted in one call as if each were alone, the clean stream is an autoregressive model,
and in sampling the keys and values of what is written are kept. Where the whole text is one block there is no clean
stream.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import initialization as init
from transformers.activations import ACT2FN
from transformers.modeling_layers import GradientCheckpointingLayer

from .dual import Dual
from .predictor_parts import output_layer, self_condition_input, tanh_mlp
from .time_embedding import TimeEmbedding


if TYPE_CHECKING:
    from ..models.configuration import TextDiffusionConfig


# The slowest rotation turns once in about six hundred positions.
ROTARY_BASE = 100.0
# Attention scores are this number, learned per head, times the cosine of query and key.
FIRST_SHARPNESS = 4.0


class Places(NamedTuple):
    """Where noisy tokens stand. A block is known by the position at which it starts.

    Args:
        positions: `(tokens,)`, or `(batch, tokens)` where every text has its own.
        starts: where the block of each token starts, of the same shape.
    """

    positions: Tensor
    starts: Tensor

    @classmethod
    def in_blocks(cls, length: int, block_size: int | None = None, device: torch.device | None = None) -> Places:
        """All tokens of a text in blocks, or in one."""
        positions = torch.arange(length, device=device)
        return cls(positions, positions - positions % (block_size or length))

    def window(self, window: slice) -> Places:
        """Some of the tokens."""
        return Places(self.positions[..., window], self.starts[..., window])


def sees_clean(places: Places, clean: Tensor) -> Tensor:
    """Which clean tokens, at positions `clean`, noisy ones see: those before their block."""
    return clean < places.starts[..., None]


def sees_noisy(places: Places) -> Tensor:
    """Which noisy tokens noisy ones see: those of their own block."""
    return places.starts[..., None] == places.starts[..., None, :]


# Keys and values of clean tokens in every layer, `(batch, heads, tokens, head_dim)` each, for the positions from 0 on.
CleanTokens = tuple[tuple[Tensor, Tensor], ...]


class Rotation(NamedTuple):
    """Cosines and sines, `(1 or batch, 1, tokens, head_dim / 2)`, by which queries or keys are turned."""

    cos: Tensor
    sin: Tensor

    @classmethod
    def at(cls, positions: Tensor, head_dim: int) -> Rotation:
        """Rotary positions (Su et al. 2021): scores depend on the distance between two tokens."""
        frequencies = ROTARY_BASE ** (-torch.arange(0, head_dim, 2, device=positions.device) / head_dim)
        angles = positions[..., None] * frequencies
        angles = angles.view(-1, 1, *angles.shape[-2:])
        return cls(angles.cos(), angles.sin())

    def __call__(self, x: Tensor) -> Tensor:
        cos, sin = self.cos.to(x.dtype), self.sin.to(x.dtype)
        a, b = x.chunk(2, dim=-1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


class PredictorLayer(GradientCheckpointingLayer):
    """`x + attention(norm(x))`, then `x + mlp(norm(x))`; the two branches start at zero."""

    def __init__(self, config: TextDiffusionConfig):
        super().__init__()
        size = config.hidden_size
        self.num_heads = config.num_attention_heads
        self.attention_norm = nn.RMSNorm(size, eps=1e-6)
        self.query_key_value = nn.Linear(size, 3 * size, bias=False)
        self.log_sharpness = nn.Parameter(torch.full((self.num_heads, 1, 1), math.log(FIRST_SHARPNESS)))
        self.attention_output = nn.Linear(size, size, bias=False)
        self.mlp_norm = nn.RMSNorm(size, eps=1e-6)
        self.mlp_input = nn.Linear(size, config.intermediate_size, bias=False)
        self.activation = ACT2FN[config.hidden_act]
        self.mlp_output = nn.Linear(config.intermediate_size, size, bias=False)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.attention_dropout = config.attention_probs_dropout_prob

    def forward(
        self, x: Tensor, seen: Tensor, query_place: Rotation, key_place: Rotation, clean: tuple[Tensor, Tensor] | None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """The new states, and the keys and values of these tokens.

        `clean` are keys and values of clean tokens, which come before those of x in `seen`,
        `(1 or batch, 1, x, clean + x)`.
        """
        query, key, value = (
            self.query_key_value(self.attention_norm(x)).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        )
        query = query_place(F.normalize(query, dim=-1)) * self.log_sharpness.exp().to(query.dtype)
        key = key_place(F.normalize(key, dim=-1))
        keys, values = (
            (key, value) if clean is None else (torch.cat(pair, dim=-2) for pair in zip(clean, (key, value)))
        )
        dropout = self.attention_dropout if self.training else 0.0
        attended = F.scaled_dot_product_attention(query, keys, values, attn_mask=seen, dropout_p=dropout, scale=1.0)
        x = x + self.dropout(self.attention_output(attended.transpose(1, 2).flatten(2)))
        x = x + self.dropout(self.mlp_output(self.activation(self.mlp_input(self.mlp_norm(x)))))
        return x, (key, value)


class TwoStreamPredictor(nn.Module):
    """`net(z, t, c)` of noisy tokens, given clean ones before them.

    The input of a token is its time and its latent. With categorical prediction the latent is read as the mean of
    token rows under the posterior that it gives of its token; a clean token is read as its row. A noisy token attends
    from the place before its own, as the clean stream does for the same prediction.
    """

    def __init__(self, config: TextDiffusionConfig, context_dim: int | None = None):
        super().__init__()
        size = config.hidden_size
        self.config = config
        self.reads_tokens = config.prediction_type == "categorical"
        self.head_dim = size // config.num_attention_heads
        if self.reads_tokens:
            self.token_rows = nn.Embedding(config.vocab_size, size)
        else:
            self.input = tanh_mlp(config.embedding_dim, size, size)
        self.time_embedding = TimeEmbedding(size, size)
        self.self_condition = self_condition_input(config)
        self.context = None if context_dim is None else nn.Linear(context_dim, size)
        self.layers = nn.ModuleList(PredictorLayer(config) for _ in range(config.num_hidden_layers))
        self.norm = nn.RMSNorm(size, eps=1e-6)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.output = output_layer(config)

    def init_weights(self) -> None:
        """Branches that say nothing yet, attention that is neither flat nor sharp, token rows of size one."""
        for layer in self.layers:
            init.constant_(layer.log_sharpness, math.log(FIRST_SHARPNESS))
            for linear in (layer.query_key_value, layer.mlp_input):
                init.normal_(linear.weight, std=0.85 * linear.in_features**-0.5)
            for linear in (layer.attention_output, layer.mlp_output):
                init.zeros_(linear.weight)
        if self.reads_tokens:
            init.normal_(self.token_rows.weight)

    def forward(
        self,
        z: Tensor,
        t: Tensor,
        context: Tensor | None = None,
        tokens: Tensor | None = None,
        self_condition: Tensor | None = None,
        clean: CleanTokens | None = None,
        places: Places | None = None,
    ) -> Tensor:
        """The states that the output layer gets, `(batch, seq, hidden_size)`.

        Args:
            z: latents, `(batch, seq, embedding_dim)`.
            t: their times, `(batch, seq or 1)`.
            context: MuLAN's c, `(batch, context_dim)`.
            tokens: mean token rows, `(batch, seq, hidden_size)`, which are read instead of z with categorical
                prediction.
            self_condition: an Ê made before, of the shape of `z`, for self-conditioning.
            clean: what is seen of clean tokens, where the text is in blocks.
            places: where the noisy tokens stand; by default they are a text in one block.
        """
        places = places or Places.in_blocks(z.shape[1], device=z.device)
        x = self._input(z, t, tokens)
        if self.self_condition is not None:
            x = x + self.self_condition(self_condition.to(x.dtype))
        if self.context is not None:
            x = x + self.context(context.to(x.dtype))[:, None]
        seen = sees_noisy(places)
        if clean is not None:
            before = torch.arange(_length(clean), device=z.device)
            seen = torch.cat([sees_clean(places, before), seen], dim=-1)
        x, _ = self._layers(x, seen, places.positions - 1, places.positions, clean)
        return x

    def read_clean(
        self, ids: Tensor, embeddings: Tensor, before: CleanTokens | None = None
    ) -> tuple[Tensor, CleanTokens]:
        """States of clean tokens, and what noisy tokens see of them.

        Args:
            ids, embeddings: of the clean tokens that follow those of `before`.
            before: what was read already; the result then holds both.
        """
        start = 0 if before is None else _length(before)
        keys = torch.arange(start + ids.shape[1], device=ids.device)
        positions = keys[start:]
        tokens = self.token_rows(ids) if self.reads_tokens else None
        x = self._input(embeddings, embeddings.new_zeros(1, 1), tokens)
        x, new = self._layers(x, keys <= positions[:, None], positions, positions, before)
        if before is not None:
            new = tuple(
                tuple(torch.cat(pair, dim=-2) for pair in zip(past, recent)) for past, recent in zip(before, new)
            )
        return x, new

    def _input(self, latents: Tensor, t: Tensor, tokens: Tensor | None) -> Tensor:
        time = self.time_embedding(Dual(t)).value
        return time + (self.input(latents.to(time.dtype)) if tokens is None else tokens)

    def _layers(
        self, x: Tensor, seen: Tensor, query_positions: Tensor, key_positions: Tensor, clean: CleanTokens | None
    ) -> tuple[Tensor, tuple[tuple[Tensor, Tensor], ...]]:
        """The last states, and the keys and values of every layer."""
        if self.config._attn_implementation not in (None, "sdpa"):
            raise ValueError(
                "The two-stream predictor needs attention 'sdpa', which takes a mask; it is "
                f"{self.config._attn_implementation!r}."
            )
        rotations = [Rotation.at(positions, self.head_dim) for positions in (query_positions, key_positions)]
        seen = seen.view(-1, 1, *seen.shape[-2:])
        x, keys_values = self.dropout(x), []
        for index, layer in enumerate(self.layers):
            x, new = layer(x, seen, *rotations, None if clean is None else clean[index])
            keys_values.append(new)
        return self.norm(x), tuple(keys_values)


def _length(clean: CleanTokens) -> int:
    return clean[0][0].shape[-2]
