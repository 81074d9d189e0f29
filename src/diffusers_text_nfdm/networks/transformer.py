"""The small pre-LN transformer of the forward process (with time) and of MuLAN's context encoder (without).

Times are `(batch, seq)`, or `(batch, 1)` where all tokens of a text have the same: then there is one modulation per
text.
"""

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
    """`chunks` vectors per time, linear in an activated time embedding; they start at zero (AdaLN-Zero)."""

    def __init__(self, time_dim: int, hidden_size: int, chunks: int):
        super().__init__()
        self.chunks = chunks
        self.linear = nn.Linear(time_dim, chunks * hidden_size)

    def forward(self, time: Dual) -> tuple[Dual, ...]:
        if time.rate is None:
            return tuple(Dual(value) for value in self.linear(time.value).chunk(self.chunks, dim=-1))
        # One product for both: with few examples its cost is reading the weight.
        out = F.linear(torch.cat([time.value, time.rate]), self.linear.weight)
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


class Layer(nn.Module):
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
    """What the network gets of the times, the same for all embeddings."""

    shift: Dual | None
    layers: tuple[tuple[Dual, ...] | None, ...]
    film: tuple[Dual, ...] | None

    def fold(self, block_size: int) -> TimeConditions:
        """The conditions of blocks that are examples of their own."""

        def folded(duals: tuple[Dual, ...] | None) -> tuple[Dual, ...] | None:
            return None if duals is None else tuple(x.map_linear(lambda y: fold(y, block_size)) for x in duals)

        shift = None if self.shift is None else folded((self.shift,))[0]
        return TimeConditions(shift, tuple(map(folded, self.layers)), folded(self.film))


def fold(x: Tensor, block_size: int) -> Tensor:
    """`(..., batch, seq, size)` to `(..., batch * blocks, block_size, size)`."""
    return x.unflatten(-2, (-1, block_size)).flatten(-4, -3)


class Transformer(nn.Module):
    """Embeddings `(..., batch, seq, input_dim)` and times `(batch, seq or 1)` to `(..., batch, seq, output_dim)`.

    `time_conditioning`:
      * `"adaln"`: adaptive layer norms in every layer and a FiLM head (NFDM);
      * `"additive"`: a time embedding added to the input (NFDM-Additive);
      * `"head"`: layers without time, then a FiLM head with a small MLP. What comes before the head is constant in
        time, so it needs no derivative;
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
        layer_time_dim = time_dim if adaptive else None
        self.layers = nn.ModuleList(
            Layer(hidden_size, num_heads, intermediate_size, layer_time_dim) for _ in range(num_layers)
        )
        self.film = Modulation(time_dim, hidden_size, 2) if film else None
        self.norm = nn.LayerNorm(hidden_size, elementwise_affine=not film)
        self.head = Mlp(hidden_size, 2 * hidden_size) if time_conditioning == "head" else None
        self.output = nn.Linear(hidden_size, output_dim)

    def conditions(self, times: Dual | None) -> TimeConditions:
        """What depends on the times alone, with its derivative if they have a rate: computed once for several
        embeddings.
        """
        shift, film, layers = None, None, (None,) * len(self.layers)
        if self.time_embedding is not None:
            time = self.time_embedding(times)
            if self.film is None:
                shift = time
            else:
                time = dual.silu(time)
                layers = tuple(None if layer.modulation is None else layer.modulation(time) for layer in self.layers)
                film = self.film(time)
        return TimeConditions(shift, layers, film)

    def forward(
        self, embeddings: Tensor, conditions: TimeConditions | None = None, block_size: int | None = None
    ) -> Dual:
        """The output, with its derivative along the times of the conditions if they have a rate (embeddings held
        fixed).

        With `block_size` a position sees those of its own block only.
        """
        conditions = conditions or self.conditions(None)
        dtype = self.input.weight.dtype
        x = self.input(embeddings.to(dtype)) + self.positions.weight[: embeddings.shape[-2]]
        shape = x.shape
        if block_size is not None:
            x, conditions = fold(x, block_size), conditions.fold(block_size)
        x = Dual(x)
        if conditions.shift is not None:
            x = dual.add(x, conditions.shift)
        for layer, modulations in zip(self.layers, conditions.layers, strict=True):
            x = layer(x, modulations)
        x = dual.layer_norm(x, self.norm)
        if conditions.film is not None:
            x = modulate(x, *conditions.film)
        if self.head is not None:
            x = dual.add(x, self.head(x))
        return dual.linear(x, self.output).map_linear(lambda y: y.reshape(*shape[:-1], -1))
