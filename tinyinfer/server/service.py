"""The models that are served: which is meant, which is there, and which goes to make room for another."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from ..errors import BadRequest, TinyinferError
from ..model.turns import Turns
from .errors import Refusal
from .metrics import Metrics
from .model import ServedModel
from .prepared import chosen_name

LOADING, READY, DRAINING = "loading", "ready", "draining"
SOON = {"retry-after": "5"}
LOG = logging.getLogger("tinyinfer.server")


class Service:
    """Models by name. The first is loaded at the start, each other one when a request names it.

    Their engines have a thread each, and take turns at the cores. Of models together no more than `most_bytes` are
    loaded: where one more would pass that, those that nobody uses go, the one first that was used the longest time ago.
    """

    def __init__(
        self,
        models: Sequence[ServedModel],
        most_bytes: int | None = None,
        tell: Callable[[ServedModel], None] = lambda model: None,
    ):
        """The names of `models` are different ones. `tell` is called with each that has come or gone."""
        self.models = {model.name: model for model in models}
        self.metrics = Metrics(self)
        self.draining = False
        self._started = False
        self._most_bytes, self._tell = most_bytes, tell
        self._turns = Turns()
        self._one_load = asyncio.Lock()  # at a time: what one takes is known before the next is looked at
        self._loads: dict[str, asyncio.Task[Exception | None]] = {}  # under way; what goes wrong is what they give

    async def start(self) -> None:
        """Load the first model. Raises what that raises."""
        if error := await self._loaded(next(iter(self.models.values()))):
            raise error

    @property
    def state(self) -> str:
        """LOADING, READY or DRAINING."""
        if self.draining:
            return DRAINING
        return READY if self._started else LOADING

    @property
    def idle(self) -> bool:
        """Whether no request is being answered."""
        return not any(model.users for model in self.models.values())

    def check_ready(self) -> None:
        """Raises `Refusal` with status 503 while the first model is loaded, and when no more is begun."""
        if self.state != READY:
            why = "the server is ending, and begins nothing more" if self.draining else "the model is being loaded"
            raise Refusal(503, why, code=self.state, headers=SOON)

    def named(self, name: Any) -> ServedModel:
        """The model of that name; None is that of the first. Raises `Refusal` with status 404 where there is none."""
        return self.models[chosen_name(name, list(self.models))]

    @asynccontextmanager
    async def using(self, model: ServedModel) -> AsyncIterator[None]:
        """Have a model there for as long as the block runs, and the server wait for it before it ends.

        Raises `Refusal`: with status 500 where it can't be loaded, with 503 where there is no room for it now.
        """
        self.check_ready()
        model.users += 1
        try:
            if error := await self._loaded(model):
                raise _not_loaded(model, error)
            yield
        finally:
            model.users -= 1
            model.last_used = time.monotonic()

    async def end(self) -> None:
        """Tell those who are not done."""
        for task in self._loads.values():
            task.cancel()
        for model in self.models.values():
            if model.engine:
                await asyncio.to_thread(model.engine.close, finish=False)

    async def _loaded(self, model: ServedModel) -> Exception | None:
        """What keeps a model from being there, if anything does. Those who ask for it meanwhile share one try."""
        if model.engine:
            return None
        task = self._loads.get(model.name)
        if task is None:
            task = self._loads[model.name] = asyncio.ensure_future(self._load(model))
            task.add_done_callback(lambda _: self._loads.pop(model.name))
        try:
            return await asyncio.shield(task)  # it goes on where one of those who wait goes away
        except asyncio.CancelledError:
            if task.cancelled():
                return Refusal(503, "the server has ended", code=DRAINING, headers=SOON)
            raise

    async def _load(self, model: ServedModel) -> Exception | None:
        async with self._one_load:
            try:
                await self._make_room(model)
                await model.load(self._turns)
            except Exception as error:
                if self._started and not isinstance(error, Refusal):
                    LOG.warning("the model %s could not be loaded: %s: %s", model.name, type(error).__name__, error)
                return error
            self._started = True
            self._tell(model)
        return None

    async def _make_room(self, model: ServedModel) -> None:
        if self._most_bytes is None:
            return
        await model.measure()
        if model.bytes > self._most_bytes:
            takes = f"the model {model.name!r} takes {model.bytes:,} bytes with its keys and values"
            raise BadRequest(f"{takes}, more than the {self._most_bytes:,} for all models", "models_bytes")
        while True:
            there = [other for other in self.models.values() if other.engine]
            idle = [other for other in there if not other.users]
            over = sum(other.bytes for other in there) + model.bytes - self._most_bytes
            if over <= 0:
                return
            if over > sum(other.bytes for other in idle):
                why = f"there is no room for the model {model.name!r} while others are in use"
                raise Refusal(503, why, "model", "no_room", SOON)
            oldest = min(idle, key=lambda other: other.last_used)
            await oldest.unload()
            self._tell(oldest)


def _not_loaded(model: ServedModel, error: Exception) -> Refusal:
    """A new one for each who waits."""
    if isinstance(error, Refusal):
        return Refusal(error.status, error.message, error.param, error.code, error.headers)
    why = str(error) if isinstance(error, TinyinferError) else f"{type(error).__name__}: {error}"
    return Refusal(500, f"the model {model.name!r} could not be loaded: {why}", "model", "model_not_loaded")
