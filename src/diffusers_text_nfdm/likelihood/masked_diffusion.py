"""The likelihood of texts under masked diffusion: its any-order bound over a dataset."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..clocks import check_known
from ..models import evaluation_mode
from ..version import __version__
from .estimation import check_draws, prepared_texts, stratified_draws, unknown_positions, unknown_tokens
from .quantities import LikelihoodEstimate, in_units


if TYPE_CHECKING:
    from ..baseline import MaskedDiffusionModel


@torch.no_grad()
def masked_likelihood(
    model: MaskedDiffusionModel,
    input_ids: Tensor | Sequence[Sequence[int]],
    num_tokens: Tensor | Sequence[int] | None = None,
    num_chars: Tensor | Sequence[int] | None = None,
    *,
    block_size: int | None = None,
    known: Tensor | None = None,
    num_draws: int = 8,
    batch_size: int = 64,
    seed: int = 0,
    progress: bool = False,
) -> LikelihoodEstimate:
    """Estimate the any-order bound of `-log p(x)` over a dataset, in the units of `estimate_likelihood`.

    Each text gets `num_draws` masks in two independent halves. Within a half the numbers of hidden tokens are
    stratified, so the half-difference of a text is an unbiased measure of its Monte-Carlo error.

    Args:
        input_ids: `(texts, max_length)`, padding included.
        num_tokens: real tokens of each text, for the units per token.
        num_chars: characters of each raw text, for bits per character.
        block_size: tokens of a block, instead of the model's own; `max_length` is the whole text.
        known: `(texts, max_length)`, tokens that are given. The bound is that of the others, over which units are
            counted.
        num_draws: masks per text, an even number.
    """
    input_ids, tokens, chars = prepared_texts(model, input_ids, num_tokens, num_chars, batch_size)
    size = model.block_size(block_size)
    if known is not None:
        check_known(known, input_ids.shape)
        model.check_inputs(input_ids.cpu(), known.cpu())
        if chars is not None:
            raise ValueError("`num_chars` is of whole texts; with `known` tokens leave it out.")
        tokens = None if tokens is None else unknown_tokens(known, tokens, model.config.condition_length)
    check_draws(num_draws, seed)

    generator = torch.Generator(model.device).manual_seed(seed)
    halves = torch.zeros(len(input_ids), 2, dtype=torch.float64)
    with evaluation_mode(model):
        evaluations = stratified_draws(model, input_ids, known, num_draws, batch_size, generator, progress)
        for rows, half, batch, given, draws in evaluations:
            output = model(batch, given, size or model.config.max_length, draws)
            halves[rows, half] += output.bound.cpu().double() / (num_draws // 2)
    protocol = {
        "quantity": "upper bound of -log p(x), any order, masks random, every token after START counted",
        "blocks": "the whole text" if size is None else f"of {size} tokens",
        "model": type(model).__name__,
        "texts": len(input_ids),
        "draws_per_text": num_draws,
        "seed": seed,
        "batch_size": batch_size,
        "dtype": str(model.dtype),
        "version": __version__,
    }
    if known is not None:
        protocol["known"] = f"{known.cpu().double().mean():.1%} of the tokens are given, and not counted"
    positions = unknown_positions(known, input_ids, model.config.condition_length)
    return in_units({"masked": halves}, positions, tokens, chars, num_draws * len(input_ids), protocol)
