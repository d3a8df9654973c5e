"""A place to download into: locked, on the disk where the model will live, and never mistaken for a model.

    home()/.downloads/NAME.lock     held while NAME is being pulled; an empty file that stays
    home()/.downloads/NAME/         what has come so far; gone when the pull is done or can't go on

After an interruption or a network failure the folder stays, so that the next pull goes on from there. What it keeps is
either checked again or resumed, so it can be in any state.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from ..errors import DownloadError
from ..files import DISK_FULL, replaced_when_done
from ..progress import Progress
from .places import DOWNLOADS, home


@contextmanager
def workplace(name: str, title: str, progress: Progress) -> Iterator[Path]:
    """`home()/.downloads/NAME` for one pull alone; another pull of the same name waits until this one is done.

    `title` is what messages call the model. Every OSError inside becomes a `DownloadError`, one sentence; a full disk
    leaves nothing behind.
    """
    folder = home() / DOWNLOADS / name
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _only_one(folder.with_name(f"{name}.lock"), title, progress):
            with _kept_if_resumable(folder):
                folder.mkdir(exist_ok=True)
                yield folder
            shutil.rmtree(folder, ignore_errors=True)
    except OSError as error:
        raise DownloadError(_sentence(title, error)) from error


@contextmanager
def _only_one(lock_file: Path, title: str, progress: Progress) -> Iterator[None]:
    lock = FileLock(lock_file)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        with progress(f"waiting for another pull of {title}", 0, ""):
            lock.acquire()
    try:
        yield
    finally:
        lock.release()


@contextmanager
def _kept_if_resumable(folder: Path) -> Iterator[None]:
    try:
        yield
    except (DownloadError, KeyboardInterrupt, SystemExit):  # SystemExit: a command that was asked to end
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
        raise
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _sentence(title: str, error: OSError) -> str:
    if error.errno in DISK_FULL:
        room = f"what had come was removed, which leaves {_free(home()):,} bytes free"
        return f"{title}: the disk that holds {home()} is full; {room}"
    return f"{title}: can't write {error.filename or home()}: {error.strerror or error}"


def check_space(title: str, folder: Path, needed: int) -> None:
    """Raise `DownloadError` with both numbers where `folder`'s disk has fewer than `needed` bytes left."""
    free = _free(folder)
    if free < needed:
        raise DownloadError(f"{title} needs {needed:,} bytes of disk, but {folder} has only {free:,} bytes free")


def _free(folder: Path) -> int:
    return shutil.disk_usage(folder).free


def move_into_place(folder: Path, target: Path) -> None:
    """Give a finished folder its final name in one step; a folder that stood there is replaced."""
    with replaced_when_done(target) as temporary:
        folder.rename(temporary)


def file_digest(path: Path, algorithm: str = "sha256", prefix: bytes = b"") -> str:
    """Hex digest of `prefix` and a file's bytes, read a megabyte at a time."""
    digest = hashlib.new(algorithm, prefix, usedforsecurity=False)
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
