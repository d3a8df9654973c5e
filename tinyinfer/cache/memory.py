"""Room for a cache to grow into: address space now, memory only where something is written."""

from __future__ import annotations

import math
import mmap
import os
from contextlib import suppress

import numpy as np

RESERVES = os.name == "posix"  # Windows counts memory when it is asked for, not when it is used


def untouched(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """An array of any numbers whose pages take memory when they are first written to, each for itself.

    Memory that NumPy asks for may come in pages of 2 MB, so that a block here and there would take nearly all of it.
    Raises `MemoryError` where the system will not lend so much address space, as under `ulimit -v`.
    """
    size = math.prod(shape) * np.dtype(dtype).itemsize
    if not size:
        return np.empty(shape, dtype)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
    try:
        area = mmap.mmap(-1, size, flags=flags)
    except (OSError, OverflowError, ValueError) as error:
        raise MemoryError(f"no {size:,} bytes of address space") from error
    with suppress(AttributeError, OSError):  # a system without large pages
        area.madvise(mmap.MADV_NOHUGEPAGE)
    return np.ndarray(shape, dtype, area)
