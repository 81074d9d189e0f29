"""Likelihoods in all units, with their errors."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from ..files import write_file


UNITS = ("nats_per_story", "nats_per_position", "nats_per_token", "bits_per_token", "bits_per_character")


@dataclass(frozen=True)
class Quantity:
    """A mean with two standard errors.

    Args:
        value: the estimate.
        monte_carlo_error: standard error from the random times and noise, for these very texts.
        dataset_error: standard error as an estimate for the population of texts (it contains the first); `None` for a
            single text, which says nothing about a population.
    """

    value: float
    monte_carlo_error: float
    dataset_error: float | None


@dataclass(frozen=True)
class LikelihoodEstimate:
    """`-log p(x)`, or an upper bound of it, in several units, its terms, and how it was estimated. `print` it for a
    table.

    Args:
        nats_per_story: mean over texts.
        nats_per_position: divided by the padded length, known tokens and the condition left out.
        nats_per_token: total over total number of real tokens (END counted, PAD and START not), known ones left out.
        bits_per_token: the same in bits.
        bits_per_character: total bits over total characters of the raw text.
        terms: the split of `nats_per_story`.
        num_function_evaluations: predictor calls, one for each text and draw (two with self-conditioning), and the
            pilot's.
        protocol: how to repeat the estimate.
    """

    nats_per_story: Quantity
    nats_per_position: Quantity
    nats_per_token: Quantity | None
    bits_per_token: Quantity | None
    bits_per_character: Quantity | None
    terms: dict[str, Quantity]
    num_function_evaluations: int
    protocol: dict

    def __str__(self) -> str:
        rows = [(unit.replace("_", " "), getattr(self, unit)) for unit in UNITS]
        rows += [(f"  {name} (nats per story)", quantity) for name, quantity in self.terms.items()]
        lines = [f"{'':34s}{'value':>12s}{'MC error':>12s}{'data error':>12s}"]
        for name, quantity in rows:
            if quantity is not None:
                data = "-" if quantity.dataset_error is None else f"{quantity.dataset_error:.4f}"
                lines.append(f"{name:34s}{quantity.value:12.4f}{quantity.monte_carlo_error:12.4f}{data:>12s}")
        return "\n".join([*lines, f"{'function evaluations':34s}{self.num_function_evaluations:12d}"])

    def to_dict(self) -> dict:
        return asdict(self)

    def save(self, path: str | Path) -> None:
        """Write values, errors and protocol as JSON."""
        write_file(Path(path), json.dumps(self.to_dict(), indent=2) + "\n")


def in_units(
    terms: dict[str, Tensor],
    positions: Tensor,
    tokens: Tensor | None,
    chars: Tensor | None,
    evaluations: int,
    protocol: dict,
) -> LikelihoodEstimate:
    """The sum of the terms, each `(texts, halves)` in nats per text, in all units; the others are counts per text."""
    bound = torch.stack(list(terms.values())).sum(0)
    ones, bits = torch.ones(len(bound), dtype=torch.float64), bound / math.log(2)
    return LikelihoodEstimate(
        nats_per_story=_ratio(bound, ones),
        nats_per_position=_ratio(bound, positions),
        nats_per_token=None if tokens is None else _ratio(bound, tokens),
        bits_per_token=None if tokens is None else _ratio(bits, tokens),
        bits_per_character=None if chars is None else _ratio(bits, chars),
        terms={name: _ratio(term, ones) for name, term in terms.items()},
        num_function_evaluations=evaluations,
        protocol=protocol,
    )


def counts_of(name: str, counts: Tensor | Sequence[int] | None, texts: int) -> Tensor | None:
    if counts is None:
        return None
    try:
        counts = counts.cpu() if isinstance(counts, Tensor) else counts
        counts = torch.as_tensor(counts, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"`{name}` is {str(counts)[:60]!r}; it must hold a number for each text.") from error
    if counts.shape != (texts,) or not ((counts > 0) & counts.isfinite()).all():
        raise ValueError(
            f"`{name}` has shape {tuple(counts.shape)} and values {counts.flatten()[:5].tolist()}...; it must hold "
            f"one finite number above 0 for each of the {texts} texts."
        )
    return counts


def _ratio(halves: Tensor, counts: Tensor) -> Quantity:
    """`Σ bound / Σ count` with its errors, from two independent estimates per text `(texts, 2)`."""
    n, mean_count = len(counts), counts.mean()
    per_text = halves.mean(-1)
    value = per_text.mean() / mean_count
    # The variance of the mean of two independent halves is a quarter of their squared difference, in expectation.
    monte_carlo = (halves[:, 0] - halves[:, 1]).square().sum().sqrt() / (2 * n * mean_count)
    if n == 1:
        return Quantity(value.item(), monte_carlo.item(), None)
    residual = per_text - value * counts
    dataset = residual.square().sum().div((n - 1) * n).sqrt() / mean_count
    return Quantity(value.item(), monte_carlo.item(), dataset.item())
