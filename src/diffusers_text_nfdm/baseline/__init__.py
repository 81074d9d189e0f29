from transformers import AutoConfig, AutoModel

from .configuration import AutoregressiveConfig
from .masked_configuration import MaskedDiffusionConfig
from .masked_modeling import MaskedDiffusionModel, MaskedDiffusionOutput, MaskedDraws
from .modeling import AutoregressiveModel, AutoregressiveOutput
from .pipeline_autoregressive import AutoregressivePipeline
from .pipeline_masked import MaskedDiffusionPipeline
from .sizing import count_parameters, matching_config


for _config, _model in ((AutoregressiveConfig, AutoregressiveModel), (MaskedDiffusionConfig, MaskedDiffusionModel)):
    AutoConfig.register(_config.model_type, _config)
    AutoModel.register(_config, _model)

__all__ = [
    "AutoregressiveConfig",
    "AutoregressiveModel",
    "AutoregressiveOutput",
    "AutoregressivePipeline",
    "MaskedDiffusionConfig",
    "MaskedDiffusionModel",
    "MaskedDiffusionOutput",
    "MaskedDiffusionPipeline",
    "MaskedDraws",
    "count_parameters",
    "matching_config",
]
