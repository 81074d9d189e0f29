"""An honest estimate of the bound over a dataset: random times and noise, every position counted, standard errors."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from torch import Tensor
from tqdm.auto import tqdm

from .models import TextDiffusionModel
from .time_samplers import BucketTimeSampler, UniformTimeSampler


TERMS = ("diffusion", "reconstruction", "prior", "context")
TIME_SAMPLERS = ("pilot", "learned", "uniform")


@dataclass(frozen=True)
class Quantity:
    """A mean with two standard errors.

    Args:
        value: the estimate.
        monte_carlo_error: standard error from the random times and noise, for these very texts.
        dataset_error: standard error as an estimate for the population of texts (it contains the first).
    """

    value: float
    monte_carlo_error: float
    dataset_error: float

    def __str__(self) -> str:
        return f"{self.value:.4f} ± {self.monte_carlo_error:.4f} (Monte Carlo) ± {self.dataset_error:.4f} (dataset)"


@dataclass(frozen=True)
class LikelihoodEstimate:
    """An upper bound of `-log p(x)` in several units, its terms, and how it was estimated.

    Args:
        nats_per_story: mean over texts.
        nats_per_position: divided by the padded length.
        nats_per_token: total over total number of real tokens (END counted, PAD and START not).
        bits_per_token: the same in bits.
        bits_per_character: total bits over total characters of the raw text.
        terms: the split of `nats_per_story`.
        num_function_evaluations: predictor calls, one for each text and draw (the pilot's included).
        protocol: everything needed to repeat the estimate.
    """

    nats_per_story: Quantity
    nats_per_position: Quantity
    nats_per_token: Quantity | None
    bits_per_token: Quantity | None
    bits_per_character: Quantity | None
    terms: dict[str, Quantity]
    num_function_evaluations: int
    protocol: dict = field(default_factory=dict)

    def __str__(self) -> str:
        rows = [(name.replace("_", " "), getattr(self, name)) for name in UNITS if getattr(self, name) is not None]
        rows += [(f"  {name} (nats per story)", quantity) for name, quantity in self.terms.items()]
        lines = [f"{'':30s}{'value':>12s}{'MC error':>12s}{'data error':>12s}"]
        lines += [f"{name:30s}{q.value:12.4f}{q.monte_carlo_error:12.4f}{q.dataset_error:12.4f}" for name, q in rows]
        return "\n".join([*lines, f"{'function evaluations':30s}{self.num_function_evaluations:12d}"])

    def to_dict(self) -> dict:
        return asdict(self)

    def save(self, path: str | Path) -> None:
        """Write values, errors and protocol as JSON."""
        Path(path).write_text(json.dumps(self.to_dict(), indent=2) + "\n", encoding="utf-8")


UNITS = ("nats_per_story", "nats_per_position", "nats_per_token", "bits_per_token", "bits_per_character")


@torch.no_grad()
def estimate_likelihood(
    model: TextDiffusionModel,
    input_ids: Tensor | Sequence[Sequence[int]],
    num_tokens: Sequence[int] | None = None,
    num_characters: Sequence[int] | None = None,
    *,
    num_draws: int = 8,
    time_sampler: str = "pilot",
    batch_size: int = 64,
    seed: int = 0,
    progress: bool = False,
) -> LikelihoodEstimate:
    """Estimate the bound of `-log p(x)` over a dataset.

    Each text gets `num_draws` evaluations in two independent halves. Within a half the times are stratified (one in each cell of
    equal probability, with a random shift), so the half-difference of a text is an unbiased measure of its Monte-Carlo error.

    Args:
        input_ids: `(texts, max_length)`, padding included.
        num_tokens: real tokens of each text, for the units per token.
        num_characters: characters of each raw text, for bits per character.
        num_draws: evaluations per text, an even number.
        time_sampler: density of the times. `"pilot"`: fitted to the diffusion term in a short run of its own; `"learned"`: the
            model's own buckets; `"uniform"`.
    """
    input_ids = torch.as_tensor(input_ids)
    if input_ids.ndim != 2 or not len(input_ids):
        raise ValueError(
            f"`input_ids` has shape {tuple(input_ids.shape)}; it must be (texts, max_length) with at least one text."
        )
    if num_draws < 2 or num_draws % 2:
        raise ValueError(f"`num_draws` is {num_draws}; it must be an even number of at least 2.")
    if time_sampler not in TIME_SAMPLERS:
        raise ValueError(
            f"`time_sampler` is {time_sampler!r}; it must be one of {', '.join(map(repr, TIME_SAMPLERS))}."
        )
    for name, counts in (("num_tokens", num_tokens), ("num_characters", num_characters)):
        if counts is not None and len(counts) != len(input_ids):
            raise ValueError(
                f"`{name}` has {len(counts)} entries for {len(input_ids)} texts; it must have one per text."
            )

    was_training = model.training
    model.eval()
    generator = torch.Generator(model.device).manual_seed(seed)
    evaluations = 0
    if time_sampler == "pilot":
        sampler, evaluations = _pilot(model, input_ids, batch_size, generator)
    elif time_sampler == "learned":
        sampler = model.time_sampler
    else:
        sampler = UniformTimeSampler()

    # (terms, texts, halves): each half is the mean of its stratified draws.
    halves = torch.zeros(len(TERMS), len(input_ids), 2, dtype=torch.float64)
    strata = num_draws // 2
    starts = range(0, len(input_ids), batch_size)
    with tqdm(total=len(input_ids) * num_draws, desc="likelihood", unit="eval", disable=not progress) as bar:
        for start in starts:
            batch = input_ids[start : start + batch_size].to(model.device)
            for half in range(2):
                shifts = torch.rand(len(batch), generator=generator, device=model.device, dtype=model.latent_dtype)
                for stratum in range(strata):
                    t, weight = sampler((stratum + shifts) / strata)
                    output = model(batch, t=t, draws=model.draw(len(batch), generator))
                    terms = {name: getattr(output, name) for name in TERMS}
                    terms["diffusion"] = terms["diffusion"] * weight
                    stacked = torch.stack([terms[name].double().cpu() for name in TERMS])
                    halves[:, start : start + len(batch), half] += stacked / strata
                    bar.update(len(batch))
    model.train(was_training)
    evaluations += len(input_ids) * num_draws

    bound = halves.sum(0)
    ones = torch.ones(len(input_ids), dtype=torch.float64)
    per_token = None if num_tokens is None else _ratio(bound, torch.as_tensor(num_tokens, dtype=torch.float64))
    bits = bound / math.log(2)
    return LikelihoodEstimate(
        nats_per_story=_ratio(bound, ones),
        nats_per_position=_ratio(bound, ones * input_ids.shape[1]),
        nats_per_token=per_token,
        bits_per_token=None if num_tokens is None else _ratio(bits, torch.as_tensor(num_tokens, dtype=torch.float64)),
        bits_per_character=None
        if num_characters is None
        else _ratio(bits, torch.as_tensor(num_characters, dtype=torch.float64)),
        terms={name: _ratio(halves[i], ones) for i, name in enumerate(TERMS)},
        num_function_evaluations=evaluations,
        protocol={
            "quantity": "upper bound of -log p(x), t random over [0, 1], noise standard normal, every position counted",
            "model": type(model).__name__,
            "texts": len(input_ids),
            "draws_per_text": num_draws,
            "times": f"stratified, density {time_sampler!r}",
            "seed": seed,
            "batch_size": batch_size,
            "dtype": str(model.dtype),
        },
    )


def _ratio(halves: Tensor, counts: Tensor) -> Quantity:
    """`Σ bound / Σ count` with its errors, from two independent estimates per text `(texts, 2)`."""
    n, mean_count = len(counts), counts.mean()
    per_text = halves.mean(-1)
    value = per_text.mean() / mean_count
    # The variance of the mean of two independent halves is a quarter of their squared difference, in expectation.
    monte_carlo = (halves[:, 0] - halves[:, 1]).square().sum().sqrt() / (2 * n * mean_count)
    residual = per_text - value * counts
    dataset = residual.square().sum().div(max(n - 1, 1) * n).sqrt() / mean_count
    return Quantity(value.item(), monte_carlo.item(), dataset.item())


def _pilot(
    model: TextDiffusionModel, input_ids: Tensor, batch_size: int, generator: torch.Generator, evaluations: int = 512
) -> tuple[BucketTimeSampler, int]:
    """A time density proportional to the root mean square of the diffusion term, from a run on some of the texts."""
    num_buckets = 20
    squares = torch.zeros(num_buckets, dtype=torch.float64)
    counts = torch.zeros(num_buckets, dtype=torch.float64)
    done = 0
    while done < evaluations:
        chosen = torch.randint(
            len(input_ids), (min(batch_size, evaluations - done),), generator=generator, device=model.device
        )
        batch = input_ids[chosen.cpu()].to(model.device)
        draws = model.draw(len(batch), generator)
        t = (torch.arange(done, done + len(batch), device=model.device) + draws.uniforms) / evaluations
        diffusion = model(batch, t=t.to(model.latent_dtype), draws=draws).diffusion.double().cpu()
        bucket = (t.cpu() * num_buckets).long().clamp_max(num_buckets - 1)
        squares.index_add_(0, bucket, diffusion.square())
        counts.index_add_(0, bucket, torch.ones_like(diffusion))
        done += len(batch)
    sampler = BucketTimeSampler(num_buckets).to(device=model.device, dtype=model.latent_dtype)
    root_mean_square = (squares / counts.clamp_min(1)).sqrt()
    sampler.log_terms.copy_(torch.log(root_mean_square + 1e-3 * root_mean_square.mean() + 1e-12))
    return sampler, evaluations


@torch.no_grad()
def importance_weighted_bound(
    model: TextDiffusionModel,
    input_ids: Tensor,
    *,
    num_draws: int = 16,
    num_steps: int = 64,
    seed: int = 0,
) -> Tensor:
    """`-log (1/K) Σ_k w_k` per text, in nats: a bound that tightens with K, for the T-step sampler of the model.

    In continuous time the terms are estimated at single times, and the logarithm of such an estimate is no bound. It is one for the
    chain `z_1 -> ... -> z_0 -> x` of the ancestral sampler on T uniform steps, whose whole path is drawn here:

        w = p(z_1) Π p(z_s | z_t) p(x | z_0) p(c) / [q(z_1 | x) Π q(z_s | z_t, x) q(c | x)]

    with `q(z_s | z_t, x) = N(mean_s + sqrt(1-ρ) std_s ε_t, ρ std_s²)`, `ε_t = (z_t - mean_t)/std_t`, `ρ = 1 - SNR(t)/SNR(s)` of the linear base,
    and `p` the same with Ê in place of E. It costs `K T` predictor calls per text.
    """
    if num_draws < 1 or num_steps < 1:
        raise ValueError(f"`num_draws` is {num_draws} and `num_steps` {num_steps}; both must be at least 1.")
    was_training = model.training
    model.eval()
    process, device, dtype = model.forward_process, model.device, model.latent_dtype
    generator = torch.Generator(device).manual_seed(seed)
    input_ids = input_ids.to(device)
    embeddings = model.embed(input_ids)
    grid = torch.linspace(1, 0, num_steps + 1, device=device, dtype=dtype)
    log_weights = []
    for _ in range(num_draws):
        draws = model.draw(len(input_ids), generator)
        context, log_weight = None, embeddings.new_zeros(len(input_ids))
        if model.context_encoder is not None:
            mean, log_variance = model.context_encoder(embeddings)
            context = mean + torch.exp(0.5 * log_variance) * draws.context_noise
            log_weight = log_weight + _log_ratio(context, 0, 1, mean, torch.exp(0.5 * log_variance)).sum(-1)
        terminal = process.terminal_marginal(embeddings, context)
        z = terminal.sample(draws.noise)
        log_weight = log_weight + _log_ratio(z, 0, 1, terminal.mean, terminal.std).sum((-1, -2))
        for time, next_time in zip(grid[:-1], grid[1:]):
            t, s = time.expand(len(z)), next_time.expand(len(z))
            prediction = model.predict(z, t, context)
            (alpha_t, sigma_t), (alpha_s, sigma_s) = process.linear_base(t, context), process.linear_base(s, context)
            rho = 1 - (alpha_t * sigma_s / (sigma_t * alpha_s)).square()
            q_mean, q_std = _transition(process, embeddings, z, t, s, rho, context)
            p_mean, p_std = _transition(process, prediction, z, t, s, rho, context)
            noise = torch.randn(z.shape, generator=generator, device=device, dtype=dtype)
            z = q_mean + q_std * noise
            log_weight = log_weight + _log_ratio(z, p_mean, p_std, q_mean, q_std).sum((-1, -2))
        log_probabilities = torch.log_softmax(model.decode(z, context), dim=-1)
        log_weight = log_weight + log_probabilities.gather(-1, input_ids[..., None])[..., 0].sum(-1)
        log_weights.append(log_weight)
    model.train(was_training)
    return math.log(num_draws) - torch.logsumexp(torch.stack(log_weights), dim=0)


def _transition(process, embeddings, z, t, s, rho, context) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of the chain's step from t to s when the clean embeddings are `embeddings`."""
    current, following = process.marginal(embeddings, t, context), process.marginal(embeddings, s, context)
    return following.mean + (1 - rho).sqrt() * following.std * current.noise(z), rho.sqrt() * following.std


def _log_ratio(z: Tensor, p_mean, p_std, q_mean: Tensor, q_std: Tensor) -> Tensor:
    """`log N(z; p) - log N(z; q)` per element."""
    p_std = torch.as_tensor(p_std, dtype=z.dtype, device=z.device)
    return torch.log(q_std / p_std) + 0.5 * (((z - q_mean) / q_std).square() - ((z - p_mean) / p_std).square())
