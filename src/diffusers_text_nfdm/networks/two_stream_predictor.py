"""Our predictor: one pre-norm trunk for a stream of clean tokens and a stream of noisy ones.

Both streams have the same weights. The clean stream reads the text from left to right; the noisy one reads it window
by window:

    a clean token sees the clean tokens up to itself;
    a token in motion sees the clean tokens before its window and all noisy tokens of its window;
    a token that is given sees those given before it, and every window sees it;
    a token that has settled inside its window sees what stands still before it.

In both streams the state that predicts token i stands where token i-1 does, and holds what is seen of it: what the
clean stream learns of the next token holds for the noisy one, too. So all windows of a text are predicted in one call
as if each were alone, the clean stream is an autoregressive model, and in sampling the keys and values of what is
written are kept. Where the whole text is one window there is no clean stream.

With `jumps` a window can also be read by the noise that decides its tokens, from left to right. With `joint_decoder`
tokens are also read from left to right that see all noisy ones of their text.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import initialization as init
from transformers.activations import ACT2FN
from transformers.modeling_layers import GradientCheckpointingLayer

from .dual import Dual
from .noise_embedding import NoiseEmbedding
from .predictor_parts import output_layer, self_condition_input, tanh_mlp
from .prototypes import Prototypes
from .time_embedding import TimeEmbedding
from .token_link import TokenLink


if TYPE_CHECKING:
    from ..models.configuration import TextDiffusionConfig


# The slowest rotation turns once in about six hundred positions.
ROTARY_BASE = 100.0
# Attention scores are this number, learned per head, times the cosine of query and key.
FIRST_SHARPNESS = 4.0
# On CPUs the fused attention has a slow backward pass in bfloat16; up to this length plain products are taken.
SHORT_TEXT = 512


class Places(NamedTuple):
    """Where noisy tokens stand. A window is known by the position at which it starts.

    Args:
        positions: `(tokens,)`, or `(batch, tokens)` where every text has its own.
        starts: where the window of each token starts, of one of these shapes.
        settled: `(batch, tokens)`, the tokens that stand still as text; `None` if there are none.
        given: `(batch, tokens)`, those of them that are known from the beginning, by every window.
    """

    positions: Tensor
    starts: Tensor
    settled: Tensor | None = None
    given: Tensor | None = None

    @classmethod
    def whole(cls, length: int, device: torch.device | None = None) -> Places:
        """All tokens of a text in one window."""
        positions = torch.arange(length, device=device)
        return cls(positions, torch.zeros_like(positions))

    def part(self, part: slice) -> Places:
        """Some of the tokens."""
        return Places(*(None if x is None else x[..., part] for x in self))

    def rows(self, rows: Tensor | slice) -> Places:
        """Those of some texts."""
        return Places(*(x if x is None or x.ndim == 1 or len(x) == 1 else x[rows] for x in self))


def sees_clean(places: Places, clean: Tensor) -> Tensor:
    """Which clean tokens, at positions `clean`, noisy ones see: those before their window."""
    seen = clean < places.starts[..., None]
    return seen if places.given is None else seen & ~places.given[..., None]


def sees_noisy(places: Places) -> Tensor:
    """Which noisy tokens noisy ones see."""
    same = places.starts[..., None] == places.starts[..., None, :]
    if places.settled is None:
        return same
    earlier = places.positions[..., None, :] <= places.positions[..., None]
    settled = places.settled
    seen = same & (~settled[..., None] | (settled[..., None, :] & earlier))
    if places.given is None:
        return seen
    given, behind = places.given, places.positions[..., None, :] >= places.starts[..., None]
    seen = seen | (given[..., None, :] & behind & (~settled[..., None] | earlier))
    return torch.where(given[..., None], given[..., None, :] & earlier, seen)


@dataclass
class CleanTokens:
    """What is seen of clean tokens, from position 0 on. The last ones may be read later, along with noisy tokens.

    Args:
        inputs: what the first layer gets, `(batch, tokens, hidden_size)`.
        keys_values: of every layer, `(batch, heads, tokens, head_dim)` each, of the tokens that are read.
    """

    inputs: Tensor
    keys_values: tuple[tuple[Tensor, Tensor], ...]

    def rows(self, rows: Tensor | slice) -> CleanTokens:
        """Those of some texts."""
        if isinstance(rows, slice) and rows == slice(None):
            # The very same: what a call reads of it is noted there.
            return self
        return CleanTokens(self.inputs[rows], tuple((key[rows], value[rows]) for key, value in self.keys_values))

    def append(self, inputs: Tensor) -> CleanTokens:
        """With further tokens, not read yet."""
        return CleanTokens(torch.cat([self.inputs, inputs], dim=1), self.keys_values)

    def note(self, keys_values: tuple[tuple[Tensor, Tensor], ...]) -> None:
        """Keep the keys and values of tokens that have been read."""
        self.keys_values = tuple(
            tuple(torch.cat(pair, dim=-2) for pair in zip(*layers)) for layers in zip(self.keys_values, keys_values)
        )

    @property
    def num_read(self) -> int:
        return self.keys_values[0][0].shape[-2]

    def __len__(self) -> int:
        return self.inputs.shape[1]


@dataclass
class NoisyTokens:
    """What is seen of the tokens of a text in motion.

    Args:
        states: of the last layer, `(batch, tokens, hidden_size)`.
        keys_values: of every layer, `(batch, heads, tokens, head_dim)` each.
    """

    states: Tensor
    keys_values: tuple[tuple[Tensor, Tensor], ...]

    def rows(self, rows: Tensor | slice) -> NoisyTokens:
        """Those of some texts."""
        return NoisyTokens(self.states[rows], tuple((key[rows], value[rows]) for key, value in self.keys_values))


class LayerCache(NamedTuple):
    """Keys and values of one layer, `(batch, heads, room, head_dim)`, and where new ones go, `(batch, tokens)`."""

    keys: Tensor
    values: Tensor
    positions: Tensor

    def put(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Those of all positions, with the new ones in their places."""
        index = self.positions[:, None, :, None].expand_as(key)
        return tuple(x.scatter_(2, index, new.to(x.dtype)) for x, new in zip(self, (key, value)))


class TextCache:
    """Keys and values of texts that grow, with room for `length` tokens.

    What is read at a position takes the place of what was read there before, such as a draft that was refused.
    """

    def __init__(self, predictor: TwoStreamPredictor, batch: int, length: int):
        shape = batch, predictor.config.num_attention_heads, length, predictor.head_dim
        weight = predictor.own_input.weight
        self.layers = [(weight.new_zeros(shape), weight.new_zeros(shape)) for _ in predictor.layers]

    def keep(self, rows: Tensor) -> None:
        """Only some texts go on."""
        self.layers = [(keys[rows], values[rows]) for keys, values in self.layers]

    def at(self, positions: Tensor, stop: int) -> tuple[LayerCache, ...]:
        """Of every layer, what stands before `stop`; new tokens come to `positions`."""
        return tuple(LayerCache(keys[:, :, :stop], values[:, :, :stop], positions) for keys, values in self.layers)


class TextReader:
    """Reads texts that grow, from left to right: clean tokens, and behind them the noise of others.

    Args:
        noise: `(batch, room)`, of all texts.
        token_embeddings: those of the vocabulary.
        num_texts: how many texts are read.
    """

    def __init__(self, predictor: TwoStreamPredictor, noise: Tensor, token_embeddings: Tensor, num_texts: int):
        self.predictor = predictor
        # What is read of every token of the vocabulary, and of all noise.
        vocabulary = torch.arange(len(token_embeddings), device=noise.device)[None]
        self.token_inputs = predictor.clean_inputs(vocabulary, token_embeddings[None])[0]
        self.noise_inputs = predictor.noise_inputs(noise)
        self.cache = TextCache(predictor, num_texts, noise.shape[1])

    def read(self, tokens: Tensor, clean: Tensor, at: tuple[Tensor, Tensor]) -> Tensor:
        """States of what stands `at` rows and positions: tokens, where they are clean, or else noise."""
        inputs = torch.where(clean[..., None], self.token_inputs[tokens], self.noise_inputs[at])
        return self.predictor.read_on(inputs, at[1], self.cache)

    def keep(self, rows: Tensor) -> None:
        """Only some texts go on."""
        self.cache.keep(rows)


class Rotation(NamedTuple):
    """Cosines and sines, `(1 or batch, 1, tokens, head_dim / 2)`, by which queries or keys are turned."""

    cos: Tensor
    sin: Tensor

    @classmethod
    def at(cls, positions: Tensor, head_dim: int) -> Rotation:
        """Rotary positions (Su et al. 2021): scores depend on the distance between two tokens."""
        frequencies = ROTARY_BASE ** (-torch.arange(0, head_dim, 2, device=positions.device) / head_dim)
        angles = positions[..., None] * frequencies
        angles = angles.view(-1, 1, *angles.shape[-2:])
        return cls(angles.cos(), angles.sin())

    def __call__(self, x: Tensor) -> Tensor:
        cos, sin = self.cos.to(x.dtype), self.sin.to(x.dtype)
        a, b = x.chunk(2, dim=-1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


class PredictorLayer(GradientCheckpointingLayer):
    """`x + attention(norm(x))`, then `x + mlp(norm(x))`; the two branches start at zero."""

    def __init__(self, config: TextDiffusionConfig):
        super().__init__()
        size = config.hidden_size
        self.num_heads = config.num_attention_heads
        self.attention_norm = nn.RMSNorm(size, eps=1e-6)
        self.query_key_value = nn.Linear(size, 3 * size, bias=False)
        self.log_sharpness = nn.Parameter(torch.full((self.num_heads, 1, 1), math.log(FIRST_SHARPNESS)))
        self.attention_output = nn.Linear(size, size, bias=False)
        self.mlp_norm = nn.RMSNorm(size, eps=1e-6)
        self.mlp_input = nn.Linear(size, config.intermediate_size, bias=False)
        self.activation = ACT2FN[config.hidden_act]
        self.mlp_output = nn.Linear(config.intermediate_size, size, bias=False)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.attention_dropout = config.attention_probs_dropout_prob

    def forward(
        self,
        x: Tensor,
        seen: Tensor,
        place: Rotation,
        clean: tuple[Tensor, Tensor] | LayerCache | None,
        candidates: Tensor | None = None,
        candidate_place: Rotation | None = None,
    ) -> tuple[Tensor, tuple[Tensor, Tensor], Tensor | None]:
        """The new states, the keys and values of these tokens, and the new states of the candidates.

        `clean` are keys and values of clean tokens, which come before those of x in `seen`,
        `(1 or batch, 1, x, clean + x)`. In a `LayerCache` those of x have places of their own.

        `candidates`, `(batch, candidates, tokens, size)`, belong to the last tokens of x. Each sees what that token
        sees, and itself.
        """
        query, key, value = self._heads(x, place)
        if isinstance(clean, LayerCache):
            keys, values = clean.put(key, value)
        elif clean is not None:
            keys, values = (torch.cat(pair, dim=-2) for pair in zip(clean, (key, value)))
        else:
            keys, values = key, value
        dropout = self.attention_dropout if self.training else 0.0
        if query.device.type == "cpu" and keys.shape[-2] <= SHORT_TEXT:
            scores = (query @ keys.mT).masked_fill(~seen, torch.finfo(query.dtype).min)
            attended = F.dropout(torch.softmax(scores, dim=-1), dropout) @ values
        else:
            attended = F.scaled_dot_product_attention(
                query, keys, values, attn_mask=seen, dropout_p=dropout, scale=1.0
            )
        if candidates is not None:
            n = candidates.shape[2]
            own_query, own_key, own_value = self._heads(candidates, candidate_place)
            scores = (own_query @ keys.mT[:, :, None]).masked_fill(
                ~seen[:, :, None, -n:], torch.finfo(query.dtype).min
            )
            scores = torch.cat([scores, (own_query * own_key).sum(-1, keepdim=True)], dim=-1)
            weights = F.dropout(torch.softmax(scores, dim=-1), dropout)
            own_attended = weights[..., :-1] @ values[:, :, None] + weights[..., -1:] * own_value
            candidates = self._update(candidates, own_attended)
        return self._update(x, attended), (key, value), candidates

    def _heads(self, x: Tensor, place: Rotation) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of states `(batch, ..., tokens, size)`: `(batch, heads, ..., tokens, head_dim)`."""
        heads = self.query_key_value(self.attention_norm(x)).unflatten(-1, (3, self.num_heads, -1))
        query, key, value = heads.movedim(-3, 0).movedim(-2, 2)
        sharpness = self.log_sharpness.exp().to(query.dtype)
        if x.ndim > 3:
            place, sharpness = Rotation(*(part[:, :, None] for part in place)), sharpness[..., None]
        return place(F.normalize(query, dim=-1)) * sharpness, place(F.normalize(key, dim=-1)), value

    def _update(self, x: Tensor, attended: Tensor) -> Tensor:
        x = x + self.dropout(self.attention_output(attended.movedim(1, -2).flatten(-2)))
        return x + self.dropout(self.mlp_output(self.activation(self.mlp_input(self.mlp_norm(x)))))


class TwoStreamPredictor(nn.Module):
    """`net(z, t, c)` of noisy tokens, given clean ones before them.

    The state that predicts token i begins as what is seen of token i-1 and the times of both. What no state behind it
    holds, its own does: the last token of a window, and what is given. With categorical prediction a latent is seen as
    the mean of token rows under a posterior of its token; a clean token is seen as its row.
    """

    def __init__(self, config: TextDiffusionConfig, context_dim: int | None = None):
        super().__init__()
        size = config.hidden_size
        self.config = config
        self.reads_tokens = config.prediction_type == "categorical"
        self.head_dim = size // config.num_attention_heads
        if self.reads_tokens:
            self.token_rows = nn.Embedding(config.vocab_size, size)
        else:
            self.input = tanh_mlp(config.embedding_dim, size, size)
        self.time_embedding = TimeEmbedding(size, size)
        self.own_time_embedding = TimeEmbedding(size, size)
        self.own_input = nn.Linear(size, size, bias=False)
        # Says that tokens are seen as the first call predicts them.
        self.second_call = None
        if config.self_conditioning and self.reads_tokens:
            self.second_call = nn.Parameter(torch.zeros(size))
        if config.jumps:
            self.noise_embedding = NoiseEmbedding(size)
        if config.lattice_candidates:
            # What is read before the first token of a text.
            self.beginning = nn.Parameter(torch.zeros(size))
        if config.num_prototypes:
            self.prototypes = Prototypes(config.num_prototypes, config.max_length, config.embedding_dim)
            self.outline_input = nn.Linear(config.embedding_dim, size, bias=False)
        if config.joint_decoder:
            # Of the noisy state of a token, and that a text is decoded.
            self.joint_input = nn.Linear(size, size)
        if config.token_link:
            self.token_link = TokenLink(size)
        self.self_condition = None if self.reads_tokens else self_condition_input(config)
        self.context = None if context_dim is None else nn.Linear(context_dim, size)
        self.layers = nn.ModuleList(PredictorLayer(config) for _ in range(config.num_hidden_layers))
        self.norm = nn.RMSNorm(size, eps=1e-6)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.output = output_layer(config)

    def init_weights(self) -> None:
        """Branches that say nothing yet, attention that is neither flat nor sharp, token rows of size one."""
        for layer in self.layers:
            init.constant_(layer.log_sharpness, math.log(FIRST_SHARPNESS))
            for linear in (layer.query_key_value, layer.mlp_input):
                init.normal_(linear.weight, std=0.85 * linear.in_features**-0.5)
            for linear in (layer.attention_output, layer.mlp_output):
                init.zeros_(linear.weight)
        init.zeros_(self.own_input.weight)
        if self.second_call is not None:
            init.zeros_(self.second_call)
        if self.reads_tokens:
            init.normal_(self.token_rows.weight)
        if self.config.lattice_candidates:
            init.normal_(self.beginning)
        if self.config.num_prototypes:
            init.normal_(self.prototypes.texts)
            init.zeros_(self.prototypes.bias)
            init.zeros_(self.outline_input.weight)
        if self.config.joint_decoder:
            init.zeros_(self.joint_input.weight)
            init.zeros_(self.joint_input.bias)
        if self.config.token_link:
            init.zeros_(self.token_link.output.weight)
            init.zeros_(self.token_link.output.bias)
        if self.config.jumps:
            init.zeros_(self.noise_embedding.linear_2.weight)
            init.zeros_(self.noise_embedding.linear_2.bias)

    @torch.no_grad()
    def set_token_rows(self, rows: Tensor) -> None:
        """Start the rows by which tokens are read and predicted at the given ones, `(vocab, hidden_size)`.

        Those of the output have length 1: for states of length `sqrt(hidden_size)`, longer ones would start with
        sharp guesses.
        """
        self.token_rows.weight.copy_(rows)
        self.output.weight.copy_(F.normalize(rows, dim=-1))

    def forward(
        self,
        z: Tensor,
        t: Tensor,
        context: Tensor | None = None,
        tokens: Tensor | None = None,
        self_condition: Tensor | None = None,
        clean: CleanTokens | None = None,
        places: Places | None = None,
        second_call: bool = False,
        outline: Tensor | None = None,
        keys_values: list | None = None,
    ) -> Tensor:
        """The states that the output layer gets, `(batch, seq, hidden_size)`.

        Args:
            z: latents, `(batch, seq, embedding_dim)`.
            t: their times, `(batch, seq or 1)`.
            context: MuLAN's c, `(batch, context_dim)`.
            tokens: mean token rows, `(batch, seq, hidden_size)`, which are read instead of z with categorical
                prediction.
            self_condition: an Ê made before, of the shape of `z`, for self-conditioning without categorical
                prediction.
            clean: what is seen of clean tokens, where the text has windows.
            places: where the noisy tokens stand; by default they are a text in one window. The tokens of a window
                follow one another.
            second_call: `tokens` are from the predictions of a first call.
            outline: Ê of the prototypes, of the shape of `z`.
            keys_values: a list to which those of every layer are added, for a text without windows.
        """
        places = places or Places.whole(z.shape[1], z.device)
        own = self.input(z.to(self.own_input.weight.dtype)) if tokens is None else tokens
        if self.self_condition is not None:
            own = own + self.self_condition(self_condition.to(own.dtype))
        x = self._contents(own, t, clean, places) + self.own_time_embedding(Dual(t)).value
        if second_call:
            x = x + self.second_call
        if outline is not None:
            x = x + self.outline_input(outline.to(x.dtype))
        if self.context is not None:
            x = x + self.context(context.to(x.dtype))[:, None]
        seen, positions = sees_noisy(places), places.positions - 1
        if clean is None:
            states, read, _ = self._layers(x, seen, positions, None)
            if keys_values is not None:
                keys_values += read
            return states
        before = torch.arange(len(clean), device=z.device)
        seen = torch.cat([sees_clean(places, before).expand(*seen.shape[:-1], -1), seen], dim=-1)
        return self._read_behind(clean, x, seen, positions)[0]

    def _contents(self, own: Tensor, t: Tensor, clean: CleanTokens | None, places: Places) -> Tensor:
        """What is seen of the token before each one, or else of itself."""
        first = places.positions == places.starts
        # What stands still says nothing of what moves, and what is given nothing of what settled later.
        nothing = torch.zeros_like(first)
        given = places.given
        if places.settled is not None:
            nothing = places.settled & ~F.pad(places.settled[:, :-1], (1, 0))
        if given is not None:
            nothing = nothing | (given & ~F.pad(given[:, :-1], (1, 0)))
            first = first & ~given
        apart = first | nothing
        held = F.pad(~apart[..., 1:], (0, 1), value=False)
        if given is not None:
            held = held & ~given
        before = F.pad((own + self.time_embedding(Dual(t)).value)[:, :-1], (0, 0, 1, 0))
        before = before.masked_fill(apart[..., None], 0)
        if clean is not None:
            index = (places.starts - 1).clamp(0, len(clean) - 1)[..., None].expand(len(own), -1, own.shape[-1])
            last = clean.inputs.gather(1, index)
            before = torch.where((first & (places.starts > 0))[..., None], last, before)
        return before + self.own_input(own).masked_fill(held[..., None], 0)

    def jump(self, noise: Tensor, clean: CleanTokens, places: Places) -> Tensor:
        """States of windows that are read from left to right by the noise of their tokens, `(batch, tokens)` in
        [0, 1].
        """
        return self.read_windows(self.noise_inputs(noise), clean, places)[0]

    def read_windows(
        self,
        own: Tensor,
        clean: CleanTokens,
        places: Places,
        candidates: Tensor | None = None,
        outline: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """States of windows that are read from left to right, as the clean stream reads a text.

        The state that predicts token i sees the clean tokens before its window and what is read of the window's tokens
        before i; of its own it sees nothing. So a window of one token is read as the clean stream reads it.

        Args:
            own: what is read of the tokens, `(batch, tokens, hidden_size)`.
            places: where they stand. The tokens of a window follow one another.
            candidates: what is read of tokens that each of them may be, `(batch, candidates, tokens, hidden_size)`.
            outline: Ê of the prototypes, where a whole text is read.

        Returns:
            the states that predict the tokens, and for each candidate the one that predicts the token behind it, if it
            were this one.
        """
        starts, positions = (x.expand(own.shape[:2]) for x in (places.starts, places.positions))
        last = own.new_zeros(1) if (beginning := getattr(self, "beginning", None)) is None else beginning
        if len(clean):
            index = (starts - 1).clamp(0, len(clean) - 1)[..., None].expand_as(own)
            last = torch.where((starts == 0)[..., None], last, clean.inputs.gather(1, index))
        x = torch.where((positions == starts)[..., None], last, F.pad(own[:, :-1], (0, 0, 1, 0)))
        if outline is not None:
            x = x + self.outline_input(outline.to(x.dtype))
        seen = (starts[..., None] == starts[..., None, :]) & (positions[..., None, :] <= positions[..., None])
        # The first state of a window is that of the clean token before it.
        before = torch.arange(len(clean), device=own.device) < starts[..., None] - 1
        return self._read_behind(clean, x, torch.cat([before, seen], dim=-1), positions - 1, candidates)

    def read_jointly(self, inputs: Tensor, noisy: NoisyTokens) -> Tensor:
        """States of a whole text that is read from left to right beside its latents.

        The state that predicts token i sees the tokens before i, as `clean_inputs` reads them, and all noisy ones.
        """
        length = inputs.shape[1]
        before = torch.cat([self.beginning.expand(len(inputs), 1, -1), inputs[:, :-1]], dim=1)
        x = before + self.joint_input(noisy.states.to(before.dtype))
        places = torch.arange(length, device=x.device)
        seen = F.pad(places <= places[:, None], (length, 0), value=True)
        return self._layers(x, seen, places - 1, noisy.keys_values)[0]

    def nothing_read(self, batch: int) -> CleanTokens:
        """What is seen of texts of which nothing is written."""
        weight = self.own_input.weight
        nothing = weight.new_zeros(batch, self.config.num_attention_heads, 0, self.head_dim)
        return CleanTokens(
            weight.new_zeros(batch, 0, self.config.hidden_size), ((nothing, nothing),) * len(self.layers)
        )

    def _read_behind(
        self, clean: CleanTokens, x: Tensor, seen: Tensor, positions: Tensor, candidates: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """States of tokens that see clean ones, and those of their candidates.

        What is not read yet of the clean tokens is read in the same pass: it comes first, and sees only what is clean.
        """
        before = torch.arange(len(clean), device=x.device)
        unread = before[clean.num_read :]
        if not len(unread):
            states, _, candidates = self._layers(x, seen, positions, clean.keys_values, candidates)
            return states, candidates
        causal = F.pad(before <= unread[:, None], (0, x.shape[1]))
        seen = torch.cat([causal.expand(*seen.shape[:-2], -1, -1), seen], dim=-2)
        positions = torch.cat([unread.expand(*positions.shape[:-1], -1), positions], dim=-1)
        x = torch.cat([clean.inputs[:, clean.num_read :], x], dim=1)
        states, new, candidates = self._layers(x, seen, positions, clean.keys_values, candidates)
        clean.note(tuple((key[..., : len(unread), :], value[..., : len(unread), :]) for key, value in new))
        return states[:, len(unread) :], candidates

    def soft_inputs(self, tokens: Tensor, t: Tensor) -> Tensor:
        """What is read of tokens of which mean token rows are seen, at their times."""
        return tokens + self.time_embedding(Dual(t)).value

    def noise_inputs(self, noise: Tensor) -> Tensor:
        """What a jump reads of tokens: their noise, at time 1."""
        return self.noise_embedding(noise) + self.time_embedding(Dual(noise.new_ones(1, 1))).value

    def clean_inputs(self, ids: Tensor, embeddings: Tensor) -> Tensor:
        """What is read of clean tokens."""
        time = self.time_embedding(Dual(embeddings.new_zeros(1, 1))).value
        return time + (self.token_rows(ids) if self.reads_tokens else self.input(embeddings.to(time.dtype)))

    def read_on(self, inputs: Tensor, positions: Tensor, cache: TextCache) -> Tensor:
        """States of tokens, each of which sees what is read up to itself.

        Clean tokens are read as `read_clean` reads them, and behind them a window by its noise, as by `jump`: its
        first state is that of the last clean token.

        Args:
            inputs: `clean_inputs`, and behind them `noise_inputs`, `(batch, tokens, hidden_size)`.
            positions: `(batch, tokens)`; what stands before them is in the cache.
        """
        stop = int(positions.max()) + 1
        seen = torch.arange(stop, device=positions.device) <= positions[..., None]
        return self._layers(inputs, seen, positions, cache.at(positions, stop))[0]

    def read_clean(
        self, ids: Tensor, embeddings: Tensor, before: CleanTokens | None = None
    ) -> tuple[Tensor, CleanTokens]:
        """States of clean tokens, and what noisy tokens see of them.

        Args:
            ids, embeddings: of the clean tokens that follow those of `before`.
            before: what was read already; the result then holds both.
        """
        inputs = self.clean_inputs(ids, embeddings)
        if before is None:
            keys = torch.arange(ids.shape[1], device=ids.device)
            x, new, _ = self._layers(inputs, keys <= keys[:, None], keys, None)
            return x, CleanTokens(inputs, new)
        clean = before.append(inputs)
        keys = torch.arange(len(clean), device=ids.device)
        positions = keys[clean.num_read :]
        inputs = clean.inputs[:, clean.num_read :]
        x, new, _ = self._layers(inputs, keys <= positions[:, None], positions, clean.keys_values)
        clean.note(new)
        return x[:, -ids.shape[1] :], clean

    def _layers(
        self,
        x: Tensor,
        seen: Tensor,
        positions: Tensor,
        past: tuple[tuple[Tensor, Tensor] | LayerCache, ...] | None,
        candidates: Tensor | None = None,
    ) -> tuple[Tensor, tuple[tuple[Tensor, Tensor], ...], Tensor | None]:
        """The last states, the keys and values of every layer, and the last states of the candidates, which stand one
        position behind the tokens that they belong to.
        """
        if self.config._attn_implementation not in (None, "sdpa"):
            raise ValueError(
                "The two-stream predictor needs attention 'sdpa', which takes a mask; it is "
                f"{self.config._attn_implementation!r}."
            )
        place, candidate_place = Rotation.at(positions, self.head_dim), None
        if candidates is not None:
            candidate_place = Rotation.at(positions[..., -candidates.shape[2] :] + 1, self.head_dim)
            candidates = self.dropout(candidates)
        seen = seen.view(-1, 1, *seen.shape[-2:])
        x, keys_values = self.dropout(x), []
        for index, layer in enumerate(self.layers):
            read = None if past is None else past[index]
            x, new, candidates = layer(x, seen, place, read, candidates, candidate_place)
            keys_values.append(new)
        return self.norm(x), tuple(keys_values), None if candidates is None else self.norm(candidates)
