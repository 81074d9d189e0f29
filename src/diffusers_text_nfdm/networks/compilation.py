"""`torch.compile` of a model block by block, where there is a compiler."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import warnings

import torch
from torch import nn
from transformers.models.bert.modeling_bert import BertLayer
from transformers.models.gpt2.modeling_gpt2 import GPT2Block

from .transformer import Layer
from .two_stream_predictor import PredictorLayer


# What a model repeats: blocks of one kind share their compiled code, so that it takes as long for twelve as for one.
REPEATED = (Layer, BertLayer, PredictorLayer, GPT2Block)


def missing_compiler(device: torch.device) -> str | None:
    """What `torch.compile` would need on this device and does not find, or `None`."""
    if device.type != "cpu" and importlib.util.find_spec("triton") is None:
        return "package `triton`"
    # The one that PyTorch's inductor takes.
    compiler = os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")
    if shutil.which(compiler) is None:
        return f"C++ compiler (`{compiler}`, or another one named in the environment variable CXX)"
    return None


def compile_layers(model: nn.Module) -> bool:
    """Compile the blocks of predictor and forward network, in place: the same numbers to rounding, with fewer passes
    over memory.

    Weights, checkpoints and gradient checkpointing are not touched. The code is generated at the first calls, which
    takes a minute. Without a compiler the model stays as it is, with a warning, and the result is False.
    """
    missing = missing_compiler(next(model.parameters()).device)
    if missing is not None:
        warnings.warn(f"The model is not compiled and runs as it is: there is no {missing}.", stacklevel=2)
        return False
    for module in model.modules():
        if isinstance(module, REPEATED):
            module.compile()
    return True
