"""Prototypes of whole texts, fitted by themselves before a model is trained."""

from __future__ import annotations

import torch
from torch import Tensor

from ..models import TextDiffusionModel


BATCH_SIZE = 128
LEARNING_RATE = 1e-2
# Below it other things than the kind of a text are read, and above it nothing is.
FIRST_TIME = 0.8
# Share of the steps over which the learning rate falls.
DECAY = 0.7


def fit_prototypes(model: TextDiffusionModel, input_ids: Tensor, steps: int, seed: int) -> None:
    """Steps of Adam on `||E - Ê||²` of the prototypes alone, at times where all tokens are weak signs.

    Beside a network, which learns from the cross-entropy of tokens, they hardly move from where they start.
    """
    device = model.device
    prototypes, generator = model.predictor.prototypes, torch.Generator(device).manual_seed(seed)
    optimizer = torch.optim.Adam(prototypes.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.99))
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * min(1.0, (1 - step / steps) / DECAY)
        rows = torch.randint(len(input_ids), (BATCH_SIZE,), generator=generator, device=device).cpu()
        with torch.no_grad():
            E = model.embed(input_ids[rows].to(device))
            t = torch.rand(len(E), 1, generator=generator, device=device, dtype=E.dtype)
            t = FIRST_TIME + (1 - FIRST_TIME) * t
            c, _ = model.encode_context(E, _noise((len(E), model.context_dim or 0), E, generator))
            z = model.forward_process.marginal(E, t, c).sample(_noise(E.shape, E, generator))
            alpha_sigma = model.forward_process.alpha_sigma(t, c)
        errors = (E - prototypes(z, alpha_sigma)).square().sum((1, 2))
        errors.mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def _noise(shape: tuple[int, ...], like: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=generator, device=like.device, dtype=like.dtype)
