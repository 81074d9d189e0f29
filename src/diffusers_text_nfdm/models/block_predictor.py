"""The predictor for texts in several blocks: an encoder of the clean blocks and a decoder of the noisy ones."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers.activations import ACT2FN
from transformers.modeling_layers import GradientCheckpointingLayer

from .configuration import TextDiffusionConfig
from .predictor import RelativePositionBias, tanh_mlp
from .time_embedding import TimeEmbedding


class PredictorLayer(GradientCheckpointingLayer):
    """`x + attention(norm(x), [memory, norm(x)])`, then `x + mlp(norm(x))`."""

    def __init__(self, config: TextDiffusionConfig):
        super().__init__()
        size = config.hidden_size
        self.num_heads = config.num_attention_heads
        self.attention_norm = nn.LayerNorm(size, eps=config.layer_norm_eps)
        self.query = nn.Linear(size, size)
        self.key_value = nn.Linear(size, 2 * size)
        self.attention_output = nn.Linear(size, size)
        self.mlp_norm = nn.LayerNorm(size, eps=config.layer_norm_eps)
        self.mlp_input = nn.Linear(size, config.intermediate_size)
        self.activation = ACT2FN[config.hidden_act]
        self.mlp_output = nn.Linear(config.intermediate_size, size)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.attention_dropout = config.attention_probs_dropout_prob

    def forward(self, x: Tensor, memory: Tensor | None, bias: Tensor | None) -> Tensor:
        """`bias` is added to the attention scores, `(heads, n, memory + n)`."""
        normed = self.attention_norm(x)
        seen = normed if memory is None else torch.cat([memory, normed], dim=1)
        query = self.query(normed).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
        key, value = self.key_value(seen).unflatten(-1, (2, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        dropout = self.attention_dropout if self.training else 0.0
        attended = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=bias, dropout_p=dropout)
        x = x + self.dropout(self.attention_output(attended.transpose(1, 2).flatten(2)))
        return x + self.dropout(self.mlp_output(self.activation(self.mlp_input(self.mlp_norm(x)))))


class BlockPredictor(nn.Module):
    """`net(z_b, t, c, x_<b)`: a noisy block, given the clean blocks before it.

    The encoder reads the clean tokens once, each seeing those before it, without noise or time. The decoder gets the latents of a
    block with time, position and, if configured, the one-token posterior; the encoder's last state, by a matrix of its own for each
    position of the block; and in every layer it attends to the block and to all that is encoded before it. So all blocks of a text are
    predicted in one call, as if each were alone, and sampling encodes the tokens of a block once for all its steps.
    """

    def __init__(self, config: TextDiffusionConfig, context_dim: int | None = None):
        super().__init__()
        size = config.hidden_size
        self.block_length = config.block_length
        self.input = tanh_mlp(config.embedding_dim, size, size)
        self.positions = nn.Embedding(config.max_length, size)
        self.time_embedding = TimeEmbedding(size, size)
        self.posterior = nn.Linear(config.vocab_size, size, bias=False) if config.posterior_features else None
        window = config.neighbor_mixing
        self.neighbors = nn.Conv1d(size, size, 2 * window + 1) if window else None
        self.relative_positions = (
            RelativePositionBias(config.max_length, config.num_attention_heads)
            if config.relative_position_bias
            else None
        )
        self.context = None if context_dim is None else nn.Linear(context_dim, size)
        self.encoder = nn.ModuleList(PredictorLayer(config) for _ in range(config.previous_num_layers))
        self.encoder_norm = nn.LayerNorm(size, eps=config.layer_norm_eps)
        # What the encoder's last state would be before the first block.
        self.start = nn.Embedding(1, size)
        self.last_state = nn.Linear(size, self.block_length * size)
        self.decoder = nn.ModuleList(PredictorLayer(config) for _ in range(config.num_hidden_layers))
        self.decoder_norm = nn.LayerNorm(size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        if config.prediction_type == "categorical":
            self.output = nn.Linear(size, config.vocab_size)
        else:
            self.output = tanh_mlp(size, size, config.embedding_dim)

    def encode(self, ids: Tensor, embeddings: Tensor) -> Tensor:
        """States of clean tokens, `(texts, positions, hidden_size)`, from their ids and embeddings."""
        x = self.input(embeddings.to(self.positions.weight.dtype)) + self.positions.weight[: ids.shape[1]]
        if self.posterior is not None:
            # The posterior of a clean token is certain.
            x = x + nn.functional.embedding(ids, self.posterior.weight.T)
        if self.neighbors is not None:
            window = self.neighbors.kernel_size[0] // 2
            left = nn.functional.pad(x, (0, 0, window, 0)).transpose(1, 2)
            mixed = nn.functional.conv1d(left, self.neighbors.weight[..., : window + 1], self.neighbors.bias)
            x = x + mixed.transpose(1, 2)
        positions = torch.arange(ids.shape[1], device=ids.device)
        bias = self._attention_bias(positions, positions, positions[:, None] >= positions, x)
        x = self.dropout(x)
        for layer in self.encoder:
            x = layer(x, None, bias)
        return self.encoder_norm(x)

    def forward(self, z: Tensor, *inputs: Tensor | None) -> Tensor:
        """The output for the arguments of `states`."""
        return self.output(self.states(z, *inputs)).to(z.dtype)

    def states(
        self,
        z: Tensor,
        t: Tensor,
        context: Tensor | None = None,
        features: Tensor | None = None,
        previous: Tensor | None = None,
    ) -> Tensor:
        """What the output layer gets for noisy blocks `z`, `(blocks, block_length, embedding_dim)`, at times `t`.

        Args:
            features: those of the posterior, `(blocks, block_length, hidden_size)`, if configured.
            previous: what `encode` gave for the tokens before, `None` if there are none. The blocks of a text, if several, stand together
                in `z` and are the last ones up to the first without a clean one.
        """
        dtype, length = self.positions.weight.dtype, self.block_length
        x = self.input(z.to(dtype)) + self.time_embedding(t).value[:, None]
        if self.posterior is not None:
            x = x + features
        if self.context is not None:
            x = x + self.context(context.to(dtype))[:, None]
        if self.neighbors is not None:
            x = x + self.neighbors(nn.functional.pad(x, (0, 0, *2 * (self.neighbors.kernel_size[0] // 2,))).mT).mT
        memory = x.new_zeros(len(x), 0, x.shape[-1]) if previous is None else previous
        texts, num_clean = memory.shape[:2]
        blocks = len(x) // texts
        first = num_clean // length + 1 - blocks
        states = torch.cat([self.start.weight.expand(texts, 1, -1), memory[:, length - 1 :: length]], dim=1)
        x = x + self.last_state(states[:, first:]).reshape(x.shape)
        clean = torch.arange(num_clean, device=z.device)
        noisy = torch.arange(first * length, (first + blocks) * length, device=z.device)
        x = x.reshape(texts, len(noisy), -1) + self.positions.weight[noisy]
        bias = None
        if blocks > 1 or self.relative_positions is not None:
            own = noisy[:, None] // length
            seen = torch.cat([own > clean // length, own == noisy // length], dim=1)
            bias = self._attention_bias(noisy, torch.cat([clean, noisy]), seen, x)
        x = self.dropout(x)
        for layer in self.decoder:
            x = layer(x, memory, bias)
        return self.decoder_norm(x).view(*z.shape[:-1], -1)

    def _attention_bias(self, queries: Tensor, keys: Tensor, seen: Tensor, x: Tensor) -> Tensor:
        """What is added to the attention scores, `(heads or 1, queries, keys)`: the bias of distances, and -∞ for what is not seen."""
        if self.relative_positions is None:
            bias = x.new_zeros(1, len(queries), len(keys))
        else:
            bias = self.relative_positions(queries, keys).to(x.dtype)
        return bias.masked_fill(~seen, torch.finfo(x.dtype).min)
