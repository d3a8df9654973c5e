"""What operations need adds up to what the engine's own counters say of the pass."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lab.course.tiny_settings import tiny_setting
from tinyinfer.lab import cost
from tinyinfer.lab.course import roofline
from tinyinfer.lab.course.roofline import operations
from tinyinfer.lab.machine import MultiplyProbe, ReadProbe
from tinyinfer.model.footprint import kv_bytes_per_token


@pytest.mark.parametrize("tokens", [1, 16])
def test_operations_add_up(tmp_path: Path, tokens: int):
    llm = tiny_setting(tmp_path / "model").llm
    found = {one.name: one for one in operations(llm, tokens, 32)}
    attention = found.pop("attention")
    tensors = llm.model.tensors
    assert sum(one.flop for one in found.values()) == 2 * sum(cost.multiply_adds(tensors, tokens, 1).values())
    vectors = sum(4 * tokens * sum(t.shape) for layer in tensors.layers for t in layer.values() if t.ndim == 2)
    norms = 4 * 64 * 7  # two for each of three layers, and the last
    rows = 4 * 64 * tokens  # of the embedding
    weights = cost.weight_bytes(tensors, tokens) - norms - rows
    assert sum(one.bytes for one in found.values()) == weights + vectors + 4 * sum(tensors.head.shape)
    pairs = sum(32 + new for new in range(1, tokens + 1))
    assert attention.flop == 4 * pairs * 60 * 3
    assert attention.bytes == kv_bytes_per_token(llm.config) * (32 + tokens) + 8 * tokens * 60 * 3


def test_decoding_with_float16_weights_is_one_flop_a_byte(tmp_path: Path):
    llm = tiny_setting(tmp_path / "model", dtype="float16", hidden_size=512).llm
    gate = next(one for one in operations(llm, 1, 8) if one.name == "gate")
    assert gate.intensity == pytest.approx(1, rel=0.05)


def test_the_experiment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ReadProbe, "rate", lambda self: 1e9)
    monkeypatch.setattr(MultiplyProbe, "rate", lambda self: 1e10)
    monkeypatch.setattr("tinyinfer.lab.bench.probe_bytes", lambda: 1 << 20)
    machine, found, passes = roofline.measure(tiny_setting(tmp_path / "model")).tables
    assert machine.rows == [(1.0, 20.0, 20.0)]
    for _, _, held, flop, size, intensity, least, _ in found.rows:
        assert held == ("memory" if intensity < 20 else "arithmetic")
        assert least == pytest.approx(max(size, flop / 20))
        assert intensity == pytest.approx(flop / size)
    assert [row[0] for row in passes.rows] == ["prefill of 128", "decode behind 64"]
    assert passes.rows[1][2] == pytest.approx(sum(row[6] for row in found.rows if row[0].startswith("decode")))
