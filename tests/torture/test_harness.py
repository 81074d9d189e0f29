"""The campaign itself: it must notice what it is there to notice. (`make torture` runs it in full.)"""

import os
import pickle
import random
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from hub_server import HubServer
from safetensors.torch import load_file, save_file
from tqdm import tqdm

from torture import hub, memory, threads
from torture.__main__ import KINDS, main, one_kind
from torture.children import RUN, TOO_LONG, Child, Ended, half_written
from torture.damaged import inflict
from torture.entry_points import Entry
from torture.fuzz import fuzz_entry
from torture.kills import judge, moment
from torture.odd_values import fits
from torture.tally import Campaign, Tally, is_sentence, report


# A process of its own, as `make torture` has: a fork of a test worker could inherit locks of the worker's threads.
CAMPAIGN = """
import pickle, sys, torch
from pathlib import Path
from torture.kills import Victim
from torture.tally import Campaign, Tally
torch.set_num_threads(1)
folder = Path(sys.argv[1])
victim = Victim(Campaign(folder, seed=1, seconds=0), Tally("kills"), processes=1)
victim.series()
(folder / "victim").write_bytes(pickle.dumps(victim))
"""


def counts(call, **options):
    tally = Tally("fuzz")
    fuzz_entry(Entry("entry", call, lambda: {"size": 1}, **options), tally, examples=60, seed=0)
    assert tally.tried >= 50
    return tally.survived, tally.count("silent"), tally.count("obscure")


def test_an_entry_point_that_raises_a_key_error_is_obscure():
    def entry(size: int):
        return {1: "one"}[size if isinstance(size, int) else 1]

    _, _, obscure = counts(entry)
    assert obscure > 0


def test_an_error_that_does_not_name_the_argument_is_obscure():
    def entry(size: int):
        raise ValueError("there is something wrong with this")

    assert counts(entry)[2] > 0 and counts(entry)[0] == 0


def test_a_wrong_kind_that_is_taken_is_silent():
    def entry(size: int):
        return 1.0

    survived, silent, obscure = counts(entry)
    assert silent > survived > 0 and obscure == 0


def test_a_result_that_makes_no_sense_is_silent():
    def entry(size):
        return float("nan")

    assert counts(entry, check=lambda value: None if value == value else "nan")[1] > 0


def test_an_entry_point_that_refuses_by_name_survives():
    def entry(size: int):
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise ValueError(f"`size` is {size!r}; it must be an integer of at least 1.")
        return size

    _, silent, obscure = counts(entry)
    assert silent == obscure == 0


@pytest.mark.parametrize(
    ("value", "annotation", "fitting"),
    [
        (1, "int | None", True),
        (None, "int | None", True),
        ("x", "int | None", False),
        (True, "int", False),
        (1, "float", True),
        ([1], "Sequence[int | None] | None", True),
        ("x", "Sequence[int]", False),
        ("x", "bool", True),
    ],
)
def test_values_that_fit_their_annotation(value, annotation, fitting):
    assert fits(value, annotation) == fitting


def test_what_is_a_sentence():
    assert is_sentence("`size` is 0; it must be above 0.", ["size"])
    assert not is_sentence("`sizes` is 0; it must be above 0.", ["size"])
    assert not is_sentence("'x'", []) and not is_sentence("Traceback (most recent call last): a b c d")


@pytest.fixture(scope="module")
def victim(tmp_path_factory):
    """A run of eight steps that was made once without a kill and once with several in a row."""
    folder = tmp_path_factory.mktemp("victim")
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    process = subprocess.run(
        [sys.executable, "-c", CAMPAIGN, str(folder)], env=environment, capture_output=True, text=True, timeout=900
    )
    assert process.returncode == 0, process.stdout[-2000:] + process.stderr[-3000:]
    return pickle.loads((folder / "victim").read_bytes())


def test_a_lock_of_progress_bars_that_was_never_released_stops_no_child(tmp_path):
    def hold():
        tqdm.get_lock().acquire()
        print("held")
        time.sleep(600)

    tqdm.get_lock()
    holder = Child(hold, tmp_path / "holder")
    while "held" not in (tmp_path / "holder").read_text():
        time.sleep(0.01)
    holder.kill()
    holder.wait(600)
    assert Child(lambda: list(tqdm([1])) == [1] and 7, tmp_path / "log").wait(600).code == 7


def test_a_killed_run_is_resumed_and_another_weight_would_be_noticed(victim):
    assert victim.tally.tried >= 1 and victim.tally.failures == [], victim.tally.failures
    run = victim.folder / "killed" / RUN
    assert judge(Ended(0, ""), victim.reference, run) is None
    path = run / "checkpoint-00000008" / "model.safetensors"
    weights = load_file(path)
    name = next(iter(weights))
    weights[name] = torch.nextafter(weights[name], weights[name] + 1)
    save_file(weights, path, metadata={"format": "pt"})
    verdict, story = judge(Ended(0, ""), victim.reference, run)
    assert verdict == "silent" and "checkpoint-00000008/model.safetensors" in story
    assert judge(Ended(1, "Traceback"), victim.reference, run)[0] == "obscure"
    assert "checkpoint-00000008: model.safetensors" in half_written(victim.reference, run)


def test_every_moment_of_a_run_has_kills(victim):
    assert set(victim.places) == {
        "a checkpoint is written",
        "a folder or file is renamed",
        "metrics are logged",
        "pipeline or best is released",
        "sampling",
        "something is removed",
        "the run's folder is set up",
        "training",
    }
    assert moment("open", "checkpoint-00000002.tmp/model.safetensors") == "a checkpoint is written"


def test_half_of_a_pipeline_is_noticed(victim, tmp_path):
    for name, content in victim.reference.items():
        if name.startswith("pipeline/"):
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    assert half_written(victim.reference, tmp_path) is None
    (tmp_path / "pipeline" / "model_index.json").unlink()
    assert "pipeline lacks pipeline/model_index.json" in half_written(victim.reference, tmp_path)


@pytest.mark.parametrize("harm", ["missing", "empty", "cut", "flipped"])
def test_harm_is_done(harm, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"whole")
    inflict(harm, path, random.Random(0))
    assert not path.exists() or path.read_bytes() != b"whole"


def test_a_thread_with_another_text_is_noticed(monkeypatch, tmp_path):
    def answer(pipe, request):
        alone = threading.current_thread() is threading.main_thread()
        return torch.tensor(request["seed"] if alone or request["seed"] != 3 else -1)

    monkeypatch.setattr(threads, "answer", answer)
    tally = Tally("threads")
    threads.compare(None, "chain", 20, tally, Campaign(tmp_path, seed=0, seconds=0))
    assert (tally.tried, tally.survived, tally.count("silent")) == (20, 19, 1)


def test_every_fault_of_the_hub_has_its_turn(tmp_path):
    cases = list(hub.cases(HubServer(), Campaign(tmp_path, seed=0, seconds=-1)))
    assert len(set(cases)) == len(cases) == 10 * 8 - 4


def test_a_child_that_does_not_end_is_stopped(tmp_path):
    ended = Child(lambda: time.sleep(600), tmp_path / "log.txt").wait(0.2)
    assert ended.code == TOO_LONG and "It did not end within 0 s." in ended.printed


def test_a_kind_that_breaks_is_a_failure(monkeypatch, tmp_path):
    def run(campaign):
        raise KeyError("broken")

    monkeypatch.setattr(memory, "run", run)
    tally = one_kind("memory", Campaign(tmp_path, seed=0, seconds=0))
    assert tally.count("obscure") == 1 and "KeyError: 'broken'" in tally.failures[0][1]


def test_the_report_counts_and_the_exit_code_tells(monkeypatch, capsys):
    tally = Tally("one")
    tally.survive("part", 3)
    tally.fail("silent", "part", "half \ud800")
    text = report([tally])
    assert "| one | 4 | 3 | 1 | 0 | 0 | 0 |" in text and "| all | 4 | 3 | 1 | 0 | 0 | 0 |" in text
    assert "one, silent:" in text and text.encode()
    for failed in (True, False):
        made = tally if failed else Tally("one", survived=1)
        monkeypatch.setattr("torture.__main__.one_kind", lambda kind, campaign, made=made: made)
        assert main(["--only", "threads", "--seconds", "1"]) == failed
    assert "| all |" in capsys.readouterr().out


def test_every_kind_has_its_file_and_the_shares_are_all_of_the_time():
    assert sum(KINDS.values()) == pytest.approx(1)
