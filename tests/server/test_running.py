"""Many at once, readers that go away, a full queue, the time before and after: loading, draining, ending."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.chain_models import write_chain_model
from tests.server.served import CHAIN, HELLO, Served, chain_llm, served, wait_for
from tests.server.test_http import PATH, request, status_of
from tinyinfer.errors import BadRequest
from tinyinfer.server import ServedModel, Service, create_app
from tinyinfer.server.run import Server, listen

ASK = {"messages": [{"role": "user", "content": "x"}]}
LONG = 60_000  # tokens: far more than there is time for


@pytest.fixture(scope="module")
def long() -> Any:
    """Two slots, one that may wait, and answers without end."""
    with served(chain_llm(context=LONG), slots=2, queue=1) as server:
        yield server


def test_many_clients_get_what_each_gets_alone(server: Served):
    how = [{"seed": i, "temperature": 4.0, "max_tokens": 5 + i} for i in range(24)]
    expected = [server.llm.chat(ASK["messages"], **one).text for one in how]
    with ThreadPoolExecutor(24) as pool:
        found = list(pool.map(lambda one: server.post(PATH, ASK | one).json(), how))
    assert [one["choices"][0]["message"]["content"] for one in found] == expected
    wait_for(lambda: server.at_rest)


def test_the_asynchronous_client(server: Served):
    async def one(client: openai.AsyncOpenAI, seed: int) -> str:
        stream = await client.chat.completions.create(
            model="chain", messages=ASK["messages"], seed=seed, temperature=4, max_tokens=9, stream=True
        )
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    async def main() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
            return await asyncio.gather(*(one(client, seed) for seed in range(6)))

    how = {"temperature": 4, "max_tokens": 9}
    assert asyncio.run(main()) == [server.llm.chat(ASK["messages"], seed=seed, **how).text for seed in range(6)]


def test_drafts_change_the_time_alone():
    circle = dict(zip(b"\nabcdefg", b"abcdefga", strict=True))
    with served(chain_llm(chain=circle)) as server:
        ask = ASK | {"max_tokens": 100}
        plain = server.post(PATH, ask | {"speculate": "off"}).json()
        drafted = server.post(PATH, ask | {"speculate": "ngram"}).json()
        assert drafted["choices"][0]["message"] == plain["choices"][0]["message"]
        assert "completion_tokens_details" not in plain["usage"]
        details = drafted["usage"]["completion_tokens_details"]
        assert details["accepted_prediction_tokens"] > 10
        figures = server.get("/metrics").text
        assert f'tinyinfer_accepted_tokens_total{{model="chain"}} {details["accepted_prediction_tokens"]}.0' in figures
        for value in ("chain", "/etc/passwd", {"model": "x"}, {"method": "ngram"}, "int4", True):
            assert server.refused(PATH, ask | {"speculate": value})["param"] == "speculate"


# ---- S2: the client goes away


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("n", [1, 3])
def test_a_reader_that_goes_away_while_tokens_come(long: Served, stream: bool, n: int, caplog: Any):
    body = json.dumps(ASK | {"stream": stream, "ignore_eos": True, "n": n}).encode()
    with socket.create_connection(("127.0.0.1", long.port)) as connection:
        connection.sendall(request(body))
        wait_for(lambda: long.engine.load.running)
        if stream:
            assert status_of(connection.recv(1000)) == 200
        before = long.engine.load.new_tokens
        wait_for(lambda: long.engine.load.new_tokens > before)
    wait_for(lambda: long.at_rest)
    assert long.engine.load.new_tokens < LONG
    assert caplog.records == []  # it is no fault
    assert long.post(PATH, ASK).json()["choices"][0]["message"]["content"] == HELLO


def test_a_reader_that_goes_away_while_its_prompt_is_run():
    with served(chain_llm(context=LONG), step_tokens=8, slots=2) as server:
        ids = [1, 2, 3, 4] * (LONG // 4 - 10)
        with socket.create_connection(("127.0.0.1", server.port)) as connection:
            connection.sendall(request(json.dumps({"prompt": ids, "stream": True}).encode(), path="/v1/completions"))
            wait_for(lambda: server.engine.load.run_tokens > 100)
            assert server.engine.load.new_tokens == 0
        wait_for(lambda: server.at_rest)
        assert server.engine.load.run_tokens < len(ids)
        assert server.post(PATH, ASK).json()["choices"][0]["message"]["content"] == HELLO


def test_a_client_that_closes_its_stream(long: Served):
    with long.client().chat.completions.create(
        model="chain", messages=ASK["messages"], stream=True, extra_body={"ignore_eos": True}
    ) as stream:
        next(stream)
    wait_for(lambda: long.at_rest)


def taken(server: Served) -> int:
    load = server.engine.load
    return load.running + load.waiting


def test_a_full_queue(long: Served):
    endless, connections = json.dumps(ASK | {"stream": True, "ignore_eos": True}).encode(), []
    for count in (1, 2, 3):
        connections.append(socket.create_connection(("127.0.0.1", long.port)))
        connections[-1].sendall(request(endless))
        wait_for(lambda count=count: taken(long) == count)
    found = long.post(PATH, ASK)
    assert (found.status_code, found.json()["error"]["code"]) == (429, "queue_full")
    assert int(found.headers["retry-after"]) >= 1
    with pytest.raises(openai.RateLimitError):
        long.client().completions.create(model="chain", prompt="x")
    assert long.get("/health").status_code == 200
    for connection in connections:
        connection.close()
    wait_for(lambda: long.at_rest)
    assert long.post(PATH, ASK).status_code == 200


def test_more_prompts_than_may_ever_wait_are_refused(long: Served):
    error = long.refused("/v1/completions", {"prompt": ["x"] * 4})
    assert (error["param"], error["code"]) == ("prompt", None)


# ---- before and after


def test_while_the_model_is_loaded_and_after_it_failed():
    loaded = threading.Event()

    def load() -> Any:
        loaded.wait(20)
        raise BadRequest("no model today", "model")

    bound = listen("127.0.0.1", 0)
    url = f"http://127.0.0.1:{bound.getsockname()[1]}"
    server, failures = Server(create_app(Service([ServedModel("chain", load)]))), []

    def run() -> None:
        try:
            server.serve_on(bound)
        except BadRequest as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    wait_for(lambda: server.started)
    assert (httpx.get(f"{url}/health").status_code, httpx.get(f"{url}/health").json()) == (503, {"status": "loading"})
    found = httpx.post(url + PATH, json=ASK)
    assert (found.status_code, found.json()["error"]["code"]) == (503, "loading")
    assert found.headers["retry-after"]
    assert httpx.get(f"{url}/v1/models").status_code == 503
    assert httpx.get(f"{url}/metrics").status_code == 200
    loaded.set()
    thread.join(20)
    assert [str(error) for error in failures] == ["no model today"]


def test_an_end_before_the_model_is_there():
    loaded = threading.Event()
    service = Service([ServedModel("chain", lambda: loaded.wait(60))])
    server, ended = Server(create_app(service)), []
    bound = listen("127.0.0.1", 0)
    thread = threading.Thread(target=lambda: ended.append(server.serve_on(bound)))
    thread.start()
    wait_for(lambda: server.started)
    server.drain()
    thread.join(20)
    loaded.set()
    assert ended == [None]  # without an error


def test_what_runs_is_finished_and_no_more_is_begun():
    server = Served(chain_llm(context=3000))
    found: list[str] = []

    def read() -> None:
        stream = server.client().chat.completions.create(
            model="chain", messages=ASK["messages"], stream=True, max_tokens=1500, extra_body={"ignore_eos": True}
        )
        found.extend(chunk.choices[0].finish_reason or "" for chunk in stream)

    reader = threading.Thread(target=read)
    reader.start()
    wait_for(lambda: server.engine.load.new_tokens > 5)
    server.server.drain()
    refused = server.post(PATH, ASK)
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
    assert server.get("/health").json() == {"status": "draining"}
    reader.join(30)
    assert found[-1] == "length"
    server.thread.join(20)
    assert not server.thread.is_alive()
    with pytest.raises(httpx.ConnectError):
        server.get("/health")


def test_what_takes_too_long_to_finish_is_told_so():
    server = Served(chain_llm(context=LONG))
    server.server._drain_seconds = 0.2
    with httpx.stream("POST", server.url + PATH, json=ASK | {"stream": True, "ignore_eos": True}) as answer:
        lines = answer.iter_lines()
        next(lines)
        server.server.drain()
        last = [line for line in lines if line][-1]
    assert "closed" in json.loads(last.removeprefix("data: "))["error"]["message"]
    server.thread.join(20)
    assert not server.thread.is_alive()


def test_figures(server: Served):
    before = server.get("/metrics").text
    assert server.post(PATH, ASK).status_code == 200
    server.post(PATH, {})
    after = server.get("/metrics").text

    def value(text: str, name: str) -> float:
        return next((float(line.split()[-1]) for line in text.splitlines() if line.startswith(name)), 0.0)

    for name, more in (
        ('tinyinfer_requests_total{model="chain",route="/v1/chat/completions",status="200"}', 1),
        ('tinyinfer_requests_total{model="chain",route="/v1/chat/completions",status="400"}', 1),
        ("tinyinfer_time_to_first_token_seconds_count", 1), ("tinyinfer_time_per_output_token_seconds_count", 1),
        ("tinyinfer_new_tokens_total", len(HELLO) + 1),
        ("tinyinfer_prompt_tokens_total", len(server.llm.chat_ids(ASK["messages"]))),
    ):  # fmt: skip
        assert value(after, name) == value(before, name) + more, name
    for name in ("running", "waiting", "blocks_used", "blocks_most", "cache_hit_rate", "steps_total"):
        assert f'\ntinyinfer_{name}{{model="chain"}} ' in after


# ---- the command


def command(*args: str, **environment: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "tinyinfer", "serve", *args], stderr=subprocess.PIPE, text=True,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])} | environment,
    )  # fmt: skip


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_the_command_serves_until_a_signal(tmp_path: Path, sent: signal.Signals):
    folder = write_chain_model(tmp_path / "chain", CHAIN)
    process = command(str(folder), "--port", "0", "--slots", "2", "--queue", "3", TINYINFER_API_KEY="secret")
    try:
        ready = next(line for line in process.stderr if "is ready" in line)
        assert ready.startswith("chain is ready: http://127.0.0.1:")
        url = ready.split()[-1]
        assert httpx.get(f"{url}/v1/models").status_code == 401
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="secret")
        found = client.chat.completions.create(model="chain", messages=ASK["messages"])
        assert found.choices[0].message.content == HELLO
    finally:
        process.send_signal(sent)
        rest = process.communicate(timeout=60)[1]
    assert (process.returncode, rest) == (0, "")


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--port", "70000"], "port should be"), (["--slots", "0"], "slots should be"),
        (["--slowdown", "0.5"], "slowdown should be"),
        (["--timeout", "0"], "--timeout"), (["--api-key", " "], "API key is empty"), (["--body-bytes", "0"], "bytes"),
        (["--host", "nowhere.invalid"], "nowhere.invalid"),
    ],
)  # fmt: skip
def test_what_cannot_be_served_is_one_sentence(tmp_path: Path, args: list[str], said: str):
    folder = write_chain_model(tmp_path / "chain", CHAIN)
    process = command(str(folder), "--quiet", "--port", "0", *args)
    assert said in process.communicate(timeout=60)[1]
    assert process.returncode == 2


def test_a_port_that_is_taken(server: Served):
    with pytest.raises(BadRequest) as error:
        listen("127.0.0.1", server.port)
    assert error.value.parameter == "port"
