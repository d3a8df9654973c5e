"""Pulling a repository from a small server that speaks the part of the Hub's HTTP interface that is used."""

import errno
import hashlib
import json
import os
import random
import subprocess
import sys
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

import huggingface_hub
import pytest

from tinyinfer.checkpoint import downloads, hub
from tinyinfer.checkpoint.hub import pull_repository
from tinyinfer.checkpoint.places import Repository, find_model, find_pulled
from tinyinfer.checkpoint.pull import pull
from tinyinfer.errors import DownloadError

COMMIT = "0123456789abcdef0123456789abcdef01234567"
NAME = Repository("owner/name")
WEIGHTS = random.Random(0).randbytes(50_000)
WANTED = {
    "config.json": b'{"model_type": "none"}',
    "tokenizer.json": b"{}",
    "tokenizer.model": b"pieces",
    "merges.txt": b"a b",
    "vocab.txt": b"a",
    "chat_template.jinja": b"{{ messages }}",
    "generation_config.json": b"{}",
    "model.safetensors": WEIGHTS,
}
UNWANTED = {
    "pytorch_model.bin": b"pickle",
    "weights.pt": b"pickle",
    "modeling.py": b"code",
    "model.gguf": b"GGUF",
    "README.md": b"text",
    "notes.txt": b"text",
    "consolidated.safetensors": b"the same again",
    "onnx/config.json": b"{}",
    "../escape.json": b"{}",
    ".hidden.json": b"{}",
}


@dataclass
class Hub:
    """What the server holds, how it misbehaves, and what it was asked."""

    files: dict = field(default_factory=lambda: {**WANTED, **UNWANTED})
    status: int = 200  # of the repository's description
    error_code: str | None = None
    description: bytes | None = None
    token: str | None = None
    served: dict = field(default_factory=dict)  # other bytes than were listed
    cuts: dict = field(default_factory=dict)  # file -> after how many bytes each of the next answers breaks off
    ranges: bool = True
    asked: list = field(default_factory=list)  # (method, path, headers)
    address: str = ""
    storage: str = ""  # the address of the second host, which has the large files

    def asked_for(self, name):
        """The Range header, or None, of each request for a file's bytes."""
        return [headers.get("Range") for method, path, headers in self.asked if path.endswith(f"/{name}")]

    def describe(self):
        siblings = [self._sibling(name, content) for name, content in self.files.items()]
        known = {"id": "owner/name", "sha": COMMIT, "private": False, "downloads": 0, "likes": 0, "tags": []}
        return self.description or json.dumps({**known, "siblings": siblings}).encode()

    def _sibling(self, name, content):
        git = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
        listed = {"rfilename": name, "size": len(content), "blobId": git}
        if not name.endswith("safetensors"):
            return listed
        large = {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 134}
        return {**listed, "blobId": "f" * 40, "lfs": large}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        state = self.server.state
        path = unquote(urlsplit(self.path).path)
        state.asked.append((self.command, path, dict(self.headers)))
        if path.startswith("/storage/"):
            return self.send_file(path.removeprefix("/storage/"))
        if state.token and self.headers.get("Authorization") != f"Bearer {state.token}":
            return self.answer(401, b"", {"X-Error-Code": "RepoNotFound"})
        if path.startswith("/api/models/owner/name"):
            code = {"X-Error-Code": state.error_code} if state.error_code else {}
            return self.answer(state.status, state.describe(), {"Content-Type": "application/json", **code})
        prefix = f"/owner/name/resolve/{COMMIT}/"
        if not path.startswith(prefix) or path.removeprefix(prefix) not in state.files:
            return self.answer(404, b"", {"X-Error-Code": "EntryNotFound"})
        name = path.removeprefix(prefix)
        if name.endswith(".safetensors"):
            return self.answer(302, b"", {"Location": f"{state.storage}/storage/{name}", "X-Repo-Commit": COMMIT})
        return self.send_file(name)

    def send_file(self, name):
        state = self.server.state
        content = state.served.get(name, state.files[name])
        begin, headers, status = 0, {"ETag": f'"{hashlib.sha256(content).hexdigest()}"', "X-Repo-Commit": COMMIT}, 200
        if state.ranges and (asked := self.headers.get("Range")):
            begin, status = int(asked.removeprefix("bytes=").rstrip("-")), 206
            if begin >= len(content):
                return self.answer(416, b"", {})
            headers["Content-Range"] = f"bytes {begin}-{len(content) - 1}/{len(content)}"
        cut = state.cuts[name].pop(0) if state.cuts.get(name) else None
        self.answer(status, content[begin:], headers, cut)

    def answer(self, status, body, headers, cut=None):
        self.send_response(status)
        for key, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body[:cut])
        if cut is not None:
            self.close_connection = True

    def log_message(self, *said):
        pass


@pytest.fixture
def server(tmp_path, monkeypatch):
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TINYINFER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub.constants, "HF_TOKEN_PATH", str(tmp_path / "hf" / "token"))
    monkeypatch.setattr(huggingface_hub.constants, "DOWNLOAD_CHUNK_SIZE", 1000)
    # the wait between two tries, which huggingface_hub makes longer and longer
    monkeypatch.setattr(huggingface_hub.file_download.time, "sleep", lambda seconds: None)
    state = Hub()
    with serving(state) as state.address, serving(state) as state.storage:
        monkeypatch.setenv("HF_ENDPOINT", state.address)
        yield state


@contextmanager
def serving(state):
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listener:
        listener.state, listener.daemon_threads = state, True
        thread = threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{listener.server_port}"
        listener.shutdown()
        thread.join()


def files_in(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def assert_nothing_looks_complete(home):
    assert find_pulled("owner/name") is None
    assert [path.name for path in home.iterdir()] == [".downloads"]


class Recorder:
    def __init__(self):
        self.seen = []

    @contextmanager
    def __call__(self, description, total, unit):
        self.n = 0
        yield self
        self.seen.append((description, total, self.n))

    def update(self, n):
        self.n += n


# ---- what goes well


def test_a_repository_becomes_a_folder(tmp_path, server):
    progress = Recorder()
    folder = pull("owner/name", progress)
    assert folder == tmp_path / "home" / "owner--name"
    assert find_model("owner/name") == folder
    assert files_in(folder) == WANTED
    assert not (tmp_path / "home" / ".downloads" / "owner--name").exists()
    small = sum(map(len, WANTED.values())) - len(WEIGHTS)
    assert progress.seen == [
        ("downloading files of owner/name", small, small),
        ("downloading weights of owner/name", len(WEIGHTS), len(WEIGHTS)),
    ]


def test_files_that_are_not_wanted_are_not_asked_for(tmp_path, server):
    pull_repository(NAME)
    for name in UNWANTED:
        assert server.asked_for(name) == [], name
    assert not (tmp_path / "home" / "escape.json").exists()


def test_nothing_is_printed(capfd, server):
    server.cuts = {"model.safetensors": [20_000]}
    pull_repository(NAME)
    assert "%|" not in capfd.readouterr().err


def test_what_is_there_is_not_asked_for_again_unless_forced(server):
    folder = pull_repository(NAME)
    server.asked.clear()
    assert pull_repository(NAME) == folder
    assert server.asked == []
    server.files["model.safetensors"] = b"newer"
    assert pull_repository(NAME, force=True) == folder
    assert (folder / "model.safetensors").read_bytes() == b"newer"


def test_a_whole_snapshot_in_the_hub_cache_will_do(tmp_path, server):
    stored = tmp_path / "hf" / "hub" / "models--owner--name"
    (stored / "refs").mkdir(parents=True)
    (stored / "refs" / "main").write_text(COMMIT)
    snapshot = stored / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    for name, content in WANTED.items():
        (snapshot / name).write_bytes(content)
    assert pull("owner/name") == snapshot
    assert server.asked == []


def test_a_revision(tmp_path, server):
    folder = pull("owner/name@refs/pr/1")
    assert folder == tmp_path / "home" / "owner--name@refs%2Fpr%2F1"
    assert find_model("owner/name@refs/pr/1") == folder
    assert server.asked[0][1] == "/api/models/owner/name/revision/refs/pr/1"


def test_the_shards_of_the_index_and_no_others(server):
    shards = {f"model-0000{n}-of-00002.safetensors": bytes([n]) * 100 for n in (1, 2)}
    index = {"weight_map": dict(zip("abc", [*shards, *shards], strict=False))}
    server.files.update(shards)
    server.files["model.safetensors.index.json"] = json.dumps(index).encode()
    folder = pull_repository(NAME)
    assert {name for name in files_in(folder) if name.endswith(".safetensors")} == set(shards)
    assert server.asked_for("model.safetensors") == []


def test_weights_of_another_name(server):
    del server.files["model.safetensors"]
    assert (pull_repository(NAME) / "consolidated.safetensors").is_file()


# ---- the environment


def test_the_token_is_sent_to_the_hub_and_not_to_the_storage(server, monkeypatch):
    server.token = "hf_secret"
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    pull_repository(NAME)
    stored = [headers for _, path, headers in server.asked if path.startswith("/storage/")]
    assert stored
    assert not any("Authorization" in headers for headers in stored)


def test_endpoint_and_token_given_by_the_caller(server, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    server.token = "given"
    assert files_in(pull_repository(NAME, endpoint=server.address + "/", token="given")) == WANTED


def test_the_token_file_in_hf_home(tmp_path, server, request):
    """In another process, because huggingface_hub reads HF_HOME when it is imported."""
    server.token = "from_file"
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / "token").write_text("from_file")
    code = "from tinyinfer.checkpoint.pull import pull; print(pull('owner/name'))"
    run = subprocess.run([sys.executable, "-c", code], cwd=request.config.rootpath, capture_output=True, text=True)
    assert run.stdout.strip() == str(tmp_path / "home" / "owner--name"), run.stderr
    assert run.stderr == ""


# ---- going on after a break


def test_a_cut_connection_is_resumed(server):
    server.cuts = {"model.safetensors": [20_000, 10_000]}
    assert files_in(pull_repository(NAME)) == WANTED
    ranges = server.asked_for("model.safetensors")[::2]  # each time the Hub, then the storage
    assert ranges[0] is None
    assert len(ranges) == 3
    assert all(asked.startswith("bytes=") for asked in ranges[1:])


def test_a_later_pull_goes_on_where_the_first_gave_up(tmp_path, server):
    server.cuts = {"model.safetensors": [20_000] + [0] * 10}
    with pytest.raises(DownloadError, match=r"owner/name: .*can't be reached|expected 50,000 bytes, found"):
        pull_repository(NAME)
    assert_nothing_looks_complete(tmp_path / "home")
    part = tmp_path / "home" / ".downloads" / "owner--name" / COMMIT / "model.safetensors.part"
    come = part.stat().st_size
    assert 0 < come <= 20_000
    server.cuts, server.asked = {}, []
    progress = Recorder()
    assert files_in(pull_repository(NAME, progress)) == WANTED
    assert server.asked_for("model.safetensors")[-1] == f"bytes={come}-"
    assert server.asked_for("tokenizer.json") == []  # came whole the first time
    assert [(total, n) for _, total, n in progress.seen][1] == (50_000, 50_000)


def test_an_interrupted_pull(tmp_path, server):
    class Interrupting(Recorder):
        def update(self, n):
            super().update(n)
            if self.n > 30_000:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pull_repository(NAME, Interrupting())
    assert_nothing_looks_complete(tmp_path / "home")
    assert files_in(pull_repository(NAME)) == WANTED
    assert server.asked_for("model.safetensors")[-1].startswith("bytes=")


def test_a_server_without_ranges(tmp_path, server):
    work = tmp_path / "home" / ".downloads" / "owner--name" / COMMIT
    work.mkdir(parents=True)
    (work / "model.safetensors.part").write_bytes(WEIGHTS[:10_000])
    server.ranges = False
    try:
        folder = pull_repository(NAME)
    except DownloadError:  # huggingface_hub before 1.0 appends the whole file; what matters is that it is noticed
        folder = pull_repository(NAME)
    assert files_in(folder) == WANTED


@pytest.mark.parametrize("left", [b"not the beginning", WEIGHTS + b"too much", b"x" * len(WEIGHTS)])
def test_a_wrong_part_from_before_is_noticed(tmp_path, server, left):
    work = tmp_path / "home" / ".downloads" / "owner--name" / COMMIT
    work.mkdir(parents=True)
    (work / "model.safetensors.part").write_bytes(left)
    (work / "tokenizer.json").write_bytes(b"[]")
    (work / "stray.json").write_bytes(b"[]")
    (work.parent / ("f" * 40)).mkdir()
    if len(left) <= len(WEIGHTS):
        with pytest.raises(DownloadError, match=r"model\.safetensors: expected sha256"):
            pull_repository(NAME)
    assert files_in(pull_repository(NAME)) == WANTED


# ---- what is wrong with what comes


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("model.safetensors", WEIGHTS[:-1], r"model\.safetensors: expected 50,000 bytes, found 49,999"),
        ("model.safetensors", WEIGHTS + b"x", r"model\.safetensors: expected 50,000 bytes, found 50,001"),
        ("model.safetensors", b"x" * len(WEIGHTS), r"model\.safetensors: expected sha256 [0-9a-f]{64}, found"),
        ("tokenizer.json", b"[]", r"tokenizer\.json: expected git hash [0-9a-f]{40}, found"),
    ],
)
def test_other_bytes_than_listed(tmp_path, server, name, content, said):
    server.served = {name: content}
    with pytest.raises(DownloadError, match=said):
        pull_repository(NAME)
    assert_nothing_looks_complete(tmp_path / "home")
    server.served = {}
    assert files_in(pull_repository(NAME)) == WANTED


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"status": 404, "error_code": "RepoNotFound"}, "there is no repository owner/name at http"),
        ({"status": 404}, "404|there is no repository"),
        ({"status": 404, "error_code": "RevisionNotFound"}, "owner/name has no revision"),
        ({"token": "other"}, "has no repository owner/name, or it is private and HF_TOKEN does not open it"),
        ({"status": 401, "error_code": "GatedRepo"}, "owner/name is gated: accept its terms at http.*/owner/name"),
        ({"status": 403, "error_code": "GatedRepo"}, "owner/name is gated: accept its terms at http.*/owner/name"),
        ({"status": 403}, "refuses access to owner/name"),
        ({"status": 500}, "answered with HTTP status 500"),
        ({"description": b"<html>"}, "did not answer as the Hugging Face Hub does|can't be reached"),
        ({"description": b"[]"}, "did not answer as the Hugging Face Hub does"),
        ({"description": b'{"id": "owner/name", "sha": "../.."}'}, "names no commit"),
    ],
)
def test_a_repository_that_is_not_to_be_had(tmp_path, server, change, said):
    for key, value in change.items():
        setattr(server, key, value)
    with pytest.raises(DownloadError, match=said) as caught:
        pull_repository(NAME)
    assert "\n" not in str(caught.value)
    assert_nothing_looks_complete(tmp_path / "home")


@pytest.mark.parametrize(
    ("absent", "present", "said"),
    [
        (["config.json"], {}, r"there is no config\.json in it"),
        (["model.safetensors", "consolidated.safetensors"], {}, "owner/name holds no safetensors"),
        ([], {hub.INDEX: b'{"weight_map": {"a": "gone.safetensors"}}'}, r"names gone\.safetensors, which the"),
        ([], {hub.INDEX: b'{"weight_map": {"a": "../x.safetensors"}}'}, r"names \.\./x\.safetensors, which the"),
        ([], {hub.INDEX: b'{"weight_map": {"a": "model.gguf"}}'}, r"names model\.gguf, which the"),
        ([], {hub.INDEX: b'{"weight_map": {"a": 7}}'}, "names 7, which the|not an index"),
        ([], {hub.INDEX: b"{}"}, "is not an index of shards"),
        ([], {hub.INDEX: b"["}, "is not an index of shards"),
    ],
)
def test_a_repository_that_holds_no_model(tmp_path, server, absent, present, said):
    for name in absent:
        del server.files[name]
    server.files.update(present)
    with pytest.raises(DownloadError, match=said):
        pull_repository(NAME)
    assert_nothing_looks_complete(tmp_path / "home")


@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:9", "http://name.invalid"])
def test_no_network(tmp_path, server, endpoint):
    with pytest.raises(DownloadError, match=f"owner/name: {endpoint} can't be reached: ") as caught:
        pull_repository(NAME, endpoint=endpoint)
    assert "\n" not in str(caught.value)
    assert_nothing_looks_complete(tmp_path / "home")


@pytest.mark.parametrize("endpoint", ["no-address", "ftp://a", "http://", "http://[", "http://a:b", "http://a:99999"])
def test_an_endpoint_that_is_no_address(server, monkeypatch, endpoint):
    monkeypatch.setenv("HF_ENDPOINT", endpoint)
    with pytest.raises(DownloadError, match="HF_ENDPOINT should be an address like"):
        pull_repository(NAME)


def test_offline(server, monkeypatch, request):
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    code = "from tinyinfer.checkpoint.pull import pull; pull('owner/name')"
    command = [sys.executable, "-c", code]
    run = subprocess.run(command, cwd=request.config.rootpath, env=environment, capture_output=True, text=True)
    assert "DownloadError: owner/name can't be fetched while HF_HUB_OFFLINE is set" in run.stderr
    assert server.asked == []


# ---- the disk


def test_too_little_space_is_said_with_both_numbers(tmp_path, server, monkeypatch):
    monkeypatch.setattr(downloads, "_free", lambda folder: 10_000)
    with pytest.raises(
        DownloadError, match=r"owner/name needs 50,000 bytes of disk, but .* has only 10,000 bytes free"
    ):
        pull_repository(NAME)
    assert server.asked_for("model.safetensors") == []


def test_a_disk_that_fills_up(tmp_path, server, monkeypatch):
    def full(self, data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(hub._CountedFile, "write", full)
    with pytest.raises(DownloadError, match=r"^owner/name: the disk that holds .* is full"):
        pull_repository(NAME)
    assert_nothing_looks_complete(tmp_path / "home")
    assert not (tmp_path / "home" / ".downloads" / "owner--name").exists()
