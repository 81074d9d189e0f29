"""Tokens of a window inferred together, in a lattice of candidates.

Of tokens in motion side by side, categorical prediction says what each of them may be, and nothing of which go
together. Here the network says what follows what, T_i(v | u) = p(x_i = v | x_i-1 = u, what is seen before), for some
candidates u of every token, and what each latent says of its own token is known, `e_i(v) = log q(z_i | v)`. The
posterior of such a chain is exact, from left to right and back:

    α_i(v) ∝ e^{e_i(v)} Σ_u α_i-1(u) T_i(v | u),    β_i-1(u) ∝ Σ_v T_i(v | u) e^{e_i(v)} β_i(v),
    p(x_i = v | z) ∝ α_i(v) β_i(v).

α is what the tokens before say of a token, β what those behind it say. So a token that is about to settle uses what
follows it, though the network reads from left to right; and texts can be drawn whose tokens agree.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .token_choice import draw_from, exclude, token_probabilities


# Below it a mean message is rounding.
SMALLEST = 1e-30


@dataclass
class TokenLattice:
    """The posterior of the tokens of windows, given their latents.

    Args:
        logits: log p(x_i | z), `(batch, tokens, vocab)`, up to a constant.
        candidates: tokens, `(batch, tokens, candidates)`.
        messages: log β of the candidates; that of other tokens is 0, the mean over α.
        evidence: e, `(batch, tokens, vocab)`.
        states: of the candidates, `(batch, candidates, tokens, size)`, which predict the token behind them.
        weight, bias: of the network's logits.
        first: `(batch, tokens)`, where a window begins.
    """

    logits: Tensor
    candidates: Tensor
    messages: Tensor
    evidence: Tensor
    states: Tensor
    weight: Tensor
    bias: Tensor
    first: Tensor

    @classmethod
    def infer(
        cls,
        states: Tensor,
        candidate_states: Tensor,
        candidates: Tensor,
        evidence: Tensor,
        weight: Tensor,
        bias: Tensor,
        first: Tensor,
    ) -> TokenLattice:
        """Messages from left to right and back.

        Args:
            states: those that predict each token from what is seen before it, `(batch, tokens, size)`. They stand in
                for T where a window begins, and for tokens that are no candidates.
            candidate_states: those that predict the token behind each candidate.
        """
        number, first = states.shape[1], first.clone()
        first[:, 0] = True
        # Of every token, the largest evidence is 1 here: what is far below it is 0.
        likelihood = torch.exp(evidence - evidence.amax(-1, keepdim=True))
        forward, totals, pairs, shares = [], [None], [None], []
        for i in range(number):
            predicted = torch.softmax(states[:, i] @ weight.T + bias, -1)
            if i:
                transitions = torch.softmax(candidate_states[:, :, i - 1] @ weight.T + bias, -1)
                inside = forward[-1].gather(-1, candidates[:, i - 1]).exp()
                rest = (1 - inside.sum(-1, keepdim=True)).clamp_min(0)
                following = (inside[:, None] @ transitions)[:, 0] + rest * predicted
                predicted = torch.where(first[:, i, None], predicted, following)
                pair = transitions.gather(-1, candidates[:, i, None].expand(-1, inside.shape[1], -1))
                pairs.append(pair * likelihood[:, i].gather(-1, candidates[:, i])[:, None])
                totals.append((transitions @ likelihood[:, i, :, None])[..., 0])
                shares.append(inside / _positive(inside.sum(-1, keepdim=True)))
            forward.append(torch.log_softmax(_positive(predicted).log() + evidence[:, i], -1))
        message = torch.ones_like(candidates[:, 0], dtype=evidence.dtype)
        messages = [message]
        for i in range(number - 1, 0, -1):
            # What is no candidate keeps its share.
            outside = (totals[i] - pairs[i].sum(-1)).clamp_min(0)
            message = outside + (pairs[i] @ message[..., None])[..., 0]
            mean = (shares[i - 1] * message).sum(-1, keepdim=True)
            # Nothing comes back from another window, nor where no candidate explains what follows.
            message = torch.where(first[:, i, None] | (mean < SMALLEST), 1, message / _positive(mean))
            messages.append(message)
        messages, logits = _positive(torch.stack(messages[::-1], 1)).log(), torch.stack(forward, 1)
        logits = logits.scatter_add(-1, candidates, messages)
        return cls(logits, candidates, messages, evidence, candidate_states, weight, bias, first)

    def draw(
        self, uniforms: Tensor | None, excluded: Tensor | None = None, temperature: float = 1.0, **cuts
    ) -> Tensor:
        """Tokens `(batch, tokens)` that go together: each given the one before it and the latents of all."""
        drawn = []
        logits = exclude(self.logits, excluded)
        for i in range(logits.shape[1]):
            here = logits[:, i]
            if i:
                match = self.candidates[:, i - 1] == drawn[-1][:, None]
                state = self.states[:, :, i - 1].gather(
                    1, match.long().argmax(-1)[:, None, None].expand(-1, 1, self.states.shape[-1])
                )[:, 0]
                given = torch.log_softmax(state @ self.weight.T + self.bias, -1) + self.evidence[:, i]
                given = given.scatter_add(-1, self.candidates[:, i], self.messages[:, i])
                given = exclude(given[:, None], excluded)[:, 0]
                here = torch.where((match.any(-1) & ~self.first[:, i])[:, None], given, here)
            if temperature == 0:
                drawn.append(here.argmax(-1))
            else:
                drawn.append(draw_from(token_probabilities(here, temperature, **cuts), uniforms[:, i]))
        return torch.stack(drawn, 1)


def _positive(x: Tensor) -> Tensor:
    """Probabilities of which a logarithm or a quotient can be taken."""
    return x.clamp_min(torch.finfo(x.dtype).tiny)
