from transformers import AutoConfig, AutoModel

from .configuration import DiffusionLMConfig, MuLANConfig, NFDMConfig, TextDiffusionConfig
from .evaluation import evaluation_mode
from .modeling import TextDiffusionModel
from .outputs import TERMS, Draws, TextDiffusionOutput
from .prediction import Prediction
from .systems import DiffusionLMModel, MuLANModel, NFDMModel


for _config, _model in ((NFDMConfig, NFDMModel), (MuLANConfig, MuLANModel), (DiffusionLMConfig, DiffusionLMModel)):
    AutoConfig.register(_config.model_type, _config)
    AutoModel.register(_config, _model)

__all__ = [
    "TERMS",
    "DiffusionLMConfig",
    "DiffusionLMModel",
    "Draws",
    "MuLANConfig",
    "MuLANModel",
    "NFDMConfig",
    "NFDMModel",
    "Prediction",
    "TextDiffusionConfig",
    "TextDiffusionModel",
    "TextDiffusionOutput",
    "evaluation_mode",
]
