"""The example script: launched as a user does, and by its function where only its messages matter."""

import json
import os
import subprocess
import sys
from pathlib import Path

import estimate_likelihood
import pytest
import tiny_masked
import torch
from tiny import make_pipeline


SCRIPT = Path(__file__).parents[2] / "examples" / "estimate_likelihood.py"


def run(*arguments):
    estimate_likelihood.main(list(map(str, arguments)))


def refused(capsys, *arguments):
    """What is said of bad arguments."""
    with pytest.raises(SystemExit) as ended:
        run(*arguments)
    assert ended.value.code == 2
    return capsys.readouterr().err


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pipeline")
    make_pipeline("diffusion-lm").save_pretrained(folder)
    return folder


def test_a_file_gives_a_table_and_the_protocol(checkpoint, tmp_path):
    (tmp_path / "valid.txt").write_text("the cat\na dog\nthe dog\n", encoding="utf-8")
    options = ["--dataset", tmp_path / "valid.txt", "--draws", 2, "--output", tmp_path / "result.json"]
    command = [sys.executable, str(SCRIPT), str(checkpoint), *map(str, options)]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))
    assert result["protocol"]["texts"] == 3 and result["protocol"]["draws_per_text"] == 2
    assert f"{result['nats_per_story']['value']:.4f}" in done.stdout and "The truth beneath it" not in done.stdout


def test_texts_with_conditions(tmp_path, capsys):
    options = {"max_length": 8, "condition_length": 3, "copied_slots": ["name"]}
    make_pipeline("diffusion-lm", **options).save_pretrained(tmp_path / "pipeline")
    (tmp_path / "records.csv").write_text("mr,ref\nred,Tom saw\nfox,a fox\n", encoding="utf-8")
    columns = ["--text_column", "ref", "--condition_column", "mr"]
    run(tmp_path / "pipeline", "--dataset", tmp_path / "records.csv", "--draws", 2, *columns)
    assert "nats per story" in capsys.readouterr().out
    error = refused(capsys, tmp_path / "pipeline", "--dataset", tmp_path / "records.csv", "--text_column", "ref")
    assert "has no column 'condition'; its columns are mr, ref" in error


def test_jumps_have_a_bound_for_every_number_of_calls(checkpoint, tmp_path, capsys):
    options = {"prediction_type": "categorical", "predictor": "two_stream", "jumps": True, "max_length": 8}
    make_pipeline("nfdm", **options).save_pretrained(tmp_path / "pipeline")
    (tmp_path / "valid.txt").write_text("the cat\na dog\n", encoding="utf-8")
    given = ["--dataset", tmp_path / "valid.txt", "--draws", 2, "--calls", 3]
    run(tmp_path / "pipeline", *given, "--output", tmp_path / "result.json")
    assert json.loads((tmp_path / "result.json").read_text())["protocol"]["jumps"].startswith("3 calls")
    error = refused(capsys, tmp_path / "pipeline", *given, "--clock", "shared")
    assert "--clock has no meaning for a NFDMTextPipeline with --calls" in error
    assert "The model cannot jump" in refused(capsys, checkpoint, *given)


def test_clean_streams_have_an_exact_likelihood(checkpoint, tmp_path, capsys):
    options = {"prediction_type": "categorical", "predictor": "two_stream", "max_length": 8}
    make_pipeline("nfdm", **options).save_pretrained(tmp_path / "nfdm")
    tiny_masked.make_pipeline(dtype=torch.float32).save_pretrained(tmp_path / "masked")
    (tmp_path / "valid.txt").write_text("the cat\na dog\n", encoding="utf-8")
    given = ["--dataset", tmp_path / "valid.txt", "--clean_stream"]
    for name in ("nfdm", "masked"):
        run(tmp_path / name, *given, "--output", tmp_path / "result.json")
        assert "exact" in json.loads((tmp_path / "result.json").read_text())["protocol"]["quantity"]
    error = refused(capsys, tmp_path / "nfdm", *given, "--clock", "shared")
    assert "--clock has no meaning for a NFDMTextPipeline with --clean_stream" in error
    assert "Only the clean stream" in refused(capsys, checkpoint, *given)


def test_what_cannot_be_loaded_is_said_in_a_line(tmp_path, capsys):
    error = refused(capsys, tmp_path / "nothing")
    assert "Traceback" not in error and "nothing" in error.splitlines()[-1]


def test_the_excess_by_place(tmp_path, checkpoint, capsys):
    options = {"predictor": "two_stream", "prediction_type": "categorical", "decoder": "gaussian"}
    make_pipeline("nfdm", max_length=6, **options).save_pretrained(tmp_path / "pipeline")
    (tmp_path / "valid.txt").write_text("the cat\na dog\nthe dog\n", encoding="utf-8")
    texts = ["--dataset", tmp_path / "valid.txt", "--draws", 2]
    run(tmp_path / "pipeline", *texts, "--clock", "blocks:2", "--by_place")
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["place", "0", "1", "sum"]
    assert "no windows that are given a clean stream" in refused(capsys, checkpoint, *texts, "--by_place")
    beside = refused(capsys, tmp_path / "pipeline", *texts, "--by_place", "--clean_stream")
    assert "--by_place is for the bound of a diffusion model" in beside
