"""The study: its plan, what it trains, and its page."""

import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModel

from diffusers_text_nfdm.plots.frontier import plot_study
from diffusers_text_nfdm.training import TrainingArguments
from diffusers_text_nfdm.training.arguments import CONFIGS


FOLDER = Path(__file__).parents[2] / "evaluation"


@pytest.fixture
def study(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    import study

    yield study
    sys.modules.pop("study")


# Stands for the training script: notes how it was called, and ends as it was told.
SCRIPT = """
import json, pathlib, sys
run = pathlib.Path(sys.argv[sys.argv.index("--output_dir") + 1])
fails = run.name == "b-1" and "--resume" not in sys.argv
run.mkdir(exist_ok=True)
metrics = [{"step": 2, "train/cpu_seconds_per_step": 1.5}, {"step": 2, "validation/bound": 3.0},
           {"step": 6, "train/cpu_seconds_per_step": 0.5}]
(run / "metrics.jsonl").write_text("".join(json.dumps(row) + chr(10) for row in metrics))
row = {"sampling": "jump:8", "calls": 7.5, "most_calls": 8, "validity": 0.84, "coverage": 0.9, "tested_choices": 10,
       "nats_per_text": 45.0, "nats_error": 0.1}
summary = {"parameters": 1234567, "steps": 6, "entropy": 44.0, "frontier": [row],
           "samples": {"grammatical": 9, "number": 10},
           "likelihood": {"nats_per_story": {"value": 48.4, "monte_carlo_error": 0.5}}}
if not fails:
    (run / "summary.json").write_text(json.dumps(summary))
(run / "calls").open("a").write(" ".join(sys.argv[1:]) + chr(10))
sys.exit(3 if fails else 0)
"""
PLAN = """
runs:
  a-1: {config: stories-tiny, max_steps: 6, lattice_clocks: {}, model_config: {lattice_candidates: 0, delta: null}}
  b-1: {config: stories-masked}
  c-1: {config: stories-autoregressive}
"""


def model_size(settings: dict) -> int:
    """Parameters, with the words of the stories."""
    config = CONFIGS[settings["model_type"]](vocab_size=420, max_length=64, **settings["model_config"])
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in AutoModel.from_config(config).parameters())


def test_every_run_of_the_plan_can_be_trained(study):
    plan = study.read_plan(study.PLAN)
    for settings in plan.values():
        TrainingArguments(**settings, output_dir="run")
    # One size: what is changed is not how large a model is.
    sizes = {name: model_size(settings) for name, settings in plan.items()}
    assert max(sizes.values()) < 1.2 * min(sizes.values()), sizes
    assert {"ours-1", "ours-5", "ours-20", "masked-20", "autoregressive-20"} <= set(plan)
    assert plan["mulan-5"]["model_type"] == "mulan" and "delta" not in plan["mulan-5"]["model_config"]


def test_what_is_missing_is_trained_and_what_is_finished_is_on_the_page(study, tmp_path, capsys, monkeypatch):
    script, plan, runs = tmp_path / "script.py", tmp_path / "plan.yaml", tmp_path / "runs"
    script.write_text(SCRIPT)
    plan.write_text(PLAN)
    monkeypatch.setattr(study, "SCRIPT", script)
    options = ["--plan", str(plan), "--runs", str(runs)]
    with pytest.raises(SystemExit):
        study.main([*options, "--only", "a-1", "b-1"])
    assert "'b-1' ended with exit code 3; the same command goes on with it" in capsys.readouterr().err
    study.main([*options, "--only", "a-1", "b-1", "--output", str(tmp_path / "page")])
    assert len((runs / "a-1" / "calls").read_text().splitlines()) == 1
    assert (runs / "b-1" / "calls").read_text().splitlines()[1].endswith("--resume latest")
    text = (tmp_path / "page.md").read_text()
    assert text in capsys.readouterr().out
    assert "| a-1 | 1,234,567 | 6 | 5 | 48.40 ± 0.50 | 1.100 | " in text and "| c-1 | | | not run | | | |" in text
    assert "| b-1 | `jump:8` | 7.5 | 8 | 84.0% | 90.0% of 10 | 45.00 ± 0.10 |" in text
    assert (tmp_path / "page.png").stat().st_size > 10_000
    study.main([*options, "--only"])
    assert not (runs / "c-1").exists()
    # In another folder only what the page does not have is trained.
    study.main(["--plan", str(plan), "--runs", str(tmp_path / "later"), "--output", str(tmp_path / "page")])
    assert (tmp_path / "later" / "c-1").is_dir() and not (tmp_path / "later" / "a-1").exists()
    assert "| a-1 | 1,234,567 |" in (tmp_path / "page.md").read_text()
    assert "not run" not in (tmp_path / "page.md").read_text()


def test_a_study_of_many_runs_has_a_picture():
    likelihood = {"nats_per_story": {"value": 48.4, "monte_carlo_error": 0.5}}
    row = {"sampling": "jump:8:min_p=0.02", "calls": 7.5, "validity": 0.84}
    names = [f"run-{number}" for number in range(9)] + ["run-0-seed-1"]
    runs = [{"name": name, "entropy": 44.0, "likelihood": likelihood, "frontier": [row]} for name in names]
    left, right = plot_study(runs, names[:9]).axes
    assert len(left.get_lines()) == 9 and [tick.get_text() for tick in right.get_yticklabels()] == names[:9]


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ("runs: {a: {config: nothing}}", "`config` is 'nothing'"),
        ("runs: {a: {config: stories-tiny, steps: 3}}", "unknown setting 'steps' in 'a'"),
    ],
)
def test_a_wrong_plan_is_refused(study, plan, message, tmp_path, capsys):
    path = tmp_path / "plan.yaml"
    path.write_text(plan)
    with pytest.raises(SystemExit):
        study.main(["--plan", str(path), "--runs", str(tmp_path)])
    assert message in capsys.readouterr().err


def test_a_run_that_is_not_planned_is_refused(study, tmp_path, capsys):
    with pytest.raises(SystemExit):
        study.main(["--runs", str(tmp_path), "--only", "nothing"])
    assert "The plan has no run 'nothing'; it has ours-20" in capsys.readouterr().err
