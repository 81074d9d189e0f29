from .base import ForwardProcess, Marginal, MovingMarginal, VariancePreservingProcess
from .diffusion_lm import DiffusionLMProcess
from .mulan import MuLANProcess
from .nfdm import LearnedVolatility, MarkovianVolatility, NFDMProcess


__all__ = [
    "DiffusionLMProcess",
    "ForwardProcess",
    "LearnedVolatility",
    "MarkovianVolatility",
    "Marginal",
    "MovingMarginal",
    "MuLANProcess",
    "NFDMProcess",
    "VariancePreservingProcess",
]
