"""Calls against quality: one row for each way of sampling each checkpoint, as a table and a picture."""

import importlib.util
import json
from pathlib import Path

import pytest
import torch
from tiny import make_pipeline, make_tokenizer, randomize

from diffusers_text_nfdm import (
    AutoregressiveConfig,
    AutoregressiveModel,
    AutoregressivePipeline,
    MaskedDiffusionConfig,
    MaskedDiffusionModel,
    MaskedDiffusionPipeline,
)


SCRIPT = Path(__file__).parents[2] / "evaluation" / "few_calls.py"
OPTIONS = {
    "prediction_type": "categorical", "predictor": "two_stream", "jumps": True, "max_length": 16,
    "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 3, "clock": "ramp:8",
}  # fmt: skip
SIZES = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}


@pytest.fixture
def script(monkeypatch):
    spec = importlib.util.spec_from_file_location("few_calls", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "BATCHES", (1, 2))
    threads = torch.get_num_threads()
    yield module
    torch.set_num_threads(threads)


@pytest.fixture
def checkpoints(tmp_path):
    ours, baseline = tmp_path / "ours", tmp_path / "baseline"
    make_pipeline("nfdm", **OPTIONS).save_pretrained(ours)
    model = randomize(AutoregressiveModel(AutoregressiveConfig(vocab_size=11, max_length=16, **SIZES)))
    AutoregressivePipeline(model, make_tokenizer()).save_pretrained(baseline)
    return str(ours), str(baseline)


def test_every_sampling_of_every_checkpoint_has_a_row(script, checkpoints, tmp_path, capsys, monkeypatch):
    # The last column of the picture is of batches of 64.
    monkeypatch.setattr(script, "BATCHES", (1, 64))
    samplings = ("jump:4", "jump:64:jump_length=2", "draft:64", "refine:64")
    monkeypatch.setattr(script, "CLOCKS", samplings[3:])
    monkeypatch.setattr(script, "JUMPS", samplings[:3])
    script.main([*checkpoints, "--num_samples", "3", "--timed_samples", "1", "--output", str(tmp_path / "table")])
    rows = json.loads((tmp_path / "table.json").read_text())
    assert [row["sampling"] for row in rows] == [*samplings[3:], *samplings[:3], "ancestral:min_p=0.02"]
    assert rows[1]["most_calls"] <= 4 and rows[-1]["calls"] <= 15
    table = (tmp_path / "table.md").read_text()
    assert table in capsys.readouterr().out
    assert table.count("\n") == len(rows) + 2 and len({line.count("|") for line in table.splitlines()}) == 1
    assert (tmp_path / "table.png").stat().st_size > 10_000


def test_masked_diffusion_is_sampled_in_all_numbers_of_calls(script, tmp_path):
    model = randomize(MaskedDiffusionModel(MaskedDiffusionConfig(vocab_size=11, max_length=64, block_size=8, **SIZES)))
    MaskedDiffusionPipeline(model, make_tokenizer()).save_pretrained(tmp_path)
    rows = script.measure(str(tmp_path), None, 2, 1, 0)
    assert len(rows) == 10 and {row["most_calls"] for row in rows} <= {63, 64, 32, 16, 8, 4}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--samplings", "jump"], "The sampling is 'jump'; it must be of the form"),
        (["--output", "no/such/folder/table"], "there is no folder no/such/folder"),
    ],
)
def test_bad_arguments_are_refused_in_a_sentence(arguments, message, script, checkpoints, capsys):
    with pytest.raises(SystemExit):
        script.main([checkpoints[0], *arguments])
    assert message in capsys.readouterr().err
