"""The predictor for texts in several blocks: an encoder of the clean blocks and a decoder of the noisy ones."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers.activations import ACT2FN
from transformers.modeling_layers import GradientCheckpointingLayer

from .configuration import TextDiffusionConfig
from .predictor import RelativePositionBias, estimate_input, output_layer, tanh_mlp
from .time_embedding import TimeEmbedding


class PredictorLayer(GradientCheckpointingLayer):
    """`x + attention(norm(x), memory)`, then `x + mlp(norm(x))`; without a memory, attention is to `norm(x)`."""

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

    def forward(self, x: Tensor, memory: Tensor | None, bias: Tensor) -> Tensor:
        """`bias` is added to the attention scores, `(heads, x, memory)`."""
        normed = self.attention_norm(x)
        seen = normed if memory is None else memory
        query = self.query(normed).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
        key, value = self.key_value(seen).unflatten(-1, (2, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        dropout = self.attention_dropout if self.training else 0.0
        attended = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=bias, dropout_p=dropout)
        x = x + self.dropout(self.attention_output(attended.transpose(1, 2).flatten(2)))
        return x + self.dropout(self.mlp_output(self.activation(self.mlp_input(self.mlp_norm(x)))))


class BlockPredictor(nn.Module):
    """`net(z_b, t, c, x_<b)`: a noisy block, given the clean blocks before it.

    The encoder reads the clean tokens once, each seeing those before it, without noise or time. In the decoder every position of a block
    starts from the encoder's last state, by a matrix of its own, and attends in every layer to all that is encoded before the block and
    to the latents of the block, each with its time, place and, if configured, one-token posterior. So all blocks of a text are predicted in
    one call, as if each were alone, and sampling encodes the tokens before a block once for all its steps.

    With categorical prediction a position does not see its own latent: what that tells of its token is in the logits, and

        p(x_i | z) ∝ p(z_i | x_i) p(x_i | z_j for j ≠ i)

    where tokens get their noise independently (for NFDM, as long as its process is not deformed). In blocks of one token the predictor thus sees no
    noise at all. With self-conditioning the first Ê of the others tells of it.
    """

    def __init__(self, config: TextDiffusionConfig, context_dim: int | None = None):
        super().__init__()
        size = config.hidden_size
        self.config = config
        self.block_length = config.block_length
        self.sees_own_latent = config.prediction_type == "embedding"
        self.reads_latents = self.sees_own_latent or self.block_length > 1
        self.input = tanh_mlp(config.embedding_dim, size, size)
        self.positions = nn.Embedding(config.max_length, size)
        self.time_embedding = TimeEmbedding(size, size) if self.reads_latents else None
        self.latent_norm = nn.LayerNorm(size, eps=config.layer_norm_eps) if self.reads_latents else None
        self.posterior_features = config.posterior_features
        window = config.neighbor_mixing
        self.neighbors = nn.Conv1d(size, size, window + 1) if window else None
        self.relative_positions = (
            RelativePositionBias(config.max_length, config.num_attention_heads)
            if config.relative_position_bias
            else None
        )
        self.estimate = estimate_input(config) if self.reads_latents else None
        self.context = None if context_dim is None else nn.Linear(context_dim, size)
        self.encoder = nn.ModuleList(PredictorLayer(config) for _ in range(config.previous_num_layers))
        self.encoder_norm = nn.LayerNorm(size, eps=config.layer_norm_eps)
        # What is encoded before the first block.
        self.start = nn.Embedding(1, size)
        self.last_state = nn.Linear(size, self.block_length * size)
        self.decoder = nn.ModuleList(PredictorLayer(config) for _ in range(config.num_hidden_layers))
        self.decoder_norm = nn.LayerNorm(size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.output = output_layer(config)

    def encode(self, ids: Tensor, embeddings: Tensor) -> Tensor:
        """States of clean tokens, `(texts, positions, hidden_size)`, from their ids and embeddings."""
        x = self.input(embeddings.to(self.positions.weight.dtype)) + self.positions.weight[: ids.shape[1]]
        if self.posterior_features:
            # The posterior of a clean token is certain.
            x = x + self.output.read_ids(ids)
        if self.neighbors is not None:
            left = nn.functional.pad(x, (0, 0, self.neighbors.kernel_size[0] - 1, 0))
            x = x + self.neighbors(left.mT).mT
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
        estimate: Tensor | None = None,
        previous: Tensor | None = None,
    ) -> Tensor:
        """What the output layer gets for noisy blocks `z`, `(blocks, block_length, embedding_dim)`, at times `t`.

        Args:
            features: those of the posterior, `(blocks, block_length, hidden_size)`, if configured.
            estimate: an Ê made before, of the shape of `z`, for self-conditioning.
            previous: what `encode` gave for the tokens before, `None` if there are none. The blocks of a text, if several, stand together
                in `z` and are the last ones up to the first without a clean one.
        """
        dtype, length = self.positions.weight.dtype, self.block_length
        start = self.start.weight.expand(len(z) if previous is None else len(previous), 1, -1)
        memory = start if previous is None else torch.cat([start, previous], dim=1)
        texts, num_clean = len(memory), memory.shape[1] - 1
        blocks = len(z) // texts
        first = num_clean // length + 1 - blocks
        clean = torch.arange(num_clean, device=z.device)
        noisy = torch.arange(first * length, (first + blocks) * length, device=z.device)
        x = self.last_state(memory[:, first * length :: length]).reshape(texts, len(noisy), -1)
        x = x + self.positions.weight[noisy]
        if self.context is not None:
            x = x + self.context(context.to(dtype)).repeat_interleave(length, 0).view_as(x)
        own = noisy[:, None] // length
        keys, seen = clean, own > clean // length
        if self.reads_latents:
            latents = self.input(z.to(dtype)) + self.time_embedding(t).value[:, None]
            if features is not None:
                latents = latents + features
            if self.estimate is not None:
                latents = latents + self.estimate(estimate.to(dtype))
            latents = latents.view_as(x) + x
            memory = torch.cat([memory, self.latent_norm(latents)], dim=1)
            others = own == noisy // length
            if self.sees_own_latent:
                x = latents
            else:
                others = others & (noisy[:, None] != noisy)
            keys, seen = torch.cat([clean, noisy]), torch.cat([seen, others], dim=1)
        # The start has no place, and all see it.
        bias = nn.functional.pad(self._attention_bias(noisy, keys, seen, x), (1, 0))
        x = self.dropout(x)
        for layer in self.decoder:
            x = layer(x, memory, bias)
        return self.decoder_norm(x).view(*z.shape[:-1], -1)

    def _attention_bias(self, queries: Tensor, keys: Tensor, seen: Tensor, x: Tensor) -> Tensor:
        """What is added to the attention scores, `(heads or 1, queries, keys)`: the bias of distances, and -∞ for what is not seen."""
        if self.config._attn_implementation not in (None, "sdpa"):
            raise ValueError(
                f"A text in blocks needs attention 'sdpa', which adds a bias to the scores; it is {self.config._attn_implementation!r}."
            )
        if self.relative_positions is None:
            bias = x.new_zeros(1, len(queries), len(keys))
        else:
            bias = self.relative_positions(queries, keys).to(x.dtype)
        return bias.masked_fill(~seen, torch.finfo(x.dtype).min)
