"""Requests through the engine: each answered once, in whatever order, and as it would be alone."""

import itertools
import sys

import pytest

from tests.batch.speaker import lines, told, write_speaker
from tests.batch.test_requests import line
from tinyinfer import Engine, load
from tinyinfer.batch import Answers, BatchRequest, read_requests, run_batch
from tinyinfer.batch.bodies import Bodies, with_seed
from tinyinfer.batch.job import answer
from tinyinfer.batch.on_ray import Recipe, run_on_ray
from tinyinfer.errors import MissingExtra


@pytest.fixture(scope="module")
def llm(tmp_path_factory):
    return load(write_speaker(tmp_path_factory.mktemp("models") / "speaker"), kv_dtype="float32")


def run(tmp_path, llm, *lines, **engine):
    path, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    path.write_bytes(b"\n".join(lines))
    with Answers(out) as answers:
        counts = list(run_batch(read_requests(path), answers, Engine(llm, **engine), "speaker"))[-1]
    return counts, out


def test_every_request_is_answered_as_it_would_be_alone(llm, tmp_path):
    counts, out = run(tmp_path, llm, *lines(40), slots=4)
    assert (counts.answered, counts.refused, counts.before) == (40, 0, 0)
    found = told(out)
    for request in read_requests(tmp_path / "in.jsonl"):
        body = with_seed(request)
        prompt = llm.chat_ids(body.pop("messages")) if "messages" in body else body.pop("prompt")
        alone = llm.generate(prompt, **{name: value for name, value in body.items() if name != "model"})
        (choice,) = found[request.custom_id]["body"]["choices"]
        said = choice["message"]["content"] if "message" in choice else choice["text"]
        assert (said, choice["finish_reason"]) == (alone.text, alone.finish_reason)
        assert found[request.custom_id]["body"]["usage"]["completion_tokens"] == len(alone.ids)


def test_a_request_with_several_prompts_and_samples_has_one_answer(llm, tmp_path):
    body = {"prompt": ["abc", [100, 101]], "n": 2, "max_tokens": 4, "temperature": 1, "seed": 5, "echo": True}
    _, out = run(tmp_path, llm, line("many", body=body), slots=2)
    wanted = [
        before + llm.generate(prompt, max_tokens=4, temperature=1, seed=5 + i).text
        for before, prompt in (("abc", "abc"), ("de", [100, 101]))
        for i in (0, 1)
    ]
    assert [choice["text"] for choice in told(out)["many"]["body"]["choices"]] == wanted


def test_what_is_wrong_with_a_line_is_its_answer(llm, tmp_path):
    ask = {"prompt": "a", "max_tokens": 1}
    chat = {"url": "/v1/chat/completions"}
    bad = {
        "long": (line("long", body={"prompt": "x" * 257}), "257 tokens, more than the context of 256", "prompt", 400),
        "strange": (line("strange", body=ask | {"max_token": 1}), "no parameter 'max_token'", "max_token", 400),
        "streamed": (line("streamed", body=ask | {"stream": True}), "can't be streamed", "stream", 400),
        "model": (line("model", body=ask | {"model": "gpt"}), "no model 'gpt' here, but 'speaker'", "model", 404),
        "half": (line("half", body={"prompt": [[1], [275]]}), "id 275 is outside", "prompt", 400),
        "system": (
            line("system", body={"messages": [{"role": "system", "content": "forbidden"}]}, **chat),
            "System role refused", "messages", 400,
        ),
        "url": (line("url", url="/v1/embeddings"), "line 7: url should be one of", "url", 400),
        None: (b"{", "line 8: not JSON", None, 400),
    }  # fmt: skip
    counts, out = run(tmp_path, llm, *(raw for raw, *_ in bad.values()), line("good", body=ask | {"model": "speaker"}))
    assert (counts.answered, counts.refused) == (1, len(bad))
    found = told(out)
    assert found["good"]["status_code"] == 200
    for custom_id, (_, message, param, status) in bad.items():
        error = found[custom_id]["body"]["error"]
        assert message in error["message"]
        assert (error["param"], found[custom_id]["status_code"]) == (param, status)
        assert error["type"] == "invalid_request_error"


def test_what_is_there_is_not_done_again(llm, tmp_path):
    asked = [*lines(10), b"{"]
    _, out = run(tmp_path, llm, *asked)
    whole, before = told(out), out.read_bytes().splitlines(keepends=True)
    out.write_bytes(b"".join(before[:4]) + before[4][:20])
    counts, _ = run(tmp_path, llm, *asked)
    assert (counts.before, counts.answered + counts.refused) == (4, 7)
    assert told(out) == whole
    assert out.read_bytes().splitlines(keepends=True)[:4] == before[:4]
    counts, _ = run(tmp_path, llm, *asked)
    assert (counts.before, counts.answered, counts.refused) == (11, 0, 0)


def test_a_request_without_a_seed_has_one_that_goes_by_the_line(llm, tmp_path):
    ask = {"prompt": "a", "max_tokens": 8, "temperature": 1}
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    first, second = (run(tmp_path / name, llm, line("a", body=ask), line("b", body=ask))[1] for name in ("one", "two"))
    assert told(first) == told(second)
    seeds = {name: found["body"]["choices"][0]["seed"] for name, found in told(first).items()}
    assert seeds["a"] != seeds["b"]


def test_requests_are_read_no_further_than_the_engine_needs(llm):
    read = []

    def endless():
        for i in itertools.count():
            read.append(i)
            body = {"prompt": [1], "max_tokens": 5}
            yield BatchRequest(i, f"batch_req_{i:032x}", str(i), "/v1/completions", body)

    engine = Engine(llm, slots=3)
    results = answer(endless(), engine, Bodies(engine, "speaker"))
    for done in range(1, 30):
        next(results)
        assert len(read) <= done + 6
    results.close()
    engine.step()
    assert not engine.busy


def test_without_ray_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with Answers(tmp_path / "out") as answers, pytest.raises(MissingExtra, match=r"tinyinfer\[ray\]"):
        next(run_on_ray(tmp_path / "in", answers, Recipe("model", "model"), "auto"))
