"""The one way to compile here: `jit`, Numba's njit with this package's settings.

Compiled code is cached on disk. Where no folder can be written, that costs a warning and a compilation at each start.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numba

# What lets a sum be vectorised, short of assuming that there are no NaNs and infinities.
RELAXED = {"nsz", "arcp", "contract", "afn", "reassoc"}


def jit(function: Callable) -> Callable:
    """Compile on first call, for the argument types of that call; the GIL is released while it runs."""
    options = {"nogil": True, "error_model": "numpy", "fastmath": RELAXED}
    try:
        return numba.njit(function, cache=True, **options)
    except RuntimeError as error:  # Numba's word for: no place to cache
        warnings.warn(f"compiled kernels can't be kept, so each start compiles them anew: {error}", stacklevel=2)
        return numba.njit(function, **options)
