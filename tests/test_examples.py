"""What the longer examples reckon, without the engines that they compare with."""

from __future__ import annotations

import asyncio
import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from tests.chain_models import say, write_chain_model
from tests.cli.commands import environment
from tests.lab.stream_server import ANSWER, answer, serving
from tests.server.served import chain_llm, served
from tinyinfer.errors import TinyinferError
from tinyinfer.lab.chats import Heard, Talk
from tinyinfer.lab.http_client import target_of
from tinyinfer.lab.load import Sent

EXAMPLES = Path(__file__).parents[1] / "examples"
COMPARE = EXAMPLES / "compare_llama_cpp.py"


def example(name: str) -> ModuleType:
    """One as a module."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where its dataclasses look for their annotations
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def compare(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The comparison with llama.cpp, which need not be installed for its table."""
    monkeypatch.setitem(sys.modules, "llama_cpp", SimpleNamespace(llama_log_callback=lambda function: function))
    module = example("compare_llama_cpp")
    monkeypatch.setattr(module, "REST", 0)
    return module


def rate(*values: float):
    """A measurement that gives these, after one to warm up."""
    found = iter([0.0, *values])
    return lambda: next(found)


def test_ours_is_compared_with_both_ways_of_a_rival_in_each_column(compare):
    ours = {"one.gguf": [rate(300, 100, 200), rate(9, 9, 9), rate(8, 8, 8)]}
    theirs = {
        "one.gguf": [
            [rate(90, 100, 110), rate(1, 2, 3), rate(4, 4, 5)],
            [rate(40, 40, 40), rate(3, 3, 3), rate(2, 2, 2)],
        ],
        "two.gguf": [[rate(400, 400, 400), rate(9, 9, 9), rate(16, 16, 16)] for _ in range(2)],
    }
    lines = [" ".join(line.split()) for line in compare.compare(ours, theirs, 3).splitlines()]
    assert lines[1] == "tinyinfer, one.gguf 200.0 (100.0 to 300.0) 9.0 (9.0 to 9.0) 8.0 (8.0 to 8.0)"
    assert lines[2] == "llama.cpp, one.gguf 100.0 (90.0 to 110.0) 2.0 (1.0 to 3.0) 4.0 (4.0 to 5.0)"
    assert lines[6:] == [
        "ours to one.gguf, as it comes 2.00x 4.50x 2.00x",
        "ours to one.gguf, the better way 2.00x 3.00x 2.00x",
        "ours to two.gguf, as it comes 0.50x 1.00x 0.50x",
        "ours to two.gguf, the better way 0.50x 1.00x 0.50x",
    ]


def test_engines_take_turns(compare):
    order = []

    def noted(name: str) -> list:
        return [lambda: order.append(name) or 1.0]

    compare.HEADINGS = compare.HEADINGS[:2]
    compare.compare({"a": noted("ours")}, {"a": [noted("plain"), noted("flash")]}, 2)
    assert order == ["ours", "plain", "flash"] * 3


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


def heard(tokens_per_second: float, ttft: float) -> Heard:
    """A round of two chats and two turns."""
    end = 40 / tokens_per_second
    one = Sent(0.0, first=ttft, last=end, end=end, completion_tokens=10)
    return Heard([[one, one], [one, one]])


def test_of_servers_the_better_of_a_group_counts_in_each_column():
    servers = example("compare_servers")
    rounds = {"ours": [(1, 9), (20, 1)], "plain": [(9, 9), (8, 2)], "flash": [(9, 9), (10, 3)]}
    rivals = [servers.Rival(name, "", "", [heard(*figures) for figures in several]) for name, several in rounds.items()]
    table = servers.table(rivals, {"a.gguf": ["plain", "flash"]})
    first, *_, ratios = (" ".join(line.split()) for line in table.splitlines()[1:])
    assert first.startswith("ours 20 (20-20) 1 (1-1)")  # the first round of each is not counted
    assert ratios.startswith("ours / a.gguf 2.00x 0.50x 0.50x")


def test_a_round_with_too_few_tokens_is_told(monkeypatch: pytest.MonkeyPatch):
    servers = example("compare_servers")
    monkeypatch.setattr(servers, "REST", 0)
    told = pytest.raises(SystemExit, match="expected 14 tokens of answers, found 8")
    with serving(lambda i, body: answer(ANSWER)) as (url, _), told:  # whose answers have four
        servers.Rival("other", url, "m", []).round(Talk(1, 2, 1, 1, tokens=7))


def spoke(*times: float, at: float = 0.0) -> Sent:
    return Sent(at, first=times[0], last=times[-1], end=times[-1], times=list(times))


def test_what_a_long_prompt_does_to_others_is_measured_while_it_is_run():
    module = example("long_prompt")
    chats = [spoke(1, 2, 3, 6, 9, 10), spoke(0, 2.5, 4, 11)]
    beside = module.measured(chats, spoke(9, at=2))
    assert (sorted(beside.gaps), beside.last, beside.ttft) == ([1, 1.5, 3, 3], 5, 7)
    assert sorted(module.measured(chats, None, 1, 4).gaps) == [1, 1.5, 3, 7]  # pieces 1 to 3 of each
    with pytest.raises(TinyinferError, match="ended before the long prompt had its first token"):
        module.measured(chats, spoke(10.5, at=2))
    with pytest.raises(TinyinferError, match="a request failed: status 400"):
        module.measured([Sent(0, error="status 400")], None)


def test_rounds_beside_a_long_prompt_and_without():
    module = example("long_prompt")
    scene = module.Scene(chats=2, question_words=1, tokens=2000, long_words=10, begun=5)
    with served(chain_llm(context=4096, chain=say("abcdefgh", end=None))) as server:
        target = target_of(server.url)
        beside = asyncio.run(module.play(target, "chain", scene, 1))
        alone = asyncio.run(module.play(target, "chain", scene, 2, beside.last))
    assert beside.gaps
    assert beside.prompt_tokens > 30
    assert len(alone.gaps) == 2 * (beside.last - scene.begun - 1)
    assert "between two pieces, p95" in module.table([alone], [beside])
