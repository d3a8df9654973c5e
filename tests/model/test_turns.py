from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable

import pytest

from tests.server.served import wait_for
from tinyinfer.model.turns import Turns

LONG = 60.0  # seconds of grace: whoever has used less always comes back in time


class Clock:
    """Time that passes as it is told to."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


class One:
    """Somebody who takes turns; each takes so long."""

    def __init__(self, turns: Turns, clock: Clock, seconds: float):
        self.turns, self.clock, self.seconds = turns, clock, seconds

    def take(self, note: Callable[[One], None]) -> None:
        with self.turns.turn(self):
            self.clock.now += self.seconds
            note(self)


def order(seconds: dict[str, float], count: int) -> str:
    """Who had the first `count` turns, where all want one turn after another, and the first waits for the others."""
    clock = Clock()
    turns, log, stop = Turns(clock, LONG), [], threading.Event()
    names = {One(turns, clock, each): name for name, each in seconds.items()}

    def note(one: One) -> None:
        log.append(names[one])
        if len(log) >= count:
            stop.set()

    def run(one: One) -> None:
        while not stop.is_set():
            one.take(note)

    with turns.turn(One(turns, clock, 0)):  # until all of them wait
        threads = []
        for one in names:
            threads.append(threading.Thread(target=run, args=[one], daemon=True))
            threads[-1].start()
            wait_for(lambda: len(turns._waiting) == len(threads))
    wait_for(stop.is_set)
    return "".join(log[:count])


def test_equals_take_turns():
    assert order({"a": 1, "b": 1, "c": 1}, 9) == "abcabcabc"


def test_time_is_shared_not_steps():
    # a long step is paid back by as many short ones; those who have used the same go in the order they came
    found = order({"a": 1, "b": 5}, 24)
    assert found[:12] in ("abaaaaabaaaa", "abaaaabaaaaa")
    assert 18 <= found.count("a") <= 21  # five of six, but for the last round


def test_who_was_away_has_saved_nothing():
    clock = Clock()
    turns, log = Turns(clock, grace=0), []
    busy, late = One(turns, clock, 1), One(turns, clock, 1)
    for one in (late, *[busy] * 50, late):
        one.take(log.append)
    assert turns._shares[busy].used == 50
    assert turns._shares[late].used == 50  # as if it had been there: in the last one's turn, and its own


def test_nobody_waits_long_for_one_that_is_gone():
    clock = Clock()
    turns = Turns(clock, grace=0.01)
    short, long, log = One(turns, clock, 1), One(turns, clock, 100), []
    short.take(log.append)
    for _ in range(3):  # it has used more than the other, which comes no more
        long.take(log.append)
    assert log == [short, long, long, long]


def test_several_threads_of_one_wait_in_line():
    clock = Clock()
    turns, log = Turns(clock, LONG), []
    one = One(turns, clock, 1)
    with turns.turn(one):
        threads = []
        for number in range(4):
            threads.append(threading.Thread(target=one.take, args=[lambda _, number=number: log.append(number)]))
            threads[-1].start()
            wait_for(lambda: len(turns._waiting) == len(threads))
    for thread in threads:
        thread.join(30)
    assert log == [0, 1, 2, 3]


def test_an_error_gives_the_turn_back_and_what_is_gone_is_forgotten():
    turns, clock = Turns(), Clock()
    one = One(turns, clock, 1)
    with pytest.raises(KeyboardInterrupt), turns.turn(one):
        raise KeyboardInterrupt
    one.take(lambda _: None)
    del one
    gc.collect()
    assert len(turns._shares) == 0
    assert turns._waiting == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_does_not_wait_for_a_thread_that_it_has_not():
    turns, clock = Turns(), Clock()
    one, held, done = One(turns, clock, 1), threading.Event(), threading.Event()

    def hold(_: One) -> None:
        held.set()
        done.wait(30)

    thread = threading.Thread(target=one.take, args=[hold])
    thread.start()
    held.wait(30)
    child = os.fork()
    if child == 0:
        one.take(lambda _: os._exit(7))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    done.set()
    thread.join(30)
