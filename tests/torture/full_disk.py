"""A disk that is full at some point of a run: a small tmpfs of its own where mounting is allowed, or a limit on the
size of files.

The run must say so in a sentence, leave what it wrote before whole, and go on to the same end when there is room
again.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
from collections.abc import Callable
from pathlib import Path

from .children import RUN, Child, contents, finish, fresh, half_written, start, write_settings
from .kills import judge
from .tally import Campaign, Tally, is_sentence, said


CLONE_NEWNS, CLONE_NEWUSER = 0x00020000, 0x10000000
MS_REC, MS_PRIVATE, MS_REMOUNT = 0x4000, 0x40000, 0x20
ROOM = "256m"
LEAST_CASES = 3


def run(campaign: Campaign) -> Tally:
    tally = Tally("full_disk")
    settings = write_settings(campaign.folder / "settings")
    whole = fresh(campaign.folder / "whole")
    assert finish(settings, whole).code == 0
    reference = contents(whole / RUN)
    size = sum(map(len, reference.values()))
    largest = max(map(len, reference.values()))
    ways: dict[str, Callable] = {"a limit on files": limited}
    if Child(lambda: _own_mounts(campaign.folder), campaign.folder / "log.txt").wait().code == 0:
        ways["a small tmpfs"] = small_disk
    else:
        tally.note = "Mounting is not allowed here."
    while not campaign.over or tally.tried < LEAST_CASES * len(ways):
        for name, way in ways.items():
            folder = fresh(campaign.folder / "full")
            share = campaign.random.uniform(0.02, 0.98)
            tally.judge(name, way(settings, folder, reference, share, size, largest))
    return tally


def _check(code: int, printed: str, reference: dict, run: Path) -> tuple[str, str] | None:
    """What a run that found no room must have done."""
    told = said(printed)
    if (half := half_written(reference, run)) is not None:
        return "half-written", half
    if code == 0:
        return None if contents(run) == reference else ("silent", "the run ended well without all of its files")
    if code != 1 or "Traceback" in printed or not is_sentence(told):
        return "obscure", f"exit code {code}: {printed[-300:]}"
    if not any(word in told for word in ("Could not write", "cannot be written", RUN)):
        return "obscure", f"no file or folder is named: {told}"
    return None


def limited(settings, folder, reference, share, size, largest) -> tuple[str, str] | None:
    """No file may grow beyond a limit, which the kernel reports as EFBIG."""
    # What the run prints goes into a file, too.
    limit = max(20_000, int(share * largest))

    def prepare() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))

    [child] = start(settings, folder, prepare=prepare)
    ended = child.wait()
    found = _check(ended.code, ended.printed, reference, folder / RUN)
    found = found or judge(finish(settings, folder, "--resume", "latest"), reference, folder / RUN)
    return found and (found[0], f"files up to {limit} bytes: {found[1]}")


def small_disk(settings, folder, reference, share, size, largest) -> tuple[str, str] | None:
    """A file system of its own, which goes with the process that mounted it."""
    log, kilobytes = folder.with_name("disk.txt"), max(64, int(share * size) // 1024)

    def inside() -> None:
        _own_mounts(folder)
        _mount(fresh(folder / RUN), f"size={kilobytes}k")
        [child] = start(settings, folder)
        ended = child.wait()
        found = _check(ended.code, ended.printed, reference, folder / RUN)
        _mount(folder / RUN, f"size={ROOM}", MS_REMOUNT)
        found = found or judge(finish(settings, folder, "--resume", "latest"), reference, folder / RUN)
        log.write_text(json.dumps(found))

    ended = Child(inside, folder.with_name("small-disk-log.txt")).wait()
    assert ended.code == 0, ended.printed
    found = json.loads(log.read_text())
    return found and (found[0], f"a disk of {kilobytes} kB: {found[1]}")


def _own_mounts(folder: Path) -> None:
    """Mounts that only this process and its children see; OSError where that is not allowed."""
    libc = ctypes.CDLL(None, use_errno=True)
    uid, gid = os.getuid(), os.getgid()
    flags = CLONE_NEWNS if uid == 0 else CLONE_NEWNS | CLONE_NEWUSER
    if libc.unshare(flags):
        raise OSError(ctypes.get_errno(), "unshare")
    if uid != 0:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
        Path("/proc/self/gid_map").write_text(f"0 {gid} 1")
    if libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None):
        raise OSError(ctypes.get_errno(), "mount")
    _mount(fresh(folder / "try"), "size=64k")


def _mount(folder: Path, options: str, flags: int = 0) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"tmpfs", str(folder).encode(), b"tmpfs", flags, options.encode()):
        raise OSError(ctypes.get_errno(), f"mounting a tmpfs at {folder}")
