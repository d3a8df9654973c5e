"""Steps an engine in a thread of its own, for whoever waits for answers in an event loop or in other threads."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from threading import Condition, Thread
from typing import TYPE_CHECKING, Any

from ..answer import Piece
from ..errors import QueueFull, TinyinferError
from .request import Event, Request

if TYPE_CHECKING:
    from .engine import Engine

Listener = Callable[[Event], None]


@dataclass(eq=False)
class Inbox:
    """A listener for an event loop, whose `queue` gets the events.

    The runner hands over all that a step brings to a loop at once: each waking of another thread takes the interpreter
    from the one that steps.
    """

    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    queue: asyncio.Queue[Event] = field(default_factory=asyncio.Queue)

    def __call__(self, event: Event) -> None:
        """One event, from any thread."""
        self.loop.call_soon_threadsafe(self.queue.put_nowait, event)


class Runner:
    """A thread that steps while there is work, and sleeps while there is none.

    Only it steps the engine. Requests may come from any thread.
    """

    def __init__(self, engine: Engine):
        """Begin to run."""
        self._engine = engine
        self._listeners: dict[int, tuple[Listener, int]] = {}  # and how many answers are still to end
        self._wake = Condition()
        self._closing = False
        self._thread = Thread(target=self._run, name="tinyinfer-engine", daemon=True)
        self._thread.start()

    def submit(self, listener: Listener, *prompt: Any, n: int = 1, **how: Any) -> int:
        """Take a request as `Engine.add` does; `listener` gets its events, in the runner's thread.

        Raises as `Engine.add` does, and `QueueFull` once `close` was called.
        """
        request = self._engine.prepare(*prompt, n=n, **how)
        self.submit_all(listener, [request])
        return request.id

    def submit_all(self, listener: Listener, requests: Sequence[Request]) -> None:
        """Take what `Engine.prepare` gave, all or nothing, as `submit` does."""
        waiting = {request.id: (listener, request.num_answers) for request in requests}
        with self._wake:
            if self._closing:
                raise QueueFull("no more requests are taken: the engine is closing")
            self._engine.enqueue(requests)
            self._listeners |= waiting
            self._wake.notify()

    def cancel(self, id: int) -> None:
        """Forget a request; no more of its events come."""
        with self._wake:
            if self._listeners.pop(id, None):
                self._engine.cancel(id)
                self._wake.notify()

    async def events(self, *prompt: Any, n: int = 1, **how: Any) -> AsyncIterator[Event]:
        """What a request brings, up to the end of its last answer; whoever stops reading cancels it.

        Raises as `submit` does, and what ended the request where that was an error.
        """
        inbox = Inbox()
        id = self.submit(inbox, *prompt, n=n, **how)
        try:
            while n:
                event = await inbox.queue.get()
                if event.error:
                    raise event.error
                n -= event.piece.completion is not None
                yield event
        finally:
            self.cancel(id)

    async def stream(self, *prompt: Any, **how: Any) -> AsyncIterator[Piece]:
        """The pieces of one answer; see `events`."""
        async for event in self.events(*prompt, **how):
            yield event.piece

    def close(self, finish: bool = True, timeout: float | None = None) -> None:
        """Take no more requests, and return when those that run are done, or at once without `finish`.

        After `timeout` seconds it returns in any case, and what still runs is cancelled.
        """
        with self._wake:
            self._closing = True
            if not finish:
                self._cancel_all()
            self._wake.notify()
        self._thread.join(timeout)
        if self._thread.is_alive():
            with self._wake:
                self._cancel_all()
            self._thread.join()

    def _cancel_all(self) -> None:
        """With the lock held: whoever waits is told."""
        told = TinyinferError("the engine was closed before the answer was done")
        for id, (listener, _) in self._listeners.items():
            self._engine.cancel(id)
            _told(listener, Event(id, 0, None, told))
        self._listeners.clear()

    def _run(self) -> None:
        while True:
            with self._wake:
                while not self._engine.busy:
                    if self._closing:
                        return
                    self._wake.wait()
            try:
                events = self._engine.step_now()
            except Exception as error:
                # a fault in the engine: whoever waits must hear of it, and what comes next may yet work
                logging.getLogger("tinyinfer").exception("a step of the engine failed")
                events = self._failures(error)
            self._deliver(events)

    def _failures(self, error: Exception) -> list[Event]:
        told = TinyinferError(f"the engine failed: {type(error).__name__}: {error}")
        with self._wake:
            waiting = list(self._listeners)
        for id in waiting:
            self._engine.cancel(id)
        return [Event(id, 0, None, told) for id in waiting]

    def _deliver(self, events: list[Event]) -> None:
        letters: dict[asyncio.AbstractEventLoop, list[tuple[Inbox, Event]]] = defaultdict(list)
        for event in events:
            listener = self._listener_of(event)
            if isinstance(listener, Inbox):
                letters[listener.loop].append((listener, event))
            elif listener is not None and not _told(listener, event):
                self.cancel(event.id)
        for loop, post in letters.items():
            if not _told(loop.call_soon_threadsafe, _hand_out, post):
                for _, event in post:
                    self.cancel(event.id)

    def _listener_of(self, event: Event) -> Listener | None:
        """Who waits for it; it is forgotten with the last event."""
        with self._wake:
            listener, left = self._listeners.get(event.id, (None, 0))
            if listener is None:
                return None
            left -= event.piece is not None and event.piece.completion is not None
            if event.error or not left:
                del self._listeners[event.id]
                if left:  # other answers to the same prompt, where one failed
                    self._engine.cancel(event.id)
            else:
                self._listeners[event.id] = listener, left
        return listener


def _hand_out(letters: list[tuple[Inbox, Event]]) -> None:
    for inbox, event in letters:
        inbox.queue.put_nowait(event)


def _told(tell: Callable[..., object], *what: object) -> bool:
    """Whether whoever listens took it."""
    try:
        tell(*what)
    except Exception:  # a loop that was closed meanwhile, say
        logging.getLogger("tinyinfer").exception("a listener failed")
        return False
    return True
