"""What followed before: an index that grows, against a search through the whole text."""

from __future__ import annotations

from unittest.mock import MagicMock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tinyinfer.cached_sequence import CachedSequence
from tinyinfer.errors import BadRequest
from tinyinfer.sampling import SamplingParams
from tinyinfer.sampling.sampler import Sampler
from tinyinfer.speculative.ngram import NgramDrafter, NgramIndex


def found_by_search(text: list[int], shortest: int, longest: int, most: int) -> list[int]:
    places: list[int] = []
    for size in range(longest, shortest - 1, -1):
        for place in range(len(text) - 1, size - 1, -1):
            if len(text) > size and text[place - size : place] == text[-size:] and place not in places:
                places.append(place)
    return places[:most]


@settings(max_examples=200, deadline=None)
@given(
    parts=st.lists(st.lists(st.integers(0, 3), max_size=8), max_size=6), shortest=st.integers(1, 3),
    more=st.integers(0, 3), most=st.integers(1, 4),
)  # fmt: skip
def test_the_longest_match_first_then_the_latest(parts: list[list[int]], shortest: int, more: int, most: int):
    index, text = NgramIndex(shortest, shortest + more), []
    for part in parts:
        index.extend(part)
        text += part
        places = index.places(most)
        assert places == found_by_search(text, shortest, shortest + more, most)
        for place in places:
            following = index.after(place, 20)
            span = len(text) - place
            assert following == [text[place + i % span] for i in range(20)]
            matched = index.matched(place)
            assert text[place - matched : place] == text[len(text) - matched :]
            assert matched == min(place, 32) or text[place - matched - 1] != text[-matched - 1]


def drafts(text: list[int], count: int, **settings) -> tuple[list[int], list[int]]:
    drafting = NgramDrafter(**settings).begin(Sampler(SamplingParams(), 50))
    if drafting.look(text) is None:
        return [], []
    draft = drafting.draft(count, MagicMock(CachedSequence))
    return draft.ids, draft.parents


def test_what_repeats_goes_on_repeating():
    assert drafts([1, 1, 1], 4) == ([1, 1, 1, 1], [-1, 0, 1, 2])
    assert drafts([4, 5, 6, 4, 5, 6, 4, 5], 5)[0] == [6, 4, 5, 6, 4]


@pytest.mark.parametrize("text", [[], [1], [1, 1], [1, 2, 3, 4], [1, 2, 3, 1]])
def test_nothing_came_twice(text: list[int]):
    assert drafts(text, 4) == ([], [])


def test_several_places_make_a_tree():
    text = [7, 8, 1, 2, 9, 7, 8, 1, 3, 9, 7, 8]
    ids, parents = drafts(text, 6, branches=2)
    assert (ids, parents) == ([1, 3, 9, 2, 9], [-1, 0, 1, 0, 3])  # one begins as the other does
    assert drafts([7, 8, 1, 9, 7, 8, 1, 9, 7, 8], 6, branches=2) == ([1, 9, 7], [-1, 0, 1])
    assert drafts(text, 1, branches=2) == ([1], [-1])
    assert drafts(text, 6, branches=1)[0] == [1, 3, 9, 7, 8, 1]


def test_kinds_tell_long_matches_from_short_ones():
    drafting = NgramDrafter().begin(Sampler(SamplingParams(), 50))
    kinds = [drafting.look([id]) for id in [1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 6, 7, 8, 9]]
    assert kinds == [None] * 10 + [2, 3, 4, 4, 6, 6, 8, 8]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"longest": 0}, "num_speculative_tokens should be a whole number from 1 to 63, found 0"),
        ({"longest": 64}, "from 1 to 63, found 64"),
        ({"longest": 2.0}, "found 2.0"),
        ({"branches": 9}, "branches should be a whole number from 1 to 8"),
        ({"shortest_match": 0}, "prompt_lookup_min should be a whole number from 1"),
        ({"shortest_match": 4, "longest_match": 3}, "no more than prompt_lookup_max, found 4 and 3"),
        ({"adaptive": 1}, "adaptive should be true or false, found 1"),
    ],
)
def test_settings_out_of_range(settings: dict, message: str):
    with pytest.raises(BadRequest, match=message):
        NgramDrafter(**settings)
