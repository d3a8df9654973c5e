"""What the longer examples reckon, without the engines that they compare with."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from tests.chain_models import say, write_chain_model
from tests.cli.commands import environment

COMPARE = Path(__file__).parents[1] / "examples" / "compare_llama_cpp.py"


@pytest.fixture
def compare(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The comparison with llama.cpp, which need not be installed for its table."""
    monkeypatch.setitem(sys.modules, "llama_cpp", SimpleNamespace(llama_log_callback=lambda function: function))
    spec = importlib.util.spec_from_file_location("compare_llama_cpp", COMPARE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "REST", 0)
    return module


def rate(*values: float):
    """A measurement that gives these, after one to warm up."""
    found = iter([0.0, *values])
    return lambda: next(found)


def test_the_better_median_of_a_rival_counts_in_each_column(compare):
    engines = {
        "tinyinfer": [rate(300, 100, 200), rate(9, 9, 9), rate(8, 8, 8)],
        "plain": [rate(90, 100, 110), rate(1, 2, 3), rate(4, 4, 5)],
        "flash": [rate(40, 40, 40), rate(3, 3, 3), rate(2, 2, 2)],
        "other": [rate(400, 400, 400), rate(9, 9, 9), rate(16, 16, 16)],
    }
    table = compare.compare(engines, {"one.gguf": ["plain", "flash"], "two.gguf": ["other"]}, 3)
    lines = [" ".join(line.split()) for line in table.splitlines()]
    assert lines[1] == "tinyinfer 200.0 (100.0 to 300.0) 9.0 (9.0 to 9.0) 8.0 (8.0 to 8.0)"
    assert lines[2] == "plain 100.0 (90.0 to 110.0) 2.0 (1.0 to 3.0) 4.0 (4.0 to 5.0)"
    assert lines[5] == "tinyinfer / the better with one.gguf 2.00x 3.00x 2.00x"
    assert lines[6] == "tinyinfer / the better with two.gguf 0.50x 1.00x 0.50x"


def test_engines_take_turns(compare):
    order = []

    def noted(name: str) -> list:
        return [lambda: order.append(name) or 1.0]

    compare.HEADINGS = compare.HEADINGS[:2]
    compare.compare({"ours": noted("ours"), "theirs": noted("theirs")}, {"theirs": ["theirs"]}, 2)
    assert order == ["ours", "theirs"] * 3


def test_without_llama_cpp_it_says_what_to_install():
    program = f"import sys, runpy; sys.modules['llama_cpp'] = None; runpy.run_path({str(COMPARE)!r})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment())
    assert done.returncode != 0
    assert done.stderr == 'comparing needs llama-cpp-python: pip install "tinyinfer[bench]"\n'


def test_another_process_goes_on_from_what_one_has_read(tmp_path: Path):
    write_chain_model(tmp_path / "model", say("bcd", after="s"))
    argv = [sys.executable, Path(__file__).parents[1] / "examples" / "hand_over.py", tmp_path / "model"]
    done = subprocess.run(argv, capture_output=True, text=True, env=environment())
    assert done.stderr == ""
    first, second = sorted(done.stdout.splitlines())
    assert first.endswith("should begin with 'b'")
    read = int(first.split()[4])
    assert second == f"the second had {read - 1} of {read} already, and says 'bcd'"
