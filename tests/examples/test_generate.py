"""The example script: launched as a user does, and its refusals."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tiny import make_pipeline, make_tokenizer, seeded

from diffusers_text_nfdm import (
    AutoregressiveConfig,
    AutoregressiveModel,
    AutoregressivePipeline,
    MaskedDiffusionConfig,
    MaskedDiffusionModel,
    MaskedDiffusionPipeline,
    ReverseODEScheduler,
    files,
)


SCRIPT = Path(__file__).parents[2] / "examples" / "generate.py"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pipeline")
    make_pipeline("diffusion-lm").save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def script():
    specification = importlib.util.spec_from_file_location("generate", SCRIPT)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def test_launched_it_prints_and_writes_the_texts_and_the_picture(checkpoint, tmp_path):
    texts, picture = tmp_path / "texts.jsonl", tmp_path / "picture.png"
    command = [sys.executable, SCRIPT, checkpoint, "--num_samples", 5, "--steps", 6, "--seed", 3, "--batch_size", 2]
    command += ["--scheduler", "reverse-ode", "--method", "heun", "--output", texts, "--trajectory", picture]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(list(map(str, command)), env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr

    pipe = make_pipeline("diffusion-lm", ReverseODEScheduler("heun"))
    expected = pipe(num_samples=5, num_inference_steps=6, generator=seeded(3)).texts
    assert len(set(expected)) > 1 and done.stdout == "\n".join(expected) + "\n"
    lines = [json.loads(line) for line in texts.read_text(encoding="utf-8").splitlines()]
    assert lines == [{"text": text, "seed": 3, "index": index} for index, text in enumerate(expected)]
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["picture.png", "texts.jsonl"]


@pytest.mark.parametrize(
    "options, scheduler, option, value",
    [
        ([], "MarkovChainScheduler", "noise_fraction", 1.0),
        (["--scheduler", "markov-chain", "--noise_fraction", "snr"], "MarkovChainScheduler", "noise_fraction", "snr"),
        (["--scheduler", "markov-chain", "--noise_fraction", "0"], "MarkovChainScheduler", "noise_fraction", 0.0),
        (["--scheduler", "reverse-sde"], "ReverseSDEScheduler", "volatility_scale", 1.0),
        (["--scheduler", "reverse-sde", "--volatility_scale", "0"], "ReverseSDEScheduler", "volatility_scale", 0.0),
        (["--scheduler", "reverse-ode", "--method", "adaptive"], "ReverseODEScheduler", "method", "adaptive"),
    ],
)
def test_the_scheduler_and_its_option_are_those_asked_for(script, checkpoint, options, scheduler, option, value):
    pipe = script.load(script.build_parser().parse_args([str(checkpoint), *options]))
    assert type(pipe.scheduler).__name__ == scheduler and pipe.scheduler.config[option] == value


def test_sampling_options_reach_the_pipeline(script, checkpoint, capsys):
    arguments = [str(checkpoint), "--steps", "3", "--num_samples", "6"]
    script.main(arguments)
    plain = capsys.readouterr().out
    script.main([*arguments, "--temperature", "50"])
    hot = capsys.readouterr().out
    script.main([*arguments, "--temperature", "50", "--top_k", "1"])
    assert capsys.readouterr().out == plain != hot
    script.main([*arguments, "--temperature", "50", "--top_p", "1e-6"])
    assert capsys.readouterr().out == plain


def test_baselines_write_texts_with_the_options_that_they_have(script, tmp_path, capsys):
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
    sizes |= {"vocab_size": 11, "max_length": 8}
    masked = MaskedDiffusionPipeline(MaskedDiffusionModel(MaskedDiffusionConfig(**sizes)), make_tokenizer())
    ancestral = AutoregressivePipeline(AutoregressiveModel(AutoregressiveConfig(**sizes)), make_tokenizer())
    for name, pipe in (("masked", masked), ("ancestral", ancestral)):
        pipe.set_progress_bar_config(disable=True)
        pipe.save_pretrained(tmp_path / name)
    script.main([str(tmp_path / "masked"), "--steps", "4", "--remasking", "random", "--block_size", "2"])
    expected = masked(4, 4, 2, "random", generator=seeded(0)).texts
    assert capsys.readouterr().out == "\n".join(expected) + "\n"
    script.main([str(tmp_path / "ancestral")])
    assert capsys.readouterr().out == "\n".join(ancestral(4, generator=seeded(0)).texts) + "\n"
    for name, option in (("masked", ["--clock", "shared"]), ("ancestral", ["--remasking", "random"])):
        with pytest.raises(SystemExit):
            script.main([str(tmp_path / name), *option])
        assert f"{option[0]} has no meaning for a" in capsys.readouterr().err.splitlines()[-1]


def test_a_file_that_cannot_be_written_whole_leaves_the_old_one(tmp_path, monkeypatch):
    path = tmp_path / "texts.jsonl"
    path.write_text("old")
    monkeypatch.setattr(files.os, "replace", lambda *args: (_ for _ in ()).throw(OSError("no space left")))
    with pytest.raises(OSError, match="no space left"):
        files.write_file(path, "new")
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    "options, message",
    [
        (["--scheduler", "ddim"], "argument --scheduler: invalid choice: 'ddim'"),
        (["--scheduler", "reverse-ode", "--method", "rk4"], "argument --method: invalid choice: 'rk4'"),
        (["--noise_fraction", "half"], "argument --noise_fraction: invalid fraction value: 'half'"),
        (["--noise_fraction", "0.5"], "--noise_fraction needs --scheduler markov-chain"),
        (
            ["--scheduler", "reverse-ode", "--volatility_scale", "1"],
            "--volatility_scale needs --scheduler reverse-sde",
        ),
        (["--method", "heun"], "--method needs --scheduler reverse-ode"),
        (["--scheduler", "markov-chain", "--noise_fraction", "2"], "`noise_fraction` is 2.0"),
        (["--num_samples", "0"], "`num_samples` is 0"),
        (["--num_samples", "many"], "argument --num_samples: invalid int value: 'many'"),
        (["--steps", "-1"], "`num_inference_steps` is -1"),
        (["--confidence_threshold", "0.9"], "only 'categorical' has probabilities of tokens"),
        (["--top_k", "3"], "`top_k` and `top_p` need a `temperature` above 0"),
        (["--output", "no/such/folder/texts.jsonl"], "there is no folder no/such/folder"),
        (["--trajectory", "picture.docx"], "must end in one of .png, .pdf, .svg"),
        (["--device", "abacus"], "argument --device: 'abacus' cannot be used"),
    ],
)
def test_bad_arguments_are_refused_in_one_line(script, checkpoint, capsys, options, message):
    with pytest.raises(SystemExit) as ended:
        script.main([str(checkpoint), *options])
    errors = capsys.readouterr().err
    assert ended.value.code == 2 and message in errors.splitlines()[-1]


def test_a_folder_that_is_no_checkpoint_is_refused_in_one_line(script, tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        script.main([str(tmp_path)])
    assert ended.value.code == 2 and "is no pipeline checkpoint" in capsys.readouterr().err.splitlines()[-1]


def test_help_waits_for_no_import_of_torch():
    command = [sys.executable, "-X", "importtime", str(SCRIPT), "--help"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0 and "--num_samples" in done.stdout
    imported = {line.rsplit("|", 1)[-1].strip() for line in done.stderr.splitlines()}
    assert "argparse" in imported and not imported & {"torch", "transformers", "diffusers", "datasets"}
