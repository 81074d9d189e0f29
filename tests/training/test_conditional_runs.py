"""Runs on texts with a condition."""

import json
from functools import partial

import pytest

from diffusers_text_nfdm import AutoregressivePipeline, MaskedDiffusionPipeline, NFDMTextPipeline, stories
from diffusers_text_nfdm.training import train
from runs import arguments, assert_same_run, metrics


TWO_STREAM = {"predictor": "two_stream", "prediction_type": "categorical", "clock": "ramp:8"}
SETTINGS = {
    "dataset": None,
    "validation_file": None,
    "validation_fraction": 0.2,
    "text_column": "ref",
    "condition_column": "mr",
    "condition_length": 9,
    "condition_dropout": 0.3,
    "copied_slots": ["name"],
    "sampling_steps": 8,
}
DIFFUSION = {
    "model_config": {**TWO_STREAM, "jumps": True},
    "cross_entropy_steps": 1,
    "next_token_weight": 1.0,
    "next_token_steps": 1,
    "jump_clocks": {"ramp:8": 1.0},
    "jump_share": 0.3,
    "clocks": {"ramp:8": 0.5, "shared": 0.5},
    "known_texts": {"span": 0.3, "scattered": 0.3, "prefix": 0.2},
    "cooccurrence_rows": True,
}


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    file = tmp_path_factory.mktemp("records") / "records.jsonl"
    areas = ("riverside", "centre")
    rows = [
        {"mr": f"name[{name} {i}], area[{area}]", "ref": f"{name} {i} is in the {area} of the town."}
        for i in range(12)
        for name in ("Aromi", "Cotto")
        for area in areas
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def run(records, output, **options):
    settings = {**SETTINGS, "dataset": str(records), **options}
    return train(arguments(records.parent, output, **settings))


def test_a_run_writes_a_pipeline_that_takes_conditions(records, tmp_path):
    run(records, tmp_path / "run", **DIFFUSION, frontier={"sure first": "refine:24"}, frontier_samples=2)
    pipe = NFDMTextPipeline.from_pretrained(tmp_path / "run" / "pipeline")
    config = pipe.model.config
    assert (config.condition_length, config.condition_dropout, config.copied_slots) == (9, 0.3, ["name"])
    pipe.set_progress_bar_config(disable=True)
    output = pipe(condition="name[Blue Spice], area[centre]", num_inference_steps=8, guidance_scale=1.5)
    assert len(output.texts) == 1
    assert "nameValue" in pipe.tokenizer.get_vocab() and "Aromi" not in pipe.tokenizer.get_vocab()
    steps = metrics(tmp_path / "run")
    assert any("train/jump" in step for step in steps)
    evaluations = [step for step in steps if "validation/bound" in step]
    for kind in ("prefix", "span", "scattered"):
        assert all(0 < step[f"validation/bound_{kind}"] < step["validation/bound"] for step in evaluations)


def test_resumed_equals_uninterrupted(records, tmp_path):
    run(records, tmp_path / "whole", **DIFFUSION)
    assert run(records, tmp_path / "parts", stop_after_steps=3, **DIFFUSION) is None
    assert run(records, tmp_path / "parts", resume="latest", **DIFFUSION) is not None
    assert_same_run(tmp_path / "whole", tmp_path / "parts", 8)


@pytest.mark.parametrize("kind", ["autoregressive", "masked"])
def test_the_baselines_learn_from_the_same_rows(records, tmp_path, kind):
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
    extra = {"block_size": 8} if kind == "masked" else {"dropout": 0.0}
    settings = arguments(records.parent, tmp_path / "run", **{**SETTINGS, "dataset": str(records), "use_muon": False})
    settings.model_type, settings.model_config = kind, {**sizes, **extra}
    settings._check()
    train(settings)
    pipeline = {"autoregressive": AutoregressivePipeline, "masked": MaskedDiffusionPipeline}[kind]
    pipe = pipeline.from_pretrained(tmp_path / "run" / "pipeline")
    pipe.set_progress_bar_config(disable=True)
    assert len(pipe(condition=["name[Blue Spice], area[centre]"] * 2).texts) == 2


def test_the_embedded_stories_have_conditions(tmp_path, records, monkeypatch):
    monkeypatch.setattr(stories, "load_stories", partial(stories.load_stories, num_train=600, num_validation=50))
    options = {**SETTINGS, "text_column": "text", "condition_column": "condition", "condition_length": 3}
    options |= {"copied_slots": [], "max_length": 68, "dataset": "stories", "max_steps": 2, "checkpoint_every": 2}
    summary = train(arguments(records.parent, tmp_path / "run", **{**options, **DIFFUSION}))
    assert summary["entropy"] < 38


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"condition_column": "mr"}, "`condition_column` is 'mr' with `condition_length` 0; a condition needs both"),
        ({"condition_length": 4}, "`condition_column` is None with `condition_length` 4"),
        ({"condition_dropout": 0.1}, "`condition_dropout` is 0.1; it needs a `condition_column`"),
        ({"copied_slots": ["name"]}, r"`copied_slots` is \['name'\]; it needs a `condition_column`"),
        ({"condition_column": "mr", "condition_length": 40}, "`condition_length` is 40 with `max_length` 24"),
        ({"model_config": {"condition_length": 3}}, "`model_config` has 'condition_length'"),
        ({"cooccurrence_rows": True}, "`cooccurrence_rows` is for `predictor` 'two_stream'"),
    ],
)
def test_settings_that_do_not_fit_are_refused(options, message, records, tmp_path):
    with pytest.raises(ValueError, match=message):
        arguments(records.parent, tmp_path, **options)


def test_a_missing_column_and_a_long_condition_are_named(records, tmp_path):
    with pytest.raises(ValueError, match="has no column 'record'; its columns are mr, ref"):
        run(records, tmp_path / "a", condition_column="record")
    with pytest.raises(ValueError, match="`condition_length` is 3"):
        run(records, tmp_path / "b", condition_length=3)
