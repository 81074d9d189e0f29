"""Runs on jumps, from a checkpoint."""

import runpy
import sys

import pytest
import torch

from diffusers_text_nfdm import JumpScheduler, NFDMTextPipeline
from diffusers_text_nfdm.training import Trainer, train
from diffusers_text_nfdm.training.frontier import render_frontier
from runs import ROOT, arguments, assert_same_run, metrics


TWO_STREAM = {"predictor": "two_stream", "prediction_type": "categorical", "clock": "ramp:8"}
JUMPS = {"model_config": {**TWO_STREAM, "jumps": True}, "jump_clocks": {"ramp:8": 0.5, "blocks:8": 0.5}}
SETTINGS = {"cross_entropy_steps": 1, "next_token_weight": 1.0, "clocks": {"ramp:8": 1.0}}


@pytest.fixture(scope="module")
def teacher(data, tmp_path_factory):
    run = tmp_path_factory.mktemp("teacher") / "run"
    train(arguments(data, run, model_config=TWO_STREAM, **SETTINGS))
    return run / "pipeline"


def test_a_student_starts_from_its_teacher_and_is_an_ordinary_checkpoint(data, teacher, tmp_path):
    options = {**JUMPS, **SETTINGS, "model_name_or_path": str(teacher), "jump_share": 0.5}
    trainer = Trainer(arguments(data, tmp_path / "run", **options))
    old = NFDMTextPipeline.from_pretrained(teacher).model.state_dict()
    new = trainer.model.state_dict()
    assert all(torch.equal(new[name], weight) for name, weight in old.items())
    fresh = {name for name in new if name not in old}
    assert fresh and all("noise_embedding" in name for name in fresh - {"token_order"})
    trainer.train()
    steps = metrics(tmp_path / "run")
    assert any("train/jump" in step for step in steps) and any("train/bound" in step for step in steps)
    pipe = NFDMTextPipeline.from_pretrained(tmp_path / "run" / "pipeline")
    pipe.scheduler = JumpScheduler()
    assert len(pipe(num_samples=2, num_inference_steps=4).texts) == 2
    assert sorted(pipe.model.token_order.tolist()) == list(range(pipe.model.config.vocab_size))


def test_the_script_distils_a_teacher(data, teacher, tmp_path, monkeypatch):
    settings = {**JUMPS, **SETTINGS, "model_name_or_path": str(teacher), "max_steps": 2, "checkpoint_every": 2}
    config = tmp_path / "student.yaml"
    config.write_text(arguments(data, tmp_path / "run", **settings).to_yaml())
    script = str(ROOT / "examples" / "distill_nfdm.py")
    monkeypatch.setattr(sys, "argv", [script, "--config", str(config)])
    with pytest.raises(SystemExit, match="0"):
        runpy.run_path(script, run_name="__main__")
    assert NFDMTextPipeline.from_pretrained(tmp_path / "run" / "pipeline").model.config.jumps
    monkeypatch.setattr(sys, "argv", [script, "--print_config"])
    with pytest.raises(SystemExit, match="0"):
        runpy.run_path(script, run_name="__main__")


def test_resumed_equals_uninterrupted(data, teacher, tmp_path):
    options = {**JUMPS, **SETTINGS, "model_name_or_path": str(teacher), "jump_share": 0.7}
    train(arguments(data, tmp_path / "whole", **options))
    assert train(arguments(data, tmp_path / "parts", stop_after_steps=3, **options)) is None
    assert train(arguments(data, tmp_path / "parts", resume="latest", **options)) is not None
    assert_same_run(tmp_path / "whole", tmp_path / "parts", 8)


def test_a_run_leaves_the_forward_network_of_its_checkpoint_behind(data, teacher, tmp_path):
    options = {**SETTINGS, "model_config": {**TWO_STREAM, "forward_num_layers": 0}, "model_name_or_path": str(teacher)}
    trainer = Trainer(arguments(data, tmp_path / "run", **options))
    old, new = NFDMTextPipeline.from_pretrained(teacher).model.state_dict(), trainer.model.state_dict()
    assert {name for name in old if name not in new} == {
        name for name in old if name.startswith("forward_process.network.")
    }
    assert all(torch.equal(old[name], weight) for name, weight in new.items())
    trainer.train()
    assert NFDMTextPipeline.from_pretrained(tmp_path / "run" / "pipeline").model.forward_process.network is None


def test_a_checkpoint_of_another_shape_is_refused(data, teacher, tmp_path):
    options = {"model_config": {**TWO_STREAM, "intermediate_size": 32}, "model_name_or_path": str(teacher)}
    with pytest.raises(ValueError, match="`model_name_or_path` has intermediate_size 24 where these settings have 32"):
        Trainer(arguments(data, tmp_path / "run", **options))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"jump_clocks": {"ramp:8": 1.0}}, "`jump_clocks` is .* the `model_config` needs `jumps: true`"),
        ({"scheduler": "JumpScheduler"}, "`scheduler` is 'JumpScheduler'; the `model_config` needs"),
        ({"frontier": {"few": "jump:8"}}, "`frontier` is .* the `model_config` needs"),
        ({**JUMPS, "jump_clocks": {"ramp:8": 0.5}}, "`jump_clocks` is .* must add up to 1, not 0.5"),
        ({**JUMPS, "jump_share": 0}, "`jump_share` is 0.0; it must be in"),
        ({"model_name_or_path": "x", "cooccurrence_embeddings": True}, "has those of the checkpoint; leave it out"),
    ],
)
def test_settings_that_do_not_fit_are_refused(options, message, data, tmp_path):
    with pytest.raises(ValueError, match=message):
        arguments(data, tmp_path, **options)


def test_the_frontier_has_a_row_for_every_way_and_nats_where_there_are_some(data, teacher, tmp_path, capsys):
    frontier = {
        "verified": "jump:64",
        "jumps": "jump:4",
        "shorter jumps": "jump:4:jump_length=2",
        "sure first": "refine:64",
        "in motion": "star:4",
    }
    options = {**JUMPS, **SETTINGS, "model_name_or_path": str(teacher), "sampling_steps": 8, "save_plots": True}
    summary = train(arguments(data, tmp_path / "run", frontier=frontier, frontier_samples=3, **options))
    rows = {row["name"]: row for row in summary["frontier"]}
    assert [rows[name]["clock"] for name in frontier] == [
        "clean stream", "jumps, 4 calls", "jumps, 4 calls, 2 ahead", "an order of its own", "ramp:8"
    ]  # fmt: skip
    assert rows["verified"]["nats_error"] == 0 and rows["sure first"]["nats_per_text"] is None
    assert rows["jumps"]["nats_per_text"] > 0 and rows["in motion"]["nats_error"] > 0
    assert rows["jumps"]["nats_per_text"] != rows["shorter jumps"]["nats_per_text"]
    assert "an order of its own" in capsys.readouterr().out
    assert (tmp_path / "run" / "plots" / "frontier.png").is_file()


def test_the_columns_of_the_frontier_are_straight_however_long_a_name_is():
    row = {"calls": 12.5, "most_calls": 18, "distinct": 1.0, "nats_per_text": None, "tokens_per_second": 689.0}
    names = ("few", "8 in motion, 64 calls, tokens")
    _, short, long = render_frontier([{**row, "name": name, "clock": "ramp:8"} for name in names]).splitlines()
    assert short.index("12.5") == long.index("12.5") and len(short) == len(long)
