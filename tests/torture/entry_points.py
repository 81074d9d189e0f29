"""The public entry points at tiny size: a call that works, and what its result must be."""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tiny_baseline
import tiny_masked
import torch
from datasets import Dataset
from tiny import LENGTH, MODELS, SHARED, VOCAB, make_ids, make_model, make_pipeline, make_tokenizer, seeded
from transformers import PreTrainedConfig

import diffusers_text_nfdm as library
from diffusers_text_nfdm import metrics, schedulers
from diffusers_text_nfdm.clocks import Clock, make_clock
from diffusers_text_nfdm.stories import StoryGrammar, load_stories
from diffusers_text_nfdm.training import TrainingArguments, parse_arguments
from runs import NFDM, PREDICTOR


CATEGORICAL = {
    "prediction_type": "categorical", "predictor": "two_stream", "jumps": True, "bos_token_id": 0, "eos_token_id": 1,
    "pad_token_id": 3,
}  # fmt: skip
STORIES = StoryGrammar().sample(4, seed=0)


@dataclass
class Entry:
    """
    Args:
        name: what it is called in the report.
        call: the entry point; `signature` is another callable to read the parameters from.
        arguments: makes keyword arguments with which the call works.
        check: what is wrong with a result, or `None`. It may use the result, and raise as a call may.
        fixed: parameters that are left alone.
        other_names: words by which an error may name a parameter.
    """

    name: str
    call: Callable
    arguments: Callable[[], dict] = dict
    check: Callable[[Any], str | None] = lambda result: None
    signature: Callable | None = None
    fixed: tuple[str, ...] = ("self",)
    other_names: dict[str, tuple[str, ...]] = field(default_factory=dict)


def is_output(output) -> str | None:
    """Texts, or a tuple of them, of known words."""
    output = output if isinstance(output, tuple) else output.to_tuple()
    if not output:
        return "nothing came back"
    for part in output:
        if isinstance(part, list) and not all(isinstance(text, str) for text in part):
            return "texts that are no strings"
        if isinstance(part, torch.Tensor) and not torch.isfinite(part.double()).all():
            return "values that are not finite"
    return None


def is_likelihood(estimate) -> str | None:
    value = estimate.nats_per_story.value
    return None if math.isfinite(value) and value > 0 else f"{value} nats"


def is_finite(value) -> str | None:
    values = value.values() if hasattr(value, "values") and not torch.is_tensor(value) else value
    tensors = [value] if torch.is_tensor(value) else [x for x in values if torch.is_tensor(x)]
    return None if all(torch.isfinite(x.double()).all() for x in tensors) else "values that are not finite"


def has_numbers(scores: dict) -> str | None:
    numbers = [value for value in scores.values() if isinstance(value, float)]
    return None if all(map(math.isfinite, numbers)) else f"{scores}"


def entry_points(folder: Path) -> list[Entry]:
    return [
        *pipelines(),
        *likelihoods(),
        *models(),
        *scheduler_entries(),
        *texts_and_data(folder),
        *scores(),
        *settings(folder),
    ]


def pipelines() -> list[Entry]:
    names = {"callback_on_step_end": ("callback",), "known": ("input_ids",), "input_ids": ("known",)}
    latents, tokens = make_pipeline(), make_pipeline("nfdm", library.RefinementScheduler(), **CATEGORICAL)
    jumps = make_pipeline("nfdm", library.JumpScheduler(), **CATEGORICAL)
    masked, ancestral = tiny_masked.make_pipeline(), tiny_baseline.make_pipeline()
    few = {"num_samples": 2, "num_inference_steps": 2}

    def callback_result(result: dict | None):
        return latents(**few, callback_on_step_end=lambda *args: result)

    return [
        Entry("pipeline", latents.__call__, lambda: {**few, "generator": seeded(0)}, is_output, other_names=names),
        Entry("pipeline with tokens", tokens.__call__, lambda: {"num_samples": 2}, is_output, other_names=names),
        Entry("pipeline with jumps", jumps.__call__, lambda: dict(few), is_output, other_names=names),
        Entry("masked pipeline", masked.__call__, lambda: dict(few), is_output, other_names=names),
        Entry("autoregressive pipeline", ancestral.__call__, lambda: {"num_samples": 2}, is_output, other_names=names),
        Entry("a callback's result", callback_result, dict, is_output,
              other_names={"result": ("callback", "callback_on_step_end", "latents")}),
    ]  # fmt: skip


def likelihoods() -> list[Entry]:
    model, writer = make_model("nfdm"), make_model("nfdm", **CATEGORICAL)
    masked = tiny_masked.make_masked(vocab_size=VOCAB, max_length=LENGTH)
    baseline = tiny_baseline.make_baseline(vocab_size=VOCAB)
    rest = {"fixed": ("model", "progress"), "check": is_likelihood}
    # START, words and END.
    ids = torch.tensor([[0, 4, 5, 6, 1], [0, 7, 8, 1, 3]])
    return [
        Entry("estimate_likelihood", library.estimate_likelihood,
              lambda: {"model": model, "input_ids": ids, "num_draws": 2}, **rest),
        Entry("exact_likelihood", library.exact_likelihood, lambda: {"model": baseline, "input_ids": ids}, **rest),
        Entry("jump_likelihood", library.jump_likelihood,
              lambda: {"model": writer, "input_ids": ids, "num_inference_steps": 2, "num_draws": 2}, **rest),
        Entry("masked_likelihood", library.masked_likelihood,
              lambda: {"model": masked, "input_ids": ids, "num_draws": 2}, **rest),
        Entry("importance_weighted_bound", library.importance_weighted_bound,
              lambda: {"model": model, "input_ids": ids, "num_draws": 2, "num_steps": 2}, is_finite,
              fixed=("model",)),
        Entry("score_texts", library.score_texts, lambda: {"model": model, "input_ids": ids, "num_draws": 2},
              lambda result: is_finite(result._asdict()), fixed=("model",)),
    ]  # fmt: skip


def models() -> list[Entry]:
    # A tokenizer passes it on.
    unused = ("attention_mask",)
    model, masked, baseline = make_model("nfdm"), tiny_masked.make_masked(), tiny_baseline.make_baseline()
    return [
        Entry("model", model.forward, lambda: {"input_ids": make_ids(2)}, is_finite, fixed=unused),
        Entry("masked model", masked.forward, lambda: {"input_ids": torch.zeros(2, 4, dtype=torch.long)}, is_finite,
              fixed=unused),
        Entry("autoregressive model", baseline.forward, lambda: {"input_ids": tiny_baseline.texts([4, 1], [5, 1])},
              is_finite, fixed=unused),
        *(config_entry(name) for name in ("nfdm", "mulan", "diffusion-lm")),
    ]  # fmt: skip


def config_entry(name: str) -> Entry:
    """A configuration, and the model that is built from it."""
    model_class, config_class, options = MODELS[name]
    known = {**SHARED, **options}

    def check(config) -> str | None:
        return is_finite(model_class(config)(torch.zeros(2, config.max_length, dtype=torch.long)))

    inherited = tuple(inspect.signature(PreTrainedConfig).parameters)
    return Entry(config_class.__name__, config_class, lambda: dict(known), check, fixed=inherited)


def scheduler_entries() -> list[Entry]:
    latents, tokens = make_pipeline(), make_pipeline("nfdm", **CATEGORICAL)

    def use(scheduler) -> str | None:
        writes_tokens = isinstance(scheduler, library.TokenScheduler)
        draws = scheduler.config.get("prediction") == "tokens"
        pipe = library.NFDMTextPipeline(
            (tokens if writes_tokens or draws else latents).model, make_tokenizer(), scheduler
        )
        pipe.set_progress_bar_config(disable=True)
        steps = {} if writes_tokens else {"num_inference_steps": 2}
        return is_output(pipe(num_samples=2, generator=seeded(0), **steps))

    def set_timesteps(num_inference_steps=None, timesteps=None):
        scheduler = library.MarkovChainScheduler()
        scheduler.set_timesteps(num_inference_steps, timesteps=timesteps)
        return scheduler

    set_timesteps.__annotations__ = {"num_inference_steps": "int | None", "timesteps": "Sequence[float] | None"}

    def decreasing(scheduler) -> str | None:
        times = scheduler.timesteps.tolist()
        ordered = all(1 >= a > b > 0 for a, b in zip(times, times[1:]))
        return None if ordered else f"times {times[:5]}"

    def clock(clock: str | dict | Clock, length: int = LENGTH):
        return make_clock(clock, length)

    return [
        *(Entry(one.__name__, one, check=use, signature=one.__init__) for one in schedulers.SCHEDULERS),
        Entry("set_timesteps", set_timesteps, check=decreasing,
              other_names={"num_inference_steps": ("timesteps",), "timesteps": ("num_inference_steps",)}),
        Entry("RampClock", library.RampClock, lambda: {"width": 2.0}, lambda clock: clock.check_length(LENGTH)),
        Entry("BlockClock", library.BlockClock, lambda: {"size": 5}, lambda clock: clock.check_length(LENGTH)),
        Entry("make_clock", clock, lambda: {"clock": "ramp:2"}),
    ]  # fmt: skip


def texts_and_data(folder: Path) -> list[Entry]:
    tokenizer = make_tokenizer()
    data = Dataset.from_dict({"text": ["Tom saw a red fox."]})

    def encode(text: str | list[str]):
        return tokenizer(text)

    def decode(token_ids: int | Sequence):
        return tokenizer.decode(token_ids)

    return [
        Entry("WordTokenizer.from_texts", library.WordTokenizer.from_texts,
              lambda: {"texts": ["Tom saw a red fox."], "min_count": 0}),
        Entry("tokenizer", encode, other_names={"text": ("text input",)}),
        Entry("tokenizer.decode", decode, other_names={"token_ids": ("Token id",)}),
        Entry("prepare_dataset", library.prepare_dataset,
              lambda: {"dataset": data, "tokenizer": tokenizer, "max_length": 9}, fixed=("tokenizer",)),
        Entry("load_text_dataset", library.load_text_dataset, lambda: {"source": _file(folder)}, fixed=("streaming",),
              other_names={"source": ("dataset", "file", "folder"), "condition_column": ("column",)}),
        Entry("load_stories", load_stories, lambda: {"num_train": 2, "num_validation": 1, "num_test": 1}),
        Entry("StoryGrammar.sample", StoryGrammar().sample, lambda: {"n": 2}),
        Entry("StoryGrammar.log_prob", StoryGrammar().log_prob, lambda: {"text": STORIES[0]}),
    ]  # fmt: skip


def _file(folder: Path) -> Path:
    path = folder / "texts.txt"
    path.write_text("Tom saw a red fox.\n" * 40)
    return path


def scores() -> list[Entry]:
    records = ["name[The Eagle], food[French]"] * 2
    return [
        Entry("diversity", metrics.diversity, lambda: {"texts": STORIES}, has_numbers),
        Entry("memorization", metrics.memorization, lambda: {"texts": STORIES, "training_texts": STORIES},
              has_numbers),
        Entry("story_language", metrics.story_language, lambda: {"texts": STORIES, "num_draws": 9},
              fixed=("grammar",)),
        Entry("story_completions", metrics.story_completions, lambda: {"texts": STORIES, "stories": STORIES},
              fixed=("grammar",)),
        Entry("slots_realised", metrics.slots_realised,
              lambda: {"texts": ["The Eagle serves French food."] * 2, "records": records}, has_numbers),
        Entry("against_references", metrics.against_references,
              lambda: {"texts": STORIES, "references": [STORIES[:2]] * 4}, has_numbers),
        Entry("split_words", metrics.split_words, lambda: {"text": STORIES[0]}),
        Entry("get_protocol", metrics.get_protocol, lambda: {"name": "ld4lg"}, other_names={"name": ("protocol",)}),
        Entry("Sampling", metrics.Sampling,
              lambda: {"name": "x", "scheduler": "MarkovChainScheduler", "num_inference_steps": 4}),
        Entry("MauveSettings", metrics.MauveSettings),
    ]  # fmt: skip


def settings(folder: Path) -> list[Entry]:
    known = {"model_config": {**PREDICTOR, **NFDM}, "dataset": str(_file(folder)), "max_length": 24}

    def command_line(name: str, value: str):
        """A setting in words, as a shell passes it on."""
        try:
            return parse_arguments([f"--{name}", *value.split()])
        except SystemExit as end:
            # argparse has said what is wrong.
            assert end.code in (0, 2)

    def any_setting(**values):
        return TrainingArguments(**values)

    options = [f.name for f in dataclasses.fields(TrainingArguments)]
    return [
        Entry("TrainingArguments", any_setting, lambda: dict(known), signature=TrainingArguments),
        *(
            Entry(f"--{name}", lambda value, name=name: command_line(name, str(value)), signature=_takes_value)
            for name in options
        ),
    ]


def _takes_value(value) -> None:
    """The signature of a setting on the command line, where everything is a string."""
