"""Training runs in forked processes, which skip the seconds of importing, and what is left of them."""

from __future__ import annotations

import json
import os
import runpy
import shutil
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from diffusers_text_nfdm import MarkovChainScheduler
from diffusers_text_nfdm.stories import StoryGrammar
from diffusers_text_nfdm.training import Trainer, checkpoints
from runs import SCRIPT, TIMINGS, arguments


RUN = "run"
# Events of Python's audit hooks that touch files, with the position of the path in their arguments.
FILE_EVENTS = {"open": 0, "os.mkdir": 0, "os.rename": 0, "os.remove": 0, "os.rmdir": 0, "shutil.rmtree": 0}
# Seconds that a child may take, and the exit code of one that took longer.
LIMIT, TOO_LONG = 600.0, 124


def write_settings(folder: Path, **overrides) -> Path:
    """Stories and a YAML file: eight steps with checkpoints at every second one, of which two are kept."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, number in (("train", 60), ("valid", 16)):
        texts = StoryGrammar().sample(number, seed=name)
        (folder / f"{name}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    settings = {"checkpoint_every": 2, "checkpoints_total_limit": 2, "final_samples": 2, **overrides}
    path = folder / "tiny.yaml"
    path.write_text(arguments(folder, None, **settings).to_yaml())
    return path


@dataclass
class Ended:
    """How a child ended: its exit code (negative: the signal) and what it printed."""

    code: int
    printed: str


class Child:
    """A forked process in a session of its own that runs `action` and prints into a file."""

    def __init__(self, action: Callable[[], object], log: Path):
        self.log, self.ended = log, None
        # It is there even if the child never gets to open it.
        log.touch()
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid == 0:
            code = 70
            try:
                os.setsid()
                # Progress bars of all processes share a lock. A child that was killed may hold it for ever.
                tqdm.set_lock(threading.RLock())
                output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
                os.dup2(output, 1)
                os.dup2(output, 2)
                sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1, closefd=False) for number in (1, 2))
                result = action()
                code = 0 if result is None else int(result)
            except SystemExit as end:
                code = 0 if end.code is None else end.code if isinstance(end.code, int) else 1
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)

    @property
    def running(self) -> bool:
        if self.ended is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.ended = Ended(os.waitstatus_to_exitcode(status), self.log.read_text(errors="replace"))
        return self.ended is None

    def wait(self, seconds: float = LIMIT) -> Ended:
        deadline = time.monotonic() + seconds
        while self.running:
            if time.monotonic() > deadline:
                self.kill()
                os.waitpid(self.pid, 0)
                printed = self.log.read_text(errors="replace")
                self.ended = Ended(TOO_LONG, f"{printed}\nIt did not end within {seconds:.0f} s.")
                break
            time.sleep(0.005)
        return self.ended

    def kill(self, number: int = signal.SIGKILL) -> None:
        if self.ended is None:
            os.kill(self.pid, number)


def train_script(settings: Path, folder: Path, *options: str, ticks: Callable[[str, str], None] | None = None):
    """Run examples/train_nfdm.py as its command line does, in `folder`. `ticks(kind, path)` is called before
    every touch of a file of the run, every training step and every sampling step."""
    os.chdir(folder)
    sys.argv = [str(SCRIPT), "--config", str(settings), "--output_dir", RUN, *options]
    if ticks is not None:
        watch(folder / RUN, ticks)
    runpy.run_path(str(SCRIPT), run_name="__main__")


def watch(run: Path, ticks: Callable[[str, str], None]) -> None:
    """Call `ticks` from now on, in this process."""
    prefix = str(run)

    def audit(event: str, args: tuple) -> None:
        if event in FILE_EVENTS and isinstance(args[0], (str, os.PathLike)):
            path = os.path.abspath(os.fspath(args[0]))
            if path.startswith(prefix):
                ticks(event, os.path.relpath(path, prefix))

    sys.addaudithook(audit)
    for owner, name, kind in ((Trainer, "_step", "training"), (MarkovChainScheduler, "step", "sampling")):
        setattr(owner, name, _ticking(getattr(owner, name), kind, ticks))


def _ticking(function: Callable, kind: str, ticks: Callable[[str, str], None]) -> Callable:
    def wrapped(*args, **kwargs):
        ticks(kind, "")
        return function(*args, **kwargs)

    return wrapped


def distributed(rank: int, size: int, port: int) -> None:
    """What `accelerate launch` tells a process."""
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(size), LOCAL_WORLD_SIZE=str(size),
        MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), ACCELERATE_USE_CPU="true",
    )  # fmt: skip


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def start(settings: Path, folder: Path, *options: str, processes: int = 1, ticks=None, prepare=None) -> list[Child]:
    """The script in one process, or in as many as Accelerate would launch. `ticks` are of the main one."""
    port = free_port() if processes > 1 else 0

    def action(rank: int) -> None:
        if processes > 1:
            distributed(rank, processes, port)
        if prepare is not None:
            prepare()
        train_script(settings, folder, *options, ticks=None if rank else ticks)

    return [Child(lambda rank=rank: action(rank), folder / f"log-{rank}.txt") for rank in range(processes)]


def finish(settings: Path, folder: Path, *options: str, processes: int = 1) -> Ended:
    """Run to the end; what the main process said of it."""
    children = start(settings, folder, *options, processes=processes)
    return [child.wait() for child in children][0]


def fresh(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


# ---- What is left of a run ------------------------------------------------------------------------------------------


def contents(run: Path) -> dict[str, bytes]:
    """Every file of a run, without its lock, how fast it was, and the random states, which no step reads."""
    files = {}
    for path in sorted(run.rglob("*")):
        name = path.relative_to(run).as_posix()
        if not path.is_file() or name == ".lock" or path.name.startswith("random_states_"):
            continue
        content = path.read_bytes()
        if path.name == "metrics.jsonl":
            entries = [json.loads(line) for line in content.splitlines()]
            kept = [{key: value for key, value in entry.items() if key not in TIMINGS} for entry in entries]
            content = json.dumps(kept).encode()
        if path.name == checkpoints.SETTINGS_FILE:
            content = json.dumps({**json.loads(content), "resume": None}).encode()
        if path.name == checkpoints.CHECKSUMS_FILE:
            # Of files that are compared themselves, or left out above.
            continue
        files[name] = content
    return files


def difference(reference: dict[str, bytes], run: Path) -> str | None:
    """The files in which a finished run is not the reference, bit for bit."""
    found = contents(run)
    names = sorted(name for name in reference.keys() | found.keys() if reference.get(name) != found.get(name))
    return ", ".join(names) or None


def half_written(reference: dict[str, bytes], run: Path) -> str | None:
    """What of a run that was broken off is neither there nor away."""
    if not run.is_dir():
        return None
    for checkpoint in checkpoints.checkpoint_folders(run):
        if (damage := checkpoints.damage(checkpoint)) is not None:
            return f"{checkpoint.name}: {damage}"
    for name in ("pipeline", "best"):
        expected = {key for key in reference if key.startswith(f"{name}/")}
        found = {path.relative_to(run).as_posix() for path in (run / name).rglob("*") if path.is_file()}
        if (run / name).exists() and found != expected:
            return f"{name} lacks {', '.join(sorted(expected - found))}"
    for name in ("summary.json", checkpoints.SETTINGS_FILE):
        try:
            if (run / name).exists():
                json.loads((run / name).read_bytes())
        except ValueError:
            return f"{name} is no JSON"
    return None
