"""A batch job on one machine: requests in, answers out, and the engine between them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..answer import Completion
from ..engine import Engine, Event
from ..errors import TinyinferError
from .answers import Answers
from .requests import ID_PREFIX, BatchRequest

Result = tuple[BatchRequest, int, dict[str, Any]]  # a request, its status, and the body of its answer


@dataclass
class Counts:
    """What became of the requests of a file."""

    answered: int = 0
    refused: int = 0
    before: int = 0  # were in the file of answers already


class Asked(Protocol):
    """A request that was read: what the engine is to do, and what is said of what it did."""

    def add(self, engine: Engine) -> list[tuple[int, int]]:
        """Give it to the engine; returns the number and the index of each answer that will come, in order."""

    def body(self, completions: list[Completion]) -> dict[str, Any]:
        """The answer's body, as JSON can hold it."""


class Dialect(Protocol):
    """How bodies are read and written: `server` has OpenAI's."""

    def read(self, url: str, body: dict[str, Any]) -> Asked:
        """Raises `BadRequest` for a body that can't be answered."""

    def error(self, error: TinyinferError) -> tuple[int, dict[str, Any]]:
        """The status and the body that tell an error."""


def run_batch(requests: Iterable[BatchRequest], answers: Answers, engine: Engine, dialect: Dialect) -> Iterator[Counts]:
    """Answer what is not answered yet, writing each answer as soon as it is whole; yields the counts as they grow.

    Raises `BadRequest` where the file of answers belongs to other requests, and what the disk raises.
    """
    counts = Counts()
    for request, status, body in answer(_new(requests, answers, counts), engine, dialect):
        answers.write(request, status, body)
        if status == 200:
            counts.answered += 1
        else:
            counts.refused += 1
        yield counts
    yield counts


def _new(requests: Iterable[BatchRequest], answers: Answers, counts: Counts) -> Iterator[BatchRequest]:
    for request in requests:
        if answers.has(request):
            counts.before += 1
        else:
            yield request


def answer(requests: Iterable[BatchRequest], engine: Engine, dialect: Dialect) -> Iterator[Result]:
    """Answer requests, in the order in which they become ready.

    No more are read ahead than keep the engine's slots full, so that there may be any number.
    """
    window, coming = _Window(engine, dialect), iter(requests)
    try:
        while True:
            while window.has_room and (request := next(coming, None)) is not None:
                if (told := window.begin(request)) is not None:
                    yield told
            if not window.open:
                return
            for event in engine.step():
                if (told := window.take(event)) is not None:
                    yield told
    finally:
        window.forget()


@dataclass
class _Open:
    """A request that the engine is at."""

    request: BatchRequest
    asked: Asked
    keys: list[tuple[int, int]]
    done: dict[tuple[int, int], Completion] = field(default_factory=dict)


class _Window:
    """The requests that the engine is at."""

    def __init__(self, engine: Engine, dialect: Dialect):
        self._engine, self._dialect = engine, dialect
        self.open: dict[int, _Open] = {}  # by the engine's numbers, of which a request may have several

    @property
    def has_room(self) -> bool:
        """As many wait as run, so that a slot is taken the moment it is free."""
        return len(self.open) < 2 * self._engine.slots

    def begin(self, request: BatchRequest) -> Result | None:
        """Give a request to the engine; what is wrong with it, if that can't be done."""
        if request.error is not None:
            return request, *self._dialect.error(request.error)
        try:
            asked = self._dialect.read(request.url, with_seed(request))
            keys = asked.add(self._engine)
        except TinyinferError as error:
            return request, *self._dialect.error(error)
        self.open |= dict.fromkeys((id for id, _ in keys), _Open(request, asked, keys))
        return None

    def take(self, event: Event) -> Result | None:
        """What a step brought; the answer, where it is whole now."""
        found = self.open.get(event.id)
        if found is None:  # another part of it has failed
            return None
        if event.error is not None:
            self._close(found)
            return found.request, *self._dialect.error(event.error)
        if event.piece.completion is not None:
            found.done[event.id, event.index] = event.piece.completion
        if len(found.done) < len(found.keys):
            return None
        self._close(found)
        return found.request, 200, found.asked.body([found.done[key] for key in found.keys])

    def forget(self) -> None:
        """Have the engine drop all that is open."""
        for found in list(self.open.values()):
            self._close(found)

    def _close(self, found: _Open) -> None:
        for id, _ in found.keys:
            self._engine.cancel(id)
            self.open.pop(id, None)


def with_seed(request: BatchRequest) -> dict[str, Any]:
    """The body, with a seed that goes by the line if it has none: a run that was cut short gives the same answers."""
    if request.body.get("seed") is not None:
        return request.body
    return request.body | {"seed": int(request.id.removeprefix(ID_PREFIX)[:7], 16)}
