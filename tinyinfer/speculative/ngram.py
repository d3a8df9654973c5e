"""Drafts without a model: where the last ids have stood before, in prompt or answer, what followed may follow again.

Prompt lookup decoding: a summary quotes its text, and an edited program is mostly the old one. It costs microseconds.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..cached_sequence import CachedSequence
from ..errors import BadRequest
from ..sampling.sampler import Sampler
from .draft import ROOT, Draft
from .drafter import Drafter, Drafting, whole_number

KINDS = (2, 3, 4, 6, 8, 12, 16, 32)  # lengths of what was found again, from each of which drafts are of a kind


class NgramIndex:
    """Where each n-gram of a text was followed by something, the latest place first; grows with the text."""

    def __init__(self, shortest: int, longest: int):
        """Looks for the last `longest` ids down to `shortest`."""
        self.ids: list[int] = []
        self.sizes = range(longest, shortest - 1, -1)
        self._latest: dict[tuple[int, ...], int] = {}  # an n-gram to the place after it
        # for each size and place, the place after the same n-gram before; 0 for none
        self._earlier: dict[int, list[int]] = {size: [0] for size in self.sizes}

    def extend(self, ids: Sequence[int]) -> None:
        """More of the text."""
        text, latest = self.ids, self._latest
        for id in ids:
            place = len(text)  # what stands before it has now been followed by something
            if place:
                for size in self.sizes:
                    if place >= size:
                        ngram = tuple(text[place - size :])
                        self._earlier[size].append(latest.get(ngram, 0))
                        latest[ngram] = place
                    else:
                        self._earlier[size].append(0)
            text.append(id)

    def places(self, most: int) -> list[int]:
        """Up to `most` places that stand after what the text ends with: the longest match first, then the latest."""
        found: list[int] = []
        for size in self.sizes:
            place = self._latest.get(tuple(self.ids[-size:]), 0) if len(self.ids) > size else 0
            while place and len(found) < most:
                if place not in found:
                    found.append(place)
                place = self._earlier[size][place]
            if len(found) >= most:
                break
        return found

    def matched(self, place: int) -> int:
        """How many ids before a place are those that the text ends with; beyond the last of KINDS nobody counts."""
        text, count = self.ids, 0
        while count < min(place, KINDS[-1]) and text[place - 1 - count] == text[-1 - count]:
            count += 1
        return count

    def after(self, place: int, count: int) -> list[int]:
        """What follows a place; what repeats itself up to the end of the text goes on repeating."""
        found = self.ids[place : place + count]
        while len(found) < count:
            found += found[: count - len(found)]
        return found


class NgramDrafter(Drafter):
    """Looks the last ids of the text up in what came before them."""

    def __init__(
        self, longest: int = 10, shortest_match: int = 2, longest_match: int = 5, branches: int = 1,
        adaptive: bool = True,
    ):  # fmt: skip
        """Match the last `longest_match` ids, else fewer, down to `shortest_match`.

        With several `branches`, drafts are trees of what followed at several places. The rest: see `Drafter`.
        """
        super().__init__(longest, adaptive)
        self.branches = whole_number(branches, "branches", most=8)
        self.longest_match = whole_number(longest_match, "prompt_lookup_max", most=64)
        self.shortest_match = whole_number(shortest_match, "prompt_lookup_min", most=64)
        if self.shortest_match > self.longest_match:
            found = f"{shortest_match} and {longest_match}"
            raise BadRequest(f"prompt_lookup_min should be no more than prompt_lookup_max, found {found}", "speculate")

    def begin(self, sampler: Sampler, stop_ids: frozenset[int] = frozenset()) -> NgramDrafting:
        """What follows one text."""
        return NgramDrafting(self)


class NgramDrafting(Drafting):
    """The drafts of one text."""

    def __init__(self, drafter: NgramDrafter):
        """Begin with no text."""
        self.drafter = drafter
        self.index = NgramIndex(drafter.shortest_match, drafter.longest_match)
        self._places: list[int] = []

    def look(self, ids: Sequence[int]) -> int | None:
        """See `Drafting`; drafts of a kind have matched about as much."""
        self.index.extend(ids)
        self._places = self.index.places(self.drafter.branches)
        if not self._places:
            return None
        matched = self.index.matched(self._places[0])
        return max((kind for kind in KINDS if kind <= matched), default=matched)

    def depth(self, count: int) -> int:
        """See `Drafting`."""
        return -(-count // max(len(self._places), 1))

    def draft(self, count: int, held: CachedSequence) -> Draft:
        """See `Drafting`."""
        draft, depth = Draft(), self.depth(count)
        for place in self._places:
            node = ROOT
            for id in self.index.after(place, depth):
                if len(draft) == count and draft.child(node, id) is None:
                    break
                node = draft.add(id, node)
        return draft
