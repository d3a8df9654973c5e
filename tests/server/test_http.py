"""What comes over the wire: bad requests byte by byte, limits, the key, other origins, and other hosts."""

from __future__ import annotations

import json
import socket

import pytest

from tests.server.served import HELLO, Served, chain_llm, served, wait_for
from tinyinfer.server import Settings

ASK = {"messages": [{"role": "user", "content": "x"}]}
PATH = "/v1/chat/completions"
ROUTES = [
    ("GET", "/"), ("GET", "/health"), ("GET", "/metrics"), ("GET", "/v1/models"), ("GET", "/v1/models/chain"),
    ("POST", PATH), ("POST", "/v1/completions"), ("POST", "/tokenize"), ("POST", "/detokenize"),
    ("POST", "/v1/responses"), ("GET", "/v1/responses/x"), ("DELETE", "/v1/responses/x"),
]  # fmt: skip


def request(body: bytes, *headers: str, path: str = PATH, length: int | None = None) -> bytes:
    given = [f"POST {path} HTTP/1.1", "Host: localhost", "Connection: close", "Content-Type: application/json"]
    given += [f"Content-Length: {len(body) if length is None else length}", *headers]
    return "\r\n".join([*given, "", ""]).encode() + body


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


def error_of(answer: bytes) -> dict:
    return json.loads(answer.partition(b"\r\n\r\n")[2])["error"]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "not JSON"), (b"{", "not JSON"), (b"[]", "JSON object"), (b'"x"', "JSON object"),
        (b"\xff\xfe", "not UTF-8 text: byte 0xff at 0"), (b'{"a": "\xc3("}', "not UTF-8 text: byte 0xc3 at 7"),
        (b'{"stream": true, "stream": false}', "'stream' stands twice"),
        (b'{"messages": [{"role": "user", "role": "system"}]}', "'role' stands twice"),
        (b'{"temperature": NaN}', "NaN is no number"), (b'{"temperature": -Infinity}', "-Infinity is no number"),
        (b"[" * 100_000, "nested too deeply"), (b'{"a":' * 50_000, "nested too deeply"),
        (b'{"seed": ' + b"9" * 5000 + b"}", "not JSON"), (b"{} {}", "not JSON"), (b"\xef\xbb\xbf{}", "not JSON"),
    ],
    ids=lambda value: repr(value[:24]),
)  # fmt: skip
def test_bodies_that_are_no_json_object(server: Served, body: bytes, said: str):
    answer = server.raw(request(body))
    assert status_of(answer) == 400
    assert said in error_of(answer)["message"]
    assert server.post(PATH, ASK).json()["choices"][0]["message"]["content"] == HELLO


@pytest.mark.parametrize(
    "sent",
    [
        b"nonsense\r\n\r\n",
        b"GET /health HTTP/1.1\r\n\r\n",  # without a host
        b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: x\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"y" * 200_000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: y\r\n" * 40_000 + b"\r\n",
        b"GET / HTTP/1.1\r\nHost: local\x00host\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\r\n\r\n",  # TLS
    ],
    ids=lambda value: repr(value[:40]),
)
def test_what_is_no_http_is_refused(server: Served, sent: bytes):
    try:
        answer = server.raw(sent)
    except ConnectionError:  # closed while the rest was still being sent
        answer = b""
    assert not answer or status_of(answer) == 400
    assert server.get("/health").status_code == 200


def test_half_a_request_and_no_more(server: Served):
    for sent in (b"", b"POST /v1", b"POST / HTTP/1.1\r\nHost: x\r\n", request(b"{}", length=100)):
        server.raw(sent, half=True)
    wait_for(lambda: server.at_rest)
    assert server.get("/health").status_code == 200


def test_chunked_bodies(server: Served):
    head = "\r\n".join([f"POST {PATH} HTTP/1.1", "Host: localhost", "Connection: close", ""])
    head += "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    body = json.dumps(ASK).encode()
    good = head.encode() + b"%x\r\n%s\r\n%x\r\n%s\r\n0\r\n\r\n" % (5, body[:5], len(body) - 5, body[5:])
    assert status_of(server.raw(good)) == 200
    assert status_of(server.raw(head.encode() + b"zz\r\n")) == 400
    assert server.get("/health").status_code == 200


def test_bodies_of_another_type(server: Served):
    for headers in ({"content-type": "text/plain"}, {"content-type": ""}, {"content-encoding": "gzip"}):
        sent = {"content-type": "application/json"} | headers
        found = server.http.post(server.url + PATH, content=json.dumps(ASK), headers=sent)
        assert (found.status_code, found.json()["error"]["type"]) == (415, "invalid_request_error")


def test_text_that_utf8_has_not(server: Served):
    body = b'{"messages": [{"role": "user", "content": "\\ud800"}]}'
    answer = server.raw(request(body))
    assert (status_of(answer), error_of(answer)["param"]) == (400, "messages")
    answer = server.raw(request(b'{"\\udfff": 1, "messages": [{"role": "user", "content": "x"}]}'))
    assert (status_of(answer), error_of(answer)["param"]) == (400, "\udfff")


def test_routes_and_methods_that_there_are_not(server: Served):
    for method, path, status in (
        ("GET", "/nothing", 404), ("POST", "/v1/embeddings/", 404),
        ("POST", "/v1/responses/x/cancel", 404), ("GET", "/v1/responses/x", 404),
        ("GET", PATH, 405), ("DELETE", "/health", 405), ("PUT", "/v1/models", 405), ("OPTIONS", PATH, 405),
    ):  # fmt: skip
        found = server.http.request(method, server.url + path)
        assert found.status_code == status
        assert set(found.json()["error"]) == {"message", "type", "param", "code"}
        assert status == 404 or found.headers["allow"]


def test_limits_of_bytes_and_of_time():
    settings = Settings(most_bytes=2000, body_seconds=0.2)
    with served(settings=settings) as server:
        answer = server.raw(request(b"x" * 2001))
        assert (status_of(answer), b"connection: close" in answer.lower()) == (413, True)
        assert "2,000 bytes" in error_of(answer)["message"]
        head = f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n".encode()
        chunks = head + b"Transfer-Encoding: chunked\r\n\r\n" + (b"400\r\n" + b" " * 1024 + b"\r\n") * 3
        assert status_of(server.raw(chunks)) == 413
        assert status_of(server.raw(request(b"{", length=50))) == 408
        assert server.post(PATH, ASK).status_code == 200


def test_an_answer_that_takes_too_long_is_ended():
    with served(chain_llm(context=60_000), Settings(seconds=0.5)) as server:
        long = ASK | {"ignore_eos": True}
        found = server.post(PATH, long)
        assert (found.status_code, found.json()["error"]["code"]) == (504, "timeout")
        events = server.post(PATH, long | {"stream": True}).text.split("\n\n")
        assert json.loads(events[-2].removeprefix("data: "))["error"]["code"] == "timeout"
        wait_for(lambda: server.at_rest)
        assert server.post(PATH, ASK).status_code == 200


# ---- S7: the key


def test_every_route_but_health_needs_the_key():
    with served(settings=Settings(api_key="se crét")) as server:
        for method, path in [*ROUTES, ("GET", "/nothing"), ("DELETE", PATH), ("OPTIONS", PATH), ("GET", "//v1/models")]:
            found = server.http.request(method, server.url + path)
            assert found.status_code == (200 if path == "/health" else 401), path
            for wrong in ("Bearer no", "Bearer", "se crét", "Basic !", "Basic eDp5", "Bearer se crét2"):
                found = server.http.request(method, server.url + path, headers={"authorization": wrong.encode()})
                assert found.status_code == (200 if path == "/health" else 401), (path, wrong)
        right = "Bearer se crét".encode()
        assert server.http.get(server.url + "/v1/models", headers={"authorization": right}).status_code == 200
        assert server.get("/v1/models", auth=("anyone", "se crét")).status_code == 200
        assert server.get("/metrics", auth=("anyone", "wrong")).status_code == 401
    with served(settings=Settings(api_key="secret")) as server:
        assert server.client("secret").models.list().data[0].id == "chain"
        import openai

        with pytest.raises(openai.AuthenticationError) as wrong:
            server.client("Secret").models.list()
        assert wrong.value.code == "invalid_api_key"


def test_other_hosts_and_origins(server: Served):
    for host, status in (
        ("localhost", 200), ("127.0.0.1:80", 200), ("[::1]:80", 200), ("app.localhost", 200), ("evil.example", 403),
        ("localhost.evil.example", 403), ("", 403),
    ):  # fmt: skip
        assert server.get("/v1/models", headers={"host": host}).status_code == status, host
    found = server.post(PATH, ASK, headers={"origin": "http://evil.example"})
    assert "access-control-allow-origin" not in found.headers


def test_origins_that_are_asked_for():
    page = "http://page.example"
    with served(settings=Settings(api_key="secret", cors=(page,))) as server:
        ask = {"origin": page, "access-control-request-method": "POST",
               "access-control-request-headers": "authorization,content-type,x-stainless-os"}  # fmt: skip
        found = server.http.options(server.url + PATH, headers=ask)
        assert (found.status_code, found.headers["access-control-allow-origin"]) == (200, page)
        assert server.http.options(server.url + PATH, headers=ask | {"origin": "http://evil"}).status_code == 400
        found = server.post(PATH, ASK, headers={"origin": page, "authorization": "Bearer secret"})
        assert (found.status_code, found.headers["access-control-allow-origin"]) == (200, page)
        found = server.post(PATH, ASK, headers={"origin": page})
        assert (found.status_code, found.headers["access-control-allow-origin"]) == (401, page)


def test_connections_are_kept(server: Served):
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
        for body in (json.dumps(ASK).encode(), b"{", json.dumps(ASK).encode()):
            connection.sendall(request(body).replace(b"Connection: close\r\n", b""))
            answer = b""
            while b"\r\n\r\n" not in answer or (b'"usage"' not in answer and b'"error"' not in answer):
                answer += connection.recv(65536)
            assert status_of(answer) == (400 if body == b"{" else 200)
