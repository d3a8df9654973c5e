"""The engine: at each step it decides who takes part, runs the model once for all, and hands out what came of it."""

from __future__ import annotations

import time
from bisect import insort
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from itertools import count
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np

from ..adapters import Wish
from ..answer import Completion, Piece
from ..cache import PrefixTree
from ..cached_sequence import CachedSequence
from ..errors import BadRequest, ContextOverflow, QueueFull
from ..model.forward import MOST_ROWS
from ..sampling import SamplingParams
from ..speculative.speculation import Speculation
from ..text.chat import ChatPrompt
from .memory import usual_cache_bytes
from .pace import Pace
from .request import Event, Part, Request
from .runner import Runner

if TYPE_CHECKING:
    from ..asking import Prompt
    from ..llm import LLM


@dataclass(frozen=True)
class Load:
    """What the engine is doing now, and what it has done since it began.

    blocks are counted in the pool that has the most of them in use; `wasted_tokens` are places in blocks in use that no
    token fills. `prompt_tokens` were asked for, of which `cached_tokens` were found; `run_tokens` went through the
    model, `new_tokens` were drawn.
    """

    running: int
    waiting: int
    blocks_used: int
    blocks_idle: int
    blocks_most: int
    wasted_tokens: int
    cache_bytes: int
    steps: int
    run_tokens: int
    new_tokens: int
    prompt_tokens: int
    cached_tokens: int
    evicted_blocks: int
    preemptions: int

    @property
    def hit_rate(self) -> float | None:
        """Of the prompt tokens asked for, the share that was found in the cache."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else None


class Engine:
    """Serves many requests at once with one model.

    `add` takes a request, `step` runs one step and gives what it brought; `generate_many` does both for a list. Which
    requests share a step changes no answer: the floats of a row are those that it has alone. `add` and `cancel` may be
    called from any thread, `step` from one at a time.
    """

    def __init__(
        self,
        llm: LLM,
        *,
        slots: int = 8,
        queue: int | None = None,
        kv_cache_bytes: int | None = None,
        step_tokens: int = MOST_ROWS,
        slowdown: float = 1.8,
        prefix_cache: bool = True,
    ):
        """slots: requests in a step at most; queue: how many may wait beside them, by default any number.

        kv_cache_bytes   what keys and values may take in all, by default 1 GiB, or what one whole context needs
        step_tokens      new tokens in a step at most
        slowdown         how much longer than without it a step may take for the sake of a new prompt
        prefix_cache     keep what texts began with, for others that begin alike

        Raises `BadRequest` for a value out of range.
        """
        _check("slots", slots, 1, MOST_ROWS)
        _check("step_tokens", step_tokens, slots, MOST_ROWS)
        if queue is not None:
            _check("queue", queue, 0, None)
        if not isinstance(slowdown, int | float) or not slowdown >= 1:
            raise BadRequest(f"slowdown should be a number from 1, found {slowdown!r}", "slowdown")
        self.llm = llm
        self.slots, self._most_waiting, self._step_tokens = slots, queue, step_tokens
        self._cache = llm.model.new_cache()
        self.context = self._limited(kv_cache_bytes)
        self._prefixes = PrefixTree(self._cache) if prefix_cache else None
        self._pace = Pace(slowdown)
        self._ids = count()
        self._lock = Lock()  # of what `add` and `cancel` write
        self._runner: Runner | None = None
        self._waiting: list[Request] = []  # by rank
        self._cancelled: set[int] = set()
        self._running: list[Request] = []  # by rank
        self._steps = self._run_tokens = self._new_tokens = self._preemptions = 0
        self._prompt_tokens = self._cached_tokens = 0

    def add(self, prompt: Prompt, params: SamplingParams | None = None, **how: Any) -> int:
        """Take a request, as `prepare` does, and give its number, which its events carry.

        Raises as `prepare` does, and `QueueFull` where too many wait.
        """
        request = self.prepare(prompt, params, **how)
        self.enqueue([request])
        return request.id

    def prepare(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        n: int = 1,
        adapters: Wish = None,
        priority: int = 0,
        graphemes: bool = False,
        speculate: Any = None,
        **overrides: Any,
    ) -> Request:
        """All of `add` that takes time, tokenizing among it: a request for `enqueue`, which holds nobody up.

        prompt: text, ids or what `LLM.chat_prompt` gives. n: so many answers, with the seed, the seed + 1, and so on;
        the prompt is run once. priority: the lower goes first. graphemes, speculate: as in `LLM.stream`; a text is
        drafted while it is alone in its steps, since rows of others, which are sure to count, fill them as well as
        drafts. `overrides` are fields of SamplingParams. Raises as `LLM.stream` does.
        """
        llm = self.llm
        _check("n", n, 1, None)
        if type(priority) is not int:
            raise BadRequest(f"priority should be a whole number, found {priority!r}", "priority")
        ids, params = llm.prompt_ids(prompt), llm.resolved_params(params, **overrides)
        if params.context_full != "stop":
            raise BadRequest("only a session's texts can outgrow the context, not those of an engine", "context_full")
        if len(ids) > self.context:
            both = f"{len(ids):,} tokens, more than the {self.context:,} that the key-value cache may hold"
            raise ContextOverflow(f"the prompt has {both}", "prompt")
        chosen, drafter = llm.adapters.chosen(adapters), llm.chosen_drafter(speculate)
        seeds = [params.with_overrides(seed=params.seed + i) for i in range(n)]
        asked = prompt if isinstance(prompt, ChatPrompt) else ids
        answers = [llm.new_answer(asked, each, self.context, graphemes) for each in seeds]
        id = next(self._ids)
        first, *others = (
            Request(id, index, answer, CachedSequence(llm.model, self._cache.sequence()), chosen, priority)
            for index, answer in enumerate(answers)
        )
        for request in (first, *others) if drafter else ():
            request.speculation = Speculation(drafter, request.answer, llm.stop_ids)
        first.siblings = others
        return first

    def enqueue(self, requests: Sequence[Request]) -> None:
        """Let prepared requests wait for their turns: all of them, or none and `QueueFull`."""
        with self._lock:
            if self._most_waiting is not None:
                room = self._most_waiting + self._free_slots - len(self._waiting)
                if len(requests) > room:
                    raise QueueFull(f"{len(self._waiting)} requests wait already: there is no room for {len(requests)}")
            for request in requests:
                insort(self._waiting, request, key=_rank)

    def cancel(self, id: int) -> None:
        """Forget a request: at the next step it gives back all it has. One that is done or unknown is no error."""
        with self._lock:
            self._cancelled.add(id)

    @property
    def busy(self) -> bool:
        """Whether a step has anything to do."""
        return bool(self._running or self._waiting)

    @property
    def load(self) -> Load:
        """What the engine is doing now, and what it has done."""
        pool = max(self._cache.pools, key=lambda pool: pool.num_used)
        tables = (request.held.sequence.tables[self._cache.pools.index(pool)] for request in list(self._running))
        held = sum(len(table.blocks) for table in tables) * self._cache.block_size
        filled = sum(request.held.sequence.length for request in list(self._running)) if pool.window is None else held
        evicted = self._prefixes.counts.evicted_blocks if self._prefixes else 0
        return Load(
            len(self._running), len(self._waiting), pool.num_used, pool.num_idle, pool.most_blocks,
            max(held - filled, 0), self._cache.nbytes, self._steps, self._run_tokens, self._new_tokens,
            self._prompt_tokens, self._cached_tokens, evicted, self._preemptions,
        )  # fmt: skip

    def generate_many(
        self, prompts: Iterable[Prompt], params: SamplingParams | None = None, **overrides: Any
    ) -> list[Completion]:
        """Answer many prompts; the completions come in the order of the prompts.

        Raises what any of them raises, after which nothing of the others is left, and `BadRequest` where the engine has
        other requests, whose events would go.
        """
        if self.busy or self._runner:
            raise BadRequest("generate_many needs an engine that has nothing else to do, and no thread of its own")
        if isinstance(prompts, str | ChatPrompt):  # a text's characters are texts as well
            raise BadRequest("generate_many takes a list of prompts, found a single one", "prompts")
        if "n" in overrides:
            raise BadRequest("generate_many gives one completion for each prompt; for more, give it more often", "n")
        wanted: list[int] = []
        done: dict[int, Completion] = {}
        try:
            for prompt in prompts:
                wanted.append(self.add(prompt, params, **overrides))
            while len(done) < len(wanted):
                for event in self.step_now(in_no_hurry=True):
                    if event.error and event.id in wanted:
                        raise event.error
                    if event.piece and event.piece.completion:
                        done[event.id] = event.piece.completion
        finally:
            for id in wanted:
                if id not in done:
                    self.cancel(id)
            self._drop_cancelled()
        return [done[id] for id in wanted]

    def step(self) -> list[Event]:
        """Run one step for whoever has a turn; gives what it brought, in order. Without anyone it does nothing.

        Raises `BadRequest` once the engine has a thread of its own, which `stream` gives it.
        """
        if self._runner:
            raise BadRequest("the engine runs in a thread of its own: it can't be stepped from another")
        return self.step_now()

    @property
    def runner(self) -> Runner:
        """The thread that steps the engine from now on."""
        with self._lock:
            if self._runner is None:
                self._runner = Runner(self)
            return self._runner

    def stream(self, *prompt: Any, **how: Any) -> AsyncIterator[Piece]:
        """Answer a request, as `add` takes it, in an event loop: `async for piece in engine.stream("Hello")`.

        Any number of them run at once. Whoever stops reading cancels the request.
        """
        return self.runner.stream(*prompt, **how)

    def close(self, finish: bool = True) -> None:
        """End the thread, where there is one, when what runs is done; without `finish` at once."""
        if self._runner:
            self._runner.close(finish)

    def step_now(self, in_no_hurry: bool = False) -> list[Event]:
        """`step`, for the thread that may; `in_no_hurry` where nobody waits for pieces, but for the end of it all."""
        self._drop_cancelled()
        events = self._admit() + self._without_adapters()
        parts = self._parts(in_no_hurry)
        if len(parts) == 1 and parts[0].request.drafts:
            events += self._drafted(parts[0].request)
        elif parts:
            start = time.perf_counter()
            decoding = sum(part.request.decodes for part in parts)
            logits = self.llm.model.forward([part.request.chunk(part.ids, part.text_length) for part in parts])
            self._note(decoding, sum(len(part.ids) for part in parts), time.perf_counter() - start)
            events += self._answers(parts, logits)
        self._running = [request for request in self._running if not request.done]
        return events

    # ---- who takes part

    @property
    def _free_slots(self) -> int:
        return max(self.slots - len(self._running), 0)

    def _drop_cancelled(self) -> None:
        with self._lock:
            gone, self._cancelled = self._cancelled, set()
            self._waiting = [request for request in self._waiting if request.id not in gone]
        for request in self._running:
            if request.id in gone:
                request.release()
        self._running = [request for request in self._running if request.id not in gone]

    def _admit(self) -> list[Event]:
        """Let those who wait begin, in their order, while there are slots, and blocks for all of their text."""
        events = []
        while self._free_slots and (request := self._next_waiting()):
            if not request.answer.going and not request.reads_prompt:  # not one token is asked for
                events += [each.finish() for each in (request, *request.siblings)]
                continue
            request.begin(self._prefixes)
            if self._running and not request.held.sequence.has_room(request.pending + 1):
                self._put_back(request)
                break
            insort(self._running, request, key=_rank)
        return events

    def _without_adapters(self) -> list[Event]:
        """What goes through an adapter that was unloaded meanwhile ends."""
        gone = [request for request in self._running if not self.llm.model.has(request.adapters)]
        self._running = [request for request in self._running if request not in gone]
        return [request.fail(BadRequest("an adapter of this request was unloaded", "adapters")) for request in gone]

    def _next_waiting(self) -> Request | None:
        with self._lock:
            return self._waiting.pop(0) if self._waiting else None

    def _put_back(self, request: Request) -> None:
        request.release()
        with self._lock:
            insort(self._waiting, request, key=_rank)

    def _parts(self, in_no_hurry: bool) -> list[Part]:
        """Who runs what: answers first, each its newest token, then prompts as far as the step's budget goes."""
        for request in self._running:
            request.outgrow()
            if request.waited:
                request.begin_again(self._prefixes)
        decoding = [request for request in self._running if request.decodes]
        left = self._step_tokens - len(decoding)
        if not in_no_hurry:
            left = self._pace.prompt_tokens(len(decoding), left)
        parts = []
        for request in decoding + [request for request in self._running if not request.decodes]:
            most = 1 if request.decodes else min(request.pending, left)
            request.waited = not request.decodes and self._is_run_by(parts, request)
            if most and not request.waited and request in self._running and self._has_blocks(request, most):
                part = Part(request, *request.next_ids(most))
                request.held.sequence.reserve(len(part.ids))
                left -= 0 if request.decodes else len(part.ids)
                parts.append(part)
        return [part for part in parts if part.request in self._running]

    def _is_run_by(self, parts: list[Part], request: Request) -> bool:
        """Whether a step of these parts leaves something that a prompt would run as well."""
        return self._prefixes is not None and any(request.finds_soon(part, self._cache.block_size) for part in parts)

    def _has_blocks(self, request: Request, count: int) -> bool:
        """Whether there are blocks for its tokens, if need be those of requests whose turn is later."""
        while not request.held.sequence.has_room(count):
            last = self._running.pop()
            self._preemptions += 1
            self._put_back(last)
            if last is request:
                return False
        return True

    # ---- what came of it

    def _note(self, decoding: int, tokens: int, seconds: float) -> None:
        self._pace.note(decoding, tokens - decoding, seconds)
        self._steps += 1
        self._run_tokens += tokens

    def _answers(self, parts: list[Part], logits: np.ndarray) -> list[Event]:
        """Draw the next token of each request whose text has all been run."""
        events, row = [], 0
        for request, ids, length in parts:
            count = len(ids) if request.reads_prompt else 1
            rows, row = logits[row : row + count], row + count
            request.fed(ids, length, rows, self._prefixes)
            if request.pending:
                continue
            branches = request.branch()
            events += self._drawn(request, rows[-1])
            for sibling in branches:
                events += self._drawn(sibling, rows[-1])
                if not sibling.done:
                    self._make_room_for(sibling)
        return events

    def _drawn(self, request: Request, logits: np.ndarray) -> list[Event]:
        if not request.answer.ids:
            self._prompt_tokens += len(request.answer.prompt_ids)
            self._cached_tokens += request.answer.cached_tokens
        events = request.draw(logits)
        self._new_tokens += sum(event.piece is not None and bool(event.piece.ids) for event in events)
        return events

    def _drafted(self, request: Request) -> list[Event]:
        """A step of one text alone, several tokens at once where its draft is right."""
        before = len(request.answer.ids)
        events = request.speculate(self._prefixes)
        self._steps += 1
        self._new_tokens += len(request.answer.ids) - before
        self._run_tokens += len(request.answer.ids) - before
        return events

    def _make_room_for(self, sibling: Request) -> None:
        if self._free_slots:
            insort(self._running, sibling, key=_rank)
        else:
            self._put_back(sibling)

    def _limited(self, kv_cache_bytes: int | None) -> int:
        """Tokens that one text may have, given what the cache may take."""
        if kv_cache_bytes is None:
            kv_cache_bytes = usual_cache_bytes(self._cache, self.llm.context)
        _check("kv_cache_bytes", kv_cache_bytes, self._cache.block_bytes, None)
        return min(self.llm.context, self._cache.limit(kv_cache_bytes))


def _rank(request: Request) -> tuple[int, int, int]:
    return request.rank


def _check(name: str, value: int, least: int, most: int | None) -> None:
    if type(value) is not int or value < least or (most is not None and value > most):
        limits = f"from {least:,}" if most is None else f"from {least:,} to {most:,}"
        raise BadRequest(f"{name} should be a whole number {limits}, found {value!r}", name)
