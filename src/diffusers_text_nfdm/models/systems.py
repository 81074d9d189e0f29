"""The paper's systems: models that differ in their forward process."""

from __future__ import annotations

from torch import nn

from ..forward_processes import (
    DiffusionLMProcess,
    LearnedVolatility,
    MarkovianVolatility,
    MuLANProcess,
    NFDMProcess,
)
from ..networks.context_encoder import ContextEncoder
from ..networks.transformer import Transformer
from .configuration import DiffusionLMConfig, MuLANConfig, NFDMConfig
from .modeling import TextDiffusionModel


class NFDMModel(TextDiffusionModel):
    """Neural Flow Diffusion Model for text."""

    config_class = NFDMConfig

    def build_forward_process(self, config: NFDMConfig) -> NFDMProcess:
        network = None if config.forward_num_layers == 0 else self._forward_network(config)
        if config.volatility == "markovian":
            volatility = MarkovianVolatility(config.volatility_hidden_size, config.delta)
        else:
            volatility = LearnedVolatility(config.volatility_hidden_size, config.volatility_floor)
        return NFDMProcess(network, volatility, config.delta)

    @staticmethod
    def _forward_network(config: NFDMConfig) -> Transformer:
        return Transformer(
            input_dim=config.embedding_dim,
            output_dim=2 * config.embedding_dim,
            hidden_size=config.forward_hidden_size,
            num_layers=config.forward_num_layers,
            num_heads=config.forward_num_heads,
            intermediate_size=config.forward_intermediate_size,
            max_length=config.max_length,
            time_conditioning=config.time_conditioning,
            time_dim=config.forward_time_dim,
        )

    def zero_initialized(self) -> tuple[nn.Module, ...]:
        process = self.forward_process
        network = () if process.network is None else (process.network.output,)
        return *network, process.volatility.mlp[-1]


class MuLANModel(TextDiffusionModel):
    """MuLAN, and with `rescaled_schedule` MuLAN-Rescaled, for text."""

    config_class = MuLANConfig

    def build_context_encoder(self, config: MuLANConfig) -> ContextEncoder:
        return ContextEncoder(config)

    def build_forward_process(self, config: MuLANConfig) -> MuLANProcess:
        return MuLANProcess(
            context_dim=config.context_dim,
            max_length=config.max_length,
            hidden_size=config.schedule_hidden_size,
            gamma_min=config.gamma_min,
            gamma_max=config.gamma_max,
            rescaled=config.rescaled_schedule,
        )


class DiffusionLMModel(TextDiffusionModel):
    """Diffusion-LM in continuous time."""

    config_class = DiffusionLMConfig

    def build_forward_process(self, config: DiffusionLMConfig) -> DiffusionLMProcess:
        return DiffusionLMProcess()
