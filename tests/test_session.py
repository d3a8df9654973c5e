"""What a session keeps from call to call: the logits after it equal those of a cold run, whatever was edited.

The cold run is one forward in float64 that shares no code with tinyinfer. Logits are of order 1 and three layers of
float32 are 1e-6 away from it; 5e-5 is what the golden logits are held to.
"""

from __future__ import annotations

import contextlib
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import float64_model
from tests.chain_models import TEMPLATE, VOCAB, chain_checkpoint, say
from tests.interrupts import interrupt
from tests.text.tiny_tokenizers import byte_level_tokenizer_json
from tests.tiny_models import WINDOWED, random_model
from tinyinfer import LLM, Session, cached_sequence
from tinyinfer.cache.pool import BlockPool
from tinyinfer.cached_sequence import CachedSequence
from tinyinfer.checkpoint.source import Checkpoint
from tinyinfer.errors import BadRequest

TOLERANCE = 5e-5  # what the golden logits are held to; float32 sums in another order than float64 ones
ORIGINAL = 32  # tokens, before the rotary embedding is stretched
LONGROPE = {
    "architectures": ["Phi3ForCausalLM"], "model_type": "phi3", "original_max_position_embeddings": ORIGINAL,
    "rope_parameters": {
        "rope_theta": 10000.0, "rope_type": "longrope", "original_max_position_embeddings": ORIGINAL,
        "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4], "long_factor": [1.0, 2.0, 3.0, 4.0, 5.0],
    },
}  # fmt: skip
KINDS: dict[str, dict[str, Any]] = {
    "full": {},
    "windows": WINDOWED,
    "dynamic": {
        "max_position_embeddings": ORIGINAL,
        "rope_parameters": {"rope_theta": 10000.0, "rope_type": "dynamic", "factor": 4.0},
    },
    "longrope": LONGROPE,
}


class Random:
    """A random model, and what it says cold."""

    def __init__(self, **changes: Any):
        self.config, self.tensors = random_model(vocab_size=VOCAB, **changes)
        self._cold: dict[tuple[int, ...], np.ndarray] = {}
        tokenizer = {"eos_token": "<|im_end|>"}
        self.llm = LLM(
            Checkpoint(Path("random"), self.config, self.tensors, {}, byte_level_tokenizer_json(), tokenizer, TEMPLATE),
            kv_dtype="float32",  # the tolerance is that of float32
        )

    def held(self) -> CachedSequence:
        return CachedSequence(self.llm.model)

    def cold(self, ids: list[int]) -> np.ndarray:
        """Logits after the last id, float64 [vocab]; remembered, as many tests ask for the same."""
        if tuple(ids) not in self._cold:
            self._cold[tuple(ids)] = float64_model.logits(self.config, self.tensors, ids)[-1]
        return self._cold[tuple(ids)]

    def check(self, held: CachedSequence, ids: list[int]) -> int:
        """Prefill, compare with the cold run, and give the tokens that were found in the cache."""
        before = list(held.ids)
        logits, kept = held.prefill(ids)
        assert held.ids == ids
        assert kept < len(ids)
        assert before[:kept] == ids[:kept]
        np.testing.assert_allclose(logits, self.cold(ids), rtol=0, atol=TOLERANCE)
        return kept


@cache
def random_of(kind: str) -> Random:
    return Random(**KINDS[kind])


@pytest.fixture(params=KINDS)
def random(request: pytest.FixtureRequest) -> Random:
    return random_of(request.param)


@pytest.fixture
def plain() -> Random:
    return random_of("full")


def text(seed: int, length: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, VOCAB, length).tolist()


def common(a: list[int], b: list[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


SYSTEM, USER1, USER2, MORE = text(1, 12), text(2, 9), text(3, 14), text(4, 40)
EDITS = {
    "A, B, A again": [SYSTEM + USER1, SYSTEM + USER2, SYSTEM + USER1],
    "the last turn taken away": [SYSTEM + USER1 + USER2, SYSTEM + USER1],
    "exactly the same": [SYSTEM + USER1, SYSTEM + USER1, SYSTEM + USER1],
    "an early token changed": [SYSTEM + USER1, [SYSTEM[0], 7, *SYSTEM[2:], *USER1]],
    "the first token changed": [SYSTEM + USER1, [7, *SYSTEM[1:], *USER1]],
    "a shorter prompt": [SYSTEM + USER1, SYSTEM[:5], SYSTEM[:1]],
    "past every window and length": [SYSTEM, SYSTEM + MORE, SYSTEM + MORE + USER1, SYSTEM + MORE, SYSTEM],
    "another token at the seam": [SYSTEM + USER1, [*SYSTEM, *USER1[:-1], 8, 9], SYSTEM + USER1 + USER2],
    "the last token changed": [SYSTEM + MORE, [*SYSTEM, *MORE[:-1], 8]],
    "one token more each time": [SYSTEM + MORE[:n] for n in range(15, 27)],
}


@pytest.mark.parametrize("prompts", EDITS.values(), ids=EDITS)
@pytest.mark.parametrize("answered", [0, 1, 6])
@pytest.mark.parametrize("chunk", [512, 5])
def test_logits_after_an_edit_are_those_of_a_cold_run(
    random: Random, prompts: list[list[int]], answered: int, chunk: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(cached_sequence, "PREFILL_CHUNK", chunk)
    held = random.held()
    for prompt in prompts:
        random.check(held, prompt)
        for id in text(len(prompt), answered):
            held.step(id)


@pytest.mark.parametrize("prompts", EDITS.values(), ids=EDITS)
def test_all_that_is_common_is_kept_where_nothing_forbids_it(plain: Random, prompts: list[list[int]]):
    held = plain.held()
    for prompt in prompts:
        expected = min(common(held.ids, prompt), len(prompt) - 1)
        assert plain.check(held, prompt) == expected
        held.step(5)


@settings(max_examples=40, deadline=None)
@given(
    kind=st.sampled_from(sorted(KINDS)),
    edits=st.lists(st.tuples(st.integers(0, 50), st.integers(1, 30), st.integers(0, 8)), min_size=1, max_size=5),
)
def test_any_edits(kind: str, edits: list[tuple[int, int, int]]):
    random = random_of(kind)
    held = random.held()
    for number, (kept, added, answered) in enumerate(edits):
        random.check(held, held.ids[:kept] + text(number, added))
        for id in text(number + 100, answered):
            held.step(id)


@pytest.mark.parametrize("kind", ["full", "windows", "longrope"])  # keys that dynamic scaling has rotated stay so
def test_steps_give_what_a_cold_run_gives(kind: str):
    random = random_of(kind)
    held, ids = random.held(), text(1, 28)
    held.prefill(ids)
    for id in text(2, 10):  # past a window, and past the original length
        ids.append(id)
        np.testing.assert_allclose(held.step(id), random.cold(ids), rtol=0, atol=TOLERANCE)
        assert held.ids == ids


def test_a_fork_goes_on_as_the_whole_would(random: Random):
    """Also past the length at which keys are rotated otherwise, and into another prompt."""
    held = random.held()
    held.prefill(SYSTEM + USER1)
    twin, other = held.fork(), held.fork()
    both = [list(held.ids), list(held.ids)]
    for turn in range(14):
        for one, ids, id in ((held, both[0], turn), (twin, both[1], 99 - turn)):
            ids.append(id)
            logits = one.step(id)
            cold = random.held()
            expected = cold.prefill(SYSTEM + USER1)[0]
            for said in ids[len(SYSTEM + USER1) :]:
                expected = cold.step(said)
            # the same steps in the same order, from memory of its own
            np.testing.assert_array_equal(logits, expected)
    assert other.ids == SYSTEM + USER1
    random.check(other, SYSTEM + USER2)
    random.check(twin, SYSTEM + USER2)
    held.prefill(SYSTEM + MORE)
    random.check(held.fork(), SYSTEM + MORE[:8])  # a fork knows for which length its keys were rotated


def test_a_text_as_long_as_the_cached_one_is_not_taken_for_keys_rotated_on_the_way():
    # 40 tokens were prefilled, and rotated for a text of 40; the steps made it 44, and so is the new prompt's length
    random = random_of("dynamic")
    held, ids = random.held(), text(1, 44)
    held.prefill(ids[:40])
    for id in ids[40:]:
        held.step(id)
    assert random.check(held, [*ids[:43], 9]) == 0
    assert random.check(held, [*ids[:43], 8]) == 43


def test_dynamic_scaling_keeps_its_cache_within_the_original_length():
    random = random_of("dynamic")
    held = random.held()
    random.check(held, text(1, 20))
    assert random.check(held, text(1, 20) + text(2, 8)) == 20
    assert random.check(held, text(1, 20) + text(2, 8) + text(3, 8)) == 0


def test_longrope_keeps_its_cache_on_either_side_of_the_original_length():
    random = random_of("longrope")
    held, ids = random.held(), text(1, 50)
    assert [random.check(held, ids[:length]) for length in (20, 30, 40, 50, 30)] == [0, 20, 0, 40, 0]


def test_layers_with_a_window_that_has_moved_on_drop_the_cache_and_not_half_of_it():
    random = random_of("windows")
    held, ids = random.held(), text(1, 90)
    random.check(held, ids)
    assert random.check(held, [*ids, 5]) == 90
    assert random.check(held, ids[:20]) == 0


# through sessions


def test_cached_tokens_are_told_truly(plain: Random):
    session = plain.llm.session()
    first = session.generate(SYSTEM, max_tokens=6, ignore_eos=True)
    assert first.timings.cached_tokens == 0
    assert session.cached_ids == SYSTEM + first.ids[:-1]
    whole = SYSTEM + first.ids + USER1
    second = session.generate(whole, max_tokens=6, ignore_eos=True)
    assert (second.timings.prompt_tokens, second.timings.cached_tokens) == (len(whole), len(SYSTEM) + 5)
    assert second.ids == plain.llm.generate(whole, max_tokens=6, ignore_eos=True).ids
    again = session.generate(whole, max_tokens=6, ignore_eos=True)
    assert (again.ids, again.timings.cached_tokens) == (second.ids, len(whole) - 1)
    other = session.generate(USER2, max_tokens=1)
    assert other.timings.cached_tokens == common(USER2, whole)


def test_nothing_is_kept_between_calls_without_a_session(plain: Random):
    for _ in range(2):
        assert plain.llm.generate(SYSTEM, max_tokens=2).timings.cached_tokens == 0


def test_reset_forgets(plain: Random):
    session = plain.llm.session()
    first = session.generate(SYSTEM, max_tokens=3)
    session.reset()
    assert session.cached_ids == []
    again = session.generate(SYSTEM, max_tokens=3)
    assert (again.ids, again.timings.cached_tokens) == (first.ids, 0)


def test_text_that_splits_otherwise_at_the_seam(plain: Random):
    session = plain.llm.session()
    session.generate("a b the qu", max_tokens=3)
    done = session.generate("a b the quick brown", max_tokens=3)
    begun, whole = (plain.llm.tokenizer.encode(text) for text in ("a b the qu", "a b the quick brown"))
    assert whole[: len(begun)] != begun
    assert done.timings.cached_tokens == len(begun) - 1
    assert done.ids == plain.llm.generate("a b the quick brown", max_tokens=3).ids


def test_a_conversation_that_grows_is_not_computed_again(random: Random):
    session, messages = random.llm.session(), []
    for turn in range(3 if random.llm.context > 100 else 1):
        messages.append({"role": "user", "content": f"u{turn}"})
        done = session.chat(messages, max_tokens=4, temperature=0)
        assert done.ids == random.llm.chat(messages, max_tokens=4, temperature=0).ids
        messages.append({"role": "assistant", "content": "ok"})
    messages[0]["content"] = "edited"
    edited = session.chat(messages[:1], max_tokens=4, temperature=0)
    assert edited.ids == random.llm.chat(messages[:1], max_tokens=4, temperature=0).ids


def test_a_prompt_that_is_refused_leaves_what_is_held(plain: Random):
    session = plain.llm.session()
    session.generate(SYSTEM, max_tokens=1)
    for prompt in ([VOCAB], [1] * 1000, [], "", None):
        with pytest.raises(BadRequest):
            session.generate(prompt)
    assert session.generate([*SYSTEM, 5], max_tokens=1).timings.cached_tokens == len(SYSTEM)


def test_no_tokens_asked_for_leaves_what_is_held(plain: Random):
    session = plain.llm.session()
    session.generate(SYSTEM, max_tokens=1)
    assert session.generate(USER2, max_tokens=0).timings.cached_tokens == 0
    assert session.generate([*SYSTEM, 5], max_tokens=1).timings.cached_tokens == len(SYSTEM)


# interrupted


def kept_by(random: Random, session: Session, prompt: list[int]) -> int:
    """How much of a prompt a session found in its cache, after checking that it says what a cold call says."""
    done = session.generate(prompt, max_tokens=6, temperature=0, ignore_eos=True)
    assert done.ids == random.llm.generate(prompt, max_tokens=6, temperature=0, ignore_eos=True).ids
    random.check(session._held, prompt)
    return done.timings.cached_tokens


@pytest.mark.parametrize("taken", [0, 1, 4])
@pytest.mark.parametrize("close", [True, False])
def test_an_answer_that_is_not_read_to_its_end(random: Random, taken: int, close: bool):
    session = random.llm.session()
    pieces = session.stream(SYSTEM, ignore_eos=True, max_tokens=10)
    for _ in range(taken):
        next(pieces)
    if close:
        pieces.close()
    assert kept_by(random, session, SYSTEM + USER1) == (len(SYSTEM) if taken else 0)


@pytest.mark.parametrize("done", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("call", [0, 1, 2, 3, 5])
@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_an_interrupt_inside_the_model(
    random: Random, done: float, call: int, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(cached_sequence, "PREFILL_CHUNK", 8)  # the prompt of 21 is three forward passes
    session = random.llm.session()
    session.generate(USER2, max_tokens=2)
    with monkeypatch.context() as patch:
        interrupt(patch, random.llm.model, error, done, call)
        with pytest.raises(error):
            session.generate(SYSTEM + USER1, max_tokens=8, ignore_eos=True)
    kept = kept_by(random, session, SYSTEM + USER1 + [3])
    assert kept == {0: 0, 1: 8, 2: 16, 3: 21, 5: 21}[call]


@pytest.mark.parametrize("prompt", [USER2, SYSTEM + MORE[:20], SYSTEM + MORE + USER1], ids=["other", "back", "on"])
def test_an_interrupt_while_blocks_are_given_back_lends_none_twice(
    random: Random, prompt: list[int], monkeypatch: pytest.MonkeyPatch
):
    session = random.llm.session()
    prompt = prompt[: random.llm.context - 10]
    session.generate((SYSTEM + MORE)[: random.llm.context - 10], max_tokens=2)
    with monkeypatch.context() as patch:

        def free(pool: BlockPool, blocks: list[int], unbroken: Any = BlockPool.free) -> None:
            unbroken(pool, blocks)
            raise KeyboardInterrupt

        patch.setattr(BlockPool, "free", free)
        with contextlib.suppress(KeyboardInterrupt):
            session.generate(prompt, max_tokens=2)
    kept_by(random, session, (SYSTEM + MORE)[: random.llm.context - 10])
    sequence = session._held.sequence
    for pool, table in zip(sequence.cache.pools, sequence.tables, strict=True):
        assert not set(table.blocks) & set(pool._free)
        assert len(set(pool._free)) == pool.num_free


def test_an_interrupt_while_the_caller_shows_a_piece(plain: Random):
    session = plain.llm.session()

    def show() -> None:
        for number, _ in enumerate(session.stream(SYSTEM, max_tokens=10, ignore_eos=True)):
            if number == 3:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        show()
    assert kept_by(plain, session, SYSTEM + USER1) == len(SYSTEM)


def test_logits_that_can_not_be_sampled_from_leave_the_session_usable():
    llm = LLM(chain_checkpoint(say("bcd", after="a") | say("x", after="w")))
    tape, session = llm.model._tape, llm.session()
    tape.run = lambda step: step.logits.fill(np.nan)
    with pytest.raises(Exception, match="found nan"):
        session.generate("a")
    del tape.run
    assert session.generate("a").text == "bcd"


# two answers at once


def test_an_answer_whose_session_has_begun_another_says_so(plain: Random):
    session = plain.llm.session()
    first = session.stream(SYSTEM, ignore_eos=True, max_tokens=5)
    next(first)
    second = session.stream(USER2, ignore_eos=True, max_tokens=5)
    next(second)
    with pytest.raises(BadRequest, match="its session has begun another one"):
        next(first)
    rest = [id for piece in second for id in piece.ids]
    assert rest == plain.llm.generate(USER2, ignore_eos=True, max_tokens=5).ids[1:]


def test_streams_that_are_begun_later_do_not_disturb_each_other(plain: Random):
    session = plain.llm.session()
    first = session.stream(SYSTEM, ignore_eos=True, max_tokens=5)
    second = session.stream(USER2, ignore_eos=True, max_tokens=5)
    for stream, prompt in ((second, USER2), (first, SYSTEM)):
        ids = [id for piece in stream for id in piece.ids]
        assert ids == plain.llm.generate(prompt, ignore_eos=True, max_tokens=5).ids


def test_a_stream_goes_on_after_a_reset(plain: Random):
    session = plain.llm.session()
    stream = session.stream(SYSTEM, ignore_eos=True, max_tokens=5)
    begun = next(stream).ids
    session.reset()
    session.generate(USER2, max_tokens=2)
    assert (
        begun + [id for piece in stream for id in piece.ids]
        == plain.llm.generate(SYSTEM, ignore_eos=True, max_tokens=5).ids
    )


# sliding windows, through `generate`


@pytest.mark.parametrize("length", [3, 4, 5, 9, 40])
@pytest.mark.parametrize("chunk", [512, 3, 1])
def test_windows_prefilled_and_decoded_equal_the_reference(length: int, chunk: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cached_sequence, "PREFILL_CHUNK", chunk)
    random = random_of("windows")
    ids = text(length, length)
    expected = list(ids)
    for _ in range(8):
        expected.append(int(random.cold(expected).argmax()))
    done = random.llm.generate(ids, max_tokens=8, temperature=0, ignore_eos=True)
    assert ids + done.ids == expected


def test_the_cache_of_a_window_does_not_grow_with_the_text():
    random = Random(**WINDOWED | {"max_position_embeddings": 1000})
    session = random.llm.session()
    session.generate(text(1, 40), max_tokens=400, ignore_eos=True)
    by_window = {pool.window: pool.num_blocks for pool in session._held.sequence.cache.pools}
    assert by_window[4] <= 4  # of 32 tokens
    assert by_window[None] >= 13
