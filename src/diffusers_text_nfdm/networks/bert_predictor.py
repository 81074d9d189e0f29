"""The paper's predictor: a BERT encoder, trained from scratch, from noisy latents to clean embeddings or tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from transformers.models.bert.modeling_bert import BertEncoder

from .dual import Dual
from .predictor_parts import output_layer, self_condition_input, tanh_mlp
from .time_embedding import TimeEmbedding


if TYPE_CHECKING:
    from ..models.configuration import TextDiffusionConfig
    from .two_stream_predictor import CleanTokens, Places


class BertPredictor(nn.Module):
    """Positions and times are added to the projected latents; the context, if there is one, is one more token."""

    reads_tokens = False

    def __init__(self, config: TextDiffusionConfig, context_dim: int | None = None):
        super().__init__()
        self.input = tanh_mlp(config.embedding_dim, config.hidden_size, config.hidden_size)
        self.positions = nn.Embedding(config.max_length, config.hidden_size)
        self.time_embedding = TimeEmbedding(config.hidden_size, config.hidden_size)
        self.self_condition = self_condition_input(config)
        self.context = None if context_dim is None else nn.Linear(context_dim, config.hidden_size)
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.encoder = BertEncoder(config)
        self.output = output_layer(config)

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
        """The states that the output layer gets.

        The arguments are those of `TwoStreamPredictor`; there is no clean stream here.
        """
        if clean is not None:
            raise ValueError(
                "A text in blocks needs the clean tokens before each block, which the BERT predictor does not read; "
                "use "
                "`predictor` 'two_stream' in the model's config, or another clock."
            )
        dtype = self.positions.weight.dtype
        hidden = self.input(z.to(dtype)) + self.positions.weight + self.time_embedding(Dual(t)).value
        if self.self_condition is not None:
            hidden = hidden + self.self_condition(self_condition.to(dtype))
        if self.context is not None:
            hidden = torch.cat([hidden, self.context(context.to(dtype))[:, None]], dim=1)
        hidden = self.encoder(self.dropout(self.norm(hidden))).last_hidden_state
        return hidden[:, : z.shape[1]]
