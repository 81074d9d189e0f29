"""The command: launched as a user does."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from judges import save_judge
from tiny import make_pipeline


SCRIPT = Path(__file__).parents[2] / "evaluation" / "evaluate_nfdm.py"


def launch(*arguments):
    command = [sys.executable, str(SCRIPT), *map(str, arguments)]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=1200)


def load_script():
    """The command as a module, which saves the start of a process where only its messages matter."""
    spec = importlib.util.spec_from_file_location("evaluate_nfdm", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pipeline") / "tiny"
    make_pipeline("nfdm", max_length=12).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    subjects = [
        "Tom saw a red fox.",
        "a red fox saw Tom.",
        "Tom ran.",
        "a fox ran.",
        "red Tom saw a fox ran.",
        "Tom Tom saw a a fox.",
    ]
    texts = [f"{one} {two}" for one in subjects for two in subjects]
    (folder / "train.txt").write_text("\n".join(texts[:12]))
    (folder / "valid.txt").write_text("\n".join(texts[12:]))
    return ["--dataset", folder / "train.txt", "--validation_file", folder / "valid.txt"]


def test_a_run_and_the_same_again(checkpoint, data, tmp_path, capsys):
    judge = save_judge(tmp_path)
    options = [*data, "--samplers", "star:3", "chain:2:noise_fraction=0.5", "sde:2", "--num_samples", 12,
               "--num_repeats", 2, "--judge", judge,
               "--output_dir", tmp_path / "out", "--likelihood_texts", 4]  # fmt: skip
    done = launch(checkpoint, *options)
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "out" / "results.json").read_text(encoding="utf-8"))
    assert (
        result["protocol"]["name"] == f"ld4lg-12x2-likelihood_texts=4-judge={judge.name}" and result["model"] == "NFDM"
    )
    assert list(result["samplers"]) == ["star:3", "chain:2:noise_fraction=0.5", "sde:2"]
    assert done.stdout.strip() == (tmp_path / "out" / "results.md").read_text(encoding="utf-8").strip()
    assert "star:3, seed 1" in done.stderr and "judge: perplexity" in done.stderr
    names = sorted(path.name for path in (tmp_path / "out" / "samples").glob("*.jsonl"))
    assert names == sorted(
        f"{name}.seed{seed}.jsonl" for name in ("star-3", "chain-2-noise_fraction-0.5", "sde-2") for seed in (0, 1)
    )
    assert "model-index:" in (checkpoint / "README.md").read_text(encoding="utf-8")

    times = {
        path: path.stat().st_mtime_ns
        for folder in ("samples", "scores")
        for path in (tmp_path / "out" / folder).iterdir()
    }
    load_script().main([str(part) for part in (checkpoint, *options)])
    again = capsys.readouterr()
    assert again.out == done.stdout
    assert "seed" not in again.err and "judge" not in again.err
    assert times == {path: path.stat().st_mtime_ns for path in times}


def test_without_a_judge_into_the_default_folder(checkpoint, data, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    options = ["--judge", "none", "--num_samples", 5, "--num_repeats", 1, "--samplers", "ode:2:method=heun",
               "--likelihood_texts", 0, "--no_progress", "--no_card"]  # fmt: skip
    load_script().main([str(part) for part in (checkpoint, *data, *options)])
    printed = capsys.readouterr().out
    assert "no judge, so perplexity and MAUVE are left out" in printed and "| ode:2:method=heun | 3 |" in printed
    result = json.loads((tmp_path / "evaluation_results" / "tiny" / "results.json").read_text(encoding="utf-8"))
    assert result["likelihood"] is None and "mauve" not in result["dataset_row"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--judge", "no-such/judge"], "judge 'no-such/judge' cannot be loaded"),
        (["--judge", "none"], "make the protocol smaller with `num_samples`, at most 12"),
        (["--judge", "none", "--samplers", "star"], "of the form method:steps"),
    ],
    ids=["judge", "too few texts", "sampler"],
)
def test_what_cannot_be_done_is_said_in_a_line(checkpoint, data, tmp_path, monkeypatch, capsys, options, said):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as end:
        load_script().main([str(part) for part in (checkpoint, *data, *options)])
    assert end.value.code == 2 and said in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
