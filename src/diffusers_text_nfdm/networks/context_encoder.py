"""MuLAN's encoder `q(c | x)`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor, nn

from .transformer import Transformer


if TYPE_CHECKING:
    from ..models.configuration import MuLANConfig


class ContextEncoder(nn.Module):
    """Mean and log variance of the latent context: a transformer without time, averaged over positions."""

    def __init__(self, config: MuLANConfig):
        super().__init__()
        self.transformer = Transformer(
            input_dim=config.embedding_dim,
            output_dim=config.context_hidden_size,
            hidden_size=config.context_hidden_size,
            num_layers=config.context_num_layers,
            num_heads=config.context_num_heads,
            intermediate_size=config.context_intermediate_size,
            max_length=config.max_length,
            time_conditioning="none",
        )
        self.head = nn.Linear(config.context_hidden_size, 2 * config.context_dim)

    def forward(self, embeddings: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.transformer(embeddings).value.mean(1)
        mean, log_variance = self.head(hidden).to(embeddings.dtype).chunk(2, dim=-1)
        return mean, log_variance
