"""What a call of the pipeline refuses."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..checks import check_one_of, is_number
from ..clocks import Clock, SharedClock
from ..models.token_choice import check_cuts
from ..schedulers import (
    JumpScheduler,
    MarkovChainScheduler,
    ReverseODEScheduler,
    TextDiffusionScheduler,
    TokenScheduler,
)
from ..tokenization import special_ids
from .samples import check_given, check_samples


if TYPE_CHECKING:
    from ..models import TextDiffusionConfig, TextDiffusionModel
    from .pipeline_nfdm_text import NFDMTextPipeline


OUTPUT_TYPES = ("text", "seq", "latent")


def warn_of_untrained(config: TextDiffusionConfig, clock: Clock) -> None:
    """Warn of a clock that is not among those that the model was trained on, if they are known."""
    trained = config.trained_clocks
    if trained and clock.to_config() not in trained:
        warnings.warn(
            f"The model was not trained on the clock {str(clock)!r}, along which it may be worse. It was trained on "
            f"{', '.join(map(str, trained))}.",
            stacklevel=3,
        )


def finish_time(scheduler: TextDiffusionScheduler | TokenScheduler) -> float | None:
    """That of a Markov chain; another scheduler's config may still hold one."""
    return scheduler.config.finish_time if isinstance(scheduler, MarkovChainScheduler) else None


def draws_tokens(scheduler: TextDiffusionScheduler | TokenScheduler) -> bool:
    """Whether a scheduler draws tokens itself, by the knobs of its config."""
    if isinstance(scheduler, TokenScheduler) or scheduler.config.get("prediction") == "tokens":
        return True
    return finish_time(scheduler) is not None


def check_token_scheduler(
    pipeline: NFDMTextPipeline, num_calls: int | None, callback_inputs: Sequence[str] | None, **given: Any
) -> None:
    """Raise a ValueError for what a scheduler that writes tokens has no use for, and for a model that it cannot be
    used with.
    """
    scheduler, config = pipeline.scheduler, pipeline.model.config
    if not isinstance(scheduler, TokenScheduler):
        return
    name = type(scheduler).__name__
    if not pipeline.model.has_clean_stream:
        raise ValueError(
            f"{name} needs a clean stream: a model with `predictor` 'two_stream' and `prediction_type` 'categorical'; "
            f"this one has {config.predictor!r} and {config.prediction_type!r}."
        )
    jumps = isinstance(scheduler, JumpScheduler)
    if jumps and not config.jumps:
        raise ValueError(f"{name} needs a model that can jump; this one has `jumps` False in its config.")
    if num_calls is not None and (not is_number(num_calls) or not isinstance(num_calls, int) or num_calls < 1):
        raise ValueError(f"`num_inference_steps` is {num_calls!r}; it must be an integer above 0.")
    if jumps:
        # Their noise is that of the latents.
        del given["latents"]
    for argument, value in given.items():
        if value is not None:
            raise ValueError(f"`{argument}` has no meaning for {name}; leave it out.")
    if callback_inputs is not None and not set(callback_inputs) <= {"tokens", "known"}:
        raise ValueError(
            f"`callback_on_step_end_tensor_inputs` is {list(callback_inputs)}; {name} has only 'tokens' and 'known' "
            "for a callback."
        )


def check_guidance(
    config: TextDiffusionConfig,
    scheduler: TextDiffusionScheduler | TokenScheduler,
    scale: float,
    weaker: TextDiffusionModel | None,
) -> None:
    """Raise a ValueError for a guidance that cannot be."""
    if not is_number(scale) or not math.isfinite(scale) or scale <= 0:
        raise ValueError(f"`guidance_scale` is {scale!r}; it must be a number above 0.")
    if weaker is not None and not isinstance(weaker, PreTrainedModel):
        raise ValueError(f"`guidance_model` is a {type(weaker).__name__}; it must be a model of the same kind.")
    if weaker is not None and weaker.config.vocab_size != config.vocab_size:
        raise ValueError(
            f"`guidance_model` has {weaker.config.vocab_size} tokens, and the model {config.vocab_size}; they need "
            "the same vocabulary."
        )
    # Both read the same latents, and their states stand side by side.
    for name in ("max_length", "embedding_dim", "hidden_size", "self_conditioning", "predictor", "prediction_type"):
        own, other = (getattr(one, name, None) for one in (config, config if weaker is None else weaker.config))
        if own != other:
            raise ValueError(
                f"`guidance_model` has `{name}` {other!r}, and the model {own!r}; it must be a model of the same kind "
                "and size."
            )
    if weaker is not None and isinstance(scheduler, JumpScheduler) and not weaker.config.jumps:
        raise ValueError(
            "`guidance_model` has `jumps` False in its config; under JumpScheduler it must be a model that can jump."
        )
    if scale == 1:
        if weaker is not None:
            raise ValueError("`guidance_model` has no effect with a `guidance_scale` of 1; give another one.")
        return
    if weaker is None and not config.condition_dropout:
        raise ValueError(
            f"`guidance_scale` is {scale}, but this model was never trained without a condition, by "
            "`condition_dropout`; leave it out, or give a `guidance_model`."
        )


def check_finish(
    model: TextDiffusionModel, scheduler: TextDiffusionScheduler | TokenScheduler, clock: Clock, guided: bool
) -> None:
    """Raise a ValueError for a `finish_time` where no joint decoder could finish a text."""
    time = finish_time(scheduler)
    if time is None:
        return
    if not model.config.joint_decoder:
        raise ValueError(
            f"The scheduler has `finish_time` {time}, but this model has no `joint_decoder` in its config; set it to "
            "None."
        )
    if not isinstance(clock, SharedClock) or guided:
        raise ValueError(
            f"The scheduler has `finish_time` {time}, which is for texts along the clock 'shared' and without "
            f"guidance; the clock is {str(clock)!r}. Otherwise give the scheduler `finish_time=None`."
        )


def check_latents(name: str, latents: Any, shape: Sequence[int]) -> Tensor:
    """The latents; a ValueError for another shape, and for values that are not finite."""
    shape = tuple(shape)
    if not isinstance(latents, Tensor):
        raise ValueError(f"{name} is a {type(latents).__name__}; it must be a tensor of shape {shape}.")
    if tuple(latents.shape) != shape:
        raise ValueError(
            f"{name} has shape {tuple(latents.shape)}; it must be {shape}: samples, positions, dimensions."
        )
    if not torch.isfinite(latents).all():
        raise ValueError(f"{name} has values that are not finite.")
    return latents


def check_call(
    pipeline: NFDMTextPipeline,
    num_samples: int,
    batch_size: int,
    generator: torch.Generator | list[torch.Generator] | None,
    latents: Tensor | None,
    input_ids: Tensor | None,
    known: Tensor | None,
    choice: dict,
    clamp_predictions: bool,
    confidence_threshold: float | None,
    output_type: str,
    callback: Callable | None,
    callback_inputs: Sequence[str],
) -> None:
    """Raise a ValueError for arguments of a call that cannot be, before any work is done."""
    check_samples(num_samples, batch_size, generator)
    if latents is not None:
        check_latents("`latents`", latents, (num_samples, *pipeline.model.latent_shape))
    # Where nothing is drawn in between, the last step takes the most probable tokens.
    settings = {"temperature": 0.0}
    if draws_tokens(pipeline.scheduler):
        settings = {name: pipeline.scheduler.config[name] for name in pipeline.scheduler.knobs}
    check_cuts(**{"temperature": settings["temperature"], **choice}, settings=settings)
    if check_given(num_samples, input_ids, known):
        pipeline.model.check_inputs(input_ids)
    chain = pipeline.scheduler.config.get("prediction") == "tokens"
    if chain and pipeline.model.config.prediction_type != "categorical":
        raise ValueError(
            "The scheduler has `prediction` 'tokens', but the model has `prediction_type` "
            f"{pipeline.model.config.prediction_type!r}; only 'categorical' has a distribution to draw them from."
        )
    if chain and clamp_predictions:
        raise ValueError(
            "`clamp_predictions` is True, but with the scheduler's `prediction` 'tokens' Ê is tokens already."
        )
    if finish_time(pipeline.scheduler) is not None and (clamp_predictions or confidence_threshold is not None):
        raise ValueError(
            "`clamp_predictions` and `confidence_threshold` have no meaning with the scheduler's `finish_time`; leave "
            "them out."
        )
    if confidence_threshold is not None:
        _check_confidence(pipeline, confidence_threshold, clamp_predictions)
    check_one_of("output_type", output_type, OUTPUT_TYPES)
    if output_type == "text":
        # Says what is missing in a tokenizer that cannot tell where a text ends.
        special_ids(pipeline.tokenizer)
    if callback is not None and not callable(callback):
        raise ValueError(f"`callback_on_step_end` is {callback!r}; it must be a function.")
    if not isinstance(callback_inputs, (list, tuple)) or not all(isinstance(name, str) for name in callback_inputs):
        raise ValueError(f"`callback_on_step_end_tensor_inputs` is {callback_inputs!r}; it must be a list of names.")
    unknown = set(callback_inputs) - set(pipeline._callback_tensor_inputs)
    if unknown:
        raise ValueError(
            f"`callback_on_step_end_tensor_inputs` has {sorted(unknown)}; allowed are "
            f"{pipeline._callback_tensor_inputs}."
        )


def _check_confidence(pipeline: NFDMTextPipeline, threshold: float, clamp_predictions: bool) -> None:
    if not is_number(threshold) or not 0 <= threshold < 1:
        raise ValueError(f"`confidence_threshold` is {threshold!r}; it must be a number in [0, 1).")
    if pipeline.model.config.prediction_type != "categorical":
        raise ValueError(
            f"`confidence_threshold` is {threshold!r}, but the model has `prediction_type` "
            f"{pipeline.model.config.prediction_type!r}; only 'categorical' has probabilities of tokens."
        )
    if clamp_predictions:
        raise ValueError(
            f"`confidence_threshold` is {threshold!r}, but `clamp_predictions` leaves no probabilities of tokens."
        )
    if isinstance(pipeline.scheduler, ReverseODEScheduler) and pipeline.scheduler.config.method == "adaptive":
        raise ValueError(
            f"`confidence_threshold` is {threshold!r}, but method 'adaptive' has a time for every sample; take "
            "'euler' or 'heun'."
        )
