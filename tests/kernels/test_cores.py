"""How many cores a process may keep busy: of a machine laid out in a folder as Linux lays out /sys."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tinyinfer.kernels.cores import usable_cores

linux = pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="the system does not say which cores it allows")


def lay_out(folder: Path, siblings: dict[int, str], quota: str | None = None) -> Path:
    for cpu, listed in siblings.items():
        place = folder / f"devices/system/cpu/cpu{cpu}/topology"
        place.mkdir(parents=True)
        (place / "thread_siblings_list").write_text(listed + "\n")
    if quota is not None:
        (folder / "fs/cgroup").mkdir(parents=True)
        (folder / "fs/cgroup/cpu.max").write_text(quota + "\n")
    return folder


PAIRS = {0: "0,4", 1: "1,5", 2: "2,6", 3: "3,7", 4: "0,4", 5: "1,5", 6: "2,6", 7: "3,7"}


@linux
@pytest.mark.parametrize(
    ("allowed", "quota", "expected"),
    [
        (range(8), None, 4),
        (range(8), "max 100000", 4),
        (range(8), "250000 100000", 3),
        (range(8), "50000 100000", 1),
        (range(8), "800000 100000", 4),
        (range(8), "nonsense", 4),
        (range(8), "100000 0", 4),
        ([0, 4], None, 1),
        ([0, 1, 4], None, 2),
        ([3], None, 1),
        ([11, 12], None, 2),  # of which nothing is known
    ],
)
def test_physical_cores_that_are_allowed(monkeypatch, tmp_path: Path, allowed, quota, expected: int):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(allowed))
    assert usable_cores(lay_out(tmp_path, PAIRS, quota)) == expected


@linux
def test_of_this_machine():
    assert 1 <= usable_cores() <= len(os.sched_getaffinity(0))
