"""What the probes count and that they measure at all; how fast this machine is, no test can know."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernels.tapes import TEAMS
from tinyinfer.lab import machine
from tinyinfer.lab.machine import PIECE_BYTES, PIECES, ROUNDS, TABLE, MultiplyProbe, ReadProbe


@pytest.mark.parametrize("team", [1, 2])
@pytest.mark.parametrize(("asked", "pieces"), [(0, 1), (PIECE_BYTES, 1), (3 * PIECE_BYTES + 5, 3)])
def test_reading_sums_the_whole_array(team, asked, pieces):
    probe = ReadProbe(TEAMS[team], asked)
    assert probe.nbytes == pieces * PIECE_BYTES
    assert 0 < probe.rate() < np.inf
    assert probe.sums.tolist() == [PIECE_BYTES // 8] * pieces


@pytest.mark.parametrize("team", [1, 2])
@pytest.mark.parametrize(("kind", "a_round"), [("int8", TABLE * 12), ("float32", TABLE // 4 * 12)])
def test_multiplying_counts_every_one(team, kind, a_round):
    probe = MultiplyProbe(TEAMS[team], kind)
    assert probe.count == team * PIECES * ROUNDS * a_round
    assert 0 < probe.rate() < np.inf
    if kind == "float32":  # of integers, sums of so many wrap
        assert np.all(probe.sums == ROUNDS * len(probe.table))


def test_the_array_is_a_quarter_of_what_is_free_at_most(monkeypatch):
    for free, expected in [(None, 1 << 30), (1 << 40, 1 << 30), (1 << 30, 1 << 28), (0, 0)]:
        monkeypatch.setattr(machine, "free_memory", lambda free=free: free)
        assert machine.probe_bytes() == expected


def test_facts_of_this_machine():
    assert machine.processor_name()
    free, load = machine.free_memory(), machine.load_average()
    assert free is None or free > 0
    assert load is None or load >= 0
