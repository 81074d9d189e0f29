"""The sizes at which speed is measured: vocabulary 10,767 and length 64, but for the one that only tries the
benchmarks out.
"""

from __future__ import annotations

import torch
from torch import nn

from diffusers_text_nfdm import NFDMConfig, NFDMModel
from diffusers_text_nfdm.networks.transformer import Modulation


SIZES = {
    "tiny": {
        "embedding_dim": 64,
        "hidden_size": 128,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "intermediate_size": 512,
        "forward_hidden_size": 128,
        "forward_num_layers": 3,
        "forward_num_heads": 4,
        "forward_intermediate_size": 512,
        "forward_time_dim": 320,
    },
    "mid": {
        "hidden_size": 256,
        "num_hidden_layers": 6,
        "num_attention_heads": 8,
        "intermediate_size": 1024,
    },
    "paper": {},
    "quick": {
        "vocab_size": 50,
        "max_length": 8,
        "embedding_dim": 8,
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 16,
        "forward_hidden_size": 16,
        "forward_num_layers": 1,
        "forward_num_heads": 2,
        "forward_intermediate_size": 16,
        "forward_time_dim": 16,
    },
}
BATCH_SIZES = {"tiny": 32, "mid": 16, "paper": 4, "quick": 2}


def make_model(size: str, attention: str = "sdpa", **options) -> NFDMModel:
    """NFDM with the same weights every time; without dropout, so that two implementations compute the same numbers."""
    dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    torch.manual_seed(0)
    model = NFDMModel(NFDMConfig(**{**SIZES[size], **dropout, **options}))
    model.set_attn_implementation(attention)
    for module in model.modules():
        # They start at zero, and products with zeros are no fair sample of all products.
        if isinstance(module, Modulation):
            nn.init.normal_(module.linear.weight, std=0.02)
    return model
