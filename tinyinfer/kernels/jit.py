"""The one way to compile here: `jit` for kernels, `inlined` for the functions that kernels are made of.

Compiled code is kept on disk, beside this package or else in a folder of the user's. Numba renews what it kept when the
file of a kernel changes; here it does so when any file of this package changes, since kernels are made of each other's
parts, and the vector backends are kept apart. Numba itself tells processors apart. Where no folder can be written, that
costs a warning in the log, and a compilation at each start. What is damaged is compiled anew and replaced.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property, lru_cache
from importlib.resources import files
from pathlib import Path

import numba
from numba import types
from numba.core.caching import CompileResultCacheImpl, FunctionCache, NullCache
from numba.core.ccallback import CFunc

from ..files import remove
from . import compiling
from .processor import backend

# What lets a sum be vectorised, short of assuming that there are no NaNs and infinities.
RELAXED = {"nsz", "arcp", "contract", "afn", "reassoc"}
_OPTIONS = {"nogil": True, "error_model": "numpy", "fastmath": RELAXED}


def jit(function: Callable) -> Callable:
    """Compile on first call, for the argument types of that call; the GIL is released while it runs."""
    # Inlined wherever another kernel uses it: a function that several share would be optimised with each of them, and
    # which copy is called would depend on what was loaded first, and with it the last bit of a result.
    kernel = numba.njit(function, forceinline=True, **_OPTIONS)
    kernel._cache = _cache_of(function)  # what enable_caching() does, with places of our own
    return kernel


class Code:
    """A function of int64 arguments, compiled to be called by its address; when that is first asked for."""

    def __init__(self, function: Callable):
        self._function = function

    @cached_property
    def address(self) -> int:
        """Where the machine code begins."""
        arguments = (types.int64,) * self._function.__code__.co_argcount
        code = CFunc(self._function, (arguments, types.void), {}, dict(_OPTIONS, nopython=True))
        code._cache = _cache_of(self._function)
        code.compile()
        self._code = code  # which owns the machine code
        return code.address


def inlined(function: Callable) -> Callable:
    """A part of kernels: callable from them only, and compiled into each, for each set of argument types."""
    return numba.njit(function, forceinline=True, no_cpython_wrapper=True, no_cfunc_wrapper=True, **_OPTIONS)


def spliced(function: Callable) -> Callable:
    """A part of kernels whose text goes into each function that uses it; for what is short, or is used once.

    What is `inlined` is compiled by itself first, and once more with each function around it.
    """
    return numba.njit(function, inline="always", **_OPTIONS)


_warned = False


def _warn() -> None:
    """Say, the first time this is called, that nothing is kept.

    In the log: a `warnings.warn` is an error where a person has asked for that, and Numba, in the middle of whose work
    this may be, makes Python forget which of them were shown.
    """
    global _warned
    if not _warned:
        _warned = True
        message = "no folder to keep compiled kernels in can be written, so each start compiles them anew"
        logging.getLogger("tinyinfer").warning(message)


def _cache_of(function: Callable) -> _Cache | _NoCache:
    try:
        return _Cache(function)
    except RuntimeError:  # Numba's word for: no place to cache
        _warn()
        return _NoCache()


@lru_cache(maxsize=1)
def _sources() -> str:
    """A hash of every source file of this package."""
    digest = hashlib.sha256()
    for entry in sorted(files(__package__).iterdir(), key=lambda entry: entry.name):
        if entry.name.endswith(".py"):
            digest.update(entry.read_bytes())
    return digest.hexdigest()


class _Place:
    """Goes before one of Numba's cache locators: a folder for each backend, which is fresh while no source changed."""

    def get_cache_path(self) -> str:
        return os.path.join(super().get_cache_path(), f"kernels-{backend()}")

    def get_source_stamp(self) -> str:
        return _sources()


class _Implementation(CompileResultCacheImpl):
    _locator_classes = [type(place.__name__, (_Place, place), {}) for place in CompileResultCacheImpl._locator_classes]  # noqa: RUF012


class _Cache(FunctionCache):
    _impl_class = _Implementation

    def load_overload(self, signature, target_context):
        """As Numba's; where there is nothing to load, that is told, since compiling comes next."""
        try:
            found = super().load_overload(signature, target_context)
        except Exception:  # reading what is damaged can come to any error
            found = None
            self._forget()
        if found is None:
            compiling.tell("once")
        return found

    def save_overload(self, signature, compiled) -> None:
        """As Numba's; a disk that is full or gone read-only must not stop a kernel that is compiled and ready."""
        try:
            super().save_overload(signature, compiled)
        except Exception:  # an OSError, or what is damaged and could not be removed
            _warn()

    def _forget(self) -> None:
        """Remove the index, which Numba reads before it writes; code that nothing names is overwritten."""
        with suppress(OSError):
            remove(Path(self._cache_file._index_path))


class _NoCache(NullCache):
    def load_overload(self, signature, target_context) -> None:
        """Nothing; but compiling comes next."""
        compiling.tell("at each start")
