"""Pools with room to grow: nothing is copied, memory is taken as blocks are, and without address space they copy."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.cache.test_blocks import config_of
from tinyinfer.cache import KV_DTYPES, KVCache
from tinyinfer.cache import pool as pools
from tinyinfer.cache.memory import RESERVES, untouched

pytestmark = pytest.mark.skipif(not RESERVES, reason="the system counts memory when it is asked for")


def test_an_array_of_untouched_memory():
    array = untouched((3, 5, 7), np.float16)
    assert (array.shape, array.dtype, array.flags.c_contiguous, array.flags.writeable) == ((3, 5, 7), "f2", True, True)
    array[:] = 2
    assert array.sum() == 2 * 105
    assert untouched((0, 4), np.int8).shape == (0, 4)
    with pytest.raises(MemoryError):
        untouched((1 << 62, 4), np.float32)


@pytest.mark.parametrize("dtype", KV_DTYPES)
def test_growing_within_the_room_moves_nothing(dtype: str):
    cache = KVCache(config_of([None, 4]), 2, dtype, room=99)
    for pool in cache.pools:
        assert (pool.num_blocks, pool.nbytes) == (0, 0)
        taken = pool.allocate(3)
        assert pool.capacity == 50
        before = [(array, array.ctypes.data, array.copy()) for array in pool._arrays if array is not None]
        size = pool.nbytes
        taken += pool.allocate(7)
        assert (sorted(taken), pool.num_blocks, pool.nbytes) == (list(range(10)), 10, size / 3 * 10)
        after = [array for array in pool._arrays if array is not None]
        for (_, address, numbers), array in zip(before, after, strict=True):
            assert array.ctypes.data == address
            assert np.array_equal(array[:, :, :3], numbers, equal_nan=array.dtype.kind == "f")


def test_beyond_the_room_it_is_copied():
    pool = KVCache(config_of([None]), 2, room=10).pools[0]
    pool.allocate(5)
    pool.keys[:], pool.values[:] = 3, 4
    pool.allocate(1)
    assert (pool.num_blocks, pool.capacity) == (10, 10)
    assert (pool.keys[:, :, :5] == 3).all()
    assert (pool.values[:, :, :5] == 4).all()


def test_without_address_space_it_grows_by_copying(monkeypatch: pytest.MonkeyPatch):
    """All arrays alike: one that had room and one that had none would lie differently."""
    asked = []

    def scarce(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        asked.append(shape)
        if len(asked) == 2:
            raise MemoryError
        return np.empty(shape, dtype)

    monkeypatch.setattr(pools, "untouched", scarce)
    pool = KVCache(config_of([None]), 2, "int8", room=1000).pools[0]
    pool.allocate(3)
    assert {array.shape[2] for array in pool._arrays} == {pool.capacity} == {3}
    assert [shape[2] for shape in asked] == [500, 500, 3, 3, 3, 3]


STEPS = """
import resource, sys
import numpy as np
from types import SimpleNamespace
from tinyinfer.cache import KVCache

def megabytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 1e6

if sys.argv[1] == "limited":
    resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
config = SimpleNamespace(layers=[SimpleNamespace(window=None)] * 16, cache_shape=(8, 64))
cache = KVCache(config, 32, "float16", room=1 << 20)
sequence, before = cache.sequence(), megabytes()
numbers = np.ones((32, 8, 64), np.float32)
for step in range(20):
    sequence.reserve(32)
    for layer in range(16):
        sequence.tables[0].store(layer, sequence.length, numbers, numbers)
    sequence.advance(32)
print(cache.pools[0].capacity, megabytes() - before)
"""


def lends_freely() -> bool:
    """Whether this is a Linux that does not count address space as memory."""
    setting = Path("/proc/sys/vm/overcommit_memory")
    return setting.exists() and setting.read_text().strip() != "2"


@pytest.mark.skipif(not lends_freely(), reason="address space counts as memory here, or there is no /proc")
@pytest.mark.parametrize("kind", ["free", "limited"])
def test_memory_is_taken_as_blocks_are(kind: str):
    """640 tokens of 32 kB each; address space for a million: 34 GB, which a limited process is not lent."""
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", STEPS, kind], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    capacity, used = done.stdout.split()
    assert int(capacity) == (32768 if kind == "free" else 32)
    # 21 MB, and what else the interpreter took meanwhile; copies in pages of 2 MB may take twice that
    assert 20 < float(used) < (30 if kind == "free" else 60)
