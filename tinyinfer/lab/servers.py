"""Servers as processes of their own, for as long as they are measured."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import BadRequest

READY_SECONDS = 300  # until a server has loaded its model
END_SECONDS = 20  # for it to end by itself


@dataclass
class Running:
    """A server that answers."""

    url: str
    process: subprocess.Popen[bytes]
    _said: Path
    _last: str | None = None

    @property
    def said(self) -> str:
        """All it has written to standard output and standard error; also when it has ended."""
        return self._said.read_text("utf-8", "replace") if self._last is None else self._last


@contextmanager
def running(command: Sequence[Any], **environment: str) -> Iterator[Running]:
    """A server from the command line `command`, to which `--port N` is added, with its `/health` at 200.

    However the block is left, the process ends. Ctrl-C reaches it only through that, in a group of its own. Raises
    `BadRequest` with its last words where it does not begin.
    """
    port = _free_port()
    with tempfile.NamedTemporaryFile() as said:
        full = [*map(str, command), "--port", str(port)]
        try:
            process = subprocess.Popen(
                full, stdin=subprocess.DEVNULL, stdout=said, stderr=said, start_new_session=True,
                env=os.environ | environment,
            )  # fmt: skip
        except OSError as error:
            raise BadRequest(f"{full[0]} can't be run: {error.strerror or error}") from None
        server = Running(f"http://127.0.0.1:{port}", process, Path(said.name))
        try:
            _wait(server, full[0])
            yield server
        finally:
            process.terminate()
            try:
                process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            server._last = server.said


def our_server(model: Any, *flags: Any) -> list[Any]:
    """The command line of `tinyinfer serve MODEL`, by this interpreter."""
    return [sys.executable, "-m", "tinyinfer", "serve", model, *flags]


def end_on_sigterm() -> None:
    """Have SIGTERM end this process as Ctrl-C does, so that no server is left behind."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


def _free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return bound.getsockname()[1]


def _wait(server: Running, name: str) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline:
        if server.process.poll() is not None:
            raise BadRequest(f"{name} ended with {server.process.returncode}: {server.said[-1000:]}")
        try:
            with urllib.request.urlopen(f"{server.url}/health", timeout=5) as answer:
                if answer.status == 200:
                    return
        except (urllib.error.URLError, OSError):  # not yet
            pass
        time.sleep(0.1)
    raise BadRequest(f"{name} was not ready after {READY_SECONDS} seconds: {server.said[-1000:]}")
