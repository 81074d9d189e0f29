"""What goes into one evaluation of the bound and what comes out of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor
from transformers.utils import ModelOutput


# The terms of the bound.
TERMS = ("diffusion", "reconstruction", "prior", "context")


@dataclass
class Draws:
    """The random numbers of one evaluation of the bound, so that a caller may fix, share or split them.

    Args:
        uniforms: `(batch,)` in [0, 1), turned into token times by the clock and the model's time sampler.
        noise: `(batch, seq, dim)`, ε of `z_t`.
        initial_noise: `(batch, seq, dim)`, ε of `z_0`.
        context_noise: `(batch, context_dim)`, ε of MuLAN's context, else `None`.
        order: `(batch, seq)` in [0, 1), from which a clock in random order takes its order, and jumps where in its
            share of the noise a token's lies.
        self_conditioned: `(batch,)` in [0, 1); training shows an Ê to a share of the texts, with self-conditioning.
    """

    uniforms: Tensor
    noise: Tensor
    initial_noise: Tensor
    context_noise: Tensor | None = None
    order: Tensor | None = None
    self_conditioned: Tensor | None = None

    def slice(self, start: int, stop: int) -> Draws:
        """The draws of examples `start` to `stop`."""
        values = (getattr(self, each.name) for each in fields(self))
        return Draws(*(None if value is None else value[start:stop] for value in values))

    def repeat(self, batch_size: int) -> Draws:
        """The draws of one example for many."""
        values = (getattr(self, each.name) for each in fields(self))
        return Draws(*(None if value is None else value.expand(batch_size, *value.shape[1:]) for value in values))

    @staticmethod
    def join(parts: Sequence[Draws]) -> Draws:
        """The draws of several batches as those of one."""
        values = ([getattr(part, each.name) for part in parts] for each in fields(Draws))
        return Draws(*(None if value[0] is None else torch.cat(value) for value in values))


@dataclass
class TextDiffusionOutput(ModelOutput):
    """The loss and the terms of the bound. Terms are per example, in nats, summed over its unknown tokens.

    Args:
        loss: what training minimises, averaged over the batch: the bound, or its rescaled form.
        bound: `reconstruction + diffusion + prior + context`, an estimate of an upper bound of `-log p(x)`.
        diffusion: the diffusion term at the times `t`, by their rates.
        reconstruction, prior, context: the other terms (`context` is zero without one).
        rescaled_diffusion: `||E - Ê||²`.
        cross_entropy: of the predicted tokens at `t`, when `forward` was asked for it instead of the bound.
        joint: that of the joint decoder, for a model with one, where the whole text is in motion.
        jump: cross-entropy of jumps, given the noise by which the clean stream draws the text, when `forward` was
            asked for it instead of the bound. No likelihood.
        lattice: cross-entropy of the parts of a lattice, when `forward` was asked for it instead of the bound. No
            likelihood.
        next_token: `-log p(x)` of the clean stream, exact, where `forward` was asked for it.
        curvature: how far the path from z_0 to z_1 is from a straight one, at the times `t`, where `forward` was given
            a weight for it. No likelihood.
        t: the times, `(batch, seq)`, or `(batch, 1)` where all tokens of a text have the same.
        reconstruction_accuracy: share of tokens that `z_0` decodes to.
        embedding_norm: mean norm of the embeddings of the batch.
        nearest_neighbor_distance: mean distance from the batch's embeddings to the nearest embedding of another token.
            These three fall to chance or to zero when the embeddings collapse.
    """

    loss: Tensor | None = None
    bound: Tensor | None = None
    diffusion: Tensor | None = None
    reconstruction: Tensor | None = None
    prior: Tensor | None = None
    context: Tensor | None = None
    rescaled_diffusion: Tensor | None = None
    cross_entropy: Tensor | None = None
    joint: Tensor | None = None
    jump: Tensor | None = None
    lattice: Tensor | None = None
    next_token: Tensor | None = None
    curvature: Tensor | None = None
    t: Tensor | None = None
    reconstruction_accuracy: Tensor | None = None
    embedding_norm: Tensor | None = None
    nearest_neighbor_distance: Tensor | None = None

    def non_finite_terms(self) -> str | None:
        """Which term is not finite, and at which t; `None` when all are finite."""
        for name in (*TERMS, "cross_entropy", "joint", "jump", "lattice", "next_token", "curvature"):
            values = getattr(self, name)
            if values is None:
                continue
            bad = ~torch.isfinite(values)
            if bad.any():
                where = ""
                if self.t is not None:
                    times = ", ".join(f"{time:.6g}" for time in self.t[bad].flatten().tolist()[:5])
                    where = f" at t = {times}"
                return f"{name} is {values[bad][0].item()}{where}"
        return None


@torch.no_grad()
def embedding_monitors(
    input_ids: Tensor, table: Tensor, num_tokens: int = 256, chunk: int = 4096
) -> dict[str, Tensor]:
    """`embedding_norm` and `nearest_neighbor_distance` of a fixed number of tokens.

    They are compared with the table part by part: the cost does not grow with the batch, nor the memory with the
    table.
    """
    ids = input_ids.flatten()[:num_tokens]
    some = table[ids]
    nearest = some.new_full((len(some),), torch.inf)
    for others in torch.arange(len(table), device=table.device).split(chunk):
        distances = torch.cdist(some, table[others]).masked_fill_(ids[:, None] == others, torch.inf)
        nearest = torch.minimum(nearest, distances.amin(-1))
    return {"embedding_norm": some.norm(dim=-1).mean(), "nearest_neighbor_distance": nearest.mean()}
