"""The example script: launched as a user does, and its refusals."""

import importlib.util
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tiny import make_pipeline, make_tokenizer, seeded

from diffusers_text_nfdm import (
    AutoregressiveConfig,
    AutoregressiveModel,
    AutoregressivePipeline,
    JumpScheduler,
    MaskedDiffusionConfig,
    MaskedDiffusionModel,
    MaskedDiffusionPipeline,
    NFDMTextPipeline,
    ReverseODEScheduler,
    files,
)
from diffusers_text_nfdm.pipelines.live_text import RESET, STYLES, LiveText


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
    expected = masked(
        num_samples=4, num_inference_steps=4, block_size=2, remasking="random", generator=seeded(0)
    ).texts
    assert capsys.readouterr().out == "\n".join(expected) + "\n"
    script.main([str(tmp_path / "ancestral")])
    assert capsys.readouterr().out == "\n".join(ancestral(num_samples=4, generator=seeded(0)).texts) + "\n"
    for name, option in (("masked", ["--clock", "shared"]), ("ancestral", ["--remasking", "random"])):
        with pytest.raises(SystemExit):
            script.main([str(tmp_path / name), *option])
        assert f"{option[0]} has no meaning for a" in capsys.readouterr().err.splitlines()[-1]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def screen(written: str) -> list[str]:
    """The lines that a terminal shows: what is written over is gone."""
    lines, row = [""], 0
    for move, erase, rest in re.findall(r"\x1b\[(\d+)A\r|(\x1b\[J|\x1b\[2K)|([^\x1b\n]+|\n|\x1b\[\d+m)", written):
        if move:
            row -= int(move)
        elif erase == "\x1b[J":
            lines[row:] = [""]
        elif rest == "\n":
            row += 1
            lines += [""] * (row == len(lines))
        elif rest and not rest.startswith("\x1b"):
            lines[row] += rest
    return lines


SCHEDULERS = ["jump", "draft-verify", "refinement", "markov-chain", "reverse-sde", "reverse-ode"]


@pytest.fixture(scope="module")
def jumping(tmp_path_factory):
    folder = tmp_path_factory.mktemp("jumps")
    options = {"prediction_type": "categorical", "predictor": "two_stream", "jumps": True, "max_length": 9}
    options |= {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 3}
    make_pipeline("nfdm", JumpScheduler(jump_length=3), **options).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("prompt", [[], ["--prompt", "Tom saw"], ["--prompt", "Tom [GAP] ran ."]])
@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_a_watched_text_is_the_same_and_ends_alone_on_the_screen(
    script, jumping, capsys, monkeypatch, scheduler, prompt
):
    arguments = [str(jumping), "--num_samples", "2", "--seed", "5", "--scheduler", scheduler, *prompt]
    arguments += [] if scheduler in SCHEDULERS[:3] else ["--steps", "3"]
    script.main(arguments)
    plain = capsys.readouterr().out
    # Not watched where nobody sees it.
    script.main([*arguments, "--watch", "0"])
    assert capsys.readouterr().out == plain
    monkeypatch.setattr(sys, "stdout", Terminal())
    script.main([*arguments, "--watch", "0"])
    written = sys.stdout.getvalue()
    assert "\n".join(screen(written)) == plain
    assert "call 1" in written and STYLES["draft"] in written
    assert (f"{STYLES['given']}Tom" in written) == bool(prompt)


def test_verified_words_are_green_and_drafts_dim(jumping):
    pipe = NFDMTextPipeline.from_pretrained(jumping)
    pipe.set_progress_bar_config(disable=True)
    tokens = torch.tensor([[0, *pipe.tokenizer("Tom saw a fox", add_special_tokens=False)["input_ids"], 3, 3, 3, 3]])
    known = torch.tensor([[True, True] + [False] * 7])
    out = Terminal()
    LiveText(seconds=0, out=out)(pipe, 0, torch.tensor([6 / 9]), {"tokens": tokens, "known": known})
    styles = ("given", "settled", "draft", "draft")
    styled = [f"{STYLES[style]}{word}{RESET}" for style, word in zip(styles, ("Tom", "saw", "a", "fox"))]
    assert " ".join(styled) in out.getvalue()


def test_a_text_is_broken_where_the_terminal_ends(jumping, monkeypatch):
    monkeypatch.setenv("COLUMNS", "12")
    pipe, out = NFDMTextPipeline.from_pretrained(jumping), Terminal()
    ids = pipe.tokenizer("Tom saw a fox . Tom ran", add_special_tokens=False)["input_ids"]
    known = torch.zeros(1, 9, dtype=torch.bool)
    live = LiveText(seconds=0, out=out)
    live(pipe, 0, torch.tensor([0.0]), {"tokens": torch.tensor([[0, *ids, 3]]), "known": known})
    assert screen(out.getvalue()) == ["call 1", "Tom saw a", "fox. Tom", "ran", ""]
    live.clear()
    assert screen(out.getvalue()) == [""]


def test_the_network_is_compiled_if_asked_for(script, checkpoint, monkeypatch):
    compiled = []
    monkeypatch.setattr("diffusers_text_nfdm.networks.compilation.compile_layers", compiled.append)
    script.load(script.build_parser().parse_args([str(checkpoint)]))
    assert not compiled
    pipe = script.load(script.build_parser().parse_args([str(checkpoint), "--compile"]))
    assert compiled == [pipe.model]


def test_a_film_is_written(script, jumping, tmp_path):
    script.main([str(jumping), "--num_samples", "1", "--trajectory", str(tmp_path / "film.gif")])
    assert (tmp_path / "film.gif").read_bytes().startswith(b"GIF89a")


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
        (["--top_k", "3"], "`top_k`, `top_p`, `min_p` and `contrast` need a `temperature` above 0"),
        (["--output", "no/such/folder/texts.jsonl"], "there is no folder no/such/folder"),
        (["--trajectory", "picture.docx"], "must end in one of .png, .pdf, .svg, .gif"),
        (["--device", "abacus"], "The device 'abacus' cannot be used"),
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


@pytest.mark.parametrize("name", ["generate", "estimate_likelihood", "app"])
def test_help_waits_for_no_import_of_torch(name):
    command = [sys.executable, "-X", "importtime", str(SCRIPT.with_stem(name)), "--help"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0 and "--device" in done.stdout
    imported = {line.rsplit("|", 1)[-1].strip() for line in done.stderr.splitlines()}
    assert "argparse" in imported and not imported & {"torch", "transformers", "diffusers", "datasets"}
