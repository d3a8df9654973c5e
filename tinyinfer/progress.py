"""How long work reports how far it is, without printing: the library calls, the command line draws.

A `Progress` is called once per piece of work, `progress("downloading", total, "B")`, and returns a context manager
whose value has `update(n)`. `tqdm.tqdm` wrapped by the command line is one; `silent` is the default everywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol


class Bar(Protocol):
    """One piece of work under way."""

    def update(self, n: int, /) -> object:
        """`n` more units are done."""


Progress = Callable[[str, int, str], AbstractContextManager[Bar]]


class _NoBar:
    def update(self, n: int, /) -> None:
        """Nothing is shown."""


def silent(description: str, total: int, unit: str) -> AbstractContextManager[Bar]:
    """Report nothing: the default of every function that takes a `progress`."""
    return nullcontext(_NoBar())
