"""Neural Flow Diffusion Models for text, as Hugging Face models, schedulers and pipelines."""

# The loader of diffusers looks for these base classes in the module that model_index.json names, which is this one.
from diffusers import SchedulerMixin  # noqa: F401
from transformers import PreTrainedModel, PreTrainedTokenizerFast  # noqa: F401

from .models import (
    DiffusionLMConfig,
    DiffusionLMModel,
    MuLANConfig,
    MuLANModel,
    NFDMConfig,
    NFDMModel,
    TextDiffusionConfig,
    TextDiffusionModel,
)
from .pipelines import NFDMTextPipeline, NFDMTextPipelineOutput
from .schedulers import MarkovChainScheduler, ReverseODEScheduler, ReverseSDEScheduler
from .tokenization import WordTokenizer
from .version import __version__


__all__ = [
    "DiffusionLMConfig",
    "DiffusionLMModel",
    "MarkovChainScheduler",
    "MuLANConfig",
    "MuLANModel",
    "NFDMConfig",
    "NFDMModel",
    "NFDMTextPipeline",
    "NFDMTextPipelineOutput",
    "ReverseODEScheduler",
    "ReverseSDEScheduler",
    "TextDiffusionConfig",
    "TextDiffusionModel",
    "WordTokenizer",
    "__version__",
]
