"""Drafts as trees, and the walk through them."""

from __future__ import annotations

import numpy as np
import pytest

from tinyinfer.answer import Answer
from tinyinfer.errors import SamplingError
from tinyinfer.llm import _NoText
from tinyinfer.sampling import SamplingParams
from tinyinfer.sampling.sampler import Sampler
from tinyinfer.speculative.draft import ROOT, Draft, Walk, walk

VOCAB = 8


def answer(**params) -> Answer:
    sampler = Sampler(SamplingParams(temperature=0, **params), VOCAB)
    return Answer([0], sampler, frozenset({7}), _NoText(), 100)


def rows(*ids: int) -> np.ndarray:
    """Logits that make these ids the likeliest."""
    return np.eye(VOCAB, dtype=np.float32)[list(ids)]


def walked(draft: Draft, logits: np.ndarray, said: Answer) -> tuple[list[int], Walk]:
    found = Walk()
    walk(draft, logits, said, found)
    return said.ids, found


def test_a_tree_keeps_one_node_for_each_id_after_each_node():
    draft = Draft()
    a = draft.add(5, ROOT)
    b = draft.add(6, a)
    assert draft.add(5, ROOT) == a
    c = draft.add(6, ROOT)
    assert (draft.ids, draft.parents) == ([5, 6, 6], [ROOT, a, ROOT])
    assert (draft.child(a, 6), draft.child(ROOT, 6), draft.child(c, 6)) == (b, c, None)
    assert [draft.is_leaf(node) for node in (ROOT, a, b, c)] == [False, False, True, True]
    assert [draft.path(node) for node in (ROOT, a, b, c)] == [[], [5], [5, 6], [6]]
    assert not draft.is_chain
    assert Draft([1, 2, 3]).is_chain
    assert Draft([1, 2, 3]).parents == [ROOT, 0, 1]
    assert Draft().is_leaf(ROOT)


@pytest.mark.parametrize("parent", [-2, 1, 5])
def test_nothing_follows_a_node_that_is_not_there(parent: int):
    with pytest.raises(ValueError, match="can't follow"):
        Draft([3]).add(1, parent)


@pytest.mark.parametrize("right", range(4))
def test_a_chain_is_kept_as_far_as_it_is_right(right: int):
    text = [3, 4, 5, 6]
    draft = Draft([id if place < right else 1 for place, id in enumerate(text[:3])])
    ids, found = walked(draft, rows(*text), answer())
    assert ids == text[: right + 1]  # and the correction, or what comes after all of it
    assert (found.node, found.drawn, found.accepted, found.rejected) == (right - 1, right + 1, right, right < 3)
    assert [piece.ids for piece in found.pieces] == [[id] for id in ids]


def test_a_tree_is_walked_from_child_to_child():
    draft = Draft([1, 2, 4, 5, 6], [ROOT, 0, ROOT, 2, 2])
    said, found = walked(draft, rows(4, 0, 0, 6, 0, 3), answer())  # after 4 comes 6, after that 3
    assert said == [4, 6, 3]
    assert (found.node, found.accepted, found.rejected) == (4, 2, False)


def test_no_draft_is_a_plain_step():
    ids, found = walked(Draft(), rows(5), answer())
    assert (ids, found.node, found.accepted, found.rejected) == ([5], ROOT, 0, False)


def test_what_ends_the_text_was_right_but_stays_outside_the_cache():
    said = answer()
    ids, found = walked(Draft([3, 7, 4]), rows(3, 7, 4, 5), said)
    assert ids == [3, 7]
    assert (found.node, found.accepted, found.rejected, said.going) == (0, 2, False, False)
    assert [piece.ids for piece in found.pieces] == [[3]]
    said = answer(max_tokens=2)
    ids, found = walked(Draft([3, 4, 5]), rows(3, 4, 5, 6), said)
    assert (ids, found.node, found.accepted, said.going) == ([3, 4], 0, 2, False)


def test_logits_that_cannot_be_sampled_come_after_the_pieces_before_them():
    logits = rows(3, 4, 5)
    logits[1, 2] = np.nan
    ids, found = walked(Draft([3, 4]), logits, answer())
    assert (ids, found.node, found.drawn) == ([3], 0, 1)
    assert isinstance(found.failure, SamplingError)


def test_a_peek_is_what_the_next_draws_use_and_uses_nothing():
    sampler, twin = (Sampler(SamplingParams(temperature=1, seed=5), VOCAB) for _ in "12")
    seen = sampler.peek(3)
    assert np.array_equal(sampler.peek(2), seen[:2])
    flat = np.zeros(VOCAB, np.float32)
    ids = [sampler.sample(flat) for _ in range(3)]
    assert ids == [int(u * VOCAB) for u in seen]
    assert ids == [twin.sample(flat) for _ in range(3)]
