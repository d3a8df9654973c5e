"""Files and folders that are either whole or not there."""

from __future__ import annotations

import errno
import glob
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

DISK_FULL = (errno.ENOSPC, errno.EDQUOT) if hasattr(errno, "EDQUOT") else (errno.ENOSPC,)  # of an OSError


@contextmanager
def replaced_when_done(path: str | os.PathLike) -> Iterator[Path]:
    """Give a temporary name beside `path`, file or folder; rename it to `path` on success, remove it on any failure.

    A folder that already stands at `path` is replaced by a folder only; it is moved aside first and removed last.
    A process that is killed leaves the temporary: see `held` and `remove_stale`.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.partial")
    try:
        yield temporary
        if path.is_dir() and temporary.is_dir():
            _swap(temporary, path)
        else:
            temporary.replace(path)
    finally:
        remove(temporary)


def _swap(new: Path, old: Path) -> None:
    aside = old.with_name(f".{old.name}.{uuid.uuid4().hex[:8]}.old")
    old.rename(aside)
    try:
        new.rename(old)
    except BaseException:
        aside.rename(old)
        raise
    remove(aside)


@contextmanager
def held(folder: Path) -> Iterator[bool]:
    """Hold a folder against `remove_stale`, until the end of this process at most; whether it could be had.

    Never on Windows, and not where the file system knows no locks: there nothing counts as stale.
    """
    if fcntl is None:
        yield False
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
        else:
            yield True
    finally:
        os.close(handle)


def remove_stale(path: Path) -> None:
    """Remove the temporary folders that processes left beside `path` when they were killed: those that none holds."""
    for left in path.parent.glob(f".{glob.escape(path.name)}.????????.partial"):
        with suppress(OSError), held(left) as free:
            if free and any(left.iterdir()):  # who has just made one holds it before anything is in it
                shutil.rmtree(left)


def remove(path: Path) -> None:
    """Remove a file or a folder with all in it; nothing happens where there is none."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
