"""Tapes run as a test likes, compiled by a team of any size or in NumPy; and tapes of a single operation."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest

from tinyinfer.cache import KVCache
from tinyinfer.kernels import threads
from tinyinfer.kernels.step import Step
from tinyinfer.kernels.tape import Tape

NO_ROWS = np.zeros(0, np.int64)
TEAMS = {size: threads.Team(size) for size in (1, 2, 3, 5, 9)}
_RUN = Tape.run


def run_by(patch: pytest.MonkeyPatch, team: int | None) -> None:
    """From now on tapes are run by a team of that many threads; None: in NumPy, as with TINYINFER_KERNELS=numpy."""
    if team is None:
        patch.setattr(Tape, "run", lambda tape, step: [twin(step) for twin in tape._twins])
    else:
        patch.setattr(Tape, "run", lambda tape, step: _RUN(tape_with(tape, TEAMS[team]), step))


def tape_with(tape: Tape, team: threads.Team) -> Tape:
    tape._team = team
    return tape


def cache_of(windows: list[int | None], kv_heads: int, dim: int, block_size: int, dtype: str = "float32") -> KVCache:
    """A cache without a model, a layer for each window; what was never stored is NaN."""
    layers = [SimpleNamespace(window=window) for window in windows]
    cache = KVCache(
        SimpleNamespace(layers=layers, cache_shape=(kv_heads, dim)), block_size, dtype, room=300 * block_size
    )
    for pool in cache.pools:
        pool.grow(256)
        for array in pool._arrays:
            if array is not None:
                array[:] = {np.int8: 77, np.uint8: 255}.get(array.dtype.type, np.nan)  # two bytes of 255 are a NaN
    return cache


def plain_step(rows: int, wanted: np.ndarray = NO_ROWS, vocab: int = 0) -> Step:
    """A step of one new text, for operations that do not ask whose the rows are."""
    sequence = cache_of([None], 1, 1, 32).sequence()
    sequence.reserve(rows)
    return Step([sequence], [rows], wanted, [], np.full((len(wanted), vocab), np.nan, np.float32))


def play(
    write: Callable[[Tape], None],
    step: Step,
    team: int | None,
    shape: tuple[int, int, int] = (1, 1, 1),
    most: int = 300,
    kv_dtype: str = "float32",
    tape: type[Tape] = Tape,
) -> Tape:
    """Write a tape and run it once, compiled by a team of that many, or in NumPy where that is None."""
    written = tape(most, kv_dtype, team)
    write(written)
    written.finish(shape[0], shape[2])
    with pytest.MonkeyPatch.context() as patch:
        run_by(patch, team)
        written.run(step)
    return written
