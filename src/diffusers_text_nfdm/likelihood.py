"""An honest estimate of the bound over a dataset: random times and noise, every position counted, standard errors."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from tqdm.auto import tqdm
from transformers import PreTrainedModel

from .models import TextDiffusionModel, evaluation_mode
from .time_samplers import UniformTimeSampler
from .version import __version__


if TYPE_CHECKING:
    from .baseline import AutoregressiveModel


TERMS = ("diffusion", "reconstruction", "prior", "context")
TIME_SAMPLERS = ("pilot", "learned", "uniform")
UNITS = ("nats_per_story", "nats_per_position", "nats_per_token", "bits_per_token", "bits_per_character")


@dataclass(frozen=True)
class Quantity:
    """A mean with two standard errors.

    Args:
        value: the estimate.
        monte_carlo_error: standard error from the random times and noise, for these very texts.
        dataset_error: standard error as an estimate for the population of texts (it contains the first); `None` for a single text,
            which says nothing about a population.
    """

    value: float
    monte_carlo_error: float
    dataset_error: float | None


@dataclass(frozen=True)
class LikelihoodEstimate:
    """`-log p(x)`, or an upper bound of it, in several units, its terms, and how it was estimated. `print` it for a table.

    Args:
        nats_per_story: mean over texts.
        nats_per_position: divided by the padded length.
        nats_per_token: total over total number of real tokens (END counted, PAD and START not).
        bits_per_token: the same in bits.
        bits_per_character: total bits over total characters of the raw text.
        terms: the split of `nats_per_story`.
        num_function_evaluations: predictor calls, one for each text and draw (two with self-conditioning), and the pilot's.
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
        Path(path).write_text(json.dumps(self.to_dict(), indent=2) + "\n", encoding="utf-8")


@torch.no_grad()
def estimate_likelihood(
    model: TextDiffusionModel,
    input_ids: Tensor | Sequence[Sequence[int]],
    num_tokens: Tensor | Sequence[int] | None = None,
    num_chars: Tensor | Sequence[int] | None = None,
    *,
    num_draws: int = 8,
    time_sampler: str = "pilot",
    batch_size: int = 64,
    seed: int = 0,
    progress: bool = False,
) -> LikelihoodEstimate:
    """Estimate the bound of `-log p(x)` over a dataset: `estimate_likelihood(model, **prepare_dataset(...)[0][:])`.

    The columns of a prepared dataset are the arguments. Each text gets `num_draws` evaluations in two independent halves. Within a half
    the times are stratified (one in each cell of equal probability, with a random shift), so the half-difference of a text is an
    unbiased measure of its Monte-Carlo error.

    Args:
        input_ids: `(texts, max_length)`, padding included.
        num_tokens: real tokens of each text, for the units per token.
        num_chars: characters of each raw text, for bits per character.
        num_draws: evaluations per text, an even number.
        time_sampler: density of the times. `"pilot"`: fitted to the diffusion term in a short run of its own; `"learned"`: the
            model's own; `"uniform"`.
    """
    input_ids, tokens, chars = _texts(model, input_ids, num_tokens, num_chars, batch_size)
    if num_draws < 2 or num_draws % 2:
        raise ValueError(f"`num_draws` is {num_draws}; it must be an even number of at least 2.")
    if time_sampler not in TIME_SAMPLERS:
        raise ValueError(
            f"`time_sampler` is {time_sampler!r}; it must be one of {', '.join(map(repr, TIME_SAMPLERS))}."
        )

    generator = torch.Generator(model.device).manual_seed(seed)
    evaluations = len(input_ids) * num_draws
    with evaluation_mode(model):
        if time_sampler == "pilot":
            sampler, pilot_evaluations = fit_times(model, input_ids, batch_size, generator)
            evaluations += pilot_evaluations
        else:
            sampler = model.time_sampler if time_sampler == "learned" else UniformTimeSampler()
        halves = _evaluate(model, input_ids, sampler, num_draws // 2, batch_size, generator, progress)

    protocol = {
        "quantity": "upper bound of -log p(x), t random over [0, 1], noise standard normal, every position counted",
        "model": type(model).__name__,
        "texts": len(input_ids),
        "draws_per_text": num_draws,
        "times": f"stratified, density {time_sampler!r}",
        "seed": seed,
        "batch_size": batch_size,
        "dtype": str(model.dtype),
        "version": __version__,
    }
    evaluations *= model.config.calls_per_prediction
    return _in_units(dict(zip(TERMS, halves)), input_ids.shape[1], tokens, chars, evaluations, protocol)


@torch.no_grad()
def exact_likelihood(
    model: AutoregressiveModel,
    input_ids: Tensor | Sequence[Sequence[int]],
    num_tokens: Tensor | Sequence[int] | None = None,
    num_chars: Tensor | Sequence[int] | None = None,
    *,
    batch_size: int = 64,
    progress: bool = False,
) -> LikelihoodEstimate:
    """`-log p(x)` of an autoregressive model over a dataset, in the units of `estimate_likelihood`: exact, so without Monte-Carlo error.

    Args:
        input_ids: `(texts, max_length)`, padding included, which costs nothing.
        num_tokens: real tokens of each text, for the units per token.
        num_chars: characters of each raw text, for bits per character.
    """
    input_ids, tokens, chars = _texts(model, input_ids, num_tokens, num_chars, batch_size)
    nats = []
    with evaluation_mode(model), tqdm(total=len(input_ids), desc="likelihood", disable=not progress) as bar:
        for batch in input_ids.split(batch_size):
            nats.append(model(batch.to(model.device)).bound.double().cpu())
            bar.update(len(batch))
    protocol = {
        "quantity": "-log p(x), exact: every token after START counted, END included",
        "model": type(model).__name__,
        "texts": len(input_ids),
        "batch_size": batch_size,
        "dtype": str(model.dtype),
        "version": __version__,
    }
    # Two estimates that agree: there is nothing random.
    halves = torch.cat(nats)[:, None].expand(-1, 2)
    return _in_units({"autoregressive": halves}, input_ids.shape[1], tokens, chars, len(input_ids), protocol)


def _texts(
    model: PreTrainedModel,
    input_ids: Tensor | Sequence[Sequence[int]],
    num_tokens: Tensor | Sequence[int] | None,
    num_chars: Tensor | Sequence[int] | None,
    batch_size: int,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """The columns of a prepared dataset as tensors, checked."""
    input_ids = torch.as_tensor(input_ids).long()
    if input_ids.ndim != 2 or not len(input_ids):
        raise ValueError(
            f"`input_ids` has shape {tuple(input_ids.shape)}; it must be (texts, max_length) with at least one text."
        )
    # All of them, before any work: `forward` would find a bad id only when its batch comes.
    model.check_inputs(input_ids.cpu())
    tokens = _counts("num_tokens", num_tokens, len(input_ids))
    chars = _counts("num_chars", num_chars, len(input_ids))
    if batch_size < 1:
        raise ValueError(f"`batch_size` is {batch_size}; it must be at least 1.")
    return input_ids, tokens, chars


def _in_units(
    terms: dict[str, Tensor],
    length: int,
    tokens: Tensor | None,
    chars: Tensor | None,
    evaluations: int,
    protocol: dict,
) -> LikelihoodEstimate:
    """The sum of the terms, each `(texts, halves)` in nats per text, in all units."""
    bound = torch.stack(list(terms.values())).sum(0)
    ones, bits = torch.ones(len(bound), dtype=torch.float64), bound / math.log(2)
    return LikelihoodEstimate(
        nats_per_story=_ratio(bound, ones),
        nats_per_position=_ratio(bound, ones * length),
        nats_per_token=None if tokens is None else _ratio(bound, tokens),
        bits_per_token=None if tokens is None else _ratio(bits, tokens),
        bits_per_character=None if chars is None else _ratio(bits, chars),
        terms={name: _ratio(term, ones) for name, term in terms.items()},
        num_function_evaluations=evaluations,
        protocol=protocol,
    )


def _counts(name: str, counts: Tensor | Sequence[int] | None, texts: int) -> Tensor | None:
    if counts is None:
        return None
    counts = torch.as_tensor(counts, dtype=torch.float64).cpu()
    if counts.shape != (texts,) or not (counts > 0).all():
        raise ValueError(
            f"`{name}` has shape {tuple(counts.shape)} and values {counts.flatten()[:5].tolist()}...; it must hold one number "
            f"above 0 for each of the {texts} texts."
        )
    return counts


def _evaluate(
    model: TextDiffusionModel,
    input_ids: Tensor,
    sampler: Callable[[Tensor], tuple[Tensor, Tensor]],
    strata: int,
    batch_size: int,
    generator: torch.Generator,
    progress: bool,
) -> Tensor:
    """The terms as `(terms, texts, halves)`; each half is the mean of its stratified draws."""
    halves = torch.zeros(len(TERMS), len(input_ids), 2, dtype=torch.float64)
    with tqdm(total=2 * strata * len(input_ids), desc="likelihood", unit="eval", disable=not progress) as bar:
        for start in range(0, len(input_ids), batch_size):
            batch = input_ids[start : start + batch_size].to(model.device)
            for half in range(2):
                shifts = torch.rand(len(batch), generator=generator, device=model.device, dtype=model.latent_dtype)
                for stratum in range(strata):
                    t, weight = sampler((stratum + shifts) / strata)
                    output = model(batch, t=t, draws=model.draw(len(batch), generator))
                    terms = torch.stack([getattr(output, name).double() for name in TERMS])
                    terms[TERMS.index("diffusion")] *= weight
                    halves[:, start : start + len(batch), half] += terms.cpu() / strata
                    bar.update(len(batch))
    return halves


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


class FittedTimes:
    """Times with a piecewise constant density: each interval between neighbouring `edges` has the same probability."""

    def __init__(self, edges: Tensor):
        self.edges = edges

    def __call__(self, uniforms: Tensor) -> tuple[Tensor, Tensor]:
        """`t` by the inverse of the cumulative distribution, and `1 / p(t)`."""
        n = len(self.edges) - 1
        position = uniforms.to(self.edges.dtype) * n
        interval = position.long().clamp_max(n - 1)
        width = self.edges[interval + 1] - self.edges[interval]
        t = self.edges[interval] + (position - interval) * width
        return t.to(uniforms.dtype), (n * width).to(uniforms.dtype)


def fit_times(
    model: TextDiffusionModel,
    input_ids: Tensor,
    batch_size: int,
    generator: torch.Generator,
    *,
    rounds: int = 4,
    evaluations_per_round: int = 128,
    num_intervals: int = 16,
    uniform_share: float = 0.1,
) -> tuple[FittedTimes, int]:
    """A time density close to the root mean square of the diffusion term, which has the least variance; and its cost in evaluations.

    Each round measures the term in intervals of equal probability and redraws them, so they shrink around a peak (VEGAS, Lepage 1978): as published,
    Diffusion-LM has half of its bound in t < 0.0003. The uniform share bounds the weights `1/p` by its inverse.
    """
    device, edges = model.device, torch.linspace(0, 1, num_intervals + 1, dtype=torch.float64)
    n = evaluations_per_round
    for _ in range(rounds):
        shifts = torch.rand(n, generator=generator, device=device, dtype=model.latent_dtype)
        uniforms = (torch.arange(n, device=device) + shifts) / n
        t, _ = FittedTimes(edges.to(device))(uniforms)
        texts = torch.randint(len(input_ids), (n,), generator=generator, device=device)
        squares = []
        for start in range(0, n, batch_size):
            batch = input_ids[texts[start : start + batch_size].cpu()].to(device)
            draws = model.draw(len(batch), generator)
            squares.append(
                model(batch, t=t[start : start + batch_size], draws=draws).diffusion.double().square().cpu()
            )
        # n is a multiple of the number of intervals, so each holds the same number of evaluations.
        root_mean_square = torch.cat(squares).view(num_intervals, -1).mean(-1).sqrt()
        width = edges.diff()
        mass = root_mean_square * width
        # A few evaluations measure an interval badly; its neighbours know about it too.
        padded = torch.cat([mass[:1], mass, mass[-1:]])
        mass = 0.25 * padded[:-2] + 0.5 * mass + 0.25 * padded[2:] + 1e-30
        share = (1 - uniform_share) * mass / mass.sum() + uniform_share * width
        edges = _equal_shares(edges, share)
    return FittedTimes(edges.to(device)), rounds * n


def _equal_shares(edges: Tensor, share: Tensor) -> Tensor:
    """As many intervals as before with equal shares, for a density that is constant between the `edges`."""
    n = len(share)
    cumulative = torch.cat([share.new_zeros(1), share.cumsum(0)])
    targets = torch.linspace(0, 1, n + 1, dtype=share.dtype) * cumulative[-1]
    interval = (torch.searchsorted(cumulative, targets, right=True) - 1).clamp(0, n - 1)
    moved = edges[interval] + (targets - cumulative[interval]) / share[interval] * edges.diff()[interval]
    moved[0], moved[-1] = 0, 1
    return moved
