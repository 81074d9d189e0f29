"""Configuration of masked diffusion."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedConfig

from ..checks import check_integers
from ..conditions import check_condition_length
from ..models.configuration import CHECKPOINT_FORMAT, check_format


class MaskedDiffusionConfig(PreTrainedConfig):
    """Masked diffusion (MDLM, Sahoo et al. 2024) with the two-stream trunk of the diffusion models.

    Args:
        vocab_size: number of tokens.
        max_length: number of positions of every sequence, padding included.
        condition_length: tokens of a condition, which stands between START and the text (`conditions`); 0 for none.
        condition_dropout: share of the texts from which training took the condition.
        copied_slots: slots of a condition whose values are copied to the text.
        block_size: tokens of a block, which is given the clean tokens before it; None where the whole text is one
            block.
        trained_block_sizes: those that the model was trained on, None for the whole text, if that is known; sampling
            with another one warns.
        hidden_size, num_hidden_layers, num_attention_heads, intermediate_size, hidden_act, hidden_dropout_prob,
            attention_probs_dropout_prob, initializer_range: the trunk.
        bos_token_id, eos_token_id, pad_token_id: START, with which every sequence begins; END; and PAD.
        checkpoint_format: format of the checkpoint; another one than the code knows is refused.
    """

    model_type = "masked"
    # What the trunk asks of a config: it reads tokens and gives logits, sees no Ê, and has nothing to jump over.
    prediction_type = "categorical"
    self_conditioning = False
    jumps = False
    lattice_candidates = 0
    num_prototypes = 0
    token_link = False
    joint_decoder = False

    vocab_size: int = 10767
    max_length: int = 64
    condition_length: int = 0
    condition_dropout: float = 0.0
    copied_slots: list | None = None
    block_size: int | None = None
    trained_block_sizes: list | None = None
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_act: str = "gelu"
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
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
            hidden_size=self.hidden_size,
            num_hidden_layers=self.num_hidden_layers,
            num_attention_heads=self.num_attention_heads,
            intermediate_size=self.intermediate_size,
        )
        check_integers(2, max_length=self.max_length)
        if self.hidden_size % (2 * self.num_attention_heads):
            raise ValueError(
                f"`hidden_size` is {self.hidden_size} with `num_attention_heads` {self.num_attention_heads}; it must "
                f"be a multiple of {2 * self.num_attention_heads}, so that all heads have the same even size."
            )
        special = (self.bos_token_id, self.eos_token_id, self.pad_token_id)
        if None in special or len(set(special)) < 3 or not all(0 <= token < self.vocab_size for token in special):
            raise ValueError(
                f"`bos_token_id`, `eos_token_id` and `pad_token_id` are {special}; START, END and PAD must be three "
                f"different ids in [0, {self.vocab_size - 1}]."
            )
        check_block_size(self.block_size, self.max_length)
        check_condition_length(self.condition_length, self.max_length)


def check_block_size(block_size: Any, max_length: int) -> None:
    """Raise a ValueError unless a text can be cut into such blocks."""
    if block_size is None:
        return
    if isinstance(block_size, bool) or not isinstance(block_size, int) or block_size < 1 or max_length % block_size:
        raise ValueError(
            f"`block_size` is {block_size!r}; it must be an integer that divides the {max_length} tokens of a text, "
            "or None for the whole text."
        )
