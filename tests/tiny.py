"""The five models at a size where every test is fast, with parameters that are nowhere zero."""

from __future__ import annotations

import contextlib
import logging
import warnings

import torch
from torch import Tensor, nn

from diffusers_text_nfdm import (
    DiffusionLMConfig,
    DiffusionLMModel,
    MarkovChainScheduler,
    MuLANConfig,
    MuLANModel,
    NFDMConfig,
    NFDMModel,
    NFDMTextPipeline,
    WordTokenizer,
)
from diffusers_text_nfdm.forward_processes import ForwardProcess
from diffusers_text_nfdm.networks.dual import Dual


VOCAB, LENGTH, DIM, CONTEXT = 11, 5, 4, 6

SHARED = {
    "vocab_size": VOCAB,
    "max_length": LENGTH,
    "embedding_dim": DIM,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "objective": "bound",
    "num_time_buckets": 7,
}
NFDM = {
    "delta": 0.2,
    "forward_hidden_size": 16,
    "forward_num_layers": 2,
    "forward_num_heads": 2,
    "forward_intermediate_size": 24,
    "forward_time_dim": 12,
    "volatility_hidden_size": 8,
}
MULAN = {
    "schedule_hidden_size": 8,
    "context_dim": CONTEXT,
    "context_hidden_size": 16,
    "context_num_layers": 2,
    "context_num_heads": 2,
    "context_intermediate_size": 24,
}
RESCALED = {"rescaled_schedule": True, "gamma_min": -4.6, "gamma_max": 13.8}

MODELS = {
    "nfdm": (NFDMModel, NFDMConfig, NFDM),
    "nfdm-additive": (NFDMModel, NFDMConfig, {**NFDM, "time_conditioning": "additive"}),
    "nfdm-head": (NFDMModel, NFDMConfig, {**NFDM, "time_conditioning": "head"}),
    "mulan": (MuLANModel, MuLANConfig, MULAN),
    "mulan-rescaled": (MuLANModel, MuLANConfig, {**MULAN, **RESCALED}),
    "diffusion-lm": (DiffusionLMModel, DiffusionLMConfig, {}),
}
VARIANCE_PRESERVING = ("mulan", "mulan-rescaled", "diffusion-lm")
PREDICTION_TYPES = ("embedding", "categorical")


def make_config(name: str, **overrides):
    _, config_class, options = MODELS[name]
    return config_class(**{**SHARED, **options, **overrides})


def randomize(module: nn.Module, seed: int = 0) -> nn.Module:
    """Normal values that keep activations near one. (AdaLN starts at zero, where a derivative proves nothing.)"""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            if parameter.ndim == 2 and "embeddings" not in name:
                noise = noise * parameter.shape[1] ** -0.5
            elif parameter.ndim == 1:
                noise = 0.3 * noise + ("norm" in name.lower() and name.endswith("weight"))
            parameter.copy_(noise)
    return module


def make_model(name: str, dtype: torch.dtype = torch.float64, **overrides):
    """A model in eval mode with random parameters."""
    return randomize(MODELS[name][0](make_config(name, **overrides)).to(dtype)).eval()


def make_process(name: str, dtype: torch.dtype = torch.float64, **overrides) -> ForwardProcess:
    return make_model(name, dtype, **overrides).forward_process


def make_inputs(
    name: str, batch: int, dtype: torch.dtype = torch.float64, length: int = LENGTH
) -> tuple[Tensor, Tensor | None]:
    """Embeddings `(batch, seq, dim)`, and a context for the processes that have one."""
    context = torch.randn(batch, CONTEXT, dtype=dtype) if name.startswith("mulan") else None
    return torch.randn(batch, length, DIM, dtype=dtype), context


def at_rate_one(t: Tensor) -> Dual:
    """Times `(batch,)` of whole texts, or `(batch, seq)` of tokens, that all move at rate 1."""
    t = t.view(len(t), -1)
    return Dual(t, torch.ones_like(t))


def make_ids(batch: int) -> Tensor:
    return torch.randint(VOCAB, (batch, LENGTH))


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def relative_error(actual: Tensor, expected: Tensor) -> float:
    """`|actual - expected| / |expected|` in the norm of the whole tensor."""
    return ((actual - expected).norm() / expected.norm()).item()


def gradients(scalar: Tensor, module: nn.Module) -> dict[str, Tensor]:
    """Gradient of every parameter that `scalar` depends on, by name."""
    names, parameters = zip(*module.named_parameters())
    values = torch.autograd.grad(scalar, parameters, allow_unused=True)
    return {name: value for name, value in zip(names, values) if value is not None}


WORDS = "Tom saw a red fox ran ."


def make_tokenizer() -> WordTokenizer:
    """The seven words and four special tokens that make up the models' vocabulary."""
    return WordTokenizer.from_texts([WORDS], min_count=0, max_length=LENGTH)


def make_pipeline(name: str = "nfdm", scheduler=None, dtype: torch.dtype = torch.float32, **overrides):
    """A silent pipeline with random parameters, by default with the Markov chain."""
    model = make_model(name, dtype, **overrides)
    pipeline = NFDMTextPipeline(model, make_tokenizer(), scheduler or MarkovChainScheduler())
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


@contextlib.contextmanager
def logged_warnings():
    """What diffusers and transformers log as warnings meanwhile, and Python's own warnings, as a list of strings."""
    messages = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: messages.append(record.getMessage())
    loggers = [logging.getLogger(library) for library in ("diffusers", "transformers")]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for logger in loggers:
            logger.addHandler(handler)
        try:
            yield messages
        finally:
            for logger in loggers:
                logger.removeHandler(handler)
            messages.extend(str(warning.message) for warning in caught)
