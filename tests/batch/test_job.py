"""Requests through the engine: each answered once, in whatever order, and as it would be alone."""

import itertools
import json
import random

import pytest

from tests.batch.plain import PlainDialect
from tests.batch.test_requests import line
from tests.tiny_models import random_model
from tinyinfer import Engine, load
from tinyinfer.batch import Answers, BatchRequest, read_requests, run_batch
from tinyinfer.batch.job import answer, with_seed


@pytest.fixture(scope="module")
def llm(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "random"
    random_model(folder)
    return load(folder, kv_dtype="float32")


def bodies(count, seed=0):
    rng = random.Random(seed)
    for i in range(count):
        ids = [rng.randrange(97) for _ in range(rng.randint(1, 30))]
        yield line(f"id-{i}", body={"prompt": ids, "max_tokens": rng.randint(0, 12), "temperature": rng.choice([0, 1])})


def run(path, out, llm, **engine):
    with Answers(out) as answers:
        counts = list(run_batch(read_requests(path), answers, Engine(llm, **engine), PlainDialect()))[-1]
    return counts


def told(out):
    found = {}
    for raw in out.read_text().splitlines():
        record = json.loads(raw)
        assert record["custom_id"] not in found
        found[record["custom_id"]] = record["response"]
    return found


def test_every_request_is_answered_as_it_would_be_alone(llm, tmp_path):
    path, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    path.write_bytes(b"\n".join(bodies(40)))
    counts = run(path, out, llm, slots=4)
    assert (counts.answered, counts.refused, counts.before) == (40, 0, 0)
    found = told(out)
    for request in read_requests(path):
        body = with_seed(request)
        alone = llm.generate(body.pop("prompt"), **body)
        assert found[request.custom_id]["body"] == {"ids": [alone.ids]}


def test_a_request_with_several_prompts_and_samples_has_one_answer(llm, tmp_path):
    path, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    body = {"prompts": [[1, 2, 3], [4, 5]], "n": 2, "max_tokens": 4, "temperature": 1, "seed": 5}
    path.write_bytes(line("many", body=body))
    run(path, out, llm, slots=2)
    wanted = [llm.generate(ids, max_tokens=4, temperature=1, seed=5 + i).ids for ids in body["prompts"] for i in (0, 1)]
    assert told(out)["many"]["body"] == {"ids": wanted}


def test_what_is_wrong_with_a_line_is_its_answer(llm, tmp_path):
    path, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    lines = [
        line("good", body={"prompt": [1], "max_tokens": 1}),
        line("long", body={"prompt": [1] * 129}),
        line("strange", body={"prompt": [1], "max_token": 1}),
        line("half", body={"prompts": [[1], [97]], "max_tokens": 4}),  # the engine has the first prompt already
    ]
    path.write_bytes(b"\n".join(lines))
    counts = run(path, out, llm)
    assert (counts.answered, counts.refused) == (1, 3)
    found = told(out)
    assert [found[name]["status_code"] for name in ("good", "long", "strange", "half")] == [200, 400, 400, 400]
    assert "129 tokens, more than the context of 128" in found["long"]["body"]["error"]["message"]


def test_what_is_there_is_not_done_again(llm, tmp_path):
    path, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    path.write_bytes(b"\n".join([*bodies(10), b"{"]))
    run(path, out, llm)
    whole = out.read_bytes()
    out.write_bytes(b"".join(whole.splitlines(keepends=True)[:4]) + whole.splitlines(keepends=True)[4][:20])
    counts = run(path, out, llm)
    assert (counts.before, counts.answered + counts.refused) == (4, 7)
    assert sorted(out.read_bytes().splitlines()) == sorted(whole.splitlines())
    counts = run(path, out, llm)
    assert (counts.before, counts.answered, counts.refused) == (11, 0, 0)


def test_requests_are_read_no_further_than_the_engine_needs(llm):
    read = []

    def endless():
        for i in itertools.count():
            read.append(i)
            yield BatchRequest(i, f"batch_req_{i:032x}", str(i), "/v1/completions", {"prompt": [1], "max_tokens": 5})

    engine = Engine(llm, slots=3)
    results = answer(endless(), engine, PlainDialect())
    for done in range(1, 30):
        next(results)
        assert len(read) <= done + 6
    results.close()
    engine.step()
    assert not engine.busy
