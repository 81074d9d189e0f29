"""The command that measures what records become."""

import importlib.util
import json
from pathlib import Path

import pytest
from tiny import make_pipeline

from diffusers_text_nfdm import RefinementScheduler


SCRIPT = Path(__file__).parents[2] / "evaluation" / "evaluate_records.py"
OPTIONS = {
    "max_length": 12, "condition_length": 5, "condition_dropout": 0.1, "predictor": "two_stream",
    "prediction_type": "categorical", "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 3,
}  # fmt: skip


@pytest.fixture
def command():
    spec = importlib.util.spec_from_file_location("evaluate_records", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.main


@pytest.fixture
def checkpoint(tmp_path):
    pipeline = make_pipeline("nfdm", RefinementScheduler(), **OPTIONS)
    pipeline.tokenizer = type(pipeline.tokenizer).from_texts(["name [ Tom ] saw a fox"], min_count=0, max_length=12)
    pipeline.save_pretrained(tmp_path / "pipeline")
    return tmp_path / "pipeline"


@pytest.fixture
def records(tmp_path):
    rows = ['"name[Tom]",Tom saw a fox', '"name[fox]",a fox saw Tom', '"name[Tom]",Tom saw Tom']
    (tmp_path / "records.csv").write_text("mr,ref\n" + "\n".join(rows) + "\n")
    return tmp_path / "records.csv"


def test_a_row_for_every_guidance_scale(command, checkpoint, records, tmp_path, capsys):
    output = tmp_path / "scores.json"
    command([str(checkpoint), str(records), "--guidance_scale", "2", "1", "--output", str(output)])
    scores = json.loads(output.read_text())
    assert list(scores) == ["references", "guidance 2", "guidance 1"]
    assert scores["references"]["mentioned"] == 1
    assert len(scores["guidance 1"]["texts"]) == 2 and 0 <= scores["guidance 2"]["bleu"] <= 100
    assert scores["guidance 2"]["calls"] > scores["guidance 1"]["calls"] / 2
    assert "references" in capsys.readouterr().out
    command([str(checkpoint), str(records), "--output", str(output)])
    alone = json.loads(output.read_text())["guidance 1"]
    assert all(alone[name] == scores["guidance 1"][name] for name in ("texts", "calls")), "after another scale"


def test_what_has_no_meaning_is_refused(command, checkpoint, records, capsys):
    with pytest.raises(SystemExit):
        command([str(checkpoint), str(records), "--min_p", "0.1"])
    assert "`--min_p` is for baselines" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        command([str(checkpoint), str(records), "--condition_column", "record"])
    assert "has no column 'record'; its columns are mr, ref" in capsys.readouterr().err
