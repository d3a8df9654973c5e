"""Servers as processes: there for as long as a block, and no longer."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.batch.speaker import write_speaker
from tinyinfer.errors import BadRequest
from tinyinfer.lab import servers
from tinyinfer.lab.servers import our_server, running

STUBBORN = """
import http.server, signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
http.server.HTTPServer(("127.0.0.1", int(sys.argv[2])), Handler).serve_forever()
"""


def test_our_server_answers_and_ends_in_order(tmp_path: Path):
    write_speaker(tmp_path / "model")
    with running(our_server(tmp_path / "model", "-q"), TINYINFER_KERNELS="numpy") as server:
        assert server.url.startswith("http://127.0.0.1:")
        assert server.process.poll() is None
    assert (server.process.returncode, server.said) == (0, "")


@pytest.mark.parametrize("left", [KeyboardInterrupt, SystemExit, ValueError])
def test_however_the_block_is_left_the_process_ends(left: type[BaseException], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(servers, "END_SECONDS", 0.2)
    with pytest.raises(left), running([sys.executable, "-c", STUBBORN]) as server:
        raise left
    assert server.process.returncode == -9


def test_one_that_does_not_begin_is_told_with_its_last_words(tmp_path: Path):
    command = [sys.executable, "-c", "print('no such model'); raise SystemExit(3)"]
    with pytest.raises(BadRequest, match="ended with 3: no such model"), running(command):
        pass
    with pytest.raises(BadRequest, match="absent can't be run: No such file"), running([tmp_path / "absent"]):
        pass
