"""Masked diffusion at a size where every test is fast."""

from itertools import product

import torch
from tiny import make_tokenizer, randomize
from tiny_baseline import START

from diffusers_text_nfdm import MaskedDiffusionConfig, MaskedDiffusionModel, MaskedDiffusionPipeline


VOCAB, LENGTH = 4, 4
SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
# All texts: START and any three tokens.
TEXTS = torch.tensor([[START, *row] for row in product(range(VOCAB), repeat=LENGTH - 1)])


def make_masked(dtype=torch.float64, **overrides):
    """A model with random parameters."""
    config = MaskedDiffusionConfig(**{"vocab_size": VOCAB, "max_length": LENGTH, **SIZES, **overrides})
    return randomize(MaskedDiffusionModel(config).to(dtype)).eval()


def make_pipeline(dtype=torch.float64, **overrides):
    """A silent pipeline for the seven words of the tests' tokenizer."""
    model = make_masked(dtype, **{"vocab_size": 11, "max_length": 8, **overrides})
    pipeline = MaskedDiffusionPipeline(model, make_tokenizer())
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


@torch.no_grad()
def cross_entropies(model, input_ids, hidden, block_size=None):
    """`-log p(x_i | tokens shown)` of every token, hidden or not, from the logits."""
    size = model.block_size(block_size)
    clean, _ = model.clean_stream(input_ids, size)
    logits = model.predict(input_ids, hidden.expand(input_ids.shape), clean, size).logits
    return -torch.log_softmax(logits, -1).gather(-1, input_ids[..., None])[..., 0]
