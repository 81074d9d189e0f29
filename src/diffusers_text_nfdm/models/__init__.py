from transformers import AutoConfig, AutoModel

from .configuration import DiffusionLMConfig, MuLANConfig, NFDMConfig, TextDiffusionConfig
from .modeling import DiffusionLMModel, MuLANModel, NFDMModel, TextDiffusionModel, evaluation_mode
from .outputs import Draws, TextDiffusionOutput


for _config, _model in ((NFDMConfig, NFDMModel), (MuLANConfig, MuLANModel), (DiffusionLMConfig, DiffusionLMModel)):
    AutoConfig.register(_config.model_type, _config)
    AutoModel.register(_config, _model)

__all__ = [
    "DiffusionLMConfig",
    "DiffusionLMModel",
    "Draws",
    "MuLANConfig",
    "MuLANModel",
    "NFDMConfig",
    "NFDMModel",
    "TextDiffusionConfig",
    "TextDiffusionModel",
    "TextDiffusionOutput",
    "evaluation_mode",
]
