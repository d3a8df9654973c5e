"""Many requests at once: each gets what it gets alone, in any company, and nothing is left behind."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.chain_models import chain_checkpoint, say
from tests.tiny_models import WINDOWED, random_model
from tinyinfer import LLM, Completion
from tinyinfer.checkpoint.source import Checkpoint
from tinyinfer.engine import Engine, Event
from tinyinfer.errors import BadRequest, ContextOverflow, QueueFull, SamplingError, TinyinferError
from tinyinfer.kernels.tape import use_compiled

VOCAB = 97
LONG = {"max_position_embeddings": 512}
YARNLESS = {"rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 24}
KINDS: dict[str, dict[str, Any]] = {
    "plain": LONG,
    "windows": {**WINDOWED, "sliding_window": 20, **LONG},
    "values of 4 bits": {**WINDOWED, "sliding_window": 20, **LONG},
    "dynamic": {"rope_parameters": {"rope_type": "dynamic", **YARNLESS}, "max_position_embeddings": 24},
    "longrope": {
        "model_type": "phi3", "architectures": ["Phi3ForCausalLM"], "max_position_embeddings": 96,
        "original_max_position_embeddings": 24, "rope_parameters": {
            "rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0] * 5, "long_factor": [3.0] * 5,
            "original_max_position_embeddings": 24,
        },
    },
}  # fmt: skip


@cache
def llm_of(kind: str = "plain") -> LLM:
    kv_dtype = "int8-int4" if kind == "values of 4 bits" else "float32"
    return LLM(Checkpoint(Path("random"), *random_model(seed=3, **KINDS[kind])), kv_dtype=kv_dtype)


@pytest.fixture
def llm() -> LLM:
    return llm_of()


def text(length: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, VOCAB, length).tolist()


def run(engine: Engine) -> dict[int, dict[int, Completion]]:
    """All that is waiting, to the end: completions by request and index. Pieces are checked on the way."""
    ids: dict[tuple[int, int], list[int]] = {}
    done: dict[int, dict[int, Completion]] = {}
    while engine.busy:
        for event in engine.step():
            assert event.error is None
            ids.setdefault(event[:2], []).extend(event.piece.ids)
            if event.piece.completion:
                came = ids[event[:2]]  # here; others may have come in steps before
                assert event.piece.completion.ids[len(event.piece.completion.ids) - len(came) :] == came
                done.setdefault(event.id, {})[event.index] = event.piece.completion
    assert engine.step() == []
    return done


def nothing_is_held(engine: Engine) -> bool:
    return all(pool.num_free + pool.num_idle == pool.num_blocks for pool in engine._cache.pools)


def same(one: Completion, other: Completion) -> bool:
    """Equal in all that does not depend on time; log-probabilities to the last bit."""
    return (one.ids, one.text, one.finish_reason, one.stop_reason, one.logprobs, one.prompt_logprobs) == (
        other.ids, other.text, other.finish_reason, other.stop_reason, other.logprobs, other.prompt_logprobs,
    )  # fmt: skip


ASKS: list[dict[str, Any]] = [
    {"prompt": text(3), "max_tokens": 20},
    {"prompt": text(12, 1), "max_tokens": 5, "temperature": 1.0, "seed": 7},
    {"prompt": text(40, 2), "max_tokens": 30, "temperature": 1.5, "seed": 1, "top_k": 20, "repetition_penalty": 1.3},
    {"prompt": text(40, 2), "max_tokens": 9, "logprobs": 3},
    {"prompt": text(70, 4), "max_tokens": 4, "prompt_logprobs": 2, "logprobs": 0, "temperature": 0.7, "seed": 2},
    {"prompt": text(1), "max_tokens": 1},
    {"prompt": text(5, 6), "max_tokens": 0},
    {"prompt": text(6, 7), "max_tokens": 0, "prompt_logprobs": 0},
    {"prompt": text(40, 2) + text(9, 8), "max_tokens": 25, "presence_penalty": 0.5, "logit_bias": {5: 3.0}},
    {"prompt": text(33, 9), "max_tokens": 60, "banned_ids": [1, 2, 3]},
]


@cache
def alone(kind: str, number: int) -> Completion:
    return llm_of(kind).generate(**ASKS[number])


def fits(kind: str, number: int) -> bool:
    return len(ASKS[number]["prompt"]) <= llm_of(kind).context


# ---- the same as alone

exact = pytest.mark.skipif(not use_compiled(), reason="BLAS gives other floats for other numbers of rows")


@exact
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=12, deadline=None)
@given(
    order=st.permutations(range(len(ASKS))),
    waits=st.lists(st.integers(0, 5), min_size=len(ASKS), max_size=len(ASKS)),
    slots=st.integers(1, 6),
    step_tokens=st.sampled_from([6, 17, 512]),
    blocks=st.sampled_from([0, 5, 20]),
    prefixes=st.booleans(),
)
def test_any_company_gives_what_a_request_gives_alone(
    kind: str, order: list[int], waits: list[int], slots: int, step_tokens: int, blocks: int, prefixes: bool
):
    """As alone: joined and left at different steps, in any order, with few slots, and blocks running out."""
    llm = llm_of(kind)
    block = llm.model.new_cache().block_bytes
    limit = block * blocks or None
    engine = Engine(llm, slots=slots, step_tokens=step_tokens, kv_cache_bytes=limit, prefix_cache=prefixes)
    order = [number for number in order if fits(kind, number)]
    numbers, done = {}, {}
    events: list[Event] = []
    for number, wait in zip(order, waits, strict=False):
        numbers[engine.add(**ASKS[number])] = number
        for _ in range(wait):
            events += engine.step()
    while engine.busy:
        events += engine.step()
    for event in events:
        if event.piece and event.piece.completion:
            done[numbers[event.id]] = event.piece.completion
    assert sorted(done) == sorted(order)
    for number, completion in done.items():
        expected = alone(kind, number)
        if len(expected.prompt_ids) + len(expected.ids) <= engine.context:
            assert same(completion, expected), number
        else:
            assert completion.ids == expected.ids[: engine.context - len(expected.prompt_ids)]
    assert nothing_is_held(engine)


@exact
def test_stop_strings_and_ends_are_each_requests_own():
    llm = LLM(chain_checkpoint(say("bcdefghij", after="a")))
    asks = [{"prompt": "a"}, {"prompt": "a", "stop": "ef"}, {"prompt": "c", "stop": ["zz", "h"]}, {"prompt": "i"}]
    engine = Engine(llm, slots=3)
    numbers = [engine.add(**ask) for ask in asks]
    done = run(engine)
    for number, ask in zip(numbers, asks, strict=True):
        assert same(done[number][0], llm.generate(**ask))
    assert [done[number][0].text for number in numbers] == ["bcdefghij", "bcd", "defg", "j"]


@exact
@pytest.mark.parametrize("slots", [1, 2, 5])
def test_n_answers_share_a_prompt_that_is_run_once(llm: LLM, slots: int):
    prompt = text(45)
    engine = Engine(llm, slots=slots)
    number = engine.add(prompt, n=4, max_tokens=12, temperature=1.0, seed=5, prompt_logprobs=0)
    other = engine.add(text(4), max_tokens=30)
    done = run(engine)
    expected = [llm.generate(prompt, max_tokens=12, temperature=1.0, seed=5 + i, prompt_logprobs=0) for i in range(4)]
    assert all(same(done[number][i], expected[i]) for i in range(4))
    assert same(done[other][0], llm.generate(text(4), max_tokens=30))
    if slots == 5:
        assert engine.load.run_tokens == 45 + 4 * 11 + 4 + 29
    assert nothing_is_held(engine)


@exact
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("wish", ["ngram", {"method": "ngram", "branches": 3, "adaptive": False}])
def test_drafted_texts_are_the_same_alone_and_beside_others(kind: str, wish: Any):
    llm = llm_of(kind)
    prompt = (text(4) * 4)[:15]
    asks = [
        {"prompt": prompt, "max_tokens": 40, "logprobs": 1},
        {"prompt": prompt[:9], "max_tokens": 12, "temperature": 0.3, "seed": 4},
    ]
    engine = Engine(llm, slots=2, kv_cache_bytes=30 * llm.model.new_cache().block_bytes)
    numbers = [engine.add(**ask, speculate=wish) for ask in asks]
    done = run(engine)
    for number, ask in zip(numbers, asks, strict=True):
        assert same(done[number][0], llm.generate(**ask))
    assert nothing_is_held(engine)
    found = engine.generate_many([prompt], max_tokens=40, speculate=wish)[0]
    assert found.ids == done[numbers[0]][0].ids
    if kind == "plain" and wish != "ngram":
        assert found.speculation.accepted > 0
        assert engine.load.new_tokens == 40 + 12 + 40


@exact
def test_many_prompts_are_answered_in_their_order(llm: LLM):
    prompts = [text(3 + 7 * n, n) for n in range(9)]
    engine = Engine(llm, slots=4)
    found = engine.generate_many(prompts, max_tokens=8)
    assert all(same(a, llm.generate(p, max_tokens=8)) for a, p in zip(found, prompts, strict=True))
    assert engine.generate_many([]) == []


# ---- beginnings that are shared


def test_a_shared_beginning_is_run_once(llm: LLM):
    engine = Engine(llm, slots=2)
    shared = text(70)
    first = engine.generate_many([[*shared, 1, 2, 3]], max_tokens=3)[0]
    second = engine.generate_many([[*shared, 4, 5]], max_tokens=3)[0]
    assert (first.timings.cached_tokens, second.timings.cached_tokens) == (0, 64)
    assert engine.load.hit_rate == 64 / (73 + 72)
    again = engine.generate_many([first.prompt_ids + first.ids], max_tokens=1)[0]
    assert again.timings.cached_tokens == 64


def test_a_beginning_that_many_have_at_once_is_run_once(llm: LLM):
    shared = text(100)
    prompts = [shared + text(10 + i, seed=i) for i in range(5)] + [text(40, seed=9)]
    alone = [llm.generate(prompt, max_tokens=6) for prompt in prompts]
    for step_tokens in (512, 24):  # in one part, and in several
        engine = Engine(llm, slots=6, step_tokens=step_tokens)
        found = engine.generate_many(prompts, max_tokens=6)
        assert [one.ids for one in found] == [one.ids for one in alone]
        size = llm.model.new_cache().block_size
        whole_blocks = 100 // size * size
        assert [one.timings.cached_tokens for one in found] == [0, *[whole_blocks] * 4, 0]
        assert engine.load.run_tokens == sum(map(len, prompts)) - 4 * whole_blocks + 5 * len(prompts)
        assert engine.load.blocks_used == 0


def test_who_waits_for_a_beginning_goes_on_when_its_first_is_gone(llm: LLM):
    prompts = [[*text(100), i] for i in range(3)]
    engine = Engine(llm, step_tokens=64)
    first, *others = (engine.add(prompt, max_tokens=2) for prompt in prompts)
    engine.step()
    engine.cancel(first)
    done = run(engine)
    assert [done[id][0].ids for id in others] == [llm.generate(prompt, max_tokens=2).ids for prompt in prompts[1:]]
    assert [done[id][0].timings.cached_tokens > 0 for id in others] == [True, True]


def test_without_a_prefix_cache_nothing_is_kept(llm: LLM):
    engine = Engine(llm, prefix_cache=False)
    for _ in range(2):
        assert engine.generate_many([text(70)], max_tokens=2)[0].timings.cached_tokens == 0
    assert engine.load.blocks_idle == 0


# ---- who has a turn


def test_the_step_budget_is_kept_and_prompts_go_in_parts(llm: LLM, monkeypatch: pytest.MonkeyPatch):
    sizes = []
    forward = llm.model.forward

    def noted(chunks: list[Any]) -> np.ndarray:
        sizes.append([len(chunk.ids) for chunk in chunks])
        return forward(chunks)

    monkeypatch.setattr(llm.model, "forward", noted)
    engine = Engine(llm, slots=4, step_tokens=16)
    engine.add(text(4), max_tokens=12)
    engine.step()
    engine.add(text(100, 1), max_tokens=2)
    run(engine)
    assert all(sum(step) <= 16 for step in sizes)
    beside = [step for step in sizes if len(step) == 2]
    assert all(step[0] == 1 for step in beside)  # who answers has a token in every step
    assert len(beside) == 11


def test_the_lower_priority_goes_first_and_equals_by_arrival(llm: LLM):
    engine = Engine(llm, slots=1)
    order = [engine.add(text(3), max_tokens=1, priority=p) for p in (5, 0, 5, -1, 0)]
    ended = []
    while engine.busy:
        ended += [event.id for event in engine.step() if event.piece.completion]
    assert ended == [order[3], order[1], order[4], order[0], order[2]]


def test_who_came_last_gives_way_when_blocks_run_out(llm: LLM):
    block = llm.model.new_cache().block_bytes
    engine = Engine(llm, slots=3, kv_cache_bytes=6 * block)
    numbers = [engine.add(text(30, n), max_tokens=60) for n in range(3)]
    done = run(engine)
    assert engine.load.preemptions > 0
    assert [done[number][0].ids for number in numbers] == [
        llm.generate(text(30, n), max_tokens=60).ids for n in range(3)
    ]
    assert engine.load.blocks_most == 6


def test_a_full_queue_says_so_and_takes_again_later(llm: LLM):
    engine = Engine(llm, slots=1, queue=1)
    engine.add(text(3), max_tokens=3)
    engine.step()
    engine.add(text(4), max_tokens=1)
    with pytest.raises(QueueFull, match="1 requests wait already"):
        engine.add(text(5), max_tokens=1)
    run(engine)
    engine.add(text(5), max_tokens=1)
    assert len(run(engine)) == 1


# ---- ends before the end


@pytest.mark.parametrize("steps", [0, 1, 2, 5])
def test_what_is_cancelled_gives_back_all_at_the_next_step(llm: LLM, steps: int):
    engine = Engine(llm, slots=2, step_tokens=32)
    gone = engine.add(text(70), max_tokens=50, n=3)
    stays = engine.add(text(5), max_tokens=20)
    events = [event for _ in range(steps) for event in engine.step()]
    engine.cancel(gone)
    after = engine.step()
    assert gone not in {event.id for event in after}
    assert engine.load.running <= 1
    done = run(engine)
    ids = [id for event in events + after if event.id == stays for id in event.piece.ids]
    expected = llm.generate(text(5), max_tokens=20).ids
    assert done[stays][0].ids == expected
    assert ids == expected[: len(ids)]
    assert nothing_is_held(engine)
    engine.cancel(gone)  # again, and one that never was
    engine.cancel(12345)
    assert engine.step() == []


def test_logits_that_can_not_be_sampled_end_their_own_request_alone(llm: LLM):
    def broken(ids: np.ndarray, logits: np.ndarray) -> np.ndarray:
        return logits * math.nan if len(ids) > 6 else logits

    engine = Engine(llm, slots=2)
    bad = engine.add(text(5), max_tokens=9, processors=(broken,))
    good = engine.add(text(6), max_tokens=9)
    events = []
    while engine.busy:
        events += engine.step()
    errors = [event for event in events if event.error]
    assert [event.id for event in errors] == [bad]
    assert isinstance(errors[0].error, SamplingError)
    assert [e.piece.completion.ids for e in events if e.id == good and e.piece.completion] == [
        llm.generate(text(6), max_tokens=9).ids
    ]
    assert nothing_is_held(engine)


# ---- wrong inputs


@pytest.mark.parametrize(
    ("arguments", "parameter"),
    [
        ({"slots": 0}, "slots"), ({"slots": 1.5}, "slots"), ({"slots": 8, "step_tokens": 7}, "step_tokens"),
        ({"step_tokens": 513}, "step_tokens"), ({"queue": -1}, "queue"), ({"kv_cache_bytes": 10}, "kv_cache_bytes"),
        ({"slowdown": 0.5}, "slowdown"), ({"slowdown": math.nan}, "slowdown"),
        ({"slowdown": "2"}, "slowdown"),
    ],
)  # fmt: skip
def test_impossible_settings(llm: LLM, arguments: dict[str, Any], parameter: str):
    with pytest.raises(BadRequest, match=parameter) as caught:
        Engine(llm, **arguments)
    assert caught.value.parameter == parameter


def test_impossible_requests_leave_nothing(llm: LLM):
    engine = Engine(llm, kv_cache_bytes=2 * llm.model.new_cache().block_bytes)
    assert engine.context == 64
    with pytest.raises(ContextOverflow, match="65 tokens, more than the 64 that the key-value cache may hold"):
        engine.add(text(65))
    for arguments in (
        {"n": 0},
        {"priority": "high"},
        {"graphemes": "yes"},
        {"top_p": 2},
        {"adapters": "none such"},
        {"made_up": 1},
    ):
        with pytest.raises(BadRequest):
            engine.add(text(3), **arguments)
    with pytest.raises(BadRequest, match="outside the vocabulary"):
        engine.add([VOCAB])
    assert not engine.busy
    done = engine.generate_many([text(60)], max_tokens=None, ignore_eos=True)[0]
    assert (len(done.ids), done.finish_reason) == (4, "length")


def test_generate_many_does_not_take_what_is_others(llm: LLM):
    engine = Engine(llm)
    engine.add(text(3), max_tokens=1)
    with pytest.raises(BadRequest, match="nothing else to do"):
        engine.generate_many([text(3)])
    with pytest.raises(BadRequest, match="more often"):
        Engine(llm).generate_many([text(3)], n=2)
    with pytest.raises(BadRequest, match="a list of prompts"):
        Engine(llm).generate_many("abc")


@pytest.mark.parametrize(
    ("last", "overrides"),
    [([VOCAB], {}), (text(4), {"processors": lambda ids, logits: logits * (np.nan if len(ids) > 4 else 1)})],
)
def test_generate_many_leaves_nothing_behind_where_one_fails(llm: LLM, last: list[int], overrides: dict[str, Any]):
    engine = Engine(llm)
    with pytest.raises(TinyinferError):
        engine.generate_many([text(3), last], max_tokens=4, **overrides)
    assert not engine.busy
    assert nothing_is_held(engine)
    assert engine.generate_many([text(3)], max_tokens=4)[0].ids == llm.generate(text(3), max_tokens=4).ids


def test_texts_that_outgrow_the_context_are_refused(llm: LLM):
    with pytest.raises(BadRequest, match="only a session's texts can outgrow the context") as error:
        Engine(llm).add([1, 2, 3], context_full="roll")
    assert error.value.parameter == "context_full"
