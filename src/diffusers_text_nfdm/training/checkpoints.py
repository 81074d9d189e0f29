"""Checkpoints that are whole or not there, and the folder of a run."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from ..files import file_digest, writing
from .arguments import CHANGEABLE_ON_RESUME, FREE_ON_RESUME, TrainingArguments
from .run_lock import check_free, content


SETTINGS_FILE, PROGRESS_FILE = "training_arguments.json", "progress.json"
AVERAGE_FILE, CHECKSUMS_FILE = "average.safetensors", "checksums.json"
RESUME = " What was written before it is intact; mend this and resume."
TEMPORARY, TRASH = ".tmp", ".trash"
_NAME = re.compile(r"checkpoint-(\d{8})$")


@dataclass
class Progress:
    """Where a run is; part of every checkpoint.

    Attributes:
        step: optimizer steps done.
        best_bound: the lowest validation bound so far, `None` before the first.
    """

    step: int = 0
    best_bound: float | None = None

    @classmethod
    def from_json(cls, text: str) -> Progress:
        values = json.loads(text)
        kinds = {"step": int, "best_bound": (int, float, type(None))}
        if not isinstance(values, dict) or values.keys() != kinds.keys():
            raise ValueError(f"it must hold {', '.join(kinds)}")
        for name, kind in kinds.items():
            if not isinstance(values[name], kind) or isinstance(values[name], bool):
                raise ValueError(f"`{name}` is {values[name]!r}")
        return cls(**values)

    def to_json(self) -> str:
        return json.dumps(asdict(self)) + "\n"


def checkpoint_folders(run: Path) -> list[Path]:
    """Whole checkpoints of a run, oldest first."""
    return sorted(path for path in run.glob("checkpoint-*") if _NAME.match(path.name) and path.is_dir())


def step_of(checkpoint: Path) -> int:
    return int(_NAME.match(checkpoint.name).group(1))


def write_folder(
    target: Path,
    write: Callable[[Path], None],
    is_main: bool = True,
    barrier: Callable[[], None] = lambda: None,
    checksums: bool = False,
) -> None:
    """Let `write` fill a folder beside `target`, then rename it into place: a reader sees all of it or nothing.

    With several processes every one calls this, `write` is called in all, and the main one renames. With `checksums`
    the folder gets those of its files, which `damage` compares.
    """
    temporary = target.with_name(target.name + TEMPORARY)
    if is_main:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
    barrier()
    try:
        with writing(target, RESUME):
            write(temporary)
            barrier()
            if is_main:
                if checksums:
                    (temporary / CHECKSUMS_FILE).write_text(json.dumps(folder_checksums(temporary), indent=2) + "\n")
                _flush(temporary)
    except OSError:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    if is_main:
        if target.exists():
            discard(target)
        os.replace(temporary, target)
        _flush_folder(target.parent)
    barrier()


def discard(folder: Path) -> None:
    """Remove a folder under another name, so that no half of it is ever taken for a whole."""
    trash = folder.with_name(folder.name + TRASH)
    shutil.rmtree(trash, ignore_errors=True)
    os.replace(folder, trash)
    shutil.rmtree(trash, ignore_errors=True)


def remove_old(run: Path, limit: int | None) -> None:
    for path in [] if limit is None else checkpoint_folders(run)[:-limit]:
        discard(path)


def clear_leftovers(run: Path) -> None:
    """Remove what a killed process was writing or removing."""
    for path in [*run.glob(f"*{TEMPORARY}"), *run.glob(f"*{TRASH}")]:
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink()


def folder_checksums(folder: Path) -> dict[str, str]:
    """SHA-256 of every file by its path in the folder."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != CHECKSUMS_FILE)
    return {path.relative_to(folder).as_posix(): file_digest(path) for path in files}


def damage(checkpoint: Path) -> str | None:
    """What of the checkpoint is not as it was written, `None` where all is."""
    written = _read_object(checkpoint / CHECKSUMS_FILE)
    if isinstance(written, str):
        return written
    found = folder_checksums(checkpoint)
    for name in sorted({*written, SETTINGS_FILE, PROGRESS_FILE, AVERAGE_FILE}):
        if name not in found:
            return f"{name} is missing"
        if found[name] != written.get(name):
            return f"{name} is not what was written"
    return None


def check_whole(checkpoint: Path) -> None:
    """Raise a ValueError for a damaged checkpoint, which names the last whole one before it."""
    damaged = damage(checkpoint)
    if damaged is None:
        return
    before = [path for path in checkpoint_folders(checkpoint.parent) if path.name < checkpoint.name]
    whole = next((path for path in reversed(before) if damage(path) is None), None)
    advice = "There is no whole one before it" if whole is None else f"Go back with `--resume {whole}`"
    raise ValueError(f"The checkpoint {checkpoint} is damaged: {damaged}. {advice}.")


def read_settings(folder: Path) -> dict:
    """The settings that a run or a checkpoint was made with."""
    settings = _read_object(folder / SETTINGS_FILE)
    if isinstance(settings, str):
        raise ValueError(f"The settings of {folder} cannot be read: {settings}.")
    return settings


def _read_object(path: Path) -> dict | str:
    """The JSON object in a file, or why there is none."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return f"{path.name} is missing"
    except (ValueError, RecursionError) as error:
        return f"{path.name} is no JSON ({error})"
    return value if isinstance(value, dict) else f"{path.name} holds no object"


def _flush(folder: Path) -> None:
    """Have the files on the disk before the rename is: a power cut must not leave a whole folder of empty files."""
    for path in folder.rglob("*"):
        if path.is_file():
            with open(path, "rb") as file:
                os.fsync(file.fileno())


def _flush_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def open_run(arguments: TrainingArguments, name: str) -> tuple[Path, Path | None]:
    """The folder of the run and the checkpoint to resume from, if any.

    Refuses to touch a folder that holds another run.
    """
    if arguments.output_dir is None and arguments.resume not in (None, "latest"):
        run = Path(arguments.resume).resolve().parent
    elif arguments.output_dir is None:
        existing = _default_runs(name)
        run = existing[-1] if existing and arguments.resume else Path("runs") / _fresh_name(name, existing)
    else:
        run = Path(arguments.output_dir)
    if run.is_file():
        raise ValueError(f"`output_dir` is {str(run)!r}, which is a file; give a folder.")
    check_free(run)
    checkpoint = _checkpoint_to_resume(arguments, run)
    settings = run / SETTINGS_FILE
    if checkpoint is not None and checkpoint.resolve().parent != run.resolve() and content(run):
        raise ValueError(
            f"The folder {run} is not empty, and the checkpoint {checkpoint} is not of it. Choose another "
            "`--output_dir`."
        )
    if checkpoint is not None:
        check_whole(checkpoint)
        differences = arguments.differences(read_settings(checkpoint), free=FREE_ON_RESUME + CHANGEABLE_ON_RESUME)
        if differences:
            raise ValueError(
                f"The checkpoint {checkpoint} was made with other settings, so it cannot be continued with these:\n  "
                + "\n  ".join(differences)
                + f"\nA continuation may change {', '.join(CHANGEABLE_ON_RESUME)}, and where and how it runs: "
                + f"{', '.join(FREE_ON_RESUME)}."
            )
    elif arguments.resume is None and content(run):
        raise ValueError(
            f"The folder {run} is not empty{': it holds another run' if settings.is_file() else ''}. Continue that "
            "run with "
            "`--resume latest`, or choose another `--output_dir`."
        )
    elif settings.is_file():
        # A run that died before its first checkpoint may start again, if it is the same run.
        differences = arguments.differences(read_settings(run))
        if differences:
            raise ValueError(f"The folder {run} holds a run with other settings:\n  " + "\n  ".join(differences))
    return run, checkpoint


def _checkpoint_to_resume(arguments: TrainingArguments, run: Path) -> Path | None:
    if arguments.resume is None:
        return None
    if arguments.resume == "latest":
        folders = checkpoint_folders(run)
        return folders[-1] if folders else None
    checkpoint = Path(arguments.resume)
    if not any((checkpoint / name).is_file() for name in (SETTINGS_FILE, CHECKSUMS_FILE)):
        raise ValueError(
            f"`resume` is {arguments.resume!r}, which is no checkpoint; it must be 'latest' or a folder "
            "checkpoint-NNNNNNNN."
        )
    return checkpoint


def _default_runs(name: str) -> list[Path]:
    pattern = re.compile(rf"{re.escape(name)}(?:-(\d+))?$")
    found = [path for path in Path("runs").glob(f"{name}*") if path.is_dir() and pattern.match(path.name)]
    return sorted(found, key=lambda path: int(pattern.match(path.name).group(1) or 1))


def _fresh_name(name: str, existing: list[Path]) -> str:
    if not existing:
        return name
    last = re.search(r"-(\d+)$", existing[-1].name[len(name) :])
    return f"{name}-{(int(last.group(1)) if last else 1) + 1}"
