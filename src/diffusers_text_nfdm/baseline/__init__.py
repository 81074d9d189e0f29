from transformers import AutoConfig, AutoModel

from .configuration import AutoregressiveConfig
from .modeling import AutoregressiveModel, AutoregressiveOutput
from .pipeline_autoregressive import AutoregressivePipeline
from .sizing import count_parameters, matching_config


AutoConfig.register(AutoregressiveConfig.model_type, AutoregressiveConfig)
AutoModel.register(AutoregressiveConfig, AutoregressiveModel)

__all__ = [
    "AutoregressiveConfig",
    "AutoregressiveModel",
    "AutoregressiveOutput",
    "AutoregressivePipeline",
    "count_parameters",
    "matching_config",
]
