"""`make bench` in its quick mode, and what its numbers mean."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel


BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
import long_texts  # noqa: E402
import run  # noqa: E402
from memory import growth, peak_bytes  # noqa: E402
from timing import interleaved, matrix_operations, ratios  # noqa: E402
from window_sampling import CLOCKS, make_model, pipelines, sample  # noqa: E402


def test_quick_run_prints_every_table_and_saves_every_number(tmp_path):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(BENCHMARKS / "run.py"), "--quick", "--output", str(tmp_path / "bench.json")]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=1200)
    assert done.returncode == 0, done.stderr
    assert "profiler" not in done.stderr
    record = json.loads((tmp_path / "bench.json").read_text())
    assert record["training"]["quick"]["speedups"].keys() >= {"step", "step with optimizer", "likelihood"}
    assert all(0 < share < 1 for share in record["training"]["quick"]["shares"].values())
    assert record["samplers"]["quick"]["predictor"] == 1
    for shares in record["training"]["quick"]["profiles"].values():
        assert sum(shares.values()) == pytest.approx(1) and shares["matrix products"] > 0
    assert [(row["clock"], row["batch"]) for row in record["windows"]] == [
        (clock, batch) for clock in ("ramp:8", "blocks:8") for batch in (1, 2)
    ]
    assert record["memory"].keys() == {"batch", "length", "vocabulary"}
    assert {(row["axis"], row["clock"]) for row in record["long"]} == {
        (axis, clock) for axis in ("length", "batch", "vocabulary") for clock in ("ramp:8", "shared")
    }
    assert (tmp_path / "bench.png").is_file()
    assert [row["step"] for row in record["precision"]] == ["next token", "cross-entropy", "bound"]
    assert all(row["float32"] > 0 and row["bfloat16"] > 0 for row in record["precision"])
    assert record["autoregressive"]["quick"].keys() == {"1", "2"}
    assert done.stdout.count("\n|---") == 9 and "ours grows with the power" in done.stdout


@pytest.mark.parametrize("clock", CLOCKS)
def test_sampling_in_windows_gives_what_the_plain_pipeline_gives(clock):
    both = pipelines(make_model("quick").double())
    plain, ours = (sample(pipe, clock, 2) for pipe in both.values())
    assert ours.std() > 0.1
    torch.testing.assert_close(ours, plain, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("option", ["repeats", "threads"])
def test_a_number_below_one_is_refused_before_any_work(option, capsys):
    with pytest.raises(SystemExit) as ended:
        run.main([f"--{option}", "0"])
    assert ended.value.code == 2 and f"`{option}` is 0; it must be at least 1." in capsys.readouterr().err


def test_peak_is_what_is_held_at_once():
    def work():
        for _ in range(3):
            torch.empty(1000)  # Freed at once.
        both = torch.empty(5000), torch.empty(2000)
        del both

    assert peak_bytes(work) == 4 * 7000


@pytest.mark.parametrize("power", [1, 2])
def test_growth_is_the_power_of_the_length(power):
    points = [{"value": value, "ours": 3.0 * value**power} for value in (256, 512, 2048)]
    assert growth(points) == pytest.approx(power)


def test_growth_of_what_is_held_per_token_is_that_of_the_whole():
    rows = [
        {"axis": axis, "value": value, "clock": clock, "step kB": 3.0 * value**power}
        for axis, clock, power in (("length", "ramp:8", 0.5), ("length", "shared", 0), ("batch", "ramp:8", 7))
        for value in (64, 256, 1024)
    ]
    assert long_texts.growth(rows, "ramp:8", "step") == pytest.approx(1.5)
    assert long_texts.growth(rows, "shared", "step") == pytest.approx(1)


def test_operations_of_a_product_are_counted():
    assert matrix_operations(lambda: torch.randn(3, 4) @ torch.randn(4, 5)) == 2 * 3 * 4 * 5


def test_operations_of_products_in_place_are_counted():
    matrix, stack = torch.zeros(3, 5), torch.zeros(2, 3, 5)
    product = 2 * 3 * 4 * 5
    assert matrix_operations(lambda: matrix.addmm_(torch.randn(3, 4), torch.randn(4, 5))) == product
    assert matrix_operations(lambda: stack.baddbmm_(torch.randn(2, 3, 4), torch.randn(2, 4, 5))) == 2 * product


def test_operations_of_fused_attention_are_counted_in_both_directions():
    batch, heads, queries, keys, size = 2, 3, 7, 5, 4
    query = torch.randn(batch, heads, queries, size, requires_grad=True)
    key, value = torch.randn(2, batch, heads, keys, size, requires_grad=True)
    product = 2 * batch * heads * queries * keys * size
    attended = []
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        forward = matrix_operations(lambda: attended.append(F.scaled_dot_product_attention(query, key, value)))
    assert forward == 2 * product
    assert matrix_operations(attended[0].sum().backward) == 5 * product


def test_ratios_are_of_medians_in_turns():
    order = []
    seconds = interleaved({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, 2)
    assert order == ["a", "b"] * 3 and all(len(values) == 2 for values in seconds.values())
    assert ratios({"a": [1, 1, 9], "b": [2, 3, 4]}, "a") == {"a": 1, "b": 3}
