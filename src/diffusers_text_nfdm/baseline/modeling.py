"""The autoregressive baseline: an exact likelihood, token by token."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import Cache, GPT2Model
from transformers import initialization as init
from transformers.utils import ModelOutput

from ..checks import check_is_tensor, check_token_ids
from ..models.loading import SafetensorsModel
from ..networks.linear_cross_entropy import linear_cross_entropy
from .configuration import AutoregressiveConfig


@dataclass
class AutoregressiveOutput(ModelOutput):
    """What a batch costs.

    Args:
        loss: what training minimises: the mean of `bound`.
        bound: `-log p(x)` per example, in nats. Here the bound is the likelihood itself.
        accuracy: share of the tokens that were the most probable ones, per example.
    """

    loss: Tensor | None = None
    bound: Tensor | None = None
    accuracy: Tensor | None = None

    def non_finite_terms(self) -> str | None:
        """What is not finite; `None` when everything is."""
        bad = ~torch.isfinite(self.bound)
        return f"-log p(x) is {self.bound[bad][0].item()}" if bad.any() else None


class AutoregressiveModel(SafetensorsModel):
    """`-log p(x) = -Σ_i log p(x_i | x_<i)` over the tokens after START and the condition, END included, with

        p(x_i | x_<i) = softmax(h_{i-1} Embᵀ + b),    h = transformer(x),    p(START) = p(PAD) = 0.

    After END there is only PAD, at no cost; so p is normalised over all sequences of `max_length` positions, those
    that do not reach END included. The transformer is that of GPT-2; input and output embeddings are the same.
    """

    config_class = AutoregressiveConfig
    base_model_prefix = "model"
    main_input_name = "input_ids"
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_attention_backend = True
    _no_split_modules = ["GPT2Block"]

    def __init__(self, config: AutoregressiveConfig):
        super().__init__(config)
        self.predictor = GPT2Model(config.transformer_config())
        self.token_bias = nn.Parameter(torch.zeros(config.vocab_size))
        self.post_init()

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if module is self:
            init.zeros_(self.token_bias)

    def get_input_embeddings(self) -> nn.Embedding:
        return self.predictor.wte

    @torch.no_grad()
    def set_token_frequencies(self, counts: Tensor) -> None:
        """Start the bias b at the log of the (smoothed) token frequencies."""
        self.token_bias.copy_(torch.log((counts + 1) / (counts + 1).sum()))

    @torch.no_grad()
    def set_embeddings(self, embeddings: Tensor) -> None:
        """Start the token embeddings at the given ones `(vocab, hidden_size)`, scaled to length 1: as output
        embeddings, for hidden states of length `sqrt(hidden_size)`, longer ones would start with sharp guesses."""
        self.predictor.wte.weight.copy_(nn.functional.normalize(embeddings, dim=-1))

    def token_logits(self, input_ids: Tensor, cache: Cache | None = None, use_cache: bool = False):
        """Logits `(batch, seq, vocab)` of the token that follows each position, at least in float32, and the keys and
        values so far.

        With a `cache`, `input_ids` are the tokens that follow those in it.
        """
        output = self.predictor(input_ids=input_ids, past_key_values=cache, use_cache=use_cache)
        logits = output.last_hidden_state @ self.predictor.wte.weight.T
        return logits.to(torch.promote_types(logits.dtype, torch.float32)) + self._bias(), output.past_key_values

    def _bias(self) -> Tensor:
        """The bias of the logits; START and PAD never follow."""
        never = torch.tensor([self.config.bos_token_id, self.config.pad_token_id], device=self.token_bias.device)
        return self.token_bias.index_fill(-1, never, -torch.inf)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, return_dict: bool = True
    ) -> AutoregressiveOutput | tuple:
        """`-log p(x)` of a batch of token ids `(batch, seq)`: START, tokens, END, PAD.

        The `attention_mask` of a tokenizer is not used: nothing behind END is counted.
        """
        self.check_inputs(input_ids)
        first = self.config.condition_length
        targets = input_ids[:, first + 1 :]
        ends = targets == self.config.eos_token_id
        counted = ends.cumsum(1) - ends.long() == 0
        hidden = self.predictor(input_ids=input_ids[:, :-1], use_cache=False).last_hidden_state[:, first:][counted]
        dtype = torch.promote_types(hidden.dtype, torch.float32)
        nats, correct = linear_cross_entropy(
            hidden.to(dtype), self.predictor.wte.weight.to(dtype), self._bias().to(dtype), targets[counted]
        )
        rows = counted.nonzero()[:, 0]
        bound = nats.new_zeros(len(input_ids)).index_add(0, rows, nats)
        accuracy = nats.new_zeros(len(input_ids)).index_add(0, rows, correct.to(dtype)) / counted.sum(1)
        # A sum divided, not a mean, whose gradient is no expanded number: see `linear_cross_entropy`.
        output = AutoregressiveOutput(loss=nats.sum() / len(bound), bound=bound, accuracy=accuracy)
        return output if return_dict else output.to_tuple()

    def check_inputs(self, input_ids: Tensor) -> None:
        """Raise a ValueError for token ids that the model cannot take."""
        config = self.config
        self.check_rows(input_ids)
        # Values are read on the CPU only.
        if input_ids.device.type != "cpu":
            return
        text = input_ids[:, config.condition_length + 1 :]
        before_end = (text == config.eos_token_id).cumsum(1) == 0
        never = (text == config.bos_token_id) | (text == config.pad_token_id)
        if (never & before_end).any():
            row = int((never & before_end).any(1).nonzero()[0])
            raise ValueError(f"`input_ids` has START or PAD before END in row {row}; PAD may only follow END.")

    def check_rows(self, input_ids: Tensor) -> None:
        """Raise a ValueError for what are no rows of token ids that begin with START."""
        config = self.config
        check_is_tensor("input_ids", input_ids)
        if input_ids.ndim != 2 or not len(input_ids) or not 2 <= input_ids.shape[1] <= config.max_length:
            raise ValueError(
                f"`input_ids` has shape {tuple(input_ids.shape)}; it must be (batch, seq) with at least one row and 2 "
                f"to {config.max_length} positions."
            )
        check_token_ids(input_ids, config.vocab_size)
        if input_ids.device.type == "cpu" and (input_ids[:, 0] != config.bos_token_id).any():
            raise ValueError(
                f"`input_ids` has rows that begin with {input_ids[:, 0].unique().tolist()[:5]}; every row must begin "
                f"with START, {config.bos_token_id}."
            )
