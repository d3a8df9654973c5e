"""A real server in a thread, on a free port of loopback, with a model whose answers are known."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import openai

from tests.chain_models import chain_checkpoint, say
from tinyinfer.engine import Engine
from tinyinfer.llm import LLM
from tinyinfer.server import ServedModel, Service, Settings, create_app
from tinyinfer.server.run import Server, listen

# a chat ends in a newline, and so says this
CHAIN = say("Hi,my frends!")
HELLO = "Hi,my frends!"


def chain_llm(context: int = 512, **how: Any) -> LLM:
    """Says HELLO in every chat; with ignore_eos it goes on, as nothing else is in the chain."""
    return LLM(chain_checkpoint(how.pop("chain", CHAIN), context=context, **how), kv_dtype="float32", threads=1)


class Served:
    """A running server: its models, service and address. `llm` and `engine` are those of the first model."""

    def __init__(self, llm: LLM, settings: Settings | None = None, **engine: Any):
        self._begin(Service([ServedModel("chain", lambda: llm, **engine)]), settings)
        self.llm = llm

    def _begin(self, service: Service, settings: Settings | None) -> None:
        self.service = service
        self.http = httpx.Client(timeout=30)
        self.bound = listen("127.0.0.1", 0)
        self.port = self.bound.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.server = Server(create_app(self.service, settings), drain_seconds=20)
        self.thread = threading.Thread(target=self.server.serve_on, args=[self.bound], daemon=True)
        self.thread.start()
        wait_for(lambda: self.service.state == "ready")

    @classmethod
    def of(cls, service: Service, settings: Settings | None = None) -> Served:
        server = cls.__new__(cls)
        server._begin(service, settings)
        return server

    @property
    def engine(self) -> Engine:
        return next(iter(self.service.models.values())).engine

    def client(self, key: str = "none", **how: Any) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0, **how)

    def post(self, path: str, body: Any, **how: Any) -> httpx.Response:
        headers = {"content-type": "application/json"} | how.pop("headers", {})
        return self.http.post(self.url + path, content=json.dumps(body), headers=headers, **how)

    def get(self, path: str, **how: Any) -> httpx.Response:
        return self.http.get(self.url + path, **how)

    def refused(self, path: str, body: Any, status: int = 400) -> dict[str, Any]:
        """The error that a body leads to; the server still answers afterwards."""
        found = self.post(path, body)
        assert found.status_code == status, found.text
        assert self.get("/health").json() == {"status": "ok"}
        return found.json()["error"]

    def raw(self, sent: bytes, half: bool = False) -> bytes:
        """What comes back for bytes as they are; `half` says that no more come."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=20) as connection:
            connection.sendall(sent)
            if half:
                connection.shutdown(socket.SHUT_WR)
            return b"".join(iter(lambda: connection.recv(65536), b""))

    @property
    def at_rest(self) -> bool:
        """Whether the engine has nothing to do, and no block is in use."""
        load = self.engine.load
        return not self.engine.busy and load.running == load.waiting == load.blocks_used == 0

    def close(self) -> None:
        self.http.close()
        self.server.drain()
        self.thread.join(30)
        assert not self.thread.is_alive()


@contextmanager
def served(llm: LLM | None = None, settings: Settings | None = None, **engine: Any) -> Iterator[Served]:
    server = Served(llm or chain_llm(), settings, **engine)
    try:
        yield server
    finally:
        server.close()


def wait_for(reached: Any, seconds: float = 30) -> None:
    """Until something is true; how long that takes is not tested."""
    end = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < end, "it did not come to that"
        time.sleep(0.01)
