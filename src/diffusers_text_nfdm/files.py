"""Files that are whole or not there, and their checksums."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import tempfile
from argparse import ArgumentTypeError
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError


class WriteError(OSError):
    """A write that failed, with the reason apart, which stays when an outer target is named."""

    def __init__(self, target: Path, reason: str, advice: str = ""):
        super().__init__(f"Could not write {target}: {reason}.{advice}")
        self.reason = reason


@contextmanager
def writing(target: Path, advice: str = "") -> Iterator[None]:
    """Make of a write that fails a WriteError that names its target, and says where the disk is full."""
    try:
        yield
    except Exception as error:
        # PyTorch and safetensors report it by exceptions of their own, tokenizers by a bare one.
        if not isinstance(error, (OSError, RuntimeError, SafetensorError)) and type(error) is not Exception:
            raise
        reason = error.reason if isinstance(error, WriteError) else str(error)
        raise WriteError(target, "the disk is full" if _is_full(error, target.parent) else reason, advice) from error


def _is_full(error: Exception, folder: Path) -> bool:
    return (
        getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT)
        or "No space left" in str(error)
        or (folder.is_dir() and shutil.disk_usage(folder).free < 2**20)
    )


def write_file(path: Path, content: str) -> None:
    """Write a text file so that a reader sees the old text or the new one, never a part of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with writing(path):
            temporary.write_text(content, encoding="utf-8")
            os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def output_file(text: str) -> Path:
    """A file of the command line to write, as an argparse type: refused before the work, not after it."""
    path = output_folder(text, parent=True)
    if path.is_dir():
        raise ArgumentTypeError(f"{text} is a folder; give a file")
    if path.exists() and not os.access(path, os.W_OK):
        raise ArgumentTypeError(f"{text} cannot be written")
    return path


def output_folder(text: str, parent: bool = False) -> Path:
    """The same for a folder, which need not be there; with `parent` for the one above the path."""
    path = Path(text)
    try:
        folder = path.absolute().parent if parent else path.absolute()
        while not folder.exists():
            folder = folder.parent
        with tempfile.TemporaryFile(dir=folder):
            # A name that is too long is an error here.
            path.exists()
            return path
    except OSError as error:
        raise ArgumentTypeError(f"{text!r} cannot be written: {error}") from error


def file_digest(path: Path) -> str:
    """The SHA-256 of a file."""
    return _digest(path, hashlib.sha256())


def git_digest(path: Path) -> str:
    """The id that git gives to a file's content."""
    return _digest(path, hashlib.sha1(b"blob %d\0" % path.stat().st_size))


def _digest(path: Path, digest) -> str:
    with open(path, "rb") as file:
        while block := file.read(2**20):
            digest.update(block)
    return digest.hexdigest()
