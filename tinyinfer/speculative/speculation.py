"""Speculation for one answer: each step is a draft, a forward pass, a walk; and what came of them all."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from ..answer import Answer, Piece
from ..cached_sequence import CachedSequence
from .draft import Attempt, Draft, Walk, walk
from .drafter import Drafter
from .pace import Pace


@dataclass(frozen=True)
class Speculated:
    """What speculation did for a completion; the prompt's own forward passes, and the first token, are not in it.

    steps      forward passes, of which `drafts` verified something
    tokens     that came of them
    proposed, accepted   ids drafted, and those of them that were drawn
    tried      drafted ids that the walk came to: the accepted ones, and one for each draft that went wrong
    seconds, plain_seconds   of all steps; and what as many tokens take in plain steps, by the median of those that were
               measured; None where none was
    """

    steps: int
    drafts: int
    tokens: int
    proposed: int
    accepted: int
    tried: int
    seconds: float
    plain_seconds: float | None

    @property
    def alpha(self) -> float | None:
        """How often an id that was looked at was right; None where none was."""
        return self.accepted / self.tried if self.tried else None

    @property
    def tokens_per_step(self) -> float | None:
        """Mean tokens of a forward pass."""
        return self.tokens / self.steps if self.steps else None

    @property
    def speedup(self) -> float | None:
        """Estimated, from measured times: as many plain steps by what was taken."""
        return self.plain_seconds / self.seconds if self.plain_seconds and self.seconds else None


class Speculation:
    """Feeds an answer, a step at a time, from drafts."""

    def __init__(self, drafter: Drafter, answer: Answer, stop_ids: frozenset[int] = frozenset()):
        """Nothing is run yet."""
        self.answer = answer
        self.drafting = drafter.begin(answer.sampler, stop_ids)
        self.pace = Pace(drafter)
        self.steps = self.drafts = self.tokens = self.proposed = self.accepted = self.tried = 0
        self.seconds = 0.0
        self._told = 0  # how many ids of prompt and answer the drafter knows

    def draft(self, held: CachedSequence) -> Draft | None:
        """What to try after the last id; None for a plain step."""
        answer = self.answer
        new = answer.ids[self._told :]
        kind = self.drafting.look(new if self._told else answer.prompt_ids + new)
        self._told = len(answer.ids)
        if kind is None:
            return None
        room = held.room_at_same_angles(answer.left - 1)
        count = self.pace.length(kind, room, self.drafting.depth, self.drafting.owed)
        draft = self.drafting.draft(count, held) if count else None
        if draft:
            draft.kind = kind
        return draft if draft and len(draft) else None

    def step(self, held: CachedSequence) -> Iterator[Piece]:
        """A step, all of it before the first piece. Raises what the sampler raises, after the pieces before it."""
        start = time.perf_counter()
        last_id = self.answer.ids[-1]
        draft = self.draft(held)
        drafted = time.perf_counter()
        walked = Walk()
        if draft is None:
            rows = held.step(last_id)[None]
            passed = time.perf_counter()
            walk(Draft(), rows, self.answer, walked)
        else:
            attempt = Attempt(held, last_id, draft)
            try:
                rows = held.model.forward([attempt.chunk])
            except BaseException:
                attempt.give_up()
                raise
            passed = time.perf_counter()
            try:
                walk(draft, rows, self.answer, walked)
            finally:
                attempt.keep(walked.node)
        self.note(draft, walked, drafted - start, passed - drafted, time.perf_counter() - passed)
        yield from walked.pieces
        if walked.failure:
            raise walked.failure

    def note(self, draft: Draft | None, walked: Walk, drafting: float, passing: float, drawing: float) -> None:
        """What came of a step, and what its parts took, in seconds."""
        self.steps += 1
        self.seconds += drafting + passing + drawing
        self.tokens += walked.drawn
        if draft is None:
            self.pace.note_plain(passing, drawing)
            return
        self.drafts += 1
        self.proposed += len(draft)
        self.accepted += walked.accepted
        self.tried += walked.accepted + walked.rejected
        what = draft.kind, len(draft), walked.accepted, walked.rejected, walked.drawn
        self.pace.note_draft(*what, drafting - self.drafting.read_seconds, passing, drawing)

    def report(self) -> Speculated:
        """What came of it so far."""
        plain = self.pace.passes.of(1) + self.pace.draws.of(1) if self.pace.passes.count(1) else None
        counts = self.steps, self.drafts, self.tokens, self.proposed, self.accepted, self.tried
        return Speculated(*counts, self.seconds, plain and plain * self.tokens)
