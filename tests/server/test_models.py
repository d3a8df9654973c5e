"""Several models: loaded when they are named, within a limit of bytes, side by side; and what goes wrong with one."""

from __future__ import annotations

import json
import socket
import subprocess
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.chain_models import say, write_chain_model
from tests.server.served import CHAIN, HELLO, Served, chain_llm, wait_for
from tests.server.test_http import PATH, request
from tests.server.test_running import command
from tinyinfer.engine.memory import serving_bytes
from tinyinfer.errors import BadCheckpoint
from tinyinfer.llm import LLM
from tinyinfer.server import ServedModel, Service

BYE = "Farewl!"
SAYS = {"first": HELLO, "second": BYE, "third": "Once"}
CHAINS = {"first": CHAIN, "second": say(BYE), "third": say("Once")}
# with log-probabilities every token is a chunk, also those that say nothing
ENDLESS = {"messages": [{"role": "user", "content": "x"}], "ignore_eos": True, "stream": True, "logprobs": True}


class Shelf:
    """Three models that say different things, and how often each was loaded."""

    def __init__(self, sizes: int = 0, context: int = 60_000):
        self.loads = dict.fromkeys(SAYS, 0)
        self.alive: dict[str, weakref.ref[LLM]] = {}
        self.gate, self.failure = threading.Event(), None
        self.gate.set()
        self.context = context
        self.models = [
            ServedModel(name, lambda name=name: self.load(name), lambda: sizes, slots=2, queue=3) for name in SAYS
        ]

    def load(self, name: str) -> LLM:
        assert self.gate.wait(60)
        self.loads[name] += 1
        if self.failure:
            raise self.failure
        llm = chain_llm(context=self.context, chain=CHAINS[name])
        self.alive[name] = weakref.ref(llm)
        return llm


@contextmanager
def serving(shelf: Shelf, most_bytes: int | None = None) -> Iterator[Served]:
    server = Served.of(Service(shelf.models, most_bytes))
    try:
        yield server
    finally:
        shelf.gate.set()
        server.close()


def ask(server: Served, model: str | None, **how: Any) -> httpx.Response:
    return server.post(PATH, {"messages": [{"role": "user", "content": "x"}], "model": model} | how)


def said(server: Served, model: str | None) -> str:
    return ask(server, model).json()["choices"][0]["message"]["content"]


@contextmanager
def endless(server: Served, model: str) -> Iterator[Iterator[str]]:
    """The lines of an answer that is read as long as the block runs."""
    with httpx.stream("POST", server.url + PATH, json=ENDLESS | {"model": model}, timeout=60) as answer:
        assert answer.status_code == 200
        lines = (line for line in answer.iter_lines() if line)
        next(lines)
        yield lines


def loaded(server: Served) -> list[str]:
    return [model["id"] for model in server.get("/v1/models").json()["data"] if model["loaded"]]


def figure(server: Served, name: str, **labels: str) -> float | None:
    wanted = ",".join(f'{label}="{value}"' for label, value in sorted(labels.items()))
    lines = server.get("/metrics").text.splitlines()
    return next((float(line.split()[-1]) for line in lines if line.startswith(f"{name}{{{wanted}}} ")), None)


def test_models_are_loaded_when_they_are_named():
    shelf = Shelf()
    with serving(shelf) as server:
        client = server.client()
        assert [model.id for model in client.models.list()] == list(SAYS)
        assert loaded(server) == ["first"]
        away = client.models.retrieve("second")
        assert (away.loaded, away.context_length, away.adapters) == (False, None, [])
        assert said(server, "second") == BYE
        assert said(server, None) == said(server, "first") == HELLO
        assert loaded(server) == ["first", "second"]
        assert client.models.retrieve("second").context_length == shelf.context
        answer = client.chat.completions.create(model="second", messages=ENDLESS["messages"])
        assert (answer.model, answer.choices[0].message.content) == ("second", BYE)
        assert shelf.loads == {"first": 1, "second": 1, "third": 0}


def test_a_name_that_there_is_not():
    with serving(Shelf()) as server:
        for body in ({"model": "fourth"}, {"model": "fourth", "messages": []}):
            error = server.refused(PATH, body, 404)
            assert (error["param"], error["code"]) == ("model", "model_not_found")
            assert "'first', 'second', 'third'" in error["message"]
        with pytest.raises(openai.NotFoundError):
            server.client().models.retrieve("fourth")
        assert server.refused(PATH, {"model": 4})["param"] == "model"


def test_a_request_that_is_no_good_loads_nothing():
    with serving(Shelf()) as server:
        for body in ({"model": "second"}, {"model": "second", "messages": [], "top_k": -1}):
            server.refused(PATH, body)
        assert loaded(server) == ["first"]


def test_every_route_takes_a_name():
    with serving(Shelf()) as server:
        assert server.post("/v1/completions", {"model": "second", "prompt": "\n"}).json()["choices"][0]["text"] == BYE
        assert server.post("/tokenize", {"model": "third", "prompt": "a"}).json()["tokens"] == [97]
        assert server.post("/detokenize", {"model": "third", "tokens": [97]}).json() == {"prompt": "a"}
        found = server.post("/v1/embeddings", {"model": "third", "input": "a"}).json()
        assert (found["model"], len(found["data"])) == ("third", 1)
        assert loaded(server) == list(SAYS)


def test_those_who_wait_get_their_answer_and_others_go_on():
    shelf = Shelf()
    with serving(shelf) as server, endless(server, "first") as lines:
        shelf.gate.clear()
        with ThreadPoolExecutor(4) as pool:
            waiting = [pool.submit(said, server, "second") for _ in range(3)]
            wait_for(lambda: server.service.models["second"].users == 3)
            for _ in range(50):  # the other model's stream goes on
                next(lines)
            assert server.get("/health").json() == {"status": "ok"}
            assert not any(one.done() for one in waiting)
            shelf.gate.set()
            assert [one.result(30) for one in waiting] == [BYE] * 3
        assert shelf.loads["second"] == 1
        next(lines)


def test_a_reader_that_goes_away_while_its_model_is_loaded():
    shelf = Shelf()
    with serving(shelf) as server:
        shelf.gate.clear()
        second = server.service.models["second"]
        with socket.create_connection(("127.0.0.1", server.port)) as connection:
            connection.sendall(request(json.dumps(ENDLESS | {"model": "second"}).encode()))
            wait_for(lambda: second.users)
        wait_for(lambda: not second.users)
        shelf.gate.set()
        assert said(server, "second") == BYE  # the next one finds it
        assert shelf.loads["second"] == 1
        assert not second.engine.load.running


def test_two_models_answer_side_by_side_what_each_does_alone():
    with serving(Shelf()) as server:
        with endless(server, "first") as one, endless(server, "second") as other:
            for _ in range(30):  # neither waits for the other's end
                next(one), next(other)
            assert figure(server, "tinyinfer_running", model="first") == 1
            assert figure(server, "tinyinfer_running", model="second") == 1
        names = [*SAYS] * 6
        with ThreadPoolExecutor(6) as pool:
            assert list(pool.map(lambda name: said(server, name), names)) == [SAYS[name] for name in names]


# ---- the limit of bytes


def test_the_one_used_longest_ago_makes_room():
    shelf = Shelf(sizes=10)
    with serving(shelf, most_bytes=29) as server:
        assert (said(server, "second"), said(server, "first")) == (BYE, HELLO)
        assert said(server, "third") == SAYS["third"]
        assert loaded(server) == ["first", "third"]
        assert shelf.alive["second"]() is None  # nothing holds its memory
        assert figure(server, "tinyinfer_model_loaded", model="second") == 0
        assert figure(server, "tinyinfer_running", model="second") is None
        assert said(server, "second") == BYE  # and comes back
        assert loaded(server) == ["second", "third"]
        assert shelf.loads == {"first": 1, "second": 2, "third": 1}


def test_what_is_in_use_stays_and_whoever_finds_no_room_is_told():
    with serving(Shelf(sizes=10), most_bytes=20) as server:
        with endless(server, "first"), endless(server, "second") as lines:
            found = ask(server, "third")
            error = found.json()["error"]
            assert (found.status_code, error["code"], error["param"]) == (503, "no_room", "model")
            assert int(found.headers["retry-after"]) >= 1
            assert loaded(server) == ["first", "second"]
            next(lines)
            assert server.get("/health").json() == {"status": "ok"}
        wait_for(lambda: server.service.idle)
        assert said(server, "third") == SAYS["third"]


def test_nothing_goes_where_that_would_not_be_enough():
    shelf = Shelf(sizes=10)
    shelf.models[2] = ServedModel("third", lambda: shelf.load("third"), lambda: 20)
    with serving(shelf, most_bytes=29) as server, endless(server, "first"):
        assert said(server, "second") == BYE
        assert ask(server, "third").status_code == 503  # the second alone is not large enough
        assert loaded(server) == ["first", "second"]


def test_a_model_that_never_fits():
    shelf = Shelf(sizes=10)
    shelf.models[1] = ServedModel("second", lambda: shelf.load("second"), lambda: 30)
    with serving(shelf, most_bytes=29) as server:
        error = server.refused(PATH, ENDLESS | {"model": "second"}, 500)
        assert "takes 30 bytes" in error["message"]
        assert "29" in error["message"]
        assert loaded(server) == ["first"]


def test_what_a_model_takes_is_known_before_it_is_loaded(tmp_path: Path):
    llm = chain_llm(context=60_000)
    weights = sum(tensor.nbytes for tensor in llm.checkpoint.tensors.values())
    assert serving_bytes(llm.checkpoint, kv_cache_bytes=1000) == weights + 1000
    assert serving_bytes(llm.checkpoint) == weights + 2**30
    block = llm.model.new_cache().block_bytes  # of 32 tokens
    longest = 2**30 // block * 32 * 2
    assert serving_bytes(llm.checkpoint, longest, "float32") == weights + 2**31 // block * block


# ---- what goes wrong


@pytest.mark.parametrize("failure", [BadCheckpoint("a tensor is missing"), MemoryError("none left")])
def test_a_model_that_cannot_be_loaded(failure: Exception):
    shelf = Shelf()
    with serving(shelf) as server, endless(server, "first") as lines:
        shelf.failure = failure
        with ThreadPoolExecutor(3) as pool:
            errors = list(pool.map(lambda _: ask(server, "second"), range(3)))
        for found in errors:
            error = found.json()["error"]
            assert (found.status_code, error["code"], error["type"]) == (500, "model_not_loaded", "server_error")
            assert str(failure) in error["message"]
        streamed = ask(server, "second", stream=True)
        assert (streamed.status_code, streamed.json()["error"]["code"]) == (500, "model_not_loaded")
        next(lines)
        shelf.failure = None  # mended
        assert said(server, "second") == BYE


def test_all_that_runs_is_finished_at_the_end():
    shelf = Shelf(context=3000)
    server = Served.of(Service(shelf.models))
    said(server, "second")

    def last_words(model: str) -> str:
        body = ENDLESS | {"model": model, "max_tokens": 1000}
        return [line for line in server.post(PATH, body).text.splitlines() if line][-1]

    shelf.gate.clear()
    with ThreadPoolExecutor(3) as pool:
        found = [pool.submit(last_words, name) for name in SAYS]  # two that run, and one that waits for its model
        wait_for(lambda: all(model.users for model in shelf.models))
        server.server.drain()
        assert ask(server, "first").json()["error"]["code"] == "draining"
        shelf.gate.set()
        assert [one.result(60) for one in found] == ["data: [DONE]"] * 3
    server.thread.join(30)
    assert not server.thread.is_alive()


def test_a_load_that_lasts_too_long_at_the_end_keeps_nobody():
    shelf = Shelf()
    server = Served.of(Service(shelf.models))
    server.server._drain_seconds = 0.2
    shelf.gate.clear()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(ask, server, "second")
        wait_for(lambda: server.service.models["second"].users)
        server.server.drain()
        found = waiting.result(30)
        assert (found.status_code, found.json()["error"]["code"]) == (503, "draining")
    server.thread.join(30)
    assert not server.thread.is_alive()
    shelf.gate.set()


def test_figures_are_of_one_model():
    with serving(Shelf()) as server:
        said(server, "second")
        before = figure(server, "tinyinfer_new_tokens_total", model="first")
        said(server, "second")
        assert figure(server, "tinyinfer_new_tokens_total", model="first") == before == 0
        assert figure(server, "tinyinfer_new_tokens_total", model="second") == 2 * (len(BYE) + 1)
        assert figure(server, "tinyinfer_time_to_first_token_seconds_count", model="second") == 2
        assert figure(server, "tinyinfer_requests_total", model="second", route=PATH, status="200") == 2
        server.refused(PATH, {"model": "x" * 1000}, 404)
        assert figure(server, "tinyinfer_requests_total", model="", route=PATH, status="404") == 1


# ---- the command


def test_the_command_serves_several(tmp_path: Path):
    first, second = (write_chain_model(tmp_path / name, CHAINS[name]) for name in ("first", "second"))
    process = command(str(first), "-m", str(second), "--port", "0", "--models-bytes", "1200000000")
    try:
        ready = next(line for line in process.stderr if "is ready" in line)
        client = openai.OpenAI(base_url=f"{ready.split()[-1]}/v1", api_key="none")
        for name in ("second", "first"):  # each makes room for the other: their caches may take 1 GiB each
            found = client.chat.completions.create(model=name, messages=ENDLESS["messages"])
            assert found.choices[0].message.content == SAYS[name]
            assert [model.id for model in client.models.list() if model.loaded] == [name]
    finally:
        process.terminate()
        rest = process.communicate(timeout=60)[1]
    assert process.returncode == 0
    assert "first made room" in rest
    assert "second is ready" in rest


@pytest.mark.parametrize(
    ("args", "wrong"),
    [
        (["{a}", "{a}"], "two models would be called 'first'"), (["{a}", "{b}", "-a", "x"], "once for each model"),
        (["{a}", "{b}", "-a", "x", "-a", "x"], "'x'"), (["{a}", "nowhere/there"], "nowhere/there"), ([], "a model is"),
        (["{a}", "--models-bytes", "9"], "several models"), (["{a}", "{b}", "--models-bytes", "0"], "from 1"),
        (["{a}", "{b}", "--lora", "x"], "--lora"), (["{a}", "{b}", "--speculate", "int4"], "--speculate"),
        (["{a}", "{b}", "--models-bytes", "9"], "more than the 9"),
    ],
    ids=str,
)  # fmt: skip
def test_what_cannot_be_served_together_is_one_sentence(tmp_path: Path, args: list[str], wrong: str):
    names = {"a": write_chain_model(tmp_path / "first", CHAIN), "b": write_chain_model(tmp_path / "second", CHAIN)}
    process: subprocess.Popen = command("--quiet", "--port", "0", *(arg.format_map(names) for arg in args))
    found = process.communicate(timeout=60)[1]
    assert wrong in found
    assert found.count("\n") == 1
    assert process.returncode == 2
