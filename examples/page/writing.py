"""Writing texts for the page, and keeping how they came about."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from diffusers_text_nfdm import NFDMTextPipeline, TextDiffusionScheduler, TokenScheduler, exact_likelihood
from diffusers_text_nfdm.clocks import SharedClock
from diffusers_text_nfdm.models import evaluation_mode
from diffusers_text_nfdm.pipelines.progress import settled_tokens
from diffusers_text_nfdm.pipelines.prompts import read_prompts
from diffusers_text_nfdm.plots.trajectory import settling_calls
from diffusers_text_nfdm.tokenization import special_ids

from .models import SCHEDULERS, writes_tokens


MAX_FRAMES = 48


@dataclass
class Request:
    """What is to be written.

    Args:
        prompt: a beginning, or a text with [MASK] and [GAP]; empty for nothing.
        steps: steps of latents, or the most calls; 0 for as many as it takes.
        clock: for schedulers that move latents, otherwise without meaning.
    """

    scheduler: str
    prompt: str = ""
    condition: str = ""
    guidance_scale: float = 1.0
    steps: int = 0
    clock: str | None = None
    temperature: float = 1.0
    num_texts: int = 1
    seed: int = 0


@dataclass
class Frame:
    """Texts in the making, after a call.

    Args:
        call: how many calls there were; `None` for the finished texts.
        tokens: `(texts, max_length)`.
        settled: which of them stay, of the same shape.
        sure: the clean stream's probability of each, given those before it; NaN where there is none.
    """

    call: int | None
    tokens: Tensor
    settled: Tensor
    sure: Tensor


@dataclass
class Result:
    """
    Args:
        known: which tokens were given, `(texts, max_length)`.
        frames: how the texts came about; the last one is the texts themselves.
        nats: `-log p` of each whole text by the clean stream; `None` for a model without one.
        notes: what the pipeline warned of.
    """

    texts: list[str]
    known: Tensor
    frames: list[Frame]
    calls: list[int]
    nats: list[float] | None
    notes: list[str] = field(default_factory=list)


class Stopped(Exception):
    """The visitor has left, or does not want the text any more."""


@torch.no_grad()
def token_probabilities(pipe: NFDMTextPipeline, tokens: Tensor) -> Tensor:
    """`p(x_i | x_<i)` of the clean stream, `(texts, max_length)`; NaN behind the first gap, and without the stream."""
    model, sure = pipe.model, torch.full(tokens.shape, math.nan)
    if model.has_clean_stream:
        with evaluation_mode(model):
            nats = model.clean_stream(tokens.to(model.device), None, next_token=True)[1].cpu()
        text = slice(-nats.shape[1], None)
        gaps = (tokens[:, text] == special_ids(pipe.tokenizer)[2]).cumsum(-1) > 0
        sure[:, text] = torch.exp(-nats).to(sure).masked_fill(gaps, math.nan)
    return sure


def make_scheduler(pipe: NFDMTextPipeline, request: Request):
    """The scheduler with the checkpoint's settings, as far as it has them and they are for what is asked."""
    scheduler, own = SCHEDULERS[request.scheduler][0], pipe.scheduler
    if writes_tokens(request.scheduler):
        return scheduler.from_config(own.config, temperature=request.temperature)
    if not isinstance(own, scheduler):
        return scheduler.from_config(own.config, time_grid="learned")
    whole = isinstance(pipe.model.clock(request.clock or None), SharedClock) and request.guidance_scale == 1
    # A text is decoded jointly only where all of it is in motion.
    finish = {} if whole or "finish_time" not in own.config else {"finish_time": None, "finish_calls": None}
    return scheduler.from_config(own.config, **finish)


def write(pipe: NFDMTextPipeline, request: Request, show: Callable[[Frame, Tensor], None] = lambda *_: None) -> Result:
    """Write texts, and show every call and what is known of the texts. What `show` raises ends it."""
    config, n = pipe.model.config, request.num_texts
    prompt, condition = (text.strip() or None for text in (request.prompt, request.condition))
    # A pipeline of its own: others may write with the same model.
    own = NFDMTextPipeline(pipe.model, pipe.tokenizer, make_scheduler(pipe, request))
    own.set_progress_bar_config(disable=True)
    options: dict[str, Any] = {"num_inference_steps": request.steps or None, "guidance_scale": request.guidance_scale}
    if not writes_tokens(request.scheduler):
        options |= {"clock": request.clock or None, "temperature": request.temperature or None}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        rows = read_prompts(
            [prompt or ""], pipe.tokenizer, config.max_length, condition_length=config.condition_length
        )
        # A gap has a row for each length, and only the end tells which of them is taken.
        per_text = rows.candidates[0]
        calls: list[Call] = []

        def on_call(_, step: int, timestep: Tensor, tensors: dict[str, Tensor]) -> None:
            tokens, sure = tensors["tokens"].cpu(), None
            if per_text == 1:
                sure, known = token_probabilities(pipe, tokens), rows.known.expand(n, -1)
                show(Frame(step + 1, tokens, settled_tokens(own.scheduler, tokens, timestep, known), sure), known)
            calls.append(Call(tokens, timestep, sure))

        output = own(
            prompt=prompt,
            condition=condition,
            num_samples=n,
            batch_size=n * per_text,
            generator=torch.Generator().manual_seed(request.seed),
            return_trajectory=True,
            callback_on_step_end=on_call,
            callback_on_step_end_tensor_inputs=["tokens"],
            **options,
        )
    taken = _taken_rows(calls, output.trajectory, per_text)
    known = rows.known[taken - torch.arange(n) * per_text]
    frames = _replay(pipe, own.scheduler, calls, taken, known, output.sequences)
    nats = None
    if pipe.model.has_clean_stream:
        nats = [exact_likelihood(pipe.model, row[None]).nats_per_story.value for row in output.sequences]
    notes = [str(warning.message) for warning in caught if issubclass(warning.category, UserWarning)]
    return Result(output.texts, known, frames, output.calls.tolist(), nats, list(dict.fromkeys(notes)))


class Call(NamedTuple):
    """What a callback sees, and the tokens' probabilities if they were shown."""

    tokens: Tensor
    timestep: Tensor
    sure: Tensor | None


def _taken_rows(calls: list[Call], trajectory: Tensor, per_text: int) -> Tensor:
    """Which of the rows that were written have become the texts: those that came about as these did."""
    written, number = torch.stack([call.tokens for call in calls]), trajectory.shape[1]
    same = (written.unflatten(1, (number, per_text)) == trajectory[:, :, None]).all(-1).all(0)
    return torch.arange(number) * per_text + same.long().argmax(-1)


def _replay(
    pipe: NFDMTextPipeline,
    scheduler: TextDiffusionScheduler | TokenScheduler,
    calls: list[Call],
    taken: Tensor,
    known: Tensor,
    texts: Tensor,
) -> list[Frame]:
    """Some of the calls, evenly spaced, and the texts."""
    number = min(len(calls), MAX_FRAMES)
    chosen = sorted({round(i * (len(calls) - 1) / max(number - 1, 1)) for i in range(number)})
    # Latents do not say when a token stays; that it has stayed does.
    trajectory = torch.stack([call.tokens[taken] for call in calls])
    since = torch.stack([settling_calls(trajectory[:, i], text) for i, text in enumerate(texts)])
    frames = []
    for i in chosen:
        tokens, timestep, sure = calls[i]
        tokens = tokens[taken]
        if isinstance(scheduler, TokenScheduler):
            settled = settled_tokens(scheduler, tokens, timestep[taken], known)
        else:
            settled = known | (since <= i)
        frames.append(Frame(i + 1, tokens, settled, token_probabilities(pipe, tokens) if sure is None else sure))
    return [*frames, Frame(None, texts, torch.ones_like(known), token_probabilities(pipe, texts))]
