"""Files and folders that are either whole or not there, and notes that stand in a file's place."""

from __future__ import annotations

import errno
import glob
import os
import re
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from .errors import BadCheckpoint

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

DISK_FULL = (errno.ENOSPC, errno.EDQUOT) if hasattr(errno, "EDQUOT") else (errno.ENOSPC,)  # of an OSError


@contextmanager
def replaced_when_done(path: str | os.PathLike) -> Iterator[Path]:
    """Give a temporary name beside `path`, file or folder; rename it to `path` on success, remove it on any failure.

    A folder that already stands at `path` is replaced by a folder only; it is moved aside first and removed last.
    A process that is killed leaves the temporary: see `held` and `remove_stale`. An `OSError` names `path`.
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
    except OSError as error:
        if error.filename is not None and os.fspath(error.filename) == str(temporary):
            error.filename = str(path)  # the name that was asked for, not one that nobody has seen
        raise
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


POINTER_BYTES = 1024  # a Git LFS pointer has fewer


def refuse_pointer(path: str | os.PathLike, begin: bytes) -> None:
    """Raise `BadCheckpoint` where a file, of which `begin` is the beginning, is a Git LFS pointer: a repository was
    cloned without what its large files hold. https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md
    """
    if begin[:POINTER_BYTES].startswith(b"version https://git-lfs.github.com/spec/"):
        size = re.search(rb"\nsize ([0-9]{1,18})\n", begin[:POINTER_BYTES])
        of = f" of {int(size[1]):,} bytes" if size else ""
        todo = "run `git lfs pull` in its folder, or fetch the model with `tinyinfer pull`"
        raise BadCheckpoint(f"{path}: only a Git LFS pointer to a file{of}; {todo}")
