"""The engine in a thread of its own: event loops, threads, readers that go away, and closing."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from tests.engine.test_engine import llm_of, nothing_is_held, text
from tinyinfer.engine import Engine, Event, Runner
from tinyinfer.errors import BadRequest, QueueFull, TinyinferError


@pytest.fixture
def engine():
    engine = Engine(llm_of(), slots=3)
    yield engine
    engine.close(finish=False)


def settled(engine: Engine) -> bool:
    """Wait until the thread has nothing to do."""
    end = time.monotonic() + 20
    while engine.busy and time.monotonic() < end:
        time.sleep(0.01)
    return not engine.busy


async def ids_of(engine: Engine, prompt: list[int], **how) -> list[int]:
    return [id async for piece in engine.stream(prompt, **how) for id in piece.ids]


def test_streams_side_by_side_give_what_they_give_alone(engine: Engine):
    async def main() -> list[list[int]]:
        return await asyncio.gather(*(ids_of(engine, text(3 + n, n), max_tokens=9) for n in range(7)))

    assert asyncio.run(main()) == [llm_of().generate(text(3 + n, n), max_tokens=9).ids for n in range(7)]
    assert nothing_is_held(engine)


def test_who_stops_reading_cancels(engine: Engine):
    async def main() -> None:
        async for piece in engine.stream(text(5), max_tokens=400, ignore_eos=True):
            if piece.ids:
                break

    asyncio.run(main())
    assert settled(engine)
    assert nothing_is_held(engine)
    assert engine.load.new_tokens < 400


def test_several_answers_come_as_events(engine: Engine):
    async def main() -> list[Event]:
        return [event async for event in engine.runner.events(text(5), n=3, max_tokens=4, temperature=1.0, seed=1)]

    events = asyncio.run(main())
    found = {event.index: event.piece.completion.ids for event in events if event.piece.completion}
    expected = [llm_of().generate(text(5), max_tokens=4, temperature=1.0, seed=1 + i).ids for i in range(3)]
    assert found == dict(enumerate(expected))


def test_errors_come_where_they_belong(engine: Engine):
    async def main() -> None:
        with pytest.raises(BadRequest):
            await ids_of(engine, text(5), top_p=7)
        with pytest.raises(TinyinferError):
            await ids_of(engine, text(5), processors=(lambda ids, logits: logits * float("nan"),))
        assert len(await ids_of(engine, text(5), max_tokens=2)) == 2

    asyncio.run(main())


def test_once_it_has_a_thread_nobody_else_steps_it(engine: Engine):
    assert engine.runner is engine.runner
    with pytest.raises(BadRequest, match="thread of its own"):
        engine.step()


def test_a_fault_in_a_step_is_told_to_all_who_wait(engine: Engine, monkeypatch: pytest.MonkeyPatch):
    forward = engine.llm.model.forward
    monkeypatch.setattr(engine.llm.model, "forward", lambda chunks: 1 / 0)

    async def main() -> None:
        found = await asyncio.gather(*(ids_of(engine, text(5), max_tokens=2) for _ in range(4)), return_exceptions=True)
        assert all("ZeroDivisionError" in str(error) for error in found)
        monkeypatch.setattr(engine.llm.model, "forward", forward)
        assert len(await ids_of(engine, text(5), max_tokens=2)) == 2

    asyncio.run(main())
    assert nothing_is_held(engine)


@pytest.mark.parametrize("finish", [True, False])
def test_closing_finishes_what_runs_or_drops_it(finish: bool):
    runner = Runner(Engine(llm_of(), slots=2))
    ended = threading.Event()
    events: list[Event] = []

    def listener(event: Event) -> None:
        events.append(event)
        if event.piece.completion:
            ended.set()

    runner.submit(listener, text(4), max_tokens=100, ignore_eos=True)
    runner.close(finish=finish)
    assert ended.is_set() == finish
    assert not runner._thread.is_alive()
    with pytest.raises(QueueFull, match="closing"):
        runner.submit(listener, text(4))


def test_closing_takes_no_longer_than_it_may():
    runner = Runner(Engine(llm_of()))
    runner.submit(lambda event: None, text(4), max_tokens=500, ignore_eos=True)
    runner.close(timeout=0.01)
    assert not runner._thread.is_alive()


def test_a_listener_that_fails_ends_its_own_request_alone(engine: Engine):
    def broken(event: Event) -> None:
        raise RuntimeError("gone")

    engine.runner.submit(broken, text(4), max_tokens=300, ignore_eos=True)
    assert asyncio.run(ids_of(engine, text(6), max_tokens=5)) == llm_of().generate(text(6), max_tokens=5).ids
    assert settled(engine)
    assert nothing_is_held(engine)
