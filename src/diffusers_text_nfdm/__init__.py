"""Neural Flow Diffusion Models for text, as Hugging Face models, schedulers and pipelines."""

# All is imported at once, not at the first use of a name: `import diffusers_text_nfdm` alone makes our classes known
# to `AutoModel` and `DiffusionPipeline`.
# The loader of diffusers looks for these base classes in the module that model_index.json names, which is this one.
from diffusers import SchedulerMixin  # noqa: F401
from transformers import PreTrainedModel, PreTrainedTokenizerFast  # noqa: F401

from .baseline import (
    AutoregressiveConfig,
    AutoregressiveModel,
    AutoregressivePipeline,
    MaskedDiffusionConfig,
    MaskedDiffusionModel,
    MaskedDiffusionPipeline,
)
from .clocks import BlockClock, Clock, RampClock, SharedClock
from .data import load_text_dataset, prepare_dataset
from .likelihood import (
    LikelihoodEstimate,
    estimate_likelihood,
    exact_likelihood,
    importance_weighted_bound,
    jump_likelihood,
    masked_likelihood,
    score_texts,
)
from .models import (
    DiffusionLMConfig,
    DiffusionLMModel,
    MuLANConfig,
    MuLANModel,
    NFDMConfig,
    NFDMModel,
    TextDiffusionConfig,
    TextDiffusionModel,
    TextDiffusionOutput,
)
from .pipelines import NFDMTextPipeline, NFDMTextPipelineOutput
from .schedulers import (
    DraftVerifyScheduler,
    JumpScheduler,
    MarkovChainScheduler,
    RefinementScheduler,
    ReverseODEScheduler,
    ReverseSDEScheduler,
    TextDiffusionScheduler,
    TokenScheduler,
)
from .subwords import train_subword_tokenizer
from .tokenization import WordTokenizer
from .version import __version__


__all__ = [
    "AutoregressiveConfig",
    "AutoregressiveModel",
    "AutoregressivePipeline",
    "BlockClock",
    "Clock",
    "DiffusionLMConfig",
    "DiffusionLMModel",
    "DraftVerifyScheduler",
    "JumpScheduler",
    "LikelihoodEstimate",
    "MarkovChainScheduler",
    "MaskedDiffusionConfig",
    "MaskedDiffusionModel",
    "MaskedDiffusionPipeline",
    "MuLANConfig",
    "MuLANModel",
    "NFDMConfig",
    "NFDMModel",
    "NFDMTextPipeline",
    "NFDMTextPipelineOutput",
    "RampClock",
    "RefinementScheduler",
    "ReverseODEScheduler",
    "ReverseSDEScheduler",
    "SharedClock",
    "TextDiffusionConfig",
    "TextDiffusionModel",
    "TextDiffusionOutput",
    "TextDiffusionScheduler",
    "TokenScheduler",
    "WordTokenizer",
    "__version__",
    "estimate_likelihood",
    "exact_likelihood",
    "importance_weighted_bound",
    "jump_likelihood",
    "load_text_dataset",
    "masked_likelihood",
    "score_texts",
    "prepare_dataset",
    "train_subword_tokenizer",
]
