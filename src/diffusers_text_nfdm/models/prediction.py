"""From the predictor's states to Ê: the paper's embedding prediction, and categorical prediction."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ..networks.dual import Dual
from ..networks.time_embedding import fourier_features
from ..networks.two_stream_predictor import NoisyTokens
from .lattice import TokenLattice
from .token_choice import Generators, draw_uniforms, exclude, select_tokens


if TYPE_CHECKING:
    from ..networks.two_stream_predictor import CleanTokens, Places

AlphaSigma = tuple[Tensor, Tensor]


def full_precision(z: Tensor) -> torch.autocast:
    """No autocast: near t = 0 logits are small differences of large numbers, and the bound's weight sees the rounding
    of Ê.
    """
    return torch.autocast(z.device.type, enabled=False)


class Prediction:
    """What the predictor says of the clean tokens: embeddings Ê, and with categorical prediction the logits they come
    from.

    Args:
        embeddings: Ê, where it is predicted itself.
        factors: `(states, weight, bias)` with logits `states weightᵀ + bias`, so that a loss need not hold the logits.
        table: the token embeddings, whose mean under the logits is Ê.
        states: those of the network alone, where a later call can be shown them.
        window: the tokens that were predicted, out of `length`; `None` for all. Ê of the others is zero.
        excluded: tokens that a text cannot have, `(batch, vocab)`; `None` for none.
        lattice: where tokens are inferred together, their posterior.
        noisy: where the text can be decoded jointly, what is seen of its noisy tokens.
    """

    def __init__(
        self,
        embeddings: Tensor | None = None,
        factors: tuple[Tensor, Tensor, Tensor] | None = None,
        table: Tensor | None = None,
        window: slice | None = None,
        length: int | None = None,
        states: Tensor | None = None,
        excluded: Tensor | None = None,
        lattice: TokenLattice | None = None,
        noisy: NoisyTokens | None = None,
    ):
        self._embeddings, self.factors, self.table, self.states = embeddings, factors, table, states
        self.window, self.length, self.excluded, self.lattice = window, length, excluded, lattice
        self.noisy = noisy

    @property
    def is_categorical(self) -> bool:
        return self.factors is not None

    def without(self, excluded: Tensor | None) -> Prediction:
        """The same with logits of -inf for the `excluded` tokens of each text."""
        if excluded is None:
            return self
        options = {"states": self.states, "excluded": excluded, "lattice": self.lattice, "noisy": self.noisy}
        return Prediction(self._embeddings, self.factors, self.table, self.window, self.length, **options)

    @cached_property
    def logits(self) -> Tensor:
        """Logits of the predicted tokens, `(batch, window, vocab)`."""
        if self.lattice is not None:
            return exclude(self.lattice.logits, self.excluded)
        states, weight, bias = self.factors
        with full_precision(states):
            return exclude(states @ weight.T + bias, self.excluded)

    @cached_property
    def embeddings(self) -> Tensor:
        """Ê, `(batch, seq, dim)`."""
        if self._embeddings is not None:
            return self.place(self._embeddings)
        with full_precision(self.logits):
            return self.place(torch.softmax(self.logits, dim=-1) @ self.table)

    @cached_property
    def shown_next(self) -> Tensor:
        """What self-conditioning shows the call of a next step: the network's states, or Ê."""
        return self.embeddings if self.states is None else self.place(self.states)

    def draw(self, generators: Generators, temperature: float = 1.0, **cuts) -> Tensor:
        """Tokens `(batch, window)`: each by itself, or in a lattice together, with the generator of each text.

        What is drawn does not depend on the window that the tokens are part of.
        """
        if self.lattice is None:
            place = {"part": self.window, "length": self.length}
            return select_tokens(self.logits, temperature, generators=generators, **cuts, **place)
        uniforms = None
        if temperature:
            batch, number, vocabulary = self.lattice.logits.shape
            uniforms = draw_uniforms(batch, self.length or number, generators, self.lattice.logits.device)
            uniforms = uniforms if self.window is None else uniforms[:, self.window]
        return self.lattice.draw(uniforms, self.excluded, temperature, **cuts)

    def embeddings_of(self, tokens: Tensor) -> Tensor:
        """Ê if the predicted tokens were these, `(batch, window)`."""
        return self.place(nn.functional.embedding(tokens, self.table))

    def place(self, values: Tensor) -> Tensor:
        """Values of the window at their places in the text, zeros elsewhere."""
        if self.window is None:
            return values
        whole = values.new_zeros(len(values), self.length, *values.shape[2:])
        whole[:, self.window] = values
        return whole


def gaussian_factors(
    z: Tensor, alpha_sigma: AlphaSigma, table: Tensor, gate: Tensor | float = 1.0
) -> tuple[Tensor, Tensor]:
    """`(states, weight)` with `states weightᵀ = a (α/σ²) z Embᵀ - a (α²/2σ²) |Emb|²`.

    They are `states = a (α z / σ², -α² / 2σ²)` and `weight = (Emb, |Emb|²)`.
    """
    alpha, sigma = alpha_sigma
    evidence = gate * alpha / sigma.square()
    penalty = (-0.5 * evidence * alpha).expand(*z.shape[:-1], 1)
    return torch.cat([evidence * z, penalty], -1), torch.cat([table, table.square().sum(-1, keepdim=True)], -1)


class EmbeddingPrediction(nn.Module):
    """`Ê = net`, or with `stabilized` `Ê = (1-t) z + (t + 0.01) net`, as in the published code of NFDM and MuLAN."""

    def __init__(self, stabilized: bool):
        super().__init__()
        self.stabilized = stabilized

    def forward(
        self,
        predictor: nn.Module,
        z: Tensor,
        t: Tensor,
        alpha_sigma: AlphaSigma,
        table: Tensor,
        bias: Tensor,
        context: Tensor | None = None,
        self_condition: Tensor | None = None,
        clean: CleanTokens | None = None,
        places: Places | None = None,
    ) -> Prediction:
        """Ê from latents and times; the other arguments are those of `CategoricalPrediction`."""
        output = predictor.output(predictor(z, t, context, None, self_condition, clean, places)).to(z.dtype)
        if self.stabilized:
            t = t[..., None]
            output = (1 - t) * z + (t + 0.01) * output
        return Prediction(output)


class CategoricalPrediction(nn.Module):
    """`Ê = softmax(logits) Emb`, with the posterior of a single token inside the logits (for NFDM, that of its
    undeformed process).

    For a token with prior `π_k` seen through `z = α e_k + σ ε`,

        log p(k | z) = (α/σ²) z·e_k - (α²/2σ²) |e_k|² + log π_k + const,

    so `logits = net + a (α/σ²) z Embᵀ - a (α²/2σ²) |Emb|² + b`, with the bias `b` in the role of `log π` and a gate
    `a(t)` in (e^-2, e^2) that starts at one. With `net = 0` the bound is the cross-entropy of independent tokens. The
    network's logits have their own output
    matrix: through the embeddings, of small dimension and spread out at the start, few distributions could be
    expressed.
    """

    fourier_dim = 32

    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(self.fourier_dim, 1)

    def evidence(self, z: Tensor, t: Tensor, alpha_sigma: AlphaSigma, table: Tensor) -> tuple[Tensor, Tensor]:
        """`gaussian_factors` of the logits with `net = 0` and `b = 0`."""
        features = fourier_features(Dual(t), self.fourier_dim).value.to(self.gate.weight.dtype)
        gate = torch.exp(2 * torch.tanh(self.gate(features).to(z.dtype)))
        return gaussian_factors(z, alpha_sigma, table, gate)

    @staticmethod
    def linear_estimate(z: Tensor, alpha_sigma: AlphaSigma) -> Tensor:
        """`α z / (α² + σ²)`, the best linear estimate of embeddings of variance one: the network's input, zero where z
        is only noise.
        """
        alpha, sigma = alpha_sigma
        return alpha / (alpha.square() + sigma.square()) * z

    def forward(
        self,
        predictor: nn.Module,
        z: Tensor,
        t: Tensor,
        alpha_sigma: AlphaSigma,
        table: Tensor,
        bias: Tensor,
        context: Tensor | None = None,
        self_condition: Tensor | None = None,
        clean: CleanTokens | None = None,
        places: Places | None = None,
        second_call: bool | Tensor = True,
        outline: Tensor | None = None,
    ) -> Prediction:
        """Logits from latents and times.

        Args:
            predictor: the network; the other arguments that it has are described there.
            alpha_sigma: of the forward process at the times.
            table: token embeddings, `(vocab, dim)`.
            bias: b.
            self_condition: the network's states of an earlier call, `(batch, seq, hidden_size)`, in place of a first
                one; an Ê for a predictor that reads no tokens.
            second_call: with self-conditioning, whether there is one, or for which texts, `(batch,)`. No gradient
                goes through the call before it.
            outline: Ê of the prototypes.
        """
        output = predictor.output
        with full_precision(z):
            evidence, evidence_weight = self.evidence(z, t, alpha_sigma, table)
        # What the network is shown of each latent.
        shown, shown_t, (alpha, sigma) = evidence, t, alpha_sigma
        weight = torch.cat([output.weight.to(z.dtype), evidence_weight], dim=-1)
        logit_bias = output.bias.to(z.dtype) + bias
        alone = moves_alone(t, z.shape[1], places)
        if alone is not None:
            shown_t = torch.where(alone, 1, t)
            shown, alpha = (x.masked_fill(alone[..., None], 0) for x in (evidence, alpha))
            if self_condition is not None:
                # Its first Ê has its latent in it, too.
                self_condition = self_condition.masked_fill(alone[..., None], 0)
        latents = self.linear_estimate(z, (alpha, sigma))

        # For a joint decoder, those of the last call.
        keys_values = [] if clean is None and getattr(predictor, "joint_input", None) is not None else None

        def read(rows: Tensor | slice, twice: bool) -> Tensor:
            inputs = (_of_texts(x, rows) for x in (latents, shown_t, context))
            given = None if clean is None else clean.rows(rows), None if places is None else places.rows(rows)
            options = {} if outline is None else {"outline": outline[rows]}
            if not predictor.reads_tokens:
                return predictor(*inputs, None, _of_texts(self_condition, rows), *given).to(z.dtype)
            inputs, seen, token_rows = tuple(inputs), shown[rows], predictor.token_rows.weight
            states = _of_texts(self_condition, rows)
            kept = {} if keys_values is None else {"keys_values": keys_values}
            if states is None:
                with torch.set_grad_enabled(torch.is_grad_enabled() and not twice):
                    tokens = mean_token_rows(seen, evidence_weight, bias, token_rows)
                    first = {} if twice else kept
                    states = predictor(*inputs, tokens, None, *given, **options, **first).to(z.dtype)
            if not twice:
                return states
            # Before torch 2.11 autocast used weights that it had cast without a graph in the second call, too
            # (pytorch/pytorch#165068).
            torch.clear_autocast_cache()
            # The second call sees tokens as the states of the first one and the evidence of now predict them.
            tokens = mean_token_rows(torch.cat([states, seen], dim=-1), weight, logit_bias, token_rows)
            return predictor(*inputs, tokens, None, *given, second_call=True, **options, **kept).to(z.dtype)

        if getattr(predictor, "second_call", None) is None:
            second_call = False
        if isinstance(second_call, bool):
            states = read(slice(None), second_call)
        else:
            parts = [(rows, twice) for rows, twice in ((~second_call, False), (second_call, True)) if rows.any()]
            states = torch.cat([read(rows, twice) for rows, twice in parts])
            states = states[torch.cat([rows.nonzero()[:, 0] for rows, _ in parts]).argsort()]
        factors = torch.cat([states, evidence], dim=-1), weight, logit_bias
        return Prediction(
            factors=factors,
            table=table,
            states=states if predictor.reads_tokens else None,
            noisy=NoisyTokens(states, tuple(keys_values)) if keys_values else None,
        )

    def along_lattice(
        self,
        predictor: nn.Module,
        z: Tensor,
        t: Tensor,
        alpha_sigma: AlphaSigma,
        table: Tensor,
        bias: Tensor,
        clean: CleanTokens,
        places: Places,
        self_condition: Tensor | None = None,
        second_call: bool | Tensor = True,
        candidates: int = 0,
        tokens: Tensor | None = None,
        outline: Tensor | None = None,
    ) -> tuple[Prediction, Tensor | None]:
        """Windows read from left to right: what the latents before each token say of it, and what its own does; with
        `candidates` so many of each token, and from these the tokens inferred together (`TokenLattice`).

        The arguments are those of `forward`, and

        Args:
            tokens: `(batch, seq)`, single candidates.
            outline: Ê of the prototypes, where a whole text is read.

        Returns:
            the prediction, and the states that predict the token behind each candidate of `tokens`.
        """
        output, rows = predictor.output, predictor.token_rows.weight
        with full_precision(z):
            evidence, evidence_weight = self.evidence(z, t, alpha_sigma, table)
        weight = torch.cat([output.weight.to(z.dtype), evidence_weight], dim=-1)
        logit_bias = output.bias.to(z.dtype) + bias
        # The first call sees tokens as their own latents show them, the second as those before them do, too.
        posterior = token_posterior(evidence, evidence_weight, bias)
        if second_call is not False:
            states = self_condition
            if states is None:
                with torch.no_grad():
                    own = predictor.soft_inputs(posterior.to(rows.dtype) @ rows, t)
                    states = predictor.read_windows(own, clean, places, None, outline)[0].to(z.dtype)
                # Before torch 2.11 autocast used weights that it had cast without a graph in the second call, too
                # (pytorch/pytorch#165068).
                torch.clear_autocast_cache()
            known_before = token_posterior(torch.cat([states, evidence], dim=-1), weight, logit_bias)
            if isinstance(second_call, Tensor):
                posterior = torch.where(second_call[:, None, None], known_before, posterior)
            else:
                posterior = known_before
        own = predictor.soft_inputs(posterior.to(rows.dtype) @ rows, t)
        chosen = posterior.topk(min(candidates, len(table)), -1).indices if candidates else None
        if tokens is not None:
            chosen = tokens[..., None]
        inputs = None if chosen is None else predictor.clean_inputs(chosen.mT, own)
        states, following = predictor.read_windows(own, clean, places, inputs, outline)
        states, lattice = states.to(z.dtype), None
        following = None if following is None else following.to(z.dtype)
        if candidates:
            first = (places.positions == places.starts).expand(z.shape[:2])
            with full_precision(z):
                network = output.weight.to(z.dtype), logit_bias
                lattice = TokenLattice.infer(states, following, chosen, evidence @ evidence_weight.T, *network, first)
        factors = torch.cat([states, evidence], dim=-1), weight, logit_bias
        return Prediction(factors=factors, table=table, states=states, lattice=lattice), following

    @torch.no_grad()
    def read(
        self,
        predictor: nn.Module,
        z: Tensor,
        t: Tensor,
        alpha_sigma: AlphaSigma,
        table: Tensor,
        bias: Tensor,
        places: Places,
        outline: Tensor | None = None,
    ) -> Tensor:
        """States of a text that is read from left to right, of which nothing is written: they are shown to a call in
        which all tokens see each other.
        """
        inputs = z, t, alpha_sigma, table, bias, predictor.nothing_read(len(z)), places
        states = self.along_lattice(predictor, *inputs, outline=outline)[0].states
        torch.clear_autocast_cache()
        return states


@torch.no_grad()
def token_posterior(states: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """`softmax(states weightᵀ + b)`, `(batch, seq, vocab)`, without a gradient."""
    with full_precision(states):
        return torch.softmax(states @ weight.T + bias, -1)


def _of_texts(x: Tensor | None, rows: Tensor | slice) -> Tensor | None:
    """Values of some texts, `(batch or 1, ...)`."""
    return x if x is None or len(x) == 1 else x[rows]


def mean_token_rows(evidence: Tensor, evidence_weight: Tensor, bias: Tensor, rows: Tensor) -> Tensor:
    """What the predictor reads of a posterior `softmax(evidence weightᵀ + b)` of a token: the mean of the token rows
    under it.

    No gradient goes through the posterior.
    """
    dtype = rows.dtype
    with torch.no_grad(), full_precision(evidence):
        prior = torch.softmax(bias, -1)
        # Where nothing is seen the posterior is the prior, once for all. An accelerator would have to wait for the
        # count.
        some = (
            evidence.any(-1) if evidence.device.type == "cpu" else torch.ones_like(evidence[..., 0], dtype=torch.bool)
        )
        posterior = torch.softmax(evidence[some] @ evidence_weight.T + bias, -1)
    means = posterior.to(dtype) @ rows
    if len(means) == some.numel():
        return means.view(*some.shape, -1)
    unseen = prior.to(dtype) @ rows
    return unseen.expand(*some.shape, -1).index_put((some,), means.to(unseen.dtype))


def moves_alone(t: Tensor, length: int, places: Places | None) -> Tensor | None:
    """The tokens, `(batch, seq)`, that move while all others of their window stand still; `None` if there are none.

    The network is shown such a token as noise. What its latent says of it is in the logits, exactly, and no other
    token in motion could learn from it. So it costs the cross-entropy of `p(x_i | the others as they are)`.
    """
    if t.shape[1] == 1 and length > 1:
        return None
    moving = (t > 0) & (t < 1)
    if places is None:
        return moving & (moving.sum(-1, keepdim=True) == 1)
    same_window = places.starts[..., None] == places.starts[..., None, :]
    return moving & ((same_window & moving[:, None]).sum(-1) == 1)
