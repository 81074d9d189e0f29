"""Configuration of the autoregressive baseline."""

from __future__ import annotations

from typing import Any

from transformers import GPT2Config, PreTrainedConfig

from ..checks import check_integers
from ..conditions import check_condition_length
from ..models.configuration import CHECKPOINT_FORMAT, check_format


class AutoregressiveConfig(PreTrainedConfig):
    """A GPT-2-style model of `p(x) = Π_i p(x_i | x_<i)` over the token ids that the diffusion models see.

    Args:
        vocab_size: number of tokens.
        max_length: largest number of positions, START and END included.
        condition_length: tokens of a condition, which stands between START and the text (`conditions`); 0 for none.
        condition_dropout: share of the texts from which training took the condition.
        copied_slots: slots of a condition whose values are copied to the text.
        hidden_size, num_hidden_layers, num_attention_heads, intermediate_size: the transformer. The token embeddings
            have its size, and are those of input and output.
        dropout: of embeddings, attention and residuals.
        initializer_range: standard deviation of the weights at the start.
        bos_token_id, eos_token_id, pad_token_id: START, with which every sequence begins; END; and PAD, which follows
            END.
        checkpoint_format: format of the checkpoint; a newer one than the code knows is refused.
    """

    model_type = "autoregressive"

    vocab_size: int = 10767
    max_length: int = 64
    condition_length: int = 0
    condition_dropout: float = 0.0
    copied_slots: list | None = None
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    dropout: float = 0.1
    initializer_range: float = 0.02
    bos_token_id: int = 0
    eos_token_id: int = 1
    pad_token_id: int = 3
    checkpoint_format: int = CHECKPOINT_FORMAT

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**kwargs)
        check_format(self.checkpoint_format)
        check_integers(2, vocab_size=self.vocab_size)
        check_integers(
            1,
            max_length=self.max_length,
            hidden_size=self.hidden_size,
            num_hidden_layers=self.num_hidden_layers,
            num_attention_heads=self.num_attention_heads,
            intermediate_size=self.intermediate_size,
        )
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"`hidden_size` is {self.hidden_size} with `num_attention_heads` {self.num_attention_heads}; it must "
                "be a multiple of it."
            )
        check_condition_length(self.condition_length, self.max_length)
        if not 0 <= self.dropout < 1:
            raise ValueError(f"`dropout` is {self.dropout!r}; it must be in [0, 1).")
        special = (self.bos_token_id, self.eos_token_id, self.pad_token_id)
        if None in special or len(set(special)) < 3 or not all(0 <= token < self.vocab_size for token in special):
            raise ValueError(
                f"`bos_token_id`, `eos_token_id` and `pad_token_id` are {special}; START, END and PAD must be three "
                "different ids in "
                f"[0, {self.vocab_size - 1}]."
            )

    def transformer_config(self) -> GPT2Config:
        """The transformer in the words of transformers."""
        return GPT2Config(
            vocab_size=self.vocab_size,
            n_positions=self.max_length,
            n_embd=self.hidden_size,
            n_layer=self.num_hidden_layers,
            n_head=self.num_attention_heads,
            n_inner=self.intermediate_size,
            resid_pdrop=self.dropout,
            embd_pdrop=self.dropout,
            attn_pdrop=self.dropout,
            initializer_range=self.initializer_range,
            # Padding follows the text, where a causal model does not see it; GPT-2 would warn about it.
            pad_token_id=None,
            bos_token_id=None,
            eos_token_id=None,
        )
