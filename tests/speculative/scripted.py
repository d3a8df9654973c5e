"""A drafter that says what a test wants, whatever the text."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tinyinfer.sampling.sampler import Sampler
from tinyinfer.speculative.draft import Draft
from tinyinfer.speculative.drafter import Drafter, Drafting

Script = Callable[[list[int], int], Draft | None]  # from the text and how many ids to draft


class Scripted(Drafter):
    def __init__(self, script: Script, longest: int = 4, adaptive: bool = False):
        super().__init__(longest, adaptive)
        self.script = script
        self.drafts_made: list[Draft] = []

    def begin(self, sampler: Sampler, stop_ids: frozenset[int] = frozenset()) -> Drafting:
        return _Scripted(self)


class _Scripted(Drafting):
    def __init__(self, drafter: Scripted):
        self.drafter, self.ids = drafter, []

    def look(self, ids: Sequence[int]) -> int | None:
        self.ids += ids
        return 0

    def draft(self, count: int, held: object) -> Draft | None:
        draft = self.drafter.script(list(self.ids), count)
        if draft:
            self.drafter.drafts_made.append(draft)
        return draft


def right_up_to(text: list[int], right: int, vocab: int) -> Script:
    """The first `right` ids of each draft are those that `text` goes on with, the others are wrong."""

    def script(ids: list[int], count: int) -> Draft | None:
        following = text[len(ids) : len(ids) + count]
        return Draft([id if place < right else (id + 1) % vocab for place, id in enumerate(following)])

    return script
