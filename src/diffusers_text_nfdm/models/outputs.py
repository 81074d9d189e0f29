"""What goes into one evaluation of the bound and what comes out of it."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor
from transformers.utils import ModelOutput


@dataclass
class Draws:
    """The random numbers of one evaluation of the bound, so that a caller may fix, share or split them.

    Args:
        uniforms: `(batch,)` in [0, 1), turned into times by the model's time sampler.
        noise: `(batch, seq, dim)`, ε of `z_t`.
        initial_noise: `(batch, seq, dim)`, ε of `z_0`; the cross-entropy, which has none, hides positions by it.
        context_noise: `(batch, context_dim)`, ε of MuLAN's context, else `None`.
        shown: `(batch,)` of 0 and 1: the texts whose Ê training shows to the predictor, with self-conditioning, else `None`.
    """

    uniforms: Tensor
    noise: Tensor
    initial_noise: Tensor
    context_noise: Tensor | None = None
    shown: Tensor | None = None

    def slice(self, start: int, stop: int) -> Draws:
        """The draws of examples `start` to `stop`."""
        values = (getattr(self, each.name) for each in fields(self))
        return Draws(*(None if value is None else value[start:stop] for value in values))


@dataclass
class TextDiffusionOutput(ModelOutput):
    """The loss and the terms of the bound. Terms are per example, in nats.

    Args:
        loss: what training minimises, averaged over the batch: the bound, or its rescaled form.
        bound: `reconstruction + diffusion + prior + context`, an estimate of an upper bound of `-log p(x)`.
        diffusion: the diffusion term at `t`, divided by the density of t.
        reconstruction, prior, context: the other terms (`context` is zero without one).
        rescaled_diffusion: `||E - Ê||²`.
        cross_entropy: of the predicted tokens at `t`, when `forward` was asked for it instead of the bound.
        t: the times, `(batch,)`, or `(batch, num_blocks)` of texts in several blocks.
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
    t: Tensor | None = None
    reconstruction_accuracy: Tensor | None = None
    embedding_norm: Tensor | None = None
    nearest_neighbor_distance: Tensor | None = None

    def non_finite_terms(self) -> str | None:
        """Which term is not finite, and at which t; `None` when all are finite."""
        for name in ("diffusion", "reconstruction", "prior", "context", "cross_entropy"):
            values = getattr(self, name)
            if values is None:
                continue
            bad = ~torch.isfinite(values)
            if bad.any():
                times = ", ".join(f"{time:.6g}" for time in self.t[bad].flatten().tolist()[:5])
                return f"{name} is {values[bad][0].item()} at t = {times}"
        return None
