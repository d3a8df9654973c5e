"""Files and folders that are either whole or not there."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replaced_when_done(path: str | os.PathLike) -> Iterator[Path]:
    """Give a temporary name beside `path`, file or folder; rename it to `path` on success, remove it on any failure.

    A folder that already stands at `path` is replaced by a folder only; it is moved aside first and removed last.
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


def remove(path: Path) -> None:
    """Remove a file or a folder with all in it; nothing happens where there is none."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
