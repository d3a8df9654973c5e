"""`tinyinfer lab`: the list, one experiment in every form, all of them as a page, and what is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.tiny_models import random_model
from tinyinfer.cli import main
from tinyinfer.lab.course import catalogue
from tinyinfer.lab.course.catalogue import EXPERIMENTS


@pytest.fixture
def model(tmp_path: Path) -> str:
    random_model(tmp_path / "model")
    return str(tmp_path / "model")


def test_the_list_is_in_reading_order(capsys: pytest.CaptureFixture):
    assert main(["lab"]) == 0
    lines = capsys.readouterr().out.splitlines()[1:]
    assert [line.split()[0] for line in lines] == [one.name for one in EXPERIMENTS]


def test_one_experiment_as_text_markdown_and_json(model: str, capsys: pytest.CaptureFixture):
    assert main(["lab", "kv", "--model", model]) == 0
    assert "12,288" in capsys.readouterr().out
    assert main(["lab", "kv", "--model", model, "--md"]) == 0
    assert "| the course's model | float16 | 12,288 | 12,288 | 12,288 |" in capsys.readouterr().out
    assert main(["lab", "kv", "--model", model, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["name"] == "kv"
    assert next(row[2] for row in found["tables"][0]["rows"] if row[:2] == ["the course's model", "float16"]) == 12_288
    assert found["drawings"][0]["x"] == "tokens"


@pytest.mark.parametrize(("ending", "begins"), [("svg", b"<?xml"), ("png", b"\x89PNG"), ("pdf", b"%PDF")])
def test_a_drawing_is_a_file_of_its_kind(model: str, tmp_path: Path, ending: str, begins: bytes):
    path = tmp_path / f"drawing.{ending}"
    assert main(["lab", "fit", "--model", model, "--plot", str(path)]) == 0
    assert path.read_bytes().startswith(begins)


def test_all_of_them_are_one_page_without_anything_outside_it(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(catalogue, "EXPERIMENTS", tuple(one for one in EXPERIMENTS if one.name in ("kv", "fit")))
    assert main(["lab", "all", "--model", model, "--out", str(tmp_path / "report")]) == 0
    page = (tmp_path / "report" / "report.html").read_text(encoding="utf-8")
    assert page.count("<h2") == 2
    assert "<svg" in page
    assert "12,288" in page
    assert "src=" not in page
    assert page.count("<?xml") == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["lab", "none-such"], "there is no experiment 'none-such'"),
        (["lab", "all"], "--out FOLDER"),
        (["lab", "kv", "--out", "x"], "--out is for"),
        (["lab", "kv", "--plot", "drawing.gif"], ".svg, .png, .pdf"),
        (["lab", "kv", "--model", "none-such"], "none-such"),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(arguments: list[str], said: str, capsys: pytest.CaptureFixture):
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert said in error
    assert "Traceback" not in error
