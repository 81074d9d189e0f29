"""The baseline at a size where every test is fast."""

import torch
from tiny import make_tokenizer, randomize

from diffusers_text_nfdm import AutoregressiveConfig, AutoregressiveModel, AutoregressivePipeline


START, END, UNK, PAD = range(4)
SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24, "dropout": 0.0}


def make_baseline(dtype=torch.float64, **overrides):
    """A model with random parameters and clear preferences."""
    config = AutoregressiveConfig(**{"vocab_size": 6, "max_length": 5, **SIZES, **overrides})
    return randomize(AutoregressiveModel(config).to(dtype)).eval()


def texts(*rows, length=5):
    return torch.tensor([[START, *row, *[PAD] * (length - 1 - len(row))] for row in rows])


def make_pipeline(dtype=torch.float64):
    """A silent pipeline for the seven words of the tests' tokenizer."""
    pipeline = AutoregressivePipeline(make_baseline(dtype, vocab_size=11, max_length=8), make_tokenizer())
    pipeline.set_progress_bar_config(disable=True)
    return pipeline
