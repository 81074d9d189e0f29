"""A baseline of the size of a diffusion model."""

from __future__ import annotations

import torch
from transformers import AutoModel

from ..models import TextDiffusionConfig
from .configuration import AutoregressiveConfig
from .modeling import AutoregressiveModel


def count_parameters(config: TextDiffusionConfig | AutoregressiveConfig) -> int:
    """Parameters of a model, from its shapes alone."""
    with torch.device("meta"):
        model = (
            AutoregressiveModel(config) if isinstance(config, AutoregressiveConfig) else AutoModel.from_config(config)
        )
    return sum(parameter.numel() for parameter in model.parameters())


def matching_config(config: TextDiffusionConfig, multiple_of: int = 8) -> AutoregressiveConfig:
    """An autoregressive model with (nearly) as many parameters as the diffusion model of `config`.

    Vocabulary, positions, hidden size, heads and dropout are those of the predictor; as many layers with MLPs of four
    times the hidden size as come closest, and then the MLPs' size, a multiple of `multiple_of`, makes up the rest.
    """
    target, size = count_parameters(config), config.hidden_size
    options = {
        "vocab_size": config.vocab_size,
        "max_length": config.max_length,
        "hidden_size": size,
        "num_attention_heads": config.num_attention_heads,
        "dropout": config.hidden_dropout_prob,
    }

    def parameters(layers: int, intermediate_size: int) -> int:
        sizes = {"num_hidden_layers": layers, "intermediate_size": intermediate_size}
        return count_parameters(AutoregressiveConfig(**options, **sizes))

    one, two = parameters(1, 4 * size), parameters(2, 4 * size)
    layers = max(1, round(1 + (target - one) / (two - one)))
    # Parameters are linear in the MLPs' size.
    slope = parameters(layers, 2) - parameters(layers, 1)
    width = (target - parameters(layers, 1)) / slope + 1
    intermediate_size = max(multiple_of, multiple_of * round(width / multiple_of))
    return AutoregressiveConfig(**options, num_hidden_layers=layers, intermediate_size=intermediate_size)
