"""Speculation through `LLM`: the same ids, the same cache, and true counts, whatever is drafted."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.chain_models import END, VOCAB, chain_checkpoint, say
from tests.speculative.scripted import Scripted, right_up_to
from tests.tiny_models import WINDOWED, golden_folder, random_model
from tinyinfer import LLM, ModelDrafter, NgramDrafter, load
from tinyinfer.cache import KV_DTYPES
from tinyinfer.checkpoint.quantized import quantize_checkpoint
from tinyinfer.checkpoint.source import Checkpoint, open_checkpoint
from tinyinfer.errors import SamplingError
from tinyinfer.kernels.tape import use_compiled
from tinyinfer.speculative.draft import Draft
from tinyinfer.speculative.drafter import Drafter

PROMPT = [3, 14, 15, 92, 65]


def checkpoint(seed: int = 0, **changes: Any) -> Checkpoint:
    config, tensors = random_model(None, seed, max_position_embeddings=512, **changes)
    return Checkpoint(Path(f"random-{seed}"), config, tensors, {}, None, {}, None)


@cache
def model(kind: str = "plain", kv_dtype: str = "float32") -> LLM:
    made = {
        "plain": lambda: checkpoint(),
        "random": lambda: checkpoint(1),
        "window": lambda: checkpoint(2, **WINDOWED),
        "int4": lambda: quantize_checkpoint(checkpoint(), scheme="int4"),
    }
    return LLM(made[kind](), kv_dtype=kv_dtype, threads=2)


def held_keys(session) -> list[np.ndarray]:
    sequence = session._held.sequence
    tables = sequence.tables
    return [
        np.stack(table.load(layer, table.first_position, sequence.length))[
            :, -min(sequence.length, (table.pool.window or 9999) - 1) :
        ]
        for table in tables
        for layer in range(len(table.pool.keys))
    ]


def same(llm: LLM, speculate: Any, prompt: list[int] = PROMPT, again: bool = True, **params: Any):
    """The completion with speculation, of which all is as without it, the cache and the next turn too."""
    params = {"max_tokens": 40, "temperature": 0} | params
    plain, drafted = llm.session(), llm.session()
    expected, found = plain.generate(prompt, **params), drafted.generate(prompt, speculate=speculate, **params)
    assert (found.ids, found.text) == (expected.ids, expected.text)
    assert (found.finish_reason, found.stop_reason) == (expected.finish_reason, expected.stop_reason)
    assert drafted.cached_ids == plain.cached_ids
    if use_compiled():  # else products of several rows add up in another order
        assert found.logprobs == expected.logprobs
        for mine, theirs in zip(held_keys(drafted), held_keys(plain), strict=True):
            assert np.array_equal(mine, theirs)
    record = found.speculation
    assert record.tokens == len(found.ids) - 1
    assert 0 <= record.accepted <= record.tried <= record.proposed
    assert record.tried <= record.accepted + record.drafts
    if again:
        longer = [*prompt, *expected.ids, 7, 8]
        expected = plain.generate(longer, **params)
        found = drafted.generate(longer, speculate=speculate, **params)
        assert (found.ids, found.timings.cached_tokens) == (expected.ids, expected.timings.cached_tokens)
    return found


# ---- drafted text must equal plain text: whatever is drafted, at whatever length, wherever it ends


@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
@pytest.mark.parametrize("kind", ["plain", "int4", "window"])
@pytest.mark.parametrize("longest", [1, 2, 4, 8, 20])
def test_greedy_ids_of_all_drafters(kind: str, kv_dtype: str, longest: int):
    """To the bit: products and attention give a row the same floats whatever rows stand beside it."""
    llm = model(kind, kv_dtype)
    drafters: list[Drafter] = [
        NgramDrafter(longest, 1, adaptive=False), NgramDrafter(longest, 1, branches=3, adaptive=False),
        ModelDrafter(llm, longest, adaptive=False), ModelDrafter(model("random", kv_dtype), longest, adaptive=False),
        ModelDrafter(model("random", kv_dtype), longest, branches=3, adaptive=False), NgramDrafter(longest, 1),
    ]  # fmt: skip
    for drafter in drafters:
        same(llm, drafter, again=longest == 4)


def test_an_ngram_draft_of_ones():
    for prompt in ([1, 1, 1], [1], [1, 1], [1, 2] * 20):
        same(model(), NgramDrafter(4, adaptive=False), prompt)


def test_the_model_as_its_own_draft_is_always_right():
    for longest in (1, 2, 4, 8):
        record = same(model(), ModelDrafter(model(), longest, adaptive=False), again=False, max_tokens=41).speculation
        steps = -(-40 // (longest + 1))
        assert (record.steps, record.drafts) == (steps, steps if 40 % (longest + 1) != 1 else steps - 1)
        assert record.accepted == record.tried
        assert record.alpha == 1
        assert record.tokens_per_step == pytest.approx(40 / steps)


def test_a_random_model_is_nearly_always_wrong():
    record = same(model(), ModelDrafter(model("random"), 4, adaptive=False), again=False).speculation
    assert record.accepted < record.proposed / 4
    assert record.tried == record.accepted + record.drafts - (record.steps - record.drafts > 0) or record.tried > 0


@pytest.mark.parametrize("kind", ["plain", "window", "int4"])
@pytest.mark.parametrize("right", range(5))
def test_a_rejection_at_every_place(kind: str, right: int):
    llm = model(kind)
    text = [*PROMPT, *llm.generate(PROMPT, max_tokens=60, temperature=0).ids]
    drafter = Scripted(right_up_to(text, right, 97), longest=5)
    record = same(llm, drafter, again=False).speculation
    full = [draft for draft in drafter.drafts_made if len(draft) > right]
    assert record.proposed == sum(map(len, drafter.drafts_made))
    assert record.accepted == record.tokens - record.steps + (record.tokens == 0)
    assert record.tried - record.accepted == len(full)
    same(llm, Scripted(right_up_to(text, right, 97), longest=5))


def tree_around(text: list[int]) -> Any:
    """Wrong branches before, between and after the right ones."""

    def script(ids: list[int], count: int) -> Draft:
        right = text[len(ids) : len(ids) + 3]
        draft = Draft()
        draft.add((right[0] + 1) % 97, -1)
        draft.add(5, draft.add((right[0] + 2) % 97, -1))
        node = -1
        for id in right:
            node = draft.add(id, node)
            draft.add((id + 1) % 97, node)
        return draft

    return script


@pytest.mark.parametrize("kv_dtype", ["float32", "int8", "int8-int4"])
@pytest.mark.parametrize("kind", ["plain", "window", "int4"])
def test_trees_with_the_right_way_among_wrong_ones(kind: str, kv_dtype: str):
    llm = model(kind, kv_dtype)
    text = [*PROMPT, *llm.generate(PROMPT, max_tokens=150, temperature=0).ids]
    found = same(llm, Scripted(tree_around(text), longest=9), again=False, max_tokens=50)
    assert found.speculation.tokens_per_step > 3
    assert found.speculation.tried <= found.speculation.accepted + found.speculation.drafts


FAMILIES = [
    "deepseek-v2-mla", "bloom-alibi", "gemma2", "gpt-oss", "phi3-longrope", "gpt2", "mixtral", "llama-rope-dynamic",
]  # fmt: skip


@pytest.mark.parametrize("name", FAMILIES)
def test_other_families(name: str):
    llm = LLM(open_checkpoint(golden_folder(name)), kv_dtype="float32", threads=2)
    budget = min(llm.context - 4, 60)
    for drafter in (NgramDrafter(6, 1, adaptive=False), NgramDrafter(6, 1, branches=3, adaptive=False)):
        same(llm, drafter, [5, 6, 5, 6], again=False, max_tokens=budget, ignore_eos=True)


def test_the_end_of_the_text_inside_a_draft():
    llm = LLM(chain_checkpoint(say("abcdef", after="x")))
    text = [ord(c) for c in "xabcdef"] + [END, 65, 66, 67]
    for longest in (1, 3, 4, 5, 8, 12):
        found = same(llm, Scripted(right_up_to(text, 99, VOCAB), longest), [ord("x")], again=False)
        assert (found.text, found.stop_reason, found.ids[-1]) == ("abcdef", END, END)


def test_a_stop_string_inside_a_draft():
    llm = LLM(chain_checkpoint(say("abcdef", after="x")))
    text = [ord(c) for c in "xabcdef"]
    for stop in ("cd", "f", "a", "def", "fg"):
        found = same(llm, Scripted(right_up_to(text, 99, VOCAB), 6), [ord("x")], again=False, stop=stop)
        assert found.text == "abcdef".split(stop)[0]


@pytest.mark.parametrize("max_tokens", [0, 1, 2, 3, 5, 6, 7])
def test_max_tokens_inside_a_draft(max_tokens: int):
    llm = model()
    text = [*PROMPT, *llm.generate(PROMPT, max_tokens=20, temperature=0).ids]
    params = {"temperature": 0, "max_tokens": max_tokens}
    drafter = Scripted(right_up_to(text, 99, 97), 4)
    found = llm.generate(PROMPT, speculate=drafter, **params)
    assert found.ids == text[5 : 5 + max_tokens]
    assert found.finish_reason == "length"
    assert all(len(draft) < max_tokens for draft in drafter.drafts_made)


def test_the_context_ends_inside_a_draft():
    llm = LLM(checkpoint(), context=20, kv_dtype="float32")
    assert len(same(llm, ModelDrafter(llm, 8, adaptive=False), again=False, max_tokens=None).ids) == 15


# ---- the model in fewer bits, on its own keys and values


@cache
def rounded(kind: str = "plain", kv_dtype: str = "float32") -> LLM:
    llm = model(kind, kv_dtype)
    return LLM(quantize_checkpoint(llm.checkpoint, scheme="int8"), llm.context, kv_dtype=kv_dtype, threads=2)


@pytest.mark.parametrize("kv_dtype", ["float32", "int8"])
@pytest.mark.parametrize("kind", ["plain", "window"])
@pytest.mark.parametrize("branches", [1, 3])
def test_the_model_in_fewer_bits_reads_the_models_own_keys(kind: str, kv_dtype: str, branches: int):
    """What it drafts leaves no trace, in the cache or in its blocks, and it never reads the prompt."""
    llm, draft = model(kind, kv_dtype), rounded(kind, kv_dtype)
    for longest in (1, 4, 9):
        drafter = ModelDrafter(draft, longest, branches, adaptive=False, reads_targets_keys=True)
        record = same(llm, drafter, again=longest == 4).speculation
        assert record.alpha > 0.5
    assert drafter.catching_up.count(1) == 0
    session = llm.session()
    session.generate(PROMPT, max_tokens=40, temperature=0, speculate=drafter)
    for table in session._held.sequence.tables:
        assert table.pool.num_blocks - table.pool.num_free == len(table.blocks)


def test_a_draft_cut_short_gives_its_blocks_back(monkeypatch: pytest.MonkeyPatch):
    llm, draft = model(), rounded()
    expected = llm.generate(PROMPT, max_tokens=40, temperature=0).ids
    for branches in (1, 3):
        session, forward, calls = llm.session(), draft.model.forward, []

        def breaks(chunks, forward=forward, calls=calls):
            calls.append(len(chunks))
            if len(calls) == 7:
                raise KeyboardInterrupt
            return forward(chunks)

        drafter = ModelDrafter(draft, 9, branches, adaptive=False, reads_targets_keys=True)
        monkeypatch.setattr(draft.model, "forward", breaks)
        with pytest.raises(KeyboardInterrupt):
            session.generate(PROMPT, max_tokens=40, temperature=0, speculate=drafter)
        monkeypatch.setattr(draft.model, "forward", forward)
        held = session._held.sequence
        assert held.length == len(session.cached_ids)
        pool = held.cache.pools[0]
        assert pool.num_blocks - pool.num_free == len(held.tables[0].blocks)
        assert session.generate(PROMPT, max_tokens=40, temperature=0).ids == expected


@pytest.mark.parametrize("name", ["deepseek-v2-mla", "gemma2", "gpt-oss", "phi3-longrope", "llama-rope-dynamic"])
def test_other_families_in_fewer_bits(name: str):
    """Whether rotations go by the length of the text or not."""
    llm = LLM(open_checkpoint(golden_folder(name)), kv_dtype="float32", threads=2)
    drafter = ModelDrafter(llm, 6, adaptive=False, reads_targets_keys=True)
    found = same(llm, drafter, [5, 6, 5, 6], again=False, max_tokens=min(llm.context - 4, 60), ignore_eos=True)
    assert found.speculation.alpha in (1, None)  # nothing is drafted where every token turns by another angle


# ---- sampling

SAMPLED = [
    {"temperature": 1.0}, {"temperature": 0.7, "top_k": 20, "top_p": 0.9}, {"temperature": 1.2, "min_p": 0.05},
    {"temperature": 1.0, "repetition_penalty": 1.3, "frequency_penalty": 0.4, "presence_penalty": 0.2},
    {"temperature": 1.0, "mirostat": 2, "mirostat_tau": 3.0}, {"temperature": 1.0, "xtc_probability": 0.5},
    {"temperature": 1.0, "dry_multiplier": 1.0}, {"temperature": 0.9, "min_tokens": 30, "logit_bias": {3: 5.0}},
    {"temperature": 0, "repetition_penalty": 1.5}, {"temperature": 1.0, "logprobs": 3, "logprobs_of": "sampled"},
]  # fmt: skip


@pytest.mark.parametrize("params", SAMPLED, ids=str)
def test_the_same_seed_gives_the_same_ids(params: dict[str, Any]):
    llm = model()
    models = ModelDrafter(llm, 4, adaptive=False), ModelDrafter(llm, 6, 2, adaptive=False)
    accepted = 0
    for seed, drafter in enumerate((NgramDrafter(5, 1, adaptive=False), *models)):
        found = same(llm, drafter, seed=seed, again=False, **params)
        accepted += found.speculation.accepted
    assert accepted or params.get("logit_bias")


def test_a_draft_that_knows_the_random_numbers_is_right_where_the_models_agree():
    """The target itself draws the same: all is accepted, where guesses of p's likeliest would be right less often."""
    record = model().generate(
        PROMPT, max_tokens=60, temperature=1.5, seed=1, speculate=ModelDrafter(model(), 4, adaptive=False)
    ).speculation  # fmt: skip
    assert record.alpha == 1


def five_tokens(rows: np.ndarray) -> LLM:
    """A model of five tokens: what follows each has the probabilities of its row."""
    tensors = {"lm_head.weight": np.log(rows).T.astype(np.float32) / np.sqrt(5)}
    how = {"vocab": 5, "tokenizer_json": None, "config": {"eos_token_id": None}, "tokenizer_config": {}}
    made = chain_checkpoint(dict(zip(range(5), range(5), strict=True)), tensors=tensors, context=1100, **how)
    return LLM(
        made,
        kv_dtype="float32",
    )


def test_frequencies_of_twenty_thousand_draws():
    """Chi-square of what follows each token, against the probabilities that the model was made of.

    Five rows of four degrees of freedom each: beyond 52.4 once in 10,000 times.
    """
    rng = np.random.default_rng(0)
    rows = rng.dirichlet(np.full(5, 1.5), 5)
    llm, other = five_tokens(rows), five_tokens(rng.dirichlet(np.full(5, 1.5), 5))
    counts = np.zeros((5, 5), np.int64)
    for drafter, seeds in ((ModelDrafter(other, 2, adaptive=False), 4), (NgramDrafter(3, adaptive=False), 16)):
        for seed in range(seeds):
            done = llm.generate([seed % 5], max_tokens=1000, temperature=1, seed=seed, speculate=drafter)
            np.add.at(counts, ([seed % 5, *done.ids[:-1]], done.ids), 1)
            if seed == 0:
                assert done.ids == llm.generate([0], max_tokens=1000, temperature=1, seed=0).ids
            assert done.speculation.accepted > 50
    assert counts.sum() == 20_000
    expected = rows * counts.sum(1, keepdims=True)
    assert ((counts - expected) ** 2 / expected).sum() < 52.4


# ---- the rest of the house


def refuses_after_c(ids: np.ndarray, logits: np.ndarray) -> np.ndarray:
    if ids[-1] == ord("c"):
        raise SamplingError("no more")
    return logits


def test_what_the_sampler_refuses_comes_after_the_pieces_before_it():
    llm = LLM(chain_checkpoint(say("abcdef", after="x")))
    text = [ord(c) for c in "xabcdef"]
    for speculate in ("off", Scripted(right_up_to(text, 99, VOCAB), 6)):
        session = llm.session()
        pieces = session.stream([ord("x")], temperature=0, speculate=speculate, processors=[refuses_after_c])
        seen: list[int] = []
        with pytest.raises(SamplingError, match="no more"):
            collect(pieces, seen)
        assert seen == [ord(c) for c in "abc"]
        assert session.cached_ids[:3] == text[:3]


def collect(pieces, seen: list[int]) -> None:
    for piece in pieces:
        seen += piece.ids


def test_a_step_cut_short_leaves_the_cache_as_its_ids_say(monkeypatch: pytest.MonkeyPatch):
    llm = model()
    text = [*PROMPT, *llm.generate(PROMPT, max_tokens=60, temperature=0).ids]
    for script in (right_up_to(text, 3, 97), tree_around(text)):
        session, forward = llm.session(), llm.model.forward
        calls = []

        def breaks(chunks, forward=forward, calls=calls):
            calls.append(len(chunks[0].ids))
            if len(calls) == 3:
                raise KeyboardInterrupt
            return forward(chunks)

        monkeypatch.setattr(llm.model, "forward", breaks)
        with pytest.raises(KeyboardInterrupt):
            session.generate(PROMPT, max_tokens=40, temperature=0, speculate=Scripted(script, 5))
        monkeypatch.setattr(llm.model, "forward", forward)
        assert session._held.sequence.length == len(session.cached_ids)
        assert session.cached_ids == text[: len(session.cached_ids)]
        assert session.generate(PROMPT, max_tokens=40, temperature=0).ids == text[5:45]
        pool = session._held.sequence.cache.pools[0]
        assert pool.num_blocks - pool.num_free == len(session._held.sequence.tables[0].blocks)


def test_adapters_samples_and_streams(tmp_path):
    llm = LLM(checkpoint(), kv_dtype="float32")
    llm.drafter = NgramDrafter(4, 1)
    params = {"max_tokens": 30, "temperature": 1.0, "seed": 4}
    expected = llm.samples(PROMPT, 3, speculate="off", **params)
    assert [done.ids for done in llm.samples(PROMPT, 3, **params)] == [done.ids for done in expected]
    assert expected[0].speculation is None
    assert llm.generate(PROMPT, **params).speculation is not None
    pieces = list(llm.stream(PROMPT, **params))
    assert [id for piece in pieces for id in piece.ids] == expected[0].ids
    assert all(len(piece.ids) <= 1 for piece in pieces)


def test_another_answer_in_the_same_session_ends_this_one():
    session = model().session()
    first = session.stream(PROMPT, max_tokens=30, temperature=0, speculate=NgramDrafter(4, 1))
    next(first)
    session.generate([1, 2, 3], max_tokens=3, temperature=0)
    with pytest.raises(Exception, match="begun another one"):
        list(first)


def test_load_takes_it_too(tmp_path):
    random_model(tmp_path / "model", 3, hidden_size=64)
    llm = load(tmp_path / "model", speculate="int8", kv_dtype="float32")
    assert isinstance(llm.drafter, ModelDrafter)
    assert llm.drafter.reads_targets_keys
    found = llm.generate(PROMPT, max_tokens=40, temperature=0)
    assert found.speculation.tokens == 39
    assert found.ids == llm.generate(PROMPT, max_tokens=40, temperature=0, speculate="off").ids
