"""A batch job on one machine: requests in, answers out, and the engine between them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from ..answer import Completion
from ..engine import Engine, Event
from ..engine.request import Request
from ..errors import TinyinferError
from ..server.errors import Refusal
from ..server.shapes import Shape
from .answers import Answers
from .bodies import Bodies, error_body
from .requests import BatchRequest

Result = tuple[BatchRequest, int, dict[str, Any]]  # a request, its status, and the body of its answer


@dataclass
class Counts:
    """What became of the requests of a file."""

    answered: int = 0
    refused: int = 0
    before: int = 0  # were in the file of answers already

    def note(self, status: int) -> None:
        """One more was written."""
        if status == 200:
            self.answered += 1
        else:
            self.refused += 1

    @property
    def done(self) -> int:
        """All of them."""
        return self.answered + self.refused + self.before


def run_batch(requests: Iterable[BatchRequest], answers: Answers, engine: Engine, name: str) -> Iterator[Counts]:
    """Answer what is not answered yet, writing each answer as soon as it is whole; yields counts, which grow.

    `name` is the model's, which requests may give. Raises `BadRequest` where the file of answers belongs to other
    requests, and what the disk raises.
    """
    counts = Counts()
    yield counts
    for request, status, body in answer(_new(requests, answers, counts), engine, Bodies(engine, name)):
        answers.write(request, status, body)
        counts.note(status)
        yield counts
    yield counts


def _new(requests: Iterable[BatchRequest], answers: Answers, counts: Counts) -> Iterator[BatchRequest]:
    for request in requests:
        if answers.has(request):
            counts.before += 1
        else:
            yield request


def answer(requests: Iterable[BatchRequest], engine: Engine, bodies: Bodies) -> Iterator[Result]:
    """Answer requests, in the order in which they become ready.

    No more are read ahead than keep the engine's slots full, so that there may be any number.
    """
    window, coming = _Window(engine, bodies), iter(requests)
    try:
        while True:
            while window.has_room and (request := next(coming, None)) is not None:
                if (told := window.begin(request)) is not None:
                    yield told
            if not window.open:
                return
            for event in engine.step_now(in_no_hurry=True):
                if (told := window.take(event)) is not None:
                    yield told
    finally:
        window.forget()


@dataclass
class _Open:
    """A request that the engine is at: as one of its own for each prompt."""

    asked: BatchRequest
    shape: Shape
    parts: list[Request]
    keys: list[tuple[int, int]]  # of the answers, in order: a part's number, and which of its answers
    done: dict[tuple[int, int], Completion] = field(default_factory=dict)


class _Window:
    """The requests that the engine is at."""

    def __init__(self, engine: Engine, bodies: Bodies):
        self._engine, self._bodies = engine, bodies
        self.open: dict[int, _Open] = {}  # by the engine's numbers

    @property
    def has_room(self) -> bool:
        """As many wait as run, so that a slot is taken the moment it is free."""
        return len(self.open) < 2 * self._engine.slots

    def begin(self, asked: BatchRequest) -> Result | None:
        """Give a request to the engine; what is wrong with it, if that can't be done."""
        try:
            parts, shape = self._bodies.read(asked)
        except (TinyinferError, Refusal) as error:
            return asked, *error_body(error)
        keys = [(part.id, index) for part in parts for index in range(part.num_answers)]
        self._engine.enqueue(parts)
        self.open |= dict.fromkeys((part.id for part in parts), _Open(asked, shape, parts, keys))
        return None

    def take(self, event: Event) -> Result | None:
        """What a step brought; the answer, where it is whole now."""
        found = self.open.get(event.id)
        if found is None:  # another part of it has failed
            return None
        if event.error is not None:
            self._close(found)
            return found.asked, *error_body(event.error)
        if event.piece.completion is not None:
            found.done[event.id, event.index] = event.piece.completion
        if len(found.done) < len(found.keys):
            return None
        self._close(found)
        return found.asked, 200, found.shape.whole([found.done[key] for key in found.keys])

    def forget(self) -> None:
        """Have the engine drop all that is open."""
        for found in list(self.open.values()):
            self._close(found)

    def _close(self, found: _Open) -> None:
        for part in found.parts:
            self._engine.cancel(part.id)
            self.open.pop(part.id, None)
