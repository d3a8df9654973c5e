"""One of the models that are served: away, or there with its engine; and what is asked as requests of that."""

from __future__ import annotations

import asyncio
import gc
import math
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from threading import Thread
from typing import TYPE_CHECKING, Any, TypeVar

from ..answer import Piece
from ..engine import Engine
from ..engine.request import Event, Request
from ..engine.runner import Inbox
from ..errors import BadRequest, QueueFull
from ..model.turns import Turns
from .asked import Asked
from .errors import Refusal
from .prepared import prepared

if TYPE_CHECKING:
    from ..llm import LLM
    from ..text.tokenizer import Tokenizer

WEIGHT = 0.2  # of the newest answer in the mean time of one

T = TypeVar("T")


class ServedModel:
    """A model under the name that requests give. All of it is for the event loop.

    engine      None as long as the model is away
    since       when it was loaded last, in seconds of Unix time; before that, when the server began
    users       how many requests need it: as long as there are any, it stays
    last_used   when the last of them was done, in seconds of `time.monotonic`
    bytes       what it takes when it is there, as far as is known
    """

    def __init__(self, name: str, load: Callable[[], LLM], needed: Callable[[], int] = lambda: 0, **engine: Any):
        """`load` and `needed`, which gives `bytes`, are called in threads; `engine` are keywords of `Engine`."""
        self.name = name
        self.engine: Engine | None = None
        self.since, self.last_used = int(time.time()), 0.0
        self.users = self.bytes = 0
        self.embedding = asyncio.Lock()  # one at a time: the engine has its own thread
        self._load, self._needed, self._how = load, needed, engine
        self._seconds: float | None = None  # that an answer takes, as a running mean

    async def measure(self) -> None:
        """Find out what it takes. Raises what is wrong with the files."""
        self.bytes = await apart(self._needed)

    async def load(self, turns: Turns) -> None:
        """Have it here, taking its steps in these turns.

        Raises what loading raises, and `BadRequest` for a value that the engine doesn't take.
        """
        self.engine, self.since = await apart(self._loaded, turns), int(time.time())

    def _loaded(self, turns: Turns) -> Engine:
        llm = self._load()
        llm.model.turns = turns
        for _ in llm.stream([0], max_tokens=2, ignore_eos=True):  # compiled now, not while somebody waits
            pass
        return Engine(llm, **self._how)

    async def unload(self) -> None:
        """Give its memory back. It must have no users."""
        engine, self.engine = self.engine, None
        await apart(engine.close, False)
        del engine
        await apart(gc.collect)  # tape, prefixes and runner are in cycles

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The model's, None where it came without one."""
        llm = self.engine.llm
        return None if llm.checkpoint.tokenizer_json is None else llm.tokenizer

    async def prepared(self, asked: Asked) -> list[Request]:
        """What is asked as requests for the engine. It is done in a thread of its own, as it may take a while.

        Raises `BadRequest` for what can't be answered, naming the field.
        """
        return await asyncio.to_thread(self._prepare, self.engine, asked)

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
        inbox, runner = Inbox(), self.engine.runner
        firsts, count = {}, 0  # of each request the number of its first answer; of all answers how many
        for request in requests:
            firsts[request.id], count = count, count + request.num_answers
        try:
            runner.submit_all(inbox, requests)
        except QueueFull as error:
            raise Refusal(429, str(error), code="queue_full", headers={"retry-after": self._retry_after()}) from None
        start = time.monotonic()
        try:
            yield _pieces(inbox.queue, firsts, count)
        finally:
            for request in requests:
                runner.cancel(request.id)
            self._took(time.monotonic() - start)

    def _took(self, seconds: float) -> None:
        self._seconds = seconds if self._seconds is None else self._seconds + WEIGHT * (seconds - self._seconds)

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


def apart(work: Callable[..., T], *arguments: Any) -> asyncio.Future[T]:
    """What `work` gives, done in a thread that nothing waits for when the process ends, unlike `asyncio.to_thread`."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def tell(how: Callable[[Any], None], what: Any) -> None:
        if not future.done():  # cancelled meanwhile
            how(what)

    def run() -> None:
        try:
            done = future.set_result, work(*arguments)
        except BaseException as error:  # whoever waits raises it
            done = future.set_exception, error
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(tell, *done)

    Thread(target=run, name="tinyinfer-load", daemon=True).start()
    return future
