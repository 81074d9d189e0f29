"""Likelihoods over a dataset: honest estimates of the bound, and exact values where there are some.

Times and noise are random, every unknown position is counted, and every figure has standard errors.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from tqdm.auto import tqdm
from transformers import PreTrainedModel

from ..checks import as_token_ids, check_integers, check_seed, is_number
from ..clocks import Clock, Density, SharedClock, check_known
from ..conditions import with_condition
from ..models import TERMS, Draws, TextDiffusionModel, evaluation_mode
from ..objective import bound
from ..version import __version__
from .control_variate import lone_token_residual
from .quantities import LikelihoodEstimate, counts_of, in_units
from .time_fitting import fit_times


if TYPE_CHECKING:
    from ..baseline import AutoregressiveModel, MaskedDiffusionModel


TIME_SAMPLERS = ("pilot", "learned")
# Below this share of the times with motion an estimate is not to be trusted; it is measured at so many.
LEAST_MOVING = 0.5
MOVING_TIMES = 512


@torch.no_grad()
def estimate_likelihood(
    model: TextDiffusionModel,
    input_ids: Tensor | Sequence[Sequence[int]],
    num_tokens: Tensor | Sequence[int] | None = None,
    num_chars: Tensor | Sequence[int] | None = None,
    *,
    clock: str | dict | Clock | None = None,
    known: Tensor | None = None,
    finish_time: float | None = None,
    num_draws: int = 8,
    time_sampler: str = "pilot",
    batch_size: int = 64,
    seed: int = 0,
    progress: bool = False,
) -> LikelihoodEstimate:
    """Estimate the bound of `-log p(x)` over a dataset: `estimate_likelihood(model, **prepare_dataset(...)[0][:])`.

    The columns of a prepared dataset are the arguments. Each text gets `num_draws` evaluations in two independent
    halves. Within a half the times are stratified (one in each cell of equal probability, with a random shift), so the
    half-difference of a text is an unbiased measure of its Monte-Carlo error. Where a clean stream is given to windows
    of the clock, and along the shared clock, what tokens would cost alone is a control variate (`control_variate`): it
    changes no mean.

    Args:
        input_ids: `(texts, max_length)`, padding included.
        num_tokens: real tokens of each text, for the units per token.
        num_chars: characters of each raw text, for bits per character.
        clock: the clock along which the bound is taken, instead of the model's own.
        known: `(texts, max_length)`, tokens that are given. The bound is that of the others, over which units are
            counted.
        finish_time: for a model with a joint decoder, the time of the shared clock at which it decodes the text. The
            bound is then that of texts sampled with it; its reconstruction is what the decoder costs.
        num_draws: evaluations per text, an even number.
        time_sampler: density of the global times: `"pilot"`, fitted to the diffusion term in a short run of its own,
            or `"learned"`, the model's own.
    """
    input_ids, tokens, chars = prepared_texts(model, input_ids, num_tokens, num_chars, batch_size)
    clock = model.clock(clock)
    if known is not None:
        check_known(known, input_ids.shape)
        if chars is not None:
            raise ValueError("`num_chars` is of whole texts; with `known` tokens leave it out.")
        tokens = None if tokens is None else unknown_tokens(known, tokens, model.config.condition_length)
    share = None if known is None else known.cpu().double().mean()
    known = with_condition(known, input_ids, model.config.condition_length)
    check_draws(num_draws, seed)
    check_finish(model, clock, finish_time)
    if time_sampler not in TIME_SAMPLERS:
        raise ValueError(
            f"`time_sampler` is {time_sampler!r}; it must be one of {', '.join(map(repr, TIME_SAMPLERS))}."
        )

    share_moving = moving_share(model, clock)
    if share_moving < LEAST_MOVING:
        warnings.warn(
            f"Along the clock {str(clock)!r} a window is in motion at {share_moving:.1%} of the times only. Few draws "
            "miss them, and neither the estimate nor its error can be trusted: take many more, or a less steep clock.",
            stacklevel=2,
        )
    generator = torch.Generator(model.device).manual_seed(seed)
    evaluations = len(input_ids) * num_draws
    with evaluation_mode(model):
        density = None
        if time_sampler == "pilot":
            density, pilot_evaluations = fit_times(
                model, clock, input_ids, known, batch_size, generator, finish_time=finish_time
            )
            evaluations += pilot_evaluations
        draws = stratified_draws(model, input_ids, known, num_draws, batch_size, generator, progress)
        controlled = has_control_variate(model, clock, known is not None)
        halves = _evaluate(model, clock, draws, density, len(input_ids), num_draws, controlled, finish_time)

    protocol = {
        "quantity": "upper bound of -log p(x), t random over [0, 1], noise standard normal, every position counted",
        "clock": str(clock) if finish_time is None else f"{clock}, decoded jointly at {finish_time}",
        "model": type(model).__name__,
        "texts": len(input_ids),
        "draws_per_text": num_draws,
        "times": f"stratified, density {time_sampler!r}",
        "control_variate": "tokens alone, given the clean stream" if controlled else None,
        "seed": seed,
        "batch_size": batch_size,
        "dtype": str(model.dtype),
        "version": __version__,
    }
    if share is not None:
        protocol["known"] = f"{share:.1%} of the tokens are given, and not counted"
    evaluations *= model.calls_per_prediction(clock)
    if finish_time is not None:
        # A prediction at the finish time, and the decoder's call.
        evaluations = 2 * evaluations + len(input_ids) * num_draws
    positions = unknown_positions(known, input_ids, model.config.condition_length)
    return in_units(dict(zip(TERMS, halves)), positions, tokens, chars, evaluations, protocol)


@torch.no_grad()
def exact_likelihood(
    model: AutoregressiveModel | MaskedDiffusionModel | TextDiffusionModel,
    input_ids: Tensor | Sequence[Sequence[int]],
    num_tokens: Tensor | Sequence[int] | None = None,
    num_chars: Tensor | Sequence[int] | None = None,
    *,
    batch_size: int = 64,
    progress: bool = False,
) -> LikelihoodEstimate:
    """`-log p(x)` of an autoregressive model over a dataset, in the units of `estimate_likelihood`, without
    Monte-Carlo error.

    Of a diffusion model with two streams, and of masked diffusion, it is that of the clean stream, START given.

    Args:
        input_ids: `(texts, max_length)`, padding included.
        num_tokens: real tokens of each text, for the units per token.
        num_chars: characters of each raw text, for bits per character.
    """
    input_ids, tokens, chars = prepared_texts(model, input_ids, num_tokens, num_chars, batch_size)
    two_streams = hasattr(model, "clean_stream")
    if isinstance(model, TextDiffusionModel) and not model.has_clean_stream:
        raise ValueError(
            "Only the clean stream of `predictor` 'two_stream' with `prediction_type` 'categorical' has an exact "
            "likelihood; this "
            f"model has {model.config.predictor!r} and {model.config.prediction_type!r}."
        )
    nats = []
    with evaluation_mode(model), tqdm(total=len(input_ids), desc="likelihood", disable=not progress) as bar:
        for batch in input_ids.split(batch_size):
            batch = batch.to(model.device)
            if two_streams:
                values = model.clean_stream(batch, None, next_token=True)[1].sum(-1)
            else:
                values = model(batch).bound
            nats.append(values.cpu().double())
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
    positions = unknown_positions(None, input_ids, model.config.condition_length)
    return in_units({"autoregressive": halves}, positions, tokens, chars, len(input_ids), protocol)


def has_control_variate(model: TextDiffusionModel, clock: Clock, some_known: bool) -> bool:
    """Whether what tokens would cost alone, given what is before them, is close to what they cost: in windows, which
    are given that, and where all tokens of a text have one time. In a random order, or with tokens given behind them,
    it is not.
    """
    one_time = isinstance(clock, SharedClock) and not some_known
    return model.has_clean_stream and (model.has_windows(clock) or one_time)


def check_finish(model: TextDiffusionModel, clock: Clock, finish_time: float | None) -> None:
    """Raise a ValueError for a `finish_time` at which no text is decoded."""
    if finish_time is None:
        return
    if not (is_number(finish_time) and 0 < finish_time < 1):
        raise ValueError(f"`finish_time` is {finish_time!r}; it must be a number in (0, 1).")
    if not model.config.joint_decoder or not isinstance(clock, SharedClock):
        raise ValueError(
            f"`finish_time` is {finish_time}, which is for a model with a `joint_decoder`, along the clock 'shared'; "
            f"this one has {'a' if model.config.joint_decoder else 'no'} joint decoder, and the clock is "
            f"{str(clock)!r}."
        )


def moving_share(model: TextDiffusionModel, clock: Clock) -> float:
    """The share of the global times at which some token of a window is in motion, all windows alike."""
    draws = model.draw(MOVING_TIMES, torch.Generator(model.device).manual_seed(0))
    draws.uniforms = (torch.arange(MOVING_TIMES, device=model.device) + 0.5).to(draws.uniforms) / MOVING_TIMES
    arguments = draws.uniforms[:, None], model.config.max_length, None, draws.order, None
    if not model.has_windows(clock):
        return (clock.single_times(*arguments).rate > 0).any(-1).cpu().double().mean().item()
    times, windows = clock.parallel_times(*arguments)
    moving = (times.rate > 0).long()
    starts = windows.starts.expand(moving.shape)
    per_window = torch.zeros_like(moving).scatter_add(1, starts, moving)
    begins = torch.zeros_like(moving).scatter(1, starts, 1)
    return ((per_window > 0).sum() / begins.sum()).item()


def prepared_texts(
    model: PreTrainedModel,
    input_ids: Tensor | Sequence[Sequence[int]],
    num_tokens: Tensor | Sequence[int] | None,
    num_chars: Tensor | Sequence[int] | None,
    batch_size: int,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """The columns of a prepared dataset as tensors, checked."""
    input_ids = as_token_ids(input_ids)
    if input_ids.ndim != 2 or not len(input_ids):
        raise ValueError(
            f"`input_ids` has shape {tuple(input_ids.shape)}; it must be (texts, max_length) with at least one text."
        )
    # All of them, before any work: `forward` would find a bad id only when its batch comes.
    model.check_inputs(input_ids.cpu())
    tokens = counts_of("num_tokens", num_tokens, len(input_ids))
    chars = counts_of("num_chars", num_chars, len(input_ids))
    check_integers(1, batch_size=batch_size)
    return input_ids.long(), tokens, chars


def check_draws(num_draws: int, seed: int) -> None:
    """Raise a ValueError unless the draws can be split into two halves."""
    if not isinstance(num_draws, int) or isinstance(num_draws, bool) or num_draws < 2 or num_draws % 2:
        raise ValueError(f"`num_draws` is {num_draws!r}; it must be an even number of at least 2.")
    check_seed(seed)


def unknown_positions(known: Tensor | None, input_ids: Tensor, condition_length: int = 0) -> Tensor:
    """Positions of each text, START and padding included, without the known ones and the condition."""
    known = with_condition(known, input_ids, condition_length)
    known = torch.zeros_like(input_ids, dtype=torch.bool) if known is None else known
    return (~known).sum(1).cpu().double()


def unknown_tokens(known: Tensor, tokens: Tensor, condition_length: int = 0) -> Tensor:
    """Real tokens of each text, which follow START and the condition, without the known ones."""
    positions = torch.arange(known.shape[1]) - condition_length
    real = (positions >= 1) & (positions <= tokens[:, None])
    unknown = (real & ~known.cpu()).sum(1).double()
    if not (unknown > 0).all():
        row = int((unknown == 0).nonzero()[0])
        raise ValueError(f"`known` is True for every real token of text {row}; nothing is left to count.")
    return unknown


def stratified_draws(
    model: TextDiffusionModel | MaskedDiffusionModel,
    input_ids: Tensor,
    known: Tensor | None,
    num_draws: int,
    batch_size: int,
    generator: torch.Generator,
    progress: bool,
) -> Iterator[tuple[slice, int, Tensor, Tensor | None, Draws]]:
    """What an estimate evaluates: rows, half, ids, known tokens, and draws whose times are stratified in each half."""
    strata = num_draws // 2
    with tqdm(total=num_draws * len(input_ids), desc="likelihood", unit="eval", disable=not progress) as bar:
        for start in range(0, len(input_ids), batch_size):
            rows = slice(start, start + batch_size)
            batch = input_ids[rows].to(model.device)
            given = None if known is None else known[rows].to(model.device)
            for half in range(2):
                shifts = torch.rand(len(batch), generator=generator, device=model.device, dtype=model.latent_dtype)
                for stratum in range(strata):
                    draws = model.draw(len(batch), generator)
                    draws.uniforms = (stratum + shifts) / strata
                    yield rows, half, batch, given, draws
                    bar.update(len(batch))


def _evaluate(
    model: TextDiffusionModel,
    clock: Clock,
    evaluations: Iterator[tuple[slice, int, Tensor, Tensor | None, Draws]],
    density: Density | None,
    num_texts: int,
    num_draws: int,
    controlled: bool,
    finish_time: float | None,
) -> Tensor:
    """The terms as `(terms, texts, halves)`; each half is the mean of its draws."""
    halves = torch.zeros(len(TERMS), num_texts, 2, dtype=torch.float64)
    for rows, half, batch, given, draws in evaluations:
        times, windows = model.token_times(clock, draws, given, density)
        terms = bound(model, batch, times, draws, given, windows, finish_time=finish_time)
        diffusion = terms.diffusion
        if controlled:
            residual = lone_token_residual(model, batch, times, draws, finish_time or 0.0)
            diffusion = diffusion - (residual if given is None else residual.masked_fill(given, 0))
        values = [diffusion.sum(-1), terms.reconstruction.sum(-1), terms.prior.sum(-1), terms.context]
        halves[:, rows, half] += torch.stack(values).cpu().double() / (num_draws // 2)
    return halves
