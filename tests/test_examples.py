"""Every example runs, with tiny models under the names of the catalogue; of those that compare, what they reckon.

`soak.py` and `compare_llama_cpp.py` take minutes: of the second its table is tested, the first is a test itself.
"""

from __future__ import annotations

import asyncio
import csv
import importlib.util
import io
import json
import re
import runpy
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from tests.chain_models import TEMPLATE, say, script, write_chain_model
from tests.cli.commands import environment
from tests.lab.course.tiny_settings import tiny_setting
from tests.lab.stream_server import ANSWER, answer, serving
from tests.server.served import HELLO, chain_llm, served
from tinyinfer.config import FAMILIES
from tinyinfer.errors import TinyinferError
from tinyinfer.lab.chats import Heard, Talk
from tinyinfer.lab.http_client import target_of
from tinyinfer.lab.load import Sent
from tinyinfer.model.names import NAMES

EXAMPLES = Path(__file__).parents[1] / "examples"
COMPARE, REVIEWS = EXAMPLES / "compare_llama_cpp.py", EXAMPLES / "reviews.csv"
SMALL, CODER = "smollm2-135m-instruct", "qwen2.5-coder-0.5b-instruct"  # the names that examples load


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where examples find the models that they name."""
    monkeypatch.setenv("TINYINFER_HOME", str(tmp_path / "models"))
    return tmp_path / "models"


@pytest.fixture
def run(home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture):
    """Runs an example with arguments and standard input; gives its lines."""

    def run(name: str, *argv: object, typed: str = "") -> list[str]:
        monkeypatch.setattr(sys, "argv", [name, *map(str, argv)])
        monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
        runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
        return capsys.readouterr().out.splitlines()

    return run


def reviews() -> list[dict[str, str]]:
    with REVIEWS.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_hello(home: Path, run):
    write_chain_model(home / SMALL, say("Hi"))
    text, speed = run("hello")
    assert text == "Hi"
    assert re.fullmatch(r"\d+ tokens a second", speed)


def test_stream(home: Path, run):
    write_chain_model(home / SMALL, say("Hi"))
    assert run("stream") == ["Hi", "[stop]"]


def test_a_chat_goes_on_from_what_was_computed(home: Path, run):
    write_chain_model(home / SMALL, say("Hi"))
    _, *lines = run("chat", typed="hello\nhello again\n\nnot read\n")
    assert lines[::2] == ["Hi", "Hi"]
    first, second = (list(map(int, re.findall(r"\d+", line))) for line in lines[1::2])
    assert first[0] == 0
    assert second[0] >= first[1]  # at least the prompt of the first turn


def test_rows_are_labelled(home: Path, run, tmp_path: Path):
    tiny_setting(home / CODER, vocab_size=275, max_position_embeddings=512)
    run("label_rows", REVIEWS, tmp_path / "out.csv")
    with (tmp_path / "out.csv").open(newline="", encoding="utf-8") as file:
        labelled = list(csv.DictReader(file))
    assert [{"id": row["id"], "text": row["text"]} for row in labelled] == reviews()
    assert all(row["label"] in ("positive", "negative") for row in labelled)
    assert all(len(row["product"]) <= 30 for row in labelled)


def test_the_nearest_text_to_one_is_itself(home: Path, run):
    tiny_setting(home / SMALL)
    for row in reviews()[:2]:
        lines = run("nearest", REVIEWS, row["text"])
        assert lines[0].endswith(row["text"])
        shares = [float(line.split()[0]) for line in lines]
        assert shares == sorted(shares, reverse=True)
        assert len(lines) == len(reviews())


def test_a_batch(home: Path, run):
    write_chain_model(home / SMALL, say("bcd", after="s"))
    *lines, speed = run("batch")
    assert len(lines) == 8
    assert all(re.fullmatch(r"The capital of \w+ isbcd", line) for line in lines)
    assert speed.endswith("tokens a second, all together")


def test_a_client_of_the_server(run):
    with served() as server:
        whole, streamed = run("server_client", server.url)
    assert whole.startswith(f"{HELLO} ")
    assert streamed == HELLO


def test_the_loop_by_hand_is_the_same_with_the_cache(home: Path, run):
    write_chain_model(home / SMALL, say("bcdghklm", after="s"))
    without, cached, held = run("decode_by_hand")
    assert without.split(None, 1)[1] == cached.split(None, 1)[1] == "The capital of France isbcdghklm"
    assert held == "31 tokens held in the cache; the same ids: True"


def test_quantized_models_are_compared(home: Path, run, tmp_path: Path):
    tiny_setting(home / SMALL, hidden_size=128, intermediate_size=256, max_position_embeddings=512)
    (tmp_path / "text").write_text("The quick brown fox jumps over the lazy dog. " * 4)
    found = [line.split() for line in run("quantize_and_compare", tmp_path / "text")]
    assert [words[0] for words in found] == ["as", "int8", "nf4", "int4-g128"]
    sizes, divergences = ([float(words[words.index(name) + at]) for words in found] for name, at in SIZE_AND_DIVERGENCE)
    assert divergences[0] == 0 < divergences[1] < min(divergences[2:])
    assert sizes[0] > sizes[1] > sizes[2]


SIZE_AND_DIVERGENCE = (("MiB", -1), ("divergence", 1))  # a word, and where its number stands beside it


def test_an_architecture_is_added(run, monkeypatch: pytest.MonkeyPatch):
    for table in (FAMILIES, NAMES):
        monkeypatch.setitem(table, "TwinForCausalLM", None)  # taken out again at the end
    (line,) = run("add_architecture")
    # float32 sums in another order, of logits below 1
    assert float(line.split()[-1]) < 5e-6


def test_tools_are_called(home: Path, run):
    template = "{% if tools %}<tool_call>{% endif %}" + TEMPLATE
    call = json.dumps({"name": "get_weather", "arguments": {"city": "Oslo"}})
    write_chain_model(home / CODER, template=template, **script("<tool_call>", call, "</tool_call>"))
    _, said, found = run("tools", "Is it raining in Oslo?")
    assert "get_weather" in said
    assert '"sky": "rain"' in found


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


def test_each_of_a_rivals_files_is_compared_as_it_comes_and_in_the_better_way(compare):
    ours = {"one.gguf": [rate(300, 100, 200), rate(9, 9, 9), rate(8, 8, 8)]}
    plain = [rate(90, 100, 110), rate(1, 2, 3), rate(4, 4, 5)]
    flash = [rate(40, 40, 40), rate(3, 3, 3), rate(2, 2, 2)]
    others = [[rate(400, 400, 400), rate(9, 9, 9), rate(16, 16, 16)] for _ in range(2)]
    table = compare.compare(ours, {"one.gguf": [plain, flash], "theirs.gguf": others}, 3)
    lines = [" ".join(line.split()) for line in table.splitlines()]
    assert lines[1] == "tinyinfer, one.gguf 200.0 (100.0 to 300.0) 9.0 (9.0 to 9.0) 8.0 (8.0 to 8.0)"
    assert lines[2] == "llama.cpp, one.gguf 100.0 (90.0 to 110.0) 2.0 (1.0 to 3.0) 4.0 (4.0 to 5.0)"
    assert lines[3] == "llama.cpp, one.gguf, flash attention 40.0 (40.0 to 40.0) 3.0 (3.0 to 3.0) 2.0 (2.0 to 2.0)"
    assert lines[6:8] == [
        "ours to one.gguf, as it comes 2.00x 4.50x 2.00x",
        "ours to one.gguf, the better way 2.00x 3.00x 2.00x",
    ]
    assert lines[8] == "ours to theirs.gguf, as it comes 0.50x 1.00x 0.50x"


def test_engines_take_turns_on_every_file(compare):
    order = []

    def noted(name: str) -> list:
        return [lambda: order.append(name) or 1.0]

    compare.HEADINGS = compare.HEADINGS[:2]
    ours = {"a": noted("our a"), "b": noted("our b")}
    compare.compare(ours, {"a": [noted("a"), noted("a flash")], "b": [noted("b"), noted("b flash")]}, 2)
    assert order == ["our a", "our b", "a", "a flash", "b", "b flash"] * 3


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
