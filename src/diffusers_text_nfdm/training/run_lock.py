"""One owner for the folder of a run."""

from __future__ import annotations

import fcntl
import os
import socket
import weakref
from pathlib import Path

from ..files import writing


LOCK_FILE = ".lock"


class RunLock:
    """Holds the folder of a run until it is released or this process ends, however it ends.

    The kernel keeps the lock, so that a killed owner leaves none behind; the file stays, and names the last owner.
    """

    _held: weakref.WeakSet[RunLock] = weakref.WeakSet()

    def __init__(self, run: Path):
        self._file = open(run / LOCK_FILE, "a+", encoding="utf-8")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self._file.seek(0)
            owner = self._file.read().strip() or "another process"
            self._file.close()
            raise ValueError(
                f"The folder {run} is in use by {owner}. Wait for it to end, or choose another `--output_dir`."
            ) from error
        self._held.add(self)

    def sign(self) -> None:
        """Write down who holds the folder."""
        self._file.truncate(0)
        self._file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        self._file.flush()

    def release(self) -> None:
        self._file.close()

    @classmethod
    def _forget(cls) -> None:
        # A forked worker that outlives its parent would go on holding the lock.
        for lock in list(cls._held):
            lock.release()


os.register_at_fork(after_in_child=RunLock._forget)


def check_free(run: Path) -> None:
    """Raise a ValueError where another process holds the folder."""
    if (run / LOCK_FILE).is_file():
        RunLock(run).release()


def content(run: Path) -> dict[str, int]:
    """The files and folders of a run with their times of change, apart from the lock."""
    if not run.is_dir():
        return {}
    return {path.name: path.stat().st_mtime_ns for path in run.iterdir() if path.name != LOCK_FILE}


def take(run: Path, expected: dict[str, int]) -> RunLock:
    """Own the folder. A ValueError where its `content` is not that which the decision to use it was made on."""
    run.mkdir(parents=True, exist_ok=True)
    lock = RunLock(run)
    if content(run) != expected:
        lock.release()
        raise ValueError(f"Another process has written into {run} meanwhile. Start again.")
    with writing(run / LOCK_FILE):
        lock.sign()
    return lock
