"""Checkpoints whole or not at all, and which folder a run may use."""

import errno
import json
import os
import resource

import pytest
import torch
from safetensors.torch import save_file

from diffusers_text_nfdm.training import checkpoints
from diffusers_text_nfdm.training.checkpoints import (
    AVERAGE_FILE,
    CHECKSUMS_FILE,
    PROGRESS_FILE,
    SETTINGS_FILE,
    Progress,
    checkpoint_folders,
    clear_leftovers,
    open_run,
    remove_old,
    write_folder,
)
from runs import arguments


def fill(text):
    def write(folder):
        (folder / "part").mkdir()
        (folder / "part" / "file").write_text(text)

    return write


def test_a_folder_replaces_another_whole(tmp_path):
    target = tmp_path / "best"
    for text in ("first", "second"):
        write_folder(target, fill(text))
        assert (target / "part" / "file").read_text() == text
    assert [path.name for path in tmp_path.iterdir()] == ["best"]


def broken(error):
    def write(folder):
        (folder / "half").write_text("half")
        raise error

    return write


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "the disk is full"),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), "the disk is full"),
        (OSError(errno.EIO, "Input/output error"), "Input/output error"),
        (Exception("No space left on device (os error 28)"), "the disk is full"),
        (RuntimeError("PytorchStreamWriter failed writing file data/0: file write failed"), "file write failed"),
    ],
)
def test_failed_write_leaves_the_old_folder(tmp_path, error, message):
    target = tmp_path / "checkpoint-00000004"
    write_folder(target, fill("old"))
    with pytest.raises(OSError, match=f"Could not write {target}: .*{message}.* What was written before it is intact"):
        write_folder(target, broken(error))
    assert (target / "part" / "file").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-00000004"]


def test_torch_write_error_on_a_full_disk_says_so(tmp_path, monkeypatch):
    usage = checkpoints.shutil.disk_usage(tmp_path)._replace(free=100)
    monkeypatch.setattr(checkpoints.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(OSError, match="the disk is full"):
        write_folder(tmp_path / "x", broken(RuntimeError("file write failed")))


@pytest.mark.parametrize("save", [lambda t, path: torch.save(t, path), lambda t, path: save_file({"t": t}, path)])
def test_writers_that_really_fail(tmp_path, save):
    """The kernel refuses files beyond a limit: what PyTorch and safetensors raise then is understood."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(OSError, match="Could not write"):
            write_folder(tmp_path / "x", lambda folder: save(torch.zeros(100_000), folder / "weights"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == []


def test_any_other_exception_is_not_a_checkpoint(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        write_folder(tmp_path / "checkpoint-00000004", broken(KeyboardInterrupt()))
    assert checkpoint_folders(tmp_path) == []


def test_other_processes_write_into_the_folder_before_it_is_renamed(tmp_path):
    """Three barriers: the folder is there, all have written, it has its name."""
    target, seen = tmp_path / "x", []
    write_folder(target, fill("main"), is_main=True, barrier=lambda: seen.append(target.exists()))
    assert seen == [False, False, True]


def make_checkpoints(run, *steps, settings=None):
    def write(folder):
        (folder / SETTINGS_FILE).write_text(json.dumps(settings or {}))
        (folder / PROGRESS_FILE).write_text(Progress(4, 1.5).to_json())
        save_file({"weight": torch.ones(8)}, folder / AVERAGE_FILE)

    for step in steps:
        write_folder(run / f"checkpoint-{step:08d}", write, checksums=True)
    return run


def test_old_checkpoints_go_and_their_order_is_by_step(tmp_path):
    make_checkpoints(tmp_path, 9, 10, 2, 100)
    (tmp_path / "checkpoint-00000200.tmp").mkdir()
    (tmp_path / "checkpoint-final").mkdir()
    remove_old(tmp_path, None)
    assert [checkpoints.step_of(path) for path in checkpoint_folders(tmp_path)] == [2, 9, 10, 100]
    remove_old(tmp_path, 2)
    assert [checkpoints.step_of(path) for path in checkpoint_folders(tmp_path)] == [10, 100]


def test_leftovers_of_a_kill_are_cleared(tmp_path):
    make_checkpoints(tmp_path, 4)
    for name in ("checkpoint-00000008.tmp", "checkpoint-00000002.trash", "best.trash"):
        (tmp_path / name).mkdir()
    (tmp_path / f"{SETTINGS_FILE}.tmp").write_text("{")
    clear_leftovers(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-00000004"]


# ---- Which folder ---------------------------------------------------------------------------------------------------


@pytest.fixture
def run(data, tmp_path, monkeypatch):
    """A run of two checkpoints, in a working directory of its own."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "mine"
    settings = arguments(data, folder).to_dict()
    make_checkpoints(folder, 4, 8, settings=settings)
    (folder / SETTINGS_FILE).write_text(json.dumps(settings))
    return folder


def test_resume_latest_and_by_name(data, run):
    assert open_run(arguments(data, run, resume="latest"), "run") == (run, run / "checkpoint-00000008")
    first = run / "checkpoint-00000004"
    assert open_run(arguments(data, run, resume=str(first)), "run") == (run, first)
    assert open_run(arguments(data, None, resume=str(first)), "run") == (run, first)


def test_resume_with_other_settings_names_them(data, run):
    other = arguments(data, run, resume="latest", batch_size=4, seed=3, report_to="tensorboard", learning_rate=0.5)
    with pytest.raises(ValueError) as refusal:
        open_run(other, "run")
    *lines, free = str(refusal.value).splitlines()[1:]
    assert [line.strip() for line in lines] == [
        "batch_size: 8 in the checkpoint, 4 here",
        "seed: 0 in the checkpoint, 3 here",
    ]
    assert "A continuation may change learning_rate, " in free and "report_to" in free


def test_folder_of_another_run_is_refused(data, run, tmp_path):
    before = sorted(path.name for path in run.iterdir())
    with pytest.raises(ValueError, match="holds another run"):
        open_run(arguments(data, run), "run")
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "thesis.tex").write_text("years of work")
    with pytest.raises(ValueError, match="is not empty"):
        open_run(arguments(data, foreign), "run")
    with pytest.raises(ValueError, match="is not of it"):
        open_run(arguments(data, foreign, resume=str(run / "checkpoint-00000004")), "run")
    with pytest.raises(ValueError, match="is a file"):
        open_run(arguments(data, foreign / "thesis.tex"), "run")
    assert sorted(path.name for path in run.iterdir()) == before


def test_run_that_died_before_its_first_checkpoint_starts_again(data, tmp_path):
    folder = tmp_path / "young"
    folder.mkdir()
    (folder / SETTINGS_FILE).write_text(json.dumps(arguments(data, folder).to_dict()))
    assert open_run(arguments(data, folder, resume="latest"), "run") == (folder, None)
    with pytest.raises(ValueError, match="seed: 0 in the checkpoint, 1 here"):
        open_run(arguments(data, folder, resume="latest", seed=1), "run")


def test_resume_of_no_checkpoint_is_refused(data, run, tmp_path):
    with pytest.raises(ValueError, match="is no checkpoint"):
        open_run(arguments(data, run, resume=str(tmp_path)), "run")


@pytest.mark.parametrize("name", [SETTINGS_FILE, PROGRESS_FILE, AVERAGE_FILE, CHECKSUMS_FILE])
@pytest.mark.parametrize("harm", ["flipped", "cut", "emptied", "removed"])
def test_a_damaged_checkpoint_names_the_file_and_the_one_to_go_back_to(name, harm, data, run):
    first, last = run / "checkpoint-00000004", run / "checkpoint-00000008"
    content = bytearray((last / name).read_bytes())
    content[len(content) // 2] ^= 1
    if harm == "removed":
        (last / name).unlink()
    else:
        kept = {"flipped": len(content), "cut": len(content) // 2, "emptied": 0}[harm]
        (last / name).write_bytes(content[:kept])
    with pytest.raises(ValueError) as refusal:
        open_run(arguments(data, run, resume="latest"), "run")
    message = str(refusal.value)
    assert f"The checkpoint {last} is damaged: " in message and f"Go back with `--resume {first}`." in message
    # A flipped checksum reads as damage to the file that it is of.
    assert name in message or (name, harm) == (CHECKSUMS_FILE, "flipped")
    assert open_run(arguments(data, run, resume=str(first)), "run") == (run, first)
    (first / AVERAGE_FILE).unlink()
    with pytest.raises(ValueError, match="There is no whole one before it"):
        open_run(arguments(data, run, resume=str(last)), "run")


def test_damaged_settings_of_a_run_are_named(data, tmp_path):
    (tmp_path / SETTINGS_FILE).write_text('{"seed": ')
    with pytest.raises(ValueError, match=f"The settings of {tmp_path} cannot be read: {SETTINGS_FILE} is no JSON"):
        open_run(arguments(data, tmp_path, resume="latest"), "run")


def test_progress_is_read_as_it_was_written():
    for progress in (Progress(), Progress(7, 0.1 + 0.2)):
        assert Progress.from_json(progress.to_json()) == progress
    for text in ("[]", "{}", '{"step": 1.5, "best_bound": null}', '{"step": true, "best_bound": 1}', "x"):
        with pytest.raises(ValueError):
            Progress.from_json(text)


def test_default_folders(data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fresh = arguments(data, None)
    for name in ("run", "run-2", "run-3"):
        folder, checkpoint = open_run(fresh, "run")
        assert (folder.as_posix(), checkpoint) == (f"runs/{name}", None)
        os.makedirs(folder)
    os.makedirs("runs/run-10")
    os.makedirs("runs/runner")
    assert open_run(fresh, "run")[0].as_posix() == "runs/run-11"
    assert open_run(arguments(data, None, resume="latest"), "run")[0].as_posix() == "runs/run-10"
