"""The small pre-LN transformer of the forward process (with time) and of MuLAN's context encoder (without)."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from . import dual
from .dual import Dual
from .time_embedding import TimeEmbedding


TIME_CONDITIONINGS = ("adaln", "additive", "head", "none")


class Modulation(nn.Module):
    """`chunks` vectors per example, linear in an activated time embedding; they start at zero (AdaLN-Zero)."""

    def __init__(self, time_dim: int, hidden_size: int, chunks: int):
        super().__init__()
        self.chunks = chunks
        self.linear = nn.Linear(time_dim, chunks * hidden_size)

    def forward(self, time: Dual) -> tuple[Dual, ...]:
        # (batch, 1, hidden): broadcasts over positions, and over leading axes of the embeddings.
        if time.rate is None:
            return tuple(Dual(value) for value in self.linear(time.value)[..., None, :].chunk(self.chunks, dim=-1))
        # One product for both: with few examples its cost is reading the weight.
        out = F.linear(torch.cat([time.value, time.rate]), self.linear.weight)[..., None, :]
        value, rate = out.chunk(2)
        values, rates = (value + self.linear.bias).chunk(self.chunks, dim=-1), rate.chunk(self.chunks, dim=-1)
        return tuple(map(Dual, values, rates))


def modulate(x: Dual, shift: Dual, scale: Dual) -> Dual:
    """`x (1 + scale) + shift`."""
    return dual.add_product(shift, x, Dual(1 + scale.value, scale.rate))


class SelfAttention(nn.Module):
    def __init__(self, hidden_size: int, num_heads: int):
        super().__init__()
        self.num_heads = num_heads
        self.query_key_value = nn.Linear(hidden_size, 3 * hidden_size)
        self.output = nn.Linear(hidden_size, hidden_size)

    def forward(self, x: Dual) -> Dual:
        return dual.linear(dual.attention(dual.linear(x, self.query_key_value), self.num_heads), self.output)


class Mlp(nn.Module):
    def __init__(self, hidden_size: int, intermediate_size: int):
        super().__init__()
        self.linear_1 = nn.Linear(hidden_size, intermediate_size)
        self.linear_2 = nn.Linear(intermediate_size, hidden_size)

    def forward(self, x: Dual) -> Dual:
        return dual.linear(dual.gelu(dual.linear(x, self.linear_1)), self.linear_2)


class Block(nn.Module):
    """Pre-LN attention and MLP. With `time_dim` the normalisations are adaptive and the branches gated (AdaLN)."""

    def __init__(self, hidden_size: int, num_heads: int, intermediate_size: int, time_dim: int | None):
        super().__init__()
        adaptive = time_dim is not None
        self.modulation = Modulation(time_dim, hidden_size, 6) if adaptive else None
        self.norm_1 = nn.LayerNorm(hidden_size, elementwise_affine=not adaptive)
        self.attention = SelfAttention(hidden_size, num_heads)
        self.norm_2 = nn.LayerNorm(hidden_size, elementwise_affine=not adaptive)
        self.mlp = Mlp(hidden_size, intermediate_size)

    def forward(self, x: Dual, modulations: tuple[Dual, ...] | None) -> Dual:
        if modulations is None:
            x = dual.add(x, self.attention(dual.layer_norm(x, self.norm_1)))
            return dual.add(x, self.mlp(dual.layer_norm(x, self.norm_2)))
        shift_1, scale_1, gate_1, shift_2, scale_2, gate_2 = modulations
        branch = self.attention(modulate(dual.layer_norm(x, self.norm_1), shift_1, scale_1))
        x = dual.add_product(x, branch, gate_1)
        branch = self.mlp(modulate(dual.layer_norm(x, self.norm_2), shift_2, scale_2))
        return dual.add_product(x, branch, gate_2)


class TimeConditions(NamedTuple):
    """What the network gets of t, the same for all embeddings at these times."""

    shift: Dual | None
    blocks: tuple[tuple[Dual, ...] | None, ...]
    film: tuple[Dual, ...] | None


class Transformer(nn.Module):
    """Embeddings `(..., batch, seq, input_dim)` and times `(batch,)` to `(..., batch, seq, output_dim)`.

    `time_conditioning`:
      * `"adaln"`: adaptive layer norms in every block and a FiLM head (NFDM);
      * `"additive"`: a time embedding added to the input (NFDM-Additive);
      * `"head"`: blocks without time, then a FiLM head with a small MLP. What comes before the head is constant in time, so that it
        needs no derivative;
      * `"none"`: no time at all (MuLAN's context encoder).
    """

    def __init__(
        self,
        *,
        input_dim: int,
        output_dim: int,
        hidden_size: int,
        num_layers: int,
        num_heads: int,
        intermediate_size: int,
        max_length: int,
        time_conditioning: str,
        time_dim: int = 0,
    ):
        super().__init__()
        adaptive, film = time_conditioning == "adaln", time_conditioning in ("adaln", "head")
        self.input = nn.Linear(input_dim, hidden_size)
        self.positions = nn.Embedding(max_length, hidden_size)
        if time_conditioning == "none":
            self.time_embedding = None
        else:
            self.time_embedding = TimeEmbedding(hidden_size, time_dim if film else hidden_size)
        block_time_dim = time_dim if adaptive else None
        self.blocks = nn.ModuleList(
            Block(hidden_size, num_heads, intermediate_size, block_time_dim) for _ in range(num_layers)
        )
        self.film = Modulation(time_dim, hidden_size, 2) if film else None
        self.norm = nn.LayerNorm(hidden_size, elementwise_affine=not film)
        self.head = Mlp(hidden_size, 2 * hidden_size) if time_conditioning == "head" else None
        self.output = nn.Linear(hidden_size, output_dim)

    def conditions(self, t: Tensor | None, with_rate: bool = False) -> TimeConditions:
        """What depends on t alone, and with `with_rate` its derivative: to be computed once for several embeddings."""
        shift, film, blocks = None, None, (None,) * len(self.blocks)
        if self.time_embedding is not None:
            time = self.time_embedding(t, with_rate)
            if self.film is None:
                shift = time.map_linear(lambda y: y[..., None, :])
            else:
                time = dual.silu(time)
                blocks = tuple(None if block.modulation is None else block.modulation(time) for block in self.blocks)
                film = self.film(time)
        return TimeConditions(shift, blocks, film)

    def forward(
        self,
        embeddings: Tensor,
        t: Tensor | None = None,
        with_rate: bool = False,
        conditions: TimeConditions | None = None,
    ) -> Dual:
        """The output, and with `with_rate` its derivative in t (embeddings held fixed); `conditions` instead of `t` and `with_rate`."""
        if conditions is None:
            conditions = self.conditions(t, with_rate)
        dtype = self.input.weight.dtype
        x = Dual(self.input(embeddings.to(dtype)) + self.positions.weight[: embeddings.shape[-2]])
        if conditions.shift is not None:
            x = dual.add(x, conditions.shift)
        for block, modulations in zip(self.blocks, conditions.blocks, strict=True):
            x = block(x, modulations)
        x = dual.layer_norm(x, self.norm)
        if conditions.film is not None:
            x = modulate(x, *conditions.film)
        if self.head is not None:
            x = dual.add(x, self.head(x))
        return dual.linear(x, self.output)
