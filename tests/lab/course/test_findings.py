"""What holds for every experiment: three sentences at most, whole tables with the course's column, drawings, JSON."""

from __future__ import annotations

import json
import math
import re
import warnings
from pathlib import Path

import numpy as np
import pytest

from tests.lab.course.tiny_settings import tiny_setting
from tinyinfer.cli.lab import _record
from tinyinfer.kernels.tape import use_compiled
from tinyinfer.lab.course import attention, batch, macs, memory, phases, quant, scheduling
from tinyinfer.lab.course.catalogue import EXPERIMENTS, experiment
from tinyinfer.lab.course.drawing import figure_of
from tinyinfer.lab.course.finding import Finding
from tinyinfer.lab.course.setting import Setting

MEASURED = [one.name for one in EXPERIMENTS]
# which tell of the course in words, as it gives no number to stand beside
IN_WORDS = {"sampling": "the course", "trace": "course's"}
BEYOND = {"calibrated"}  # the course: it has no figure


@pytest.fixture(scope="module")
def setting(tmp_path_factory: pytest.TempPathFactory) -> Setting:
    folder = tmp_path_factory.mktemp("home") / "model"
    return tiny_setting(folder, max_position_embeddings=1024, intermediate_size=128, hidden_size=128)


@pytest.fixture(scope="module")
def findings() -> dict[str, Finding]:
    return {}


@pytest.fixture(params=MEASURED)
def finding(request, setting: Setting, findings: dict, monkeypatch: pytest.MonkeyPatch) -> tuple[str, Finding]:
    """Each once, at sizes that take no time."""
    name = request.param
    if name not in findings:
        monkeypatch.setenv("TINYINFER_HOME", str(Path(setting.model).parent))
        monkeypatch.setattr(attention, "LENGTHS", (64, 128, 4096))
        monkeypatch.setattr(macs, "LENGTHS", (16, 64, 256))
        monkeypatch.setattr(phases, "LENGTHS", (16, 32, 64))
        monkeypatch.setattr(batch, "SIZES", (1, 2, 16))
        monkeypatch.setattr(scheduling, "run_both", lambda setting, came: scheduling.both(came, COSTS))
        monkeypatch.setattr("tinyinfer.lab.bench.probe_bytes", lambda: 1 << 20)
        peaks = iter([1, 3, 9])
        held = {"cache": 5 * memory.MB}
        monkeypatch.setattr(
            memory, "in_own_process", lambda setting, way: {"peaks": [2, 3, next(peaks) * memory.MB], **held}
        )
        findings[name] = experiment(name).run(setting)
    return name, findings[name]


COSTS = scheduling.Costs([1 + 0.1 * others for others in range(scheduling.SLOTS)], 0.1)


def sentences(text: str) -> int:
    return len(re.findall(r"[.!?](?=\s|$)", text))


def test_three_sentences_at_most(finding: tuple[str, Finding]):
    name, found = finding
    assert 2 <= sentences(found.says) <= 3
    assert found.says.endswith(".")
    assert "nan" not in found.says.lower().split()
    assert "  " not in found.says
    assert not re.search(r"\de[+-]\d", found.says) or name == "attention"  # 8e-08 is said as it is


def test_tables_are_whole_and_stand_beside_the_course(finding: tuple[str, Finding]):
    name, found = finding
    for table in found.tables:
        assert all(len(row) == len(table.columns) for row in table.rows)
        numbers = [cell for row in table.rows for cell in row if isinstance(cell, float)]
        assert all(map(math.isfinite, numbers))
    if name in IN_WORDS:
        assert IN_WORDS[name] in found.says
    elif name not in BEYOND:
        assert any("course" in column for table in found.tables for column in table.columns)


def test_they_are_json_and_can_be_drawn(finding: tuple[str, Finding]):
    _, found = finding
    assert json.loads(json.dumps(_record(found), allow_nan=False))
    assert found.drawings or not use_compiled()  # where NumPy computes, the machine has no limits to draw
    for drawing in found.drawings:
        assert drawing.title
        assert drawing.x
        assert all(np.isfinite(y) for points in drawing.lines.values() for _, y in points)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a label that no font has, a line that no scale can show
        figure_of(found.drawings).savefig(Path("/dev/null"), format="svg")


def test_what_memory_says_goes_by_what_the_system_tells():
    assert "does not tell" in memory._says(None, None, None, memory.MB)
    assert "takes 8 times as much" in memory._says(memory.MB, 2 * memory.MB, 8 * memory.MB, memory.MB)


def test_what_quant_says_goes_by_how_the_weights_are_stored():
    rows = [
        ("4 bits, a scale a tensor", 4, 0.4, 0.7, None, 0.99),
        ("4 bits, groups of 128", 4.2, 0.12, 0.13, 0.1323, None),
    ]
    apart = quant.Table("", (), [(128, 0.12, 0.1, 0.2), (64, 0.11, 0.09, 0.18)])
    assert "lies on a grid already" in quant._says(rows, apart, ["int4-g32"], some=True)
    whole = quant._says(rows, apart, [], some=False)
    assert "grid" not in whole
    assert "--full" not in whole
