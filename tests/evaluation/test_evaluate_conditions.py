"""The command that measures how stories are completed."""

import importlib.util
import json
from pathlib import Path

import pytest
import torch
from tiny_baseline import make_baseline
from tiny_masked import make_masked

from diffusers_text_nfdm import AutoregressivePipeline, MaskedDiffusionPipeline, WordTokenizer
from diffusers_text_nfdm.stories import StoryGrammar


SCRIPT = Path(__file__).parents[2] / "evaluation" / "evaluate_conditions.py"
FEW = ["--num_stories", "3", "--num_pairs", "2"]


@pytest.fixture
def command():
    spec = importlib.util.spec_from_file_location("evaluate_conditions", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.main


@pytest.fixture(
    params=[(make_baseline, AutoregressivePipeline), (make_masked, MaskedDiffusionPipeline)],
    ids=["left to right", "masked"],
)
def checkpoint(request, tmp_path):
    make, pipeline = request.param
    tokenizer = WordTokenizer.from_texts(StoryGrammar().sample(2000, seed="words"), min_count=0, max_length=64)
    model = make(torch.float32, vocab_size=len(tokenizer), max_length=64)
    pipeline(model, tokenizer).save_pretrained(tmp_path / "pipeline")
    return pipeline, str(tmp_path / "pipeline")


def test_what_a_baseline_can_do_is_measured(command, checkpoint, tmp_path, capsys):
    kind, folder = checkpoint
    output = tmp_path / "scores.json"
    command([folder, *FEW, "--tasks", "continuation", "sentence", "--output", str(output)])
    scores = json.loads(output.read_text())
    filled = [] if kind is AutoregressivePipeline else ["sentence"]
    assert list(scores) == ["continuation", *filled, "endings"]
    assert scores["continuation"]["calls"] > 0 and scores["endings"]["pairs"] == 2
    assert "continuation" in capsys.readouterr().out


def test_steps_are_of_a_pipeline_that_has_them(command, checkpoint, capsys):
    kind, folder = checkpoint
    arguments = [folder, *FEW, "--tasks", "continuation", "--steps", "4"]
    if kind is MaskedDiffusionPipeline:
        command(arguments)
        assert "calls 4.0" in capsys.readouterr().out
        return
    with pytest.raises(SystemExit):
        command(arguments)
    assert "takes a step for every token; leave `--steps` out" in capsys.readouterr().err
