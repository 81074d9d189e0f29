"""The small pre-LN transformer of the forward process (with time) and of MuLAN's context encoder (without)."""

from __future__ import annotations

from torch import Tensor, nn

from . import dual
from .dual import Dual
from .time_embedding import TimeEmbedding


TIME_CONDITIONINGS = ("adaln", "additive", "none")


class Modulation(nn.Module):
    """`chunks` vectors per example, linear in `silu(time embedding)`; they start at zero (AdaLN-Zero)."""

    def __init__(self, time_dim: int, hidden_size: int, chunks: int):
        super().__init__()
        self.chunks = chunks
        self.linear = nn.Linear(time_dim, chunks * hidden_size)

    def forward(self, time: Dual) -> tuple[Dual, ...]:
        # (batch, 1, hidden): broadcasts over positions, and over leading axes of the embeddings.
        out = dual.linear(dual.silu(time), self.linear).map_linear(lambda x: x[..., None, :])
        values = out.value.chunk(self.chunks, dim=-1)
        rates = (None,) * self.chunks if out.rate is None else out.rate.chunk(self.chunks, dim=-1)
        return tuple(Dual(value, rate) for value, rate in zip(values, rates))


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
        heads = dual.linear(x, self.query_key_value).map_linear(
            lambda y: y.unflatten(-1, (3, self.num_heads, -1)).movedim(-3, 0).transpose(-2, -3)
        )
        q, k, v = (Dual(heads.value[i], None if heads.rate is None else heads.rate[i]) for i in range(3))
        return dual.linear(dual.attention(q, k, v).map_linear(lambda y: y.transpose(-2, -3).flatten(-2)), self.output)


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

    def forward(self, x: Dual, time: Dual | None) -> Dual:
        if self.modulation is None:
            x = dual.add(x, self.attention(dual.layer_norm(x, self.norm_1)))
            return dual.add(x, self.mlp(dual.layer_norm(x, self.norm_2)))
        shift_1, scale_1, gate_1, shift_2, scale_2, gate_2 = self.modulation(time)
        branch = self.attention(modulate(dual.layer_norm(x, self.norm_1), shift_1, scale_1))
        x = dual.add_product(x, branch, gate_1)
        branch = self.mlp(modulate(dual.layer_norm(x, self.norm_2), shift_2, scale_2))
        return dual.add_product(x, branch, gate_2)


class Transformer(nn.Module):
    """Embeddings `(..., batch, seq, input_dim)` and times `(batch,)` to `(..., batch, seq, output_dim)`.

    `time_conditioning`:
      * `"adaln"`: adaptive layer norms in every block and a FiLM head (NFDM);
      * `"additive"`: a time embedding added to the input (NFDM-Additive);
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
        adaptive = time_conditioning == "adaln"
        self.input = nn.Linear(input_dim, hidden_size)
        self.positions = nn.Embedding(max_length, hidden_size)
        if time_conditioning == "none":
            self.time_embedding = None
        else:
            self.time_embedding = TimeEmbedding(hidden_size, time_dim if adaptive else hidden_size)
        block_time_dim = time_dim if adaptive else None
        self.blocks = nn.ModuleList(
            Block(hidden_size, num_heads, intermediate_size, block_time_dim) for _ in range(num_layers)
        )
        self.film = Modulation(time_dim, hidden_size, 2) if adaptive else None
        self.norm = nn.LayerNorm(hidden_size, elementwise_affine=not adaptive)
        self.output = nn.Linear(hidden_size, output_dim)

    def forward(self, embeddings: Tensor, t: Tensor | None = None, with_rate: bool = False) -> Dual:
        """The output, and with `with_rate` its derivative in t (embeddings held fixed)."""
        dtype = self.input.weight.dtype
        x = Dual(self.input(embeddings.to(dtype)) + self.positions.weight[: embeddings.shape[-2]])
        time = None if self.time_embedding is None else self.time_embedding(t, with_rate)
        if time is not None and self.film is None:
            x = dual.add(x, time.map_linear(lambda y: y[..., None, :]))
        for block in self.blocks:
            x = block(x, time)
        x = dual.layer_norm(x, self.norm)
        if self.film is not None:
            x = modulate(x, *self.film(time))
        return dual.linear(x, self.output)
