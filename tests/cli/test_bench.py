"""`tinyinfer bench`: what its tables say of given samples, and the command itself on a tiny model."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from tests.cli.commands import refused, tinyinfer
from tests.tiny_models import random_model
from tinyinfer import load
from tinyinfer.cli.bench import HEADINGS, markdown, numbers, record, rows, samples_lines, text
from tinyinfer.errors import BadRequest
from tinyinfer.lab.bench import Limits, Measurement, Plan, Report, bench
from tinyinfer.lab.timing import Samples

REPORT = Report(
    model="small",
    weights={"int4-g32": 80_000_000, "float32": 1_000},
    threads=2,
    backend="avx2",
    kv_dtype="float16",
    processor="a processor",
    load=(0.25, 1.5),
    repeats=3,
    limits=Limits(Samples((30e9, 20e9, 25e9)), 1 << 30, Samples((150e9, 100e9)), "int8"),
    measurements=(
        Measurement("prefill 512", "prefill", 1, 512, 0, Samples((1000.0, 900.0, 1250.5)), 200_000.0, 1e8),
        Measurement("decode at 2,048", "decode", 1, 1, 2048, Samples((100.0, 40.0, 120.0)), 125e6, 1e8),
    ),
    skipped=("batch of 4 at 8 takes 24 tokens, more than the context of 20",),
)
UNLIMITED = Report("small", {}, None, "numpy", "float32", "p", (None, None), 3, None, REPORT.measurements, ())


def test_rows_are_medians_spreads_and_shares():
    assert rows(REPORT) == [
        ["prefill 512", "1,000.0", "900.0 to 1,250.5", "0.20", "0.20", "0.8 %", "80.0 %"],
        ["decode at 2,048", "100.0", "40.0 to 120.0", "125.00", "12.50", "50.0 %", "8.0 %"],
    ]
    assert [row[-2:] for row in rows(UNLIMITED)] == [["-", "-"]] * 2


def test_text_says_first_what_it_was_made_with():
    lines = text(REPORT).splitlines()
    assert lines[:7] == [
        "model       small",
        "weights     80 MB read a pass: int4-g32 80 MB, float32 1 kB",
        "threads     2 threads; kernels: avx2; keys and values: float16",
        "machine     a processor",
        "load        0.25 before, 1.50 after",
        "memory      25.0 (20.0 to 30.0) GB/s: a sum over 1.07 GB",
        "arithmetic  125.0 (100.0 to 150.0) G multiply-adds a second: int8",
    ]
    assert lines[7] == ""
    assert lines[8].split() == " ".join(HEADINGS).split()
    assert len({len(line) for line in lines[8:11]}) == 1
    assert lines[-1] == "not measured: batch of 4 at 8 takes 24 tokens, more than the context of 20"
    assert "memory      not measured: that takes compiled kernels" in text(UNLIMITED)
    assert "load        unknown before, unknown after" in text(UNLIMITED)


def test_markdown_is_one_list_and_one_table():
    shown = markdown(REPORT)
    assert "- threads: 2 threads; kernels: avx2; keys and values: float16\n" in shown
    table = [line for line in shown.splitlines() if line.startswith("|")]
    assert len(table) == 4
    assert {line.count("|") for line in table} == {len(HEADINGS) + 1}
    assert set(table[1]) == set("|- :")
    assert shown.endswith("not measured: batch of 4 at 8 takes 24 tokens, more than the context of 20")


def test_the_record_has_every_sample():
    found = json.loads(json.dumps(record(REPORT)))
    assert found["load_average"] == {"before": 0.25, "after": 1.5}
    assert found["memory_bytes_per_second"]["samples"] == [30e9, 20e9, 25e9]
    assert found["multiply_adds_per_second"]["median"] == 125e9
    prefill, decode = found["measurements"]
    assert prefill["tokens_per_second"] == {
        "median": 1000,
        "low": 900,
        "high": 1250.5,
        "samples": [1000, 900, 1250.5],
    }
    assert (decode["depth"], decode["memory_share"], decode["arithmetic_share"]) == (2048, 0.5, 0.08)
    assert found["skipped"] == list(REPORT.skipped)
    found = record(UNLIMITED)
    assert found["memory_bytes_per_second"] is None
    assert found["measurements"][0]["memory_share"] is None


def test_samples_for_people():
    lines = [line.split() for line in samples_lines(REPORT)]
    assert lines[1] == ["decode", "at", "2,048", "100", "40", "120"]
    assert lines[2][-3:] == ["30", "20", "25"]
    assert len(samples_lines(UNLIMITED)) == 2


@pytest.mark.parametrize(
    ("text", "found"), [("16", (16,)), (" 16, 8,8 ", (16, 8, 8)), ("0", (0,)), ("", ()), (" ", ())]
)
def test_lists(text, found):
    assert numbers(text, "--prefill") == found


@pytest.mark.parametrize("text", ["a", "1,", ",", "1,,2", "-1", "1.5", "1 2", "1;2", "9" * 30, "³"])
def test_what_is_no_list(text):
    with pytest.raises(BadRequest, match=re.escape(f"found {text!r}")):
        numbers(text, "--prefill")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    random_model(folder, max_position_embeddings=64)
    for form in (None, "int8"):  # compiled here, where no clock runs: a command gets a minute
        bench(load(folder, quantize=form), Plan(prefill=(3,), decode=(), batch=(2,), repeats=1))
    return folder


def test_the_command_prints_a_table(model):
    lists = ["--prefill", "16,128", "--decode", "8", "--batch", "2", "-r", "1"]
    done = tinyinfer("bench", model, *lists, "--threads", 1)
    assert done.returncode == 0
    assert done.stderr == "measuring\n"
    lines = done.stdout.splitlines()
    assert lines[0] == f"model       {model}"
    assert [line.split("  ")[0] for line in lines if line.startswith(("prefill", "decode", "batch"))] == [
        "prefill 16",
        "decode at 8",
        "batch of 2 at 8",
    ]
    assert lines[-1] == "not measured: prefill 128 takes 128 tokens, more than the context of 64"
    if os.environ.get("TINYINFER_KERNELS") != "numpy":
        assert lines[2].startswith("threads     1 thread; kernels: ")
        assert "GB/s: a sum over" in lines[5]


def test_json_and_markdown(model):
    few = ["--prefill", "3", "--decode", "", "--batch", "", "--repeats", "2", "--quantize", "int8", "-q"]
    done = tinyinfer("bench", model, *few, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert "int8-g32" in found["weight_bytes"]
    assert [one["name"] for one in found["measurements"]] == ["prefill 3"]
    assert len(found["measurements"][0]["tokens_per_second"]["samples"]) == 2
    done = tinyinfer("bench", model, *few, "--md")
    assert done.returncode == 0
    assert "| prefill 3 |" in done.stdout


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--prefill", "16,x"], "--prefill should be whole numbers with commas between, as 16,128,512, found '16,x'"),
        (["--decode", "-1"], "--decode"),
        (["--batch", "２"], "--batch should be whole numbers with commas between"),
        (["--prefill", "0"], "--prefill should be numbers from 1, found 0"),
        (["--batch", "513"], "--batch should be numbers from 1 to 512, found 513"),
        (["--repeats", "0"], "--repeats should be a whole number from 1, found 0"),
        (["--prefill", "", "--decode", "", "--batch", ""], "nothing to measure"),
        (["--prefill", "", "--decode", "49", "--batch", ""], "65 tokens, more than the context of 64"),
        (["--json", "--md"], "not allowed with argument --json"),
        (["--threads", "0"], "--threads should be"),
        (["another"], "unrecognized arguments: another"),
    ],
)
def test_impossible_flags_are_one_sentence(model, flags, message):
    assert message in refused(tinyinfer("bench", model, "-q", *flags))


def test_a_model_is_needed():
    assert "a model is needed" in refused(tinyinfer("bench"))
    assert "/no/such" in refused(tinyinfer("bench", "/no/such"))
