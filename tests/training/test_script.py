"""examples/train_nfdm.py as users launch it: killed, stopped, resumed, with two processes, pushed to a Hub."""

import json
import random
import runpy
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import psutil
import pytest
import torch
from hub_server import HubServer, card_metadata
from huggingface_hub.errors import HfHubHTTPError

from diffusers_text_nfdm.pipelines import hub
from diffusers_text_nfdm.training import summary
from diffusers_text_nfdm.training.checkpoints import checkpoint_folders, step_of
from runs import (
    ROOT,
    SCRIPT,
    arguments,
    assert_close_weights,
    assert_same_run,
    environment,
    finish,
    launch,
    metrics,
    weights,
)


STEPS = 60


@pytest.fixture(scope="module")
def config(data, tmp_path_factory):
    """Settings in a file. Checkpoints at every seventh step, so that a kill is rarely at one."""
    path = tmp_path_factory.mktemp("config") / "tiny.yaml"
    # Steps on the cross-entropy leave parameters without gradient, which DDP and the optimizers have to bear.
    settings = arguments(
        data,
        None,
        max_steps=STEPS,
        checkpoint_every=7,
        evaluate_every=20,
        cross_entropy_steps=1,
        known_texts={"span": 0.5},
        clocks={"blocks:8": 0.5, "random:2": 0.5},
        next_token_weight=0.5,
        cooccurrence_embeddings=True,
        sampling_steps=3,
        model_config={
            "clock": "blocks:8",
            "predictor": "two_stream",
            "prediction_type": "categorical",
            "decoder": "gaussian",
            "self_conditioning": True,
        },
    )
    path.write_text(settings.to_yaml())
    return path


@pytest.fixture(scope="module")
def uninterrupted(config, tmp_path_factory):
    run = tmp_path_factory.mktemp("uninterrupted") / "run"
    printed = finish(launch(config, "--output_dir", str(run)))
    assert "Bound on the validation texts" in printed and "tokens/s=" in printed
    return run


def wait_for_step(process, run, step):
    """Until the run has logged `step`."""
    deadline = time.monotonic() + 1200
    while time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()[1][-3000:]
        if (run / "metrics.jsonl").is_file():
            lines = (run / "metrics.jsonl").read_text().splitlines()[:-1]
            if lines and json.loads(lines[-1])["step"] >= step:
                return
        time.sleep(0.01)
    raise TimeoutError(f"step {step} was not reached")


def kill(process):
    """SIGKILL to the launcher and to all it started, which it puts into sessions of their own."""
    launcher = psutil.Process(process.pid)
    for running in [launcher, *launcher.children(recursive=True)]:
        running.kill()
    process.communicate()


def test_killed_and_stopped_and_resumed_is_the_run_never_interrupted(config, uninterrupted, tmp_path):
    run = tmp_path / "run"
    step = random.SystemRandom().randrange(1, 25)
    process = launch(config, "--output_dir", str(run))
    wait_for_step(process, run, step)
    kill(process)
    assert not (run / "summary.json").exists()
    killed_at = metrics(run)[-1]["step"]

    process = launch(config, "--output_dir", str(run), "--resume", "latest")
    wait_for_step(process, run, killed_at + 2)
    process.send_signal(signal.SIGTERM)
    printed = finish(process, code=3)
    stopped_at = step_of(checkpoint_folders(run)[-1])
    assert f"Stopped by a signal at step {stopped_at} of {STEPS}; continue with `--resume latest`." in printed
    assert killed_at < stopped_at < STEPS, f"killed at {killed_at}, stopped at {stopped_at}"

    printed = finish(launch(config, "--output_dir", str(run), "--resume", "latest"))
    assert f"Resumed from {run}/checkpoint-{stopped_at:08d}." in printed
    assert_same_run(uninterrupted, run, STEPS)


def test_two_processes_are_one_with_twice_the_batch(config, uninterrupted, tmp_path):
    run = tmp_path / "run"
    # The launcher takes a run that stops early for one that failed.
    finish(launch(config, "--output_dir", str(run), "--stop_after_steps", "16", processes=2), code=1)
    assert (run / "checkpoint-00000007" / "random_states_1.pkl").is_file(), "two processes must have run"
    one = {entry["step"]: entry for entry in metrics(uninterrupted) if "train/loss" in entry}
    two = {entry["step"]: entry for entry in metrics(run) if "train/loss" in entry}
    for step in range(1, 15):
        for key in ("train/loss", "train/gradient_norm"):
            assert two[step][key] == pytest.approx(one[step][key], rel=1e-3), f"{key} at step {step}"
    assert_close_weights(weights(uninterrupted, 7), weights(run, 7), weights(run, 14), learning_rate=2e-3)


@pytest.mark.slow
def test_two_processes_killed_and_resumed(config, tmp_path):
    whole, run = tmp_path / "whole", tmp_path / "run"
    finish(launch(config, "--output_dir", str(whole), processes=2))
    process = launch(config, "--output_dir", str(run), processes=2)
    wait_for_step(process, run, random.SystemRandom().randrange(1, 25))
    kill(process)
    assert not (run / "summary.json").exists()
    killed_at = metrics(run)[-1]["step"]
    # The launcher passes the signal on to both.
    process = launch(config, "--output_dir", str(run), "--resume", "latest", processes=2)
    wait_for_step(process, run, killed_at + 2)
    process.send_signal(signal.SIGTERM)
    printed, _ = process.communicate(timeout=1200)
    stopped_at = step_of(checkpoint_folders(run)[-1])
    assert killed_at < stopped_at < STEPS and f"Stopped by a signal at step {stopped_at} of {STEPS}" in printed
    finish(launch(config, "--output_dir", str(run), "--resume", "latest", processes=2))
    assert (run / "checkpoint-00000060" / "random_states_1.pkl").is_file(), "two processes must have run"
    assert_same_run(whole, run, STEPS)


def torchrun(config, run):
    """Two processes that torchrun starts again, up to twice, where one of them dies."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    command += ["--max_restarts", "2", str(SCRIPT), "--config", str(config), "--max_steps", "35"]
    command += ["--output_dir", str(run), "--resume", "latest"]
    # Else processes that are started again may find the addresses of those before them in torchrun's store, and wait.
    env = environment(ACCELERATE_USE_CPU="true", TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1")
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, env=env, start_new_session=True, **pipes)


@pytest.mark.slow
def test_torchrun_starts_a_run_again_from_its_last_checkpoint_when_a_worker_dies(config, tmp_path):
    whole, run = tmp_path / "whole", tmp_path / "run"
    finish(torchrun(config, whole))
    process = torchrun(config, run)
    # The second dies before there is a checkpoint, and the first, which writes them, after there is one.
    for step, rank in ((3, "1"), (17, "0")):
        wait_for_step(process, run, step)
        workers = psutil.Process(process.pid).children(recursive=True)
        next(worker for worker in workers if worker.environ().get("RANK") == rank).kill()
    printed = finish(process)
    assert "Resumed from" in printed and "checkpoint-000000" in printed
    assert (run / "checkpoint-00000035" / "random_states_1.pkl").is_file(), "two processes must have run"
    assert_same_run(whole, run, 35)


def test_pushed_to_the_hub_with_its_card(config, tmp_path):
    with HubServer() as hub:
        env = hub.env(tmp_path / "home") | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, str(SCRIPT), "--config", str(config), "--max_steps", "2", "--push_to_hub"]
        options = ["--output_dir", str(tmp_path / "my-model"), "--hub_private"]
        done = subprocess.run(command + options, env=env, capture_output=True, text=True, timeout=1200)
        assert done.returncode == 0, done.stderr[-3000:]
        assert "Pushed to user/my-model." in done.stdout
        files = hub.repos["user/my-model"].files()
    local = tmp_path / "my-model" / "pipeline"
    for path in local.rglob("*"):
        if path.is_file():
            assert files[path.relative_to(local).as_posix()] == path.read_bytes()
    card = files["README.md"].decode()
    metadata, errors = card_metadata(card)
    assert errors == [] and metadata["library_name"] == "diffusers_text_nfdm"
    assert "user/my-model" in card and "`batch_size`: 8" in card and "nats per text" in card


@pytest.mark.parametrize(
    "error",
    [
        ConnectionResetError("reset by peer"),
        json.JSONDecodeError("Expecting value", "<html>", 0),
        # Of the client's HTTP library, whichever it is.
        type("RemoteProtocolError", (Exception,), {"__module__": "httpx"})("peer closed connection"),
        HfHubHTTPError("500 Server Error", response=SimpleNamespace(status_code=500, headers={}, request=None)),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_push_that_fails_after_the_training_says_how_to_push_by_hand(error, tmp_path, monkeypatch):
    tries = []

    def fail(**options):
        tries.append(options["folder_path"])
        raise error

    monkeypatch.setattr(hub, "PAUSES", (0, 0))
    monkeypatch.setattr(hub, "upload_folder", fail)
    with pytest.raises(OSError, match=f"Push it with `hf upload user/mine {tmp_path}`"):
        summary.upload(tmp_path, "user/mine")
    assert tries == [str(tmp_path)] * 3


def test_errors_are_said_in_a_line_and_leave_nothing(config, tmp_path, monkeypatch, capsys):
    """The Hub is out of reach here, which is found before the first step."""
    options = ["--config", str(config), "--output_dir", str(tmp_path / "run"), "--push_to_hub"]
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), *options])
    try:
        with pytest.raises(SystemExit, match="1"):
            runpy.run_path(str(SCRIPT), run_name="__main__")
    finally:
        torch.set_flush_denormal(False)
    printed = capsys.readouterr().err
    assert "error: `push_to_hub` is set, but the repository 'run' can be neither found nor created" in printed
    assert not (tmp_path / "run").exists()
