"""Wrong kinds of values: one sentence that names the argument, from whatever function is given them."""

import numpy as np
import pytest
import tiny_baseline
import tiny_masked
import torch
from tiny import make_config, make_ids, make_model, make_pipeline

from diffusers_text_nfdm import (
    JumpScheduler,
    MarkovChainScheduler,
    RampClock,
    RefinementScheduler,
    ReverseODEScheduler,
    estimate_likelihood,
    importance_weighted_bound,
    jump_likelihood,
    load_text_dataset,
    masked_likelihood,
    metrics,
    score_texts,
)
from diffusers_text_nfdm.clocks import make_clock
from diffusers_text_nfdm.metrics import MauveSettings, Sampling
from diffusers_text_nfdm.training import TrainingArguments


MODEL = make_model("nfdm")
TEXTS = ["Tom ran."]
WRITER = {
    "prediction_type": "categorical", "predictor": "two_stream", "jumps": True, "bos_token_id": 0, "eos_token_id": 1,
    "pad_token_id": 3,
}  # fmt: skip


def sample(**options):
    return make_pipeline()(**{"num_samples": 2, "num_inference_steps": 2, **options})


CALLS = {
    "batch_size of a bound": (
        lambda: estimate_likelihood(MODEL, make_ids(2), batch_size=None),
        "`batch_size` is",
    ),
    "num_draws": (lambda: estimate_likelihood(MODEL, make_ids(2), num_draws="x"), "`num_draws` is 'x'"),
    "seed": (lambda: estimate_likelihood(MODEL, make_ids(2), seed=1.5), "`seed` is 1.5"),
    "input_ids that are text": (lambda: estimate_likelihood(MODEL, "ab"), "`input_ids` is 'ab'"),
    "num_tokens": (lambda: estimate_likelihood(MODEL, make_ids(2), num_tokens="x"), "`num_tokens` is 'x'"),
    "seed of a weighted bound": (lambda: importance_weighted_bound(MODEL, make_ids(2), seed=None), "`seed` is None"),
    "num_steps": (lambda: importance_weighted_bound(MODEL, make_ids(2), num_steps=None), "`num_steps` is None"),
    "float ids to score": (lambda: score_texts(MODEL, make_ids(2).double()), "`input_ids` is of type torch.float64"),
    "float ids to weigh": (lambda: importance_weighted_bound(MODEL, make_ids(2).double()), "`input_ids` is of type"),
    "num_draws of scores": (lambda: score_texts(MODEL, make_ids(2), num_draws=None), "`num_draws` is None"),
    "masked draws": (
        lambda: masked_likelihood(tiny_masked.make_masked(), tiny_masked.TEXTS[:2], num_draws="x"),
        "`num_draws` is 'x'",
    ),
    "input_ids of a model": (lambda: MODEL(3), "`input_ids` is a int"),
    "draws": (lambda: MODEL(make_ids(2), draws="x"), "`draws` is a str"),
    "context_weight": (lambda: MODEL(make_ids(2), context_weight="x"), "`context_weight` is 'x'"),
    "next_token_weight": (lambda: MODEL(make_ids(2), next_token_weight=None), "`next_token_weight` is None"),
    "max_gap_length": (lambda: sample(max_gap_length=0.5), "`max_gap_length` is 0.5"),
    "max_gap_length of masks": (lambda: tiny_masked.make_pipeline()(max_gap_length=0.5), "`max_gap_length` is 0.5"),
    "t": (lambda: MODEL(make_ids(2), t=0.5), "`t` is a float"),
    "draws of masks": (lambda: tiny_masked.make_masked()(tiny_masked.TEXTS[:2], draws="x"), "`draws` is a str"),
    "weight of masks": (
        lambda: tiny_masked.make_masked()(tiny_masked.TEXTS[:2], next_token_weight=None),
        "`next_token_weight` is None",
    ),
    "input_ids of the baseline": (lambda: tiny_baseline.make_baseline()("x"), "`input_ids` is a str"),
    "a callback's result": (lambda: sample(callback_on_step_end=lambda *_: 3), "The callback returned a int"),
    "a callback": (lambda: sample(callback_on_step_end=3), "`callback_on_step_end` is 3"),
    "a callback's inputs": (
        lambda: sample(callback_on_step_end_tensor_inputs=3),
        "`callback_on_step_end_tensor_inputs` is 3",
    ),
    "timesteps": (lambda: sample(num_inference_steps=None, timesteps=3), "`timesteps` is 3"),
    "timesteps that are text": (lambda: sample(num_inference_steps=None, timesteps="x"), "`timesteps` is 'x'"),
    "known beside a prompt": (lambda: sample(prompt="Tom", known=3), "leave out `input_ids`, `known` and `latents`"),
    "gen_length alone": (
        lambda: tiny_masked.make_pipeline()(gen_length=2),
        "`gen_length` needs a `prompt`",
    ),
    "a token id in a config": (lambda: make_config("nfdm", bos_token_id=99), "`bos_token_id` is 99"),
    "slots in a config": (lambda: make_config("nfdm", copied_slots=b"x"), "`copied_slots` is"),
    "dropout in a config": (lambda: make_config("mulan", condition_dropout=2.0), "`condition_dropout` is 2.0"),
    "activation in a config": (lambda: make_config("nfdm", hidden_act=None), "`hidden_act` is None"),
    "epsilon in a config": (lambda: make_config("nfdm", layer_norm_eps={"a": 1}), "`layer_norm_eps` is {'a': 1}"),
    "a decoder in a config": (lambda: make_config("nfdm", is_decoder=True), "`is_decoder` is True; it must be False"),
    "attention in a config": (
        lambda: make_config("nfdm", add_cross_attention=None),
        "`add_cross_attention` is None; it must be False",
    ),
    "format in a config": (lambda: make_config("nfdm", checkpoint_format=None), "`checkpoint_format` is None"),
    "length of a clock": (lambda: make_clock("shared", None), "`length` is None"),
    "draws of the language": (lambda: metrics.story_language(TEXTS, num_draws=None), "`num_draws` is None"),
    "seed of the language": (lambda: metrics.story_language(TEXTS, seed=-1), "`seed` is -1"),
    "texts of the language": (lambda: metrics.story_language(3), "`texts` is 3"),
    "texts of completions": (lambda: metrics.story_completions(None, TEXTS), "`texts` is None"),
    "records": (lambda: metrics.slots_realised(TEXTS, None), "`records` has 'None'"),
    "references": (lambda: metrics.against_references(TEXTS, 3), "`references` is 3"),
    "a text to split": (lambda: metrics.split_words(None), "`text` is a NoneType"),
    "a protocol": (lambda: metrics.get_protocol(["x"]), r"`protocol` is \['x'\]"),
    "a sampling's clock": (lambda: Sampling("x", None, clock=3), "`clock` of a sampling is 3"),
    "a sampling's threshold": (lambda: Sampling("x", None, confidence_threshold="x"), "`confidence_threshold` is 'x'"),
    "MAUVE": (lambda: MauveSettings(scaling_factor=None), "`scaling_factor` is None"),
    "seeds of MAUVE": (lambda: MauveSettings(seeds={"a": 1}), "`seeds` is {'a': 1}"),
    "a weaker model": (lambda: sample(guidance_scale=2.0, guidance_model=[None]), "`guidance_model` is a list"),
    "known of masks": (
        lambda: masked_likelihood(tiny_masked.make_masked(), tiny_masked.TEXTS[:2], known=[None]),
        "`known`",
    ),
    "a method": (lambda: ReverseODEScheduler(method=[None]), r"`method` is \[None\]"),
    "seed of a dataset": (lambda: load_text_dataset("stories", seed=None), "`seed` is None"),
    "a source of no splits": (lambda: load_text_dataset({}), "`source`"),
    "a source that is an array": (lambda: load_text_dataset(np.zeros((2, 5))), "source is array"),
    "a source that can be no name": (lambda: load_text_dataset("a*b"), "no name of a Hub dataset"),
    "half of a character": (lambda: sample(prompt="half \ud800"), "`prompt` has '\\\\ud800' at position 5"),
    "half of a character to score": (lambda: metrics.diversity(["half \ud800"]), r"`texts\[0\]` has"),
    "a number in a language": (lambda: metrics.story_language([1]), "`texts` is a int"),
    "no text": (lambda: make_pipeline().tokenizer([]), r"`text` is \[\]"),
    "no words": (lambda: make_pipeline().tokenizer([[]]), r"`text` is \[\[\]\]"),
    "a flag as a token id": (lambda: make_pipeline().tokenizer.decode(True), "Token id True"),
    "a broken size": (lambda: make_config("nfdm", intermediate_size=6.5), "`intermediate_size` is 6.5"),
    "an endless text": (lambda: make_config("diffusion-lm", max_length=float("inf")), "`max_length` is inf"),
    "a range beyond": (lambda: make_config("nfdm", initializer_range=9e15), "`initializer_range` is 9"),
    "one token": (lambda: make_config("diffusion-lm", vocab_size=1), "`vocab_size` is 1"),
    "gamma": (lambda: make_config("mulan", gamma_max="x"), "`gamma_max` is 'x'"),
    "an infinite weight": (lambda: MODEL(make_ids(2), next_token_weight=float("inf")), "`next_token_weight` is inf"),
    "a prompt with a gap for the baseline": (
        lambda: tiny_baseline.make_pipeline()(prompt="Tom [GAP]."),
        "the `prompt`, or `known`, has tokens to write before given ones",
    ),
    "no rows for the baseline": (
        lambda: tiny_baseline.make_baseline()(torch.zeros(0, 5, dtype=torch.long)),
        "at least one row",
    ),
    "rows that are a number": (lambda: tiny_baseline.make_pipeline()(input_ids=3, known=3), "`input_ids` is a int"),
    "rows that are a list": (
        lambda: tiny_masked.make_pipeline()(num_samples=2, input_ids=[0.5, 0.9], known=make_ids(2) > 0),
        "`input_ids` is a list",
    ),
    "known alone": (
        lambda: make_pipeline("nfdm", JumpScheduler(), **WRITER)(
            known=torch.tensor([[True, False, True, False, True]])
        ),
        "`input_ids` and `known` go together",
    ),
    "a grid of times": (lambda: MarkovChainScheduler(time_grid=np.zeros((2, 5))), "`time_grid` is array"),
    "an order": (lambda: RampClock(2.0, order=np.zeros((2, 5))), "`order` is array"),
    "times that are keys": (lambda: sample(num_inference_steps=None, timesteps={1: None}), "`timesteps` is {1: None}"),
    "a flag as a tolerance": (lambda: ReverseODEScheduler(rtol=True), "`rtol` is True"),
    "one draw": (lambda: score_texts(MODEL, make_ids(2), num_draws=1), "`num_draws` is 1"),
    "no rows to weigh": (lambda: importance_weighted_bound(MODEL, make_ids(2)[:0]), "at least one sequence"),
    "gamma beyond": (lambda: make_config("mulan", gamma_min=-5863.0), "`gamma_min` is -5863"),
    "a broken number of calls": (
        lambda: jump_likelihood(make_model("nfdm", **WRITER), make_ids(2), num_inference_steps=1e30),
        "`num_inference_steps` is 1e",
    ),
    "a long name": (lambda: load_text_dataset("x" * 300), "no name of a Hub dataset"),
    "a sampling's scheduler": (lambda: Sampling("x", np.zeros((2, 5))), "`scheduler` of a sampling is"),
    "a noise fraction": (lambda: MarkovChainScheduler(noise_fraction=np.zeros((2, 5))), "`noise_fraction` is array"),
    "a condition's column": (
        lambda: load_text_dataset("stories", condition_column=np.zeros((2, 5))),
        "condition_column is array",
    ),
    "a number beyond integers": (lambda: TrainingArguments(log_every=4.5e123), "`log_every` is 4.5e"),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_kind_of_value_is_named(name):
    call, message = CALLS[name]
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("scheduler", [MarkovChainScheduler, RefinementScheduler, JumpScheduler])
def test_weights_that_are_no_numbers_write_no_text(scheduler, temperature):
    pipe = make_pipeline("nfdm", scheduler(), **WRITER)
    with torch.no_grad():
        next(pipe.model.parameters()).fill_(float("nan"))
    steps = {"temperature": temperature} if scheduler is MarkovChainScheduler else {}
    with pytest.raises(ValueError, match="not finite"):
        pipe(num_samples=2, num_inference_steps=2, **steps)
