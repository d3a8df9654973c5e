"""The model that is served: loading, ready, draining; and what is asked as requests of the engine."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

from ..answer import Piece
from ..engine import Engine
from ..engine.request import Event, Request
from ..engine.runner import Inbox
from ..errors import BadRequest, QueueFull
from .asked import Asked
from .errors import Refusal
from .metrics import Metrics
from .prepared import check_model, prepared

if TYPE_CHECKING:
    from ..llm import LLM
    from ..text.tokenizer import Tokenizer

LOADING, READY, DRAINING = "loading", "ready", "draining"
WEIGHT = 0.2  # of the newest answer in the mean time of one


class Service:
    """A model under the name that requests give, with its engine once it is loaded.

    `load` may be called in any thread; all else is for the event loop.
    """

    def __init__(self, name: str, **engine: Any):
        """`engine` are keywords of `Engine`."""
        self.name = name
        self.metrics = Metrics(self)
        self.engine: Engine | None = None
        self.draining = False
        self.since = int(time.time())  # when the model was there, else when it began to be loaded
        self.embedding = asyncio.Lock()  # one at a time: the engine has its own thread
        self._how = engine
        self._open = 0  # requests that are being answered
        self._seconds: float | None = None  # that one takes, as a running mean

    def load(self, llm: LLM) -> None:
        """Be ready to answer. Raises `BadRequest` for a value that the engine doesn't take."""
        self.engine, self.since = Engine(llm, **self._how), int(time.time())

    @property
    def state(self) -> str:
        """LOADING, READY or DRAINING."""
        if self.draining:
            return DRAINING
        return READY if self.engine else LOADING

    @property
    def idle(self) -> bool:
        """Whether no request is being answered."""
        return self._open == 0

    def ready(self) -> Engine:
        """The engine. Raises `Refusal` with status 503 while the model is loaded, and when no more is begun."""
        if self.state == READY:
            return self.engine
        why = "the server is ending, and begins nothing more" if self.draining else "the model is being loaded"
        raise Refusal(503, why, code=self.state, headers={"retry-after": "5"})

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The model's, None where it came without one."""
        llm = self.ready().llm
        return None if llm.checkpoint.tokenizer_json is None else llm.tokenizer

    def check_model(self, name: Any) -> None:
        """Raises `Refusal` for the name of another model than the one there is; no name means that one."""
        check_model(name, self.name)

    @contextmanager
    def answering(self) -> Iterator[None]:
        """A request that is waited for before the server ends."""
        self._open += 1
        start = asyncio.get_running_loop().time()
        try:
            yield
        finally:
            self._open -= 1
            took = asyncio.get_running_loop().time() - start
            self._seconds = took if self._seconds is None else self._seconds + WEIGHT * (took - self._seconds)

    async def prepared(self, asked: Asked) -> list[Request]:
        """What is asked as requests for the engine. It is done in a thread of its own, as it may take a while.

        Raises `BadRequest` for what can't be answered, naming the field.
        """
        return await asyncio.to_thread(self._prepare, self.ready(), asked)

    def _prepare(self, engine: Engine, asked: Asked) -> list[Request]:
        most = self._how.get("queue")
        if most is not None and len(asked.prompts) > engine.slots + most:
            raise BadRequest(f"prompt holds {len(asked.prompts):,} prompts, more than can wait here", "prompt")
        return prepared(engine, asked)

    @asynccontextmanager
    async def running(self, requests: list[Request]) -> AsyncIterator[AsyncIterator[tuple[int, Piece]]]:
        """Have prepared requests answered: gives numbers of answers and pieces, up to the end of the last.

        However the block is left, nothing of them runs on. Raises `Refusal` with status 429 where too many wait, and
        what ends an answer otherwise.
        """
        inbox, runner = Inbox(), self.ready().runner
        firsts, count = {}, 0  # of each request the number of its first answer; of all answers how many
        for request in requests:
            firsts[request.id], count = count, count + request.num_answers
        try:
            runner.submit_all(inbox, requests)
        except QueueFull as error:
            raise Refusal(429, str(error), code="queue_full", headers={"retry-after": self._retry_after()}) from None
        try:
            yield _pieces(inbox.queue, firsts, count)
        finally:
            for request in requests:
                runner.cancel(request.id)

    def _retry_after(self) -> str:
        """Seconds after which a place is likely to be free: one is left whenever one of the slots is."""
        return str(max(math.ceil((self._seconds or 1) / max(self.engine.load.running, 1)), 1))


async def _pieces(queue: asyncio.Queue[Event], firsts: dict[int, int], count: int) -> AsyncIterator[tuple[int, Piece]]:
    while count:
        event = await queue.get()
        if event.error:
            raise event.error
        count -= event.piece.completion is not None
        if not queue.empty():
            await asyncio.sleep(0)  # where many have come, others get their turn, and a reader that is gone is noticed
        yield firsts[event.id] + event.index, event.piece
