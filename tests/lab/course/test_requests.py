"""The experiments on many requests, and on one from text to text; never a time."""

from __future__ import annotations

import statistics
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from tests.text.tiny_tokenizers import byte_level_tokenizer_json
from tests.tiny_models import random_model
from tinyinfer.engine import Engine
from tinyinfer.lab.course import paging, scheduling, trace, workload
from tinyinfer.lab.course.scheduling import Costs, continuous, poisson, static
from tinyinfer.lab.course.setting import Setting

EVEN = Costs([1.0] * scheduling.SLOTS, 0.0)  # a step takes a second, whoever takes part


@pytest.fixture
def setting(tmp_path: Path) -> Setting:
    random_model(tmp_path / "model", max_position_embeddings=512, vocab_size=280)
    return Setting(str(tmp_path / "model"))


@pytest.fixture
def talking(setting: Setting) -> Setting:
    """The same with a tokenizer and a template."""
    folder = Path(setting.model)
    (folder / "tokenizer.json").write_text(byte_level_tokenizer_json())
    (folder / "chat_template.jinja").write_text("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}")
    return setting


def test_the_requests_are_the_courses():
    lengths = workload.answer_lengths()
    assert (len(lengths), statistics.median(lengths), max(lengths), sum(lengths)) == (64, 18, 231, 1874)
    assert lengths == workload.answer_lengths()
    assert min(lengths) >= 1


def test_static_batches_by_hand(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(scheduling, "REQUESTS", 3)
    monkeypatch.setattr(scheduling, "SLOTS", 2)
    monkeypatch.setattr(scheduling, "answer_lengths", lambda: [2, 5, 3])
    monkeypatch.setattr(scheduling, "prompt_lengths", lambda: [10, 10, 10])
    costs = Costs([1.0, 2.0], 0.1)
    # two prompts, four steps of two; then one prompt and two steps of one
    assert static([0, 0, 0], costs).done == pytest.approx([10, 10, 13])
    # the third takes the first's slot: its prompt beside a step of one, which gives its first token; two steps of two
    assert continuous([0, 0, 0], costs).done == pytest.approx([4, 10, 10])
    # who comes alone is served alone
    assert static([0, 100, 200], costs).done == continuous([0, 100, 200], costs).done == pytest.approx([2, 105, 203])


def test_continuous_batching_never_idles():
    came = [0.0] * scheduling.REQUESTS
    served = continuous(came, EVEN)
    assert max(served.done) < max(static(came, EVEN).done)
    assert max(served.done) >= sum(workload.answer_lengths()) / scheduling.SLOTS - scheduling.REQUESTS
    assert served.latency < static(came, EVEN).latency


def test_arrivals_at_random():
    came = poisson(2.0)
    assert came[0] == 0
    assert all(a <= b for a, b in pairwise(came))
    assert 0.2 < np.mean(np.diff(came)) < 1.2


def test_the_engine_runs_all_of_it_both_ways(setting: Setting, monkeypatch: pytest.MonkeyPatch):
    engines = []

    class Watched(Engine):
        def __init__(self, *arguments, **how):
            super().__init__(*arguments, **how)
            engines.append(self)

    monkeypatch.setattr(scheduling, "Engine", Watched)
    lengths = workload.answer_lengths()
    one, other = scheduling.run_both(setting, [0.0] * scheduling.REQUESTS)
    *batches, last = engines
    # every batch runs to its longest, and the other way no token is drawn that was not asked for
    starts = range(0, len(lengths), scheduling.SLOTS)
    padded = [scheduling.SLOTS * max(lengths[i : i + scheduling.SLOTS]) for i in starts]
    assert [engine.load.new_tokens for engine in batches] == padded
    assert last.load.new_tokens == sum(lengths)
    # a slot's time is steps: as many as the simulation has
    assert last.load.steps <= max(continuous([0.0] * len(lengths), EVEN).done) + len(lengths)
    assert len(one.done) == len(other.done) == len(lengths)
    assert min(other.done) > 0


def test_other_numbers_of_slots_and_what_the_engine_adds(setting: Setting, monkeypatch: pytest.MonkeyPatch):
    slots = []

    class Watched(Engine):
        def __init__(self, llm, **how):
            super().__init__(llm, **how)
            slots.append(how["slots"])

    monkeypatch.setattr(scheduling, "Engine", Watched)
    monkeypatch.setattr(scheduling, "LONGEST", 6)
    eight = scheduling.Served([0.0] * scheduling.REQUESTS, [2.0] * scheduling.REQUESTS)
    rows = scheduling._by_slots(setting, eight).rows
    assert [row[0] for row in rows] == [1, 8, 16]
    assert rows[0][2] == 1
    assert (rows[1][1], rows[1][3]) == (sum(workload.answer_lengths()) / 2, 2)
    assert slots == [1, 16]
    (_, alone, one), (_, by_engine, times) = scheduling._overhead(setting).rows
    assert (one, times) == (1, pytest.approx(by_engine / alone))
    assert set(slots[2:]) == {1}


def test_requests_that_come_later_are_waited_for(setting: Setting):
    came = [0.0] * 40 + [0.05] * 24
    for served in scheduling.run_both(setting, came):
        assert min(np.subtract(served.done, came)) > 0


def test_the_table_of_other_machines_reaches_the_courses_ten():
    table = scheduling._by_step()
    assert max(max(row[2:]) for row in table.rows) > scheduling.COURSE_LATENCY


def test_waste_of_blocks_is_less_than_a_block_each(setting: Setting):
    lengths = [length for step in paging.running() for _, length in step]
    for size in (1, 8, 32):
        whole = sum(-(-length // size) * size for length in lengths)
        assert paging.wasted_in_blocks(setting, size) == pytest.approx(1 - sum(lengths) / whole)
    assert 0.6 < paging.wasted_contiguous() < 0.8


def test_all_requests_run_to_their_end():
    seen: dict[int, int] = {}
    for step in paging.running():
        assert 1 <= len(step) <= paging.SLOTS
        seen |= dict(step)
    ends = [p + n for p, n in zip(workload.prompt_lengths(), workload.answer_lengths(), strict=True)]
    assert [seen[i] for i in range(len(ends))] == ends


def test_hits_are_those_that_an_engine_has(talking: Setting):
    make = paging.AGENTS["the time before the tools"]
    prompts = [talking.llm.tokenizer.encode(make(i))[:300] for i in range(4)]
    asked, found, rate = paging.hit_rate(talking, prompts)
    engine = Engine(talking.llm, slots=1)
    for prompt in prompts:
        engine.add(prompt, max_tokens=1, ignore_eos=True)
    while engine.busy:
        engine.step()
    assert (engine.load.prompt_tokens, engine.load.cached_tokens, engine.load.hit_rate) == (asked, found, rate)
    assert found > 0


@pytest.mark.parametrize("kind", ["setting", "talking"])
def test_what_varies_belongs_at_the_end(kind: str, request: pytest.FixtureRequest):
    rates = [row[3] for row in paging.measure(request.getfixturevalue(kind)).tables[1].rows]
    first, before, after, unstable = rates
    assert first < before < after
    assert unstable < after


def test_a_request_from_text_to_text(talking: Setting):
    finding = trace.measure(talking)
    names = [row[1] for row in finding.tables[0].rows]
    assert names[:4] == ["template", "tokenizer", "prefill, all layers", "norm and head"]
    assert "decoder" in names
    assert "a step: layers, norm, head" in names


def test_the_trace_draws_the_engines_tokens(talking: Setting):
    found = trace.trace(talking)
    ids = [int(stage.comes_out[3:]) for stage in found.stages if stage.comes_out.startswith("id ")]
    assert talking.llm.generate(found.ids, temperature=0, max_tokens=len(ids)).ids == ids
    assert found.ids == talking.llm.chat_ids([{"role": "user", "content": trace.QUESTION}])


def test_a_trace_without_a_tokenizer_begins_at_ids(setting: Setting):
    finding = trace.measure(setting)
    assert finding.tables[0].rows[0][1] == "prefill, all layers"
    assert len(finding.tables) == 1
