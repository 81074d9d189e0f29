"""Tiny runs: in this process, or launched as users launch them."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file

from diffusers_text_nfdm.training import TrainingArguments


ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "examples" / "train_nfdm.py"
PREDICTOR = {
    "embedding_dim": 8,
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "num_time_buckets": 10,
}
NFDM = {
    "delta": 0.1,
    "forward_hidden_size": 16,
    "forward_num_layers": 1,
    "forward_num_heads": 2,
    "forward_intermediate_size": 24,
    "forward_time_dim": 12,
    "volatility_hidden_size": 8,
}
MULAN = {
    "schedule_hidden_size": 8,
    "context_dim": 6,
    "context_hidden_size": 16,
    "context_num_layers": 1,
    "context_num_heads": 2,
    "context_intermediate_size": 24,
}
TIMINGS = ("train/steps_per_second", "train/tokens_per_second", "train/cpu_seconds_per_step")


def arguments(data: Path, output_dir: Path | None, **overrides) -> TrainingArguments:
    """Eight steps of NFDM on the stories of the fixture `data`."""
    model_type = overrides.get("model_type", "nfdm")
    model_config = {
        **PREDICTOR,
        **{"nfdm": NFDM, "mulan": MULAN}.get(model_type, {}),
        **overrides.pop("model_config", {}),
    }
    settings = {
        "model_config": model_config,
        "dataset": str(data / "train.jsonl"),
        "validation_file": str(data / "valid.jsonl"),
        "min_word_count": 0,
        "max_length": 24,
        "max_steps": 8,
        "batch_size": 8,
        "learning_rate": 2e-3,
        "use_muon": model_type == "nfdm",
        "warmup_steps": 2,
        "clip_after_steps": 3,
        "max_grad_norm": 1.0,
        "ema_decay": 0.9,
        "checkpoint_every": 4,
        "checkpoints_total_limit": None,
        "log_every": 1,
        "evaluate_every": 4,
        "evaluation_texts": 8,
        "evaluation_draws": 2,
        "num_samples": 1,
        "final_samples": 2,
        "sampling_steps": 2,
        "save_plots": False,
        "output_dir": None if output_dir is None else str(output_dir),
    }
    return TrainingArguments(**{**settings, **overrides})


def metrics(run: Path, timings: bool = False) -> list[dict]:
    """What the run logged, without how fast it was."""
    entries = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in entry.items() if timings or key not in TIMINGS} for entry in entries]


def weights(run: Path, step: int) -> dict[str, torch.Tensor]:
    return load_file(run / f"checkpoint-{step:08d}" / "model.safetensors")


def averages(run: Path, step: int) -> dict[str, torch.Tensor]:
    return load_file(run / f"checkpoint-{step:08d}" / "average.safetensors")


def assert_same_run(one: Path, other: Path, step: int) -> None:
    """Bit for bit: weights, averaged weights, everything logged, all released files, and the texts sampled at the
    end."""
    for read in (weights, averages):
        a, b = read(one, step), read(other, step)
        assert a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
    assert metrics(one) == metrics(other)
    for name in ("pipeline", "best"):
        a, b = (
            {path.relative_to(run): path.read_bytes() for path in (run / name).rglob("*") if path.is_file()}
            for run in (one, other)
        )
        assert a.keys() == b.keys() and [file for file in a if a[file] != b[file]] == []
    assert (one / "samples.jsonl").read_text() == (other / "samples.jsonl").read_text()


def assert_close_weights(one, other, later, learning_rate):
    """Equal up to the rounding of sums in another order.

    Adam divides by the size of the gradient, so where that is itself rounding (the biases of attention's keys have
    none: softmax does not see them) a step may be of any sign; elsewhere an error of 1e-6 in the gradient moves a
    weight by 1e-6 of a step.
    """
    assert one.keys() == other.keys()
    for name in one:
        if "self.key.bias" in name or "query_key_value.bias" in name:
            continue
        difference = (one[name] - other[name]).abs()
        if name.endswith(".key_value.bias"):
            # The second half is of the values.
            difference = difference.chunk(2)[1]
        difference = difference.max()
        assert difference < 0.01 * learning_rate, f"{name} differs by {difference}"
    moved = max((one[name] - later[name]).abs().max() for name in one)
    assert moved > learning_rate, "weights that hardly move would always agree"


def environment(**variables: str) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("ACCELERATE_")}
    return {**kept, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", **variables}


def launch(config: Path, *options: str, processes: int = 1, cwd: Path | None = None) -> subprocess.Popen:
    """The example script, started and not waited for, in a process group of its own."""
    command = [sys.executable]
    variables = {}
    if processes > 1:
        # `accelerate launch --cpu --num_processes 2` runs one process.
        variables["ACCELERATE_USE_CPU"] = "true"
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        command += ["-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", str(processes)]
        command += [
            "--num_machines",
            "1",
            "--mixed_precision",
            "no",
            "--dynamo_backend",
            "no",
            "--main_process_port",
            str(port),
        ]
    command += [str(SCRIPT), "--config", str(config), *options]
    return subprocess.Popen(
        command,
        env=environment(**variables),
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def finish(process: subprocess.Popen, code: int = 0, timeout: float = 1200) -> str:
    """Wait for a launched script, check its exit code, and return what it printed."""
    output, errors = process.communicate(timeout=timeout)
    assert process.returncode == code, f"exit code {process.returncode}\n{output[-3000:]}\n{errors[-5000:]}"
    return output + errors
