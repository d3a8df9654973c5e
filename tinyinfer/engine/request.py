"""A request on its way through the engine."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from ..answer import Answer, Piece
from ..cache import PrefixTree
from ..cache.prefixes import Trail
from ..cached_sequence import LAST, LOGITS_AT_ONCE, Adapters, CachedSequence
from ..errors import SamplingError, TinyinferError
from ..model.forward import Chunk
from ..speculative.speculation import Speculation

DRAFT_ROOM = 256  # tokens in whose blocks any draft finds room, a tree with copies of its last block too


class Event(NamedTuple):
    """What a step brought for a request: a piece of its answer number `index`, or what ended it."""

    id: int
    index: int
    piece: Piece | None
    error: TinyinferError | None = None


class Part(NamedTuple):
    """What a request has in a step: ids, and the length of the text that they are rotated for."""

    request: Request
    ids: list[int]
    text_length: int


@dataclass(eq=False)
class Request:
    """One text that goes on: what is asked, what is held of it, and how far it is.

    The text is the prompt and the answer so far; what of it the cache does not hold is pending. So a new prompt, one
    more token, and a text that lost its blocks and is run again are all the same.
    """

    id: int  # in the order of arrival
    index: int  # which of the answers to its prompt
    answer: Answer
    held: CachedSequence
    adapters: Adapters = ()
    priority: int = 0  # the lower, the earlier; among equals the order of arrival
    siblings: Sequence[Request] = ()  # other answers to the same prompt, which begin when it has been run
    trail: Trail = field(default_factory=lambda: Trail(None))
    known: int = 0  # tokens that are rotated as in a text of this length: of the prompt, at first
    speculation: Speculation | None = None
    waited: bool = False  # in the last step, for another that has run what both begin with
    told: int = 0  # after how many of the prompt's tokens the answer has read the logits
    done: bool = False

    def __post_init__(self) -> None:
        """The prompt is known."""
        self.known = len(self.answer.prompt_ids)

    @property
    def rank(self) -> tuple[int, int, int]:
        """Whose turn it is: the lowest first."""
        return self.priority, self.id, self.index

    @property
    def num_answers(self) -> int:
        """To its prompt, as long as it has not begun."""
        return 1 + len(self.siblings)

    @property
    def length(self) -> int:
        """Of prompt and answer so far."""
        return len(self.answer.prompt_ids) + len(self.answer.ids)

    @property
    def text(self) -> list[int]:
        """Ids of prompt and answer so far."""
        return self.answer.prompt_ids + self.answer.ids

    @property
    def pending(self) -> int:
        """How many tokens of the text are still to be run; the last one's logits give the next token."""
        return self.length - len(self.held.ids)

    @property
    def decodes(self) -> bool:
        """Whether all that is pending is the token drawn last."""
        return self.pending == 1 and bool(self.answer.ids)

    @property
    def drafts(self) -> bool:
        """Whether its next step may be a draft: there are blocks for the longest, in any form."""
        return self.speculation is not None and self.decodes and self.held.sequence.has_room(DRAFT_ROOM)

    @property
    def reads_prompt(self) -> bool:
        """Whether the logits after the prompt's tokens are to be told to the answer."""
        return self.answer.read_prompt is not None and not self.answer.ids

    def begin(self, prefixes: PrefixTree | None) -> None:
        """Have what is there of the beginning of the text."""
        ids, kept, self.trail = self.text, 0, Trail(("root", self._kind))
        if prefixes is not None and not self.reads_prompt:
            kept, self.trail = prefixes.begin(self.held.sequence, self._kind, ids)
        self.held.begin_with(ids[:kept], self.adapters, self.known)
        if not self.answer.ids:
            self.answer.cached_tokens = kept

    def finds_soon(self, part: Part, block_size: int) -> bool:
        """Whether the next block of its prompt will be there after this step, since `part` runs the same text.

        Whoever waits for that has it run once, where many texts that begin alike come at the same time.
        """
        other = part.request
        if self.decodes or other.decodes or self.reads_prompt or not other.held.is_as_cold or self._kind != other._kind:
            return False
        end = (len(self.held.ids) // block_size + 1) * block_size
        filled = len(other.held.ids) + len(part.ids)
        return end <= filled and end < self.length and self.text[:end] == other.text[:end]

    def begin_again(self, prefixes: PrefixTree | None) -> None:
        """Have what is there now."""
        self.waited = False
        self.release()
        self.begin(prefixes)

    def outgrow(self) -> None:
        """Where the text is now so long that all of it is rotated otherwise, begin anew."""
        if self.held.grows and self.held.outgrown(self.length):
            self.known = self.length
            self.release()

    def next_ids(self, most: int) -> tuple[list[int], int]:
        """What to run next, `most` tokens or fewer; and the length of the text that they are rotated for."""
        at, held = len(self.held.ids), self.held
        if self.reads_prompt:
            most = min(most, max(LOGITS_AT_ONCE // held.model.config.vocab_size, 1))
        if at < self.known:
            if held.grows:
                most = min(most, self.known - at)
            return self._part(at, most), self.known
        ids = self._part(at, 1 if held.grows else most)
        return ids, at + len(ids)

    def _part(self, at: int, count: int) -> list[int]:
        prompt = self.answer.prompt_ids
        if at >= len(prompt):
            return self.answer.ids[at - len(prompt) :][:count]
        return (prompt[at : at + count] + self.answer.ids[: max(at + count - len(prompt), 0)])[:count]

    def chunk(self, ids: list[int], text_length: int) -> Chunk:
        """Its part of a step."""
        return self.held.chunk(ids, text_length, slice(None) if self.reads_prompt else LAST)

    def fed(self, ids: list[int], text_length: int, rows: np.ndarray, prefixes: PrefixTree | None) -> None:
        """The chunk was run and gave these logits; let other texts find what it left behind."""
        new = rows[max(self.told - len(self.held.ids), 0) :]  # a prompt that lost its blocks is read again
        self.held.fed(ids, text_length)
        if self.reads_prompt and len(new):
            self.told = len(self.held.ids)
            for each in (self, *self.siblings):
                each.answer.read_prompt(new)
        self._remember(prefixes)

    def draw(self, logits: np.ndarray) -> list[Event]:
        """The next token, from logits float32 [vocab] after all of the text; and the end, where it is one."""
        answer, events = self.answer, []
        if not answer.ids:
            answer.prefilled(answer.cached_tokens)
        try:
            if answer.going and (piece := answer.take(logits)):
                events.append(Event(self.id, self.index, piece))
        except SamplingError as error:
            return [self.fail(error)]
        return events if answer.going else [*events, self.finish()]

    def speculate(self, prefixes: PrefixTree | None) -> list[Event]:
        """Run the next step by itself, from a draft where one pays; it must be alone in it."""
        events = []
        try:
            for piece in self.speculation.step(self.held):
                events.append(Event(self.id, self.index, piece))  # one by one: what came before an error stays
        except SamplingError as error:
            return [*events, self.fail(error)]
        self._remember(prefixes)
        return events if self.answer.going else [*events, self.finish()]

    def branch(self) -> list[Request]:
        """The siblings, which go on from the prompt that was run."""
        found, self.siblings = list(self.siblings), ()
        for sibling in found:
            sibling.held, sibling.trail = self.held.fork(), replace(self.trail)
            sibling.answer.cached_tokens = self.answer.cached_tokens
        return found

    def finish(self) -> Event:
        """The last piece; all blocks are given back."""
        self.done = True
        self.release()
        return Event(self.id, self.index, self.answer.finish(self.speculation and self.speculation.report()))

    def fail(self, error: TinyinferError) -> Event:
        """It can't go on; all blocks are given back."""
        self.done = True
        self.release()
        return Event(self.id, self.index, None, error)

    def release(self) -> None:
        """Give all blocks back."""
        self.held.sequence.release()
        self.held.begin_with([], self.adapters, self.known)

    def _remember(self, prefixes: PrefixTree | None) -> None:
        if prefixes is not None and self.held.is_as_cold:
            prefixes.extend(self.trail, self.held.sequence, self.held.ids)

    @property
    def _kind(self) -> Hashable:
        """What its keys and values go by beside the ids."""
        return self.held.kind(self.adapters, self.known)
