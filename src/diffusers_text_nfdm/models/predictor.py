"""The predictor: a BERT encoder, trained from scratch, from noisy latents to clean embeddings or tokens."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers.models.bert.modeling_bert import BertEncoder

from .configuration import TextDiffusionConfig
from .time_embedding import TimeEmbedding


def _tanh_mlp(input_dim: int, hidden_size: int, output_dim: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(input_dim, hidden_size), nn.Tanh(), nn.Linear(hidden_size, output_dim))


class RelativePositionBias(nn.Module):
    """One number per head and distance, added to the attention scores."""

    def __init__(self, max_length: int, num_heads: int):
        super().__init__()
        self.max_length = max_length
        self.distances = nn.Embedding(2 * max_length - 1, num_heads)

    def forward(self, positions: Tensor) -> Tensor:
        """`(heads, n, n)` for tokens at `positions`, `(n,)`."""
        return self.distances(positions[:, None] - positions[None, :] + self.max_length - 1).permute(2, 0, 1)


class Predictor(nn.Module):
    """`net(z, t, c)`: latents `(batch, block, embedding_dim)` to the same shape, or to logits `(batch, block, vocab)`.

    Positions, time and, if configured, the one-token posterior are added to the projected input; the context, if there is one, is one
    more token. Of a text in several blocks, each noisy block attends to itself and to the clean blocks before it, which attend to
    themselves and those before them; so all noisy blocks of a text can be predicted in one call, as if each were alone.
    """

    def __init__(self, config: TextDiffusionConfig, context_dim: int | None = None):
        super().__init__()
        self.block_length, self.num_blocks = config.block_length, config.num_blocks
        self.input = _tanh_mlp(config.embedding_dim, config.hidden_size, config.hidden_size)
        self.positions = nn.Embedding(config.max_length, config.hidden_size)
        self.time_embedding = TimeEmbedding(config.hidden_size, config.hidden_size)
        self.posterior = (
            nn.Linear(config.vocab_size, config.hidden_size, bias=False) if config.posterior_features else None
        )
        window = config.neighbor_mixing
        self.neighbors = nn.Conv1d(config.hidden_size, config.hidden_size, 2 * window + 1) if window else None
        self.relative_positions = (
            RelativePositionBias(config.max_length, config.num_attention_heads)
            if config.relative_position_bias
            else None
        )
        self.context = None if context_dim is None else nn.Linear(context_dim, config.hidden_size)
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.encoder = BertEncoder(config)
        if config.prediction_type == "categorical":
            self.output = nn.Linear(config.hidden_size, config.vocab_size)
        else:
            self.output = _tanh_mlp(config.hidden_size, config.hidden_size, config.embedding_dim)

    def forward(
        self,
        z: Tensor,
        t: Tensor,
        context: Tensor | None = None,
        posterior: Tensor | None = None,
        previous: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:
        """The output for noisy blocks `z` at times `t`.

        Args:
            posterior: `p(x_i | z_i)` for every position, `(batch, block, vocab)`, where `posterior_features` is set.
            previous: token ids and embeddings of the blocks before, `(texts, positions)` and `(texts, positions, embedding_dim)`. The
                noisy blocks of a text, if several, stand together in the batch and are the last ones up to the first without a clean one.
        """
        dtype = self.positions.weight.dtype
        noisy = self.input(z.to(dtype)) + self.time_embedding(t).value[:, None]
        if self.posterior is not None:
            noisy = noisy + self.posterior(posterior.to(dtype))
        clean = noisy.new_zeros(len(noisy), 0, noisy.shape[-1]) if previous is None else self._clean_input(*previous)
        texts, num_clean = clean.shape[:2]
        noisy = noisy.reshape(texts, -1, noisy.shape[-1])
        end = num_clean + self.block_length
        positions = torch.cat([torch.arange(num_clean), torch.arange(end - noisy.shape[1], end)]).to(z.device)
        noisy = noisy + self.positions.weight[positions[num_clean:]]
        clean = clean + self.positions.weight[:num_clean]
        if self.neighbors is not None:
            clean, noisy = self._mix_neighbors(clean, clean), self._mix_neighbors(clean, noisy)
        hidden = torch.cat([clean, noisy], dim=1)
        if self.context is not None:
            context = context[:: len(z) // texts]
            hidden = torch.cat([hidden, self.context(context.to(dtype))[:, None]], dim=1)
        bias = self._attention_bias(positions, num_clean, hidden)
        hidden = self.encoder(self.dropout(self.norm(hidden)), bias).last_hidden_state
        return self.output(hidden[:, num_clean : len(positions)]).to(z.dtype).view(*z.shape[:-1], -1)

    def _clean_input(self, ids: Tensor, embeddings: Tensor) -> Tensor:
        """The input for clean tokens: that of latents at t = 0, whose posterior is certain."""
        dtype = self.positions.weight.dtype
        hidden = self.input(embeddings.to(dtype)) + self.time_embedding(embeddings.new_zeros(1)).value[:, None]
        if self.posterior is not None:
            hidden = hidden + nn.functional.embedding(ids, self.posterior.weight.T)
        return hidden

    def _mix_neighbors(self, clean: Tensor, blocks: Tensor) -> Tensor:
        """Add the convolution over each block (the last ones, up to the first without a clean one), with clean inputs on its left."""
        texts, length, size = blocks.shape
        if length == 0:
            return blocks
        window, block = self.neighbors.kernel_size[0] // 2, self.block_length
        left = nn.functional.pad(clean, (0, 0, window, 0))
        first = 0 if blocks is clean else clean.shape[1] + block - length
        starts = torch.arange(first, first + length, block, device=blocks.device)
        left = left[:, starts[:, None] + torch.arange(window, device=blocks.device)]
        padded = torch.cat([left, blocks.view(texts, -1, block, size)], dim=2).flatten(0, 1)
        mixed = self.neighbors(nn.functional.pad(padded, (0, 0, 0, window)).transpose(1, 2))
        return blocks + mixed.transpose(1, 2).reshape(blocks.shape)

    def _attention_bias(self, positions: Tensor, num_clean: int, hidden: Tensor) -> Tensor | None:
        """What is added to the attention scores, `(1, heads, n, n)` or `(1, 1, n, n)`; `None` where everything sees everything alike."""
        several = self.num_blocks > 1
        if self.relative_positions is None and not several:
            return None
        backend = self.encoder.config._attn_implementation
        if backend not in ("sdpa", "eager"):
            raise ValueError(
                f"`relative_position_bias` and `block_size` need attention 'sdpa' or 'eager', which can add a bias; it is {backend!r}."
            )
        if self.relative_positions is None:
            bias = hidden.new_zeros(1, len(positions), len(positions))
        else:
            bias = self.relative_positions(positions).to(hidden.dtype)
        if several:
            block = positions // self.block_length
            is_clean = torch.arange(len(positions), device=positions.device) < num_clean
            seen = torch.where(is_clean, block[:, None] > block, False)
            seen |= (block[:, None] == block) & (is_clean[:, None] == is_clean)
            bias = bias.masked_fill(~seen, torch.finfo(bias.dtype).min)
        if self.context is not None:
            # The context is seen by all; of a text in several blocks it must not tell one what is in another.
            bias = nn.functional.pad(bias, (0, 1))
            alone = nn.functional.pad(bias.new_full((1, 1, len(positions)), torch.finfo(bias.dtype).min), (0, 1))
            row = alone if several else torch.zeros_like(alone)
            bias = torch.cat([bias, row.expand(len(bias), -1, -1)], dim=1)
        return bias[None]
