"""A team of threads: all join in, each piece is done once, an idle team sleeps; callers, forks and errors are safe."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.kernels.tapes import TEAMS, run_by
from tests.tiny_models import random_model, random_runtime, write_model
from tinyinfer.cache import KVCache
from tinyinfer.errors import BadRequest
from tinyinfer.kernels import threads
from tinyinfer.kernels.tape import use_compiled
from tinyinfer.kernels.threads import FIRST_PAUSE, HELD_UP, LAST_PAUSE, MOST_THREADS, SMALL_STEP, Team, team_of
from tinyinfer.lab.machine import CALLS
from tinyinfer.model.forward import Chunk, Model

SIZES = [1, 2, 3, 5]
PATIENCE = 30.0  # seconds, for what takes microseconds on a machine that is not busy


def until(condition: Callable[[], bool]) -> bool:
    """Wait for a condition; whether it came true."""
    end = time.monotonic() + PATIENCE
    while not condition() and time.monotonic() < end:
        time.sleep(0.001)
    return condition()


class Roll:
    """A job that ends once as many threads as expected are in it together."""

    def __init__(self, expected: int):
        self.expected, self.names = expected, set()

    def __call__(self, thread: int = 0) -> None:
        self.names.add(threading.current_thread().name)
        assert until(lambda: len(self.names) >= self.expected)


class Pieces:
    """A job as a tape is one: pieces are claimed from a counter, and the last one in waits for all."""

    def __init__(self, count: int):
        self.done, self.count, self._lock, self._next = [], count, threading.Lock(), 0

    def __call__(self, thread: int = 0) -> None:
        while True:
            with self._lock:
                piece, self._next = self._next, self._next + 1
            if piece >= self.count:
                break
            self.done.append(piece)
        assert until(lambda: len(self.done) == self.count)


def own_threads() -> int:
    return sum(thread.name.startswith("tinyinfer-") for thread in threading.enumerate())


# ---- jobs


@pytest.mark.parametrize("size", SIZES)
def test_everyone_joins_in_while_awake_and_after_sleep(size: int):
    team = Team(size)
    for pause in (0, 0, 0.001, 0.05, 0, 0.3):
        time.sleep(pause)
        roll = Roll(size)
        team.run(roll)
        assert len(roll.names) == size
        assert threading.current_thread().name in roll.names


@pytest.mark.parametrize("size", SIZES)
def test_each_piece_is_done_once(size: int):
    team = Team(size)
    for count in (0, 1, 2, 7, 100) * 20:
        job = Pieces(count)
        team.run(job)
        assert sorted(job.done) == list(range(count))


def test_a_thread_has_the_same_number_whatever_the_job():
    team, numbers = Team(4), {}
    for _ in range(20):
        roll = Roll(4)

        def job(thread: int, roll=roll) -> None:
            numbers.setdefault(threading.current_thread().name, set()).add(thread)
            roll()

        team.run(job)
    assert numbers[threading.current_thread().name] == {0}
    assert sorted(map(sorted, numbers.values())) == [[0], [1], [2], [3]]


def test_a_team_of_one_starts_no_threads():
    before = threading.active_count()
    Team(1).run(Roll(1))
    assert threading.active_count() == before


def test_threads_are_started_once_however_many_callers_come_first():
    team, before, jobs = Team(3), own_threads(), [Pieces(50) for _ in range(8)]
    callers = [threading.Thread(target=team.run, args=(job,)) for job in jobs]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(PATIENCE)
    assert all(sorted(job.done) == list(range(50)) for job in jobs)
    assert own_threads() == before + 2


def test_what_a_job_holds_is_let_go():
    """A sleeping thread must not keep the cache of a conversation that is over."""

    class Arrays:
        pass

    team, held = Team(3), Arrays()
    gone, roll = weakref.ref(held), Roll(3)
    team.run(lambda thread, held=held: roll())
    del held
    assert until(lambda: gone() is None)


def test_an_idle_team_costs_nothing():
    team = Team(3)
    team.run(Roll(3))
    time.sleep(0.2)  # it looks out for more for a moment, longer where others take the cores
    before = time.process_time()
    time.sleep(1)
    assert time.process_time() - before < 0.05


# ---- errors


def test_an_error_is_the_callers_and_the_team_goes_on():
    team = Team(3)

    def wrong(thread: int) -> None:
        raise MemoryError("no room")

    for _ in range(20):
        with pytest.raises(MemoryError, match="no room"):
            team.run(wrong)
    roll = Roll(3)
    team.run(roll)
    assert len(roll.names) == 3


def test_ctrl_c_before_the_callers_part_leaves_nothing_half_done(monkeypatch: pytest.MonkeyPatch):
    """Others may have begun; if the caller went away, they would write into buffers that the next step uses."""
    team, job = Team(3), Pieces(100)
    offer = team._offer

    def interrupted(work: Callable[[int], None], size: int) -> None:
        offer(work, size)
        raise KeyboardInterrupt

    monkeypatch.setattr(team, "_offer", interrupted)
    with pytest.raises(KeyboardInterrupt):
        team.run(job)
    assert sorted(job.done) == list(range(100))


def test_where_the_system_gives_no_threads_the_caller_works_alone(monkeypatch: pytest.MonkeyPatch):
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    team = Team(3)
    for _ in range(3):
        job = Pieces(20)
        team.run(job)
        assert sorted(job.done) == list(range(20))


# ---- how many threads


@pytest.mark.parametrize("value", ["1", "2", "7", "0003", str(MOST_THREADS)])
def test_the_environment_says_how_many(monkeypatch: pytest.MonkeyPatch, value: str):
    monkeypatch.setenv("TINYINFER_THREADS", value)
    assert team_of().size == int(value)
    assert team_of(5).size == 5  # who asks for a number gets it


@pytest.mark.parametrize("value", ["", "0", "-1", "1.5", "two", " 2", "2 ", "1_0", "²", "２", "1025", "9" * 5000])
def test_other_values_are_refused(monkeypatch: pytest.MonkeyPatch, value: str):
    monkeypatch.setenv("TINYINFER_THREADS", value)
    with pytest.raises(BadRequest, match="TINYINFER_THREADS should be a whole number from 1 to 1024, found") as caught:
        team_of()
    assert len(str(caught.value)) < 200
    assert caught.value.parameter == "TINYINFER_THREADS"


@pytest.mark.parametrize("value", [0, -1, MOST_THREADS + 1, 2.0, "2", True, "9" * 5000])
def test_numbers_that_are_none_are_refused(value):
    with pytest.raises(BadRequest, match="threads should be a whole number from 1 to 1024, found") as caught:
        team_of(value)
    assert len(str(caught.value)) < 200
    assert caught.value.parameter == "threads"


def test_a_model_is_told_at_once_of_a_wrong_number(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TINYINFER_THREADS", "two")
    with pytest.raises(BadRequest, match="TINYINFER_THREADS"):
        Model(*random_runtime())


def test_who_asks_for_the_same_number_shares_a_team():
    assert team_of(3) is team_of(3)


# ---- with fewer threads while others keep the cores busy


def held_up(team: Team, rows: int = 1, share: float = 2 * HELD_UP) -> None:
    """Tell a team that a step of a second spent that share of it in waiting."""
    team.note(rows, int(share * team.ticks(1.0)), 1.0)


def test_a_team_that_was_held_up_does_with_a_thread_less_for_a_while(monkeypatch: pytest.MonkeyPatch):
    team, clock = Team(3), [100.0]
    held_up(team, share=HELD_UP / 2)
    assert team.size_for(1) == 3
    monkeypatch.setattr(threads.time, "perf_counter", lambda: clock[0])
    team._rate = 1e9
    held_up(team)
    assert (team.size_for(1), team.size_for(SMALL_STEP), team.size_for(SMALL_STEP + 1)) == (2, 2, 3)
    held_up(team)
    held_up(team)
    assert team.size_for(1) == 1  # never without the caller
    clock[0] += 1
    assert [team.size_for(1), team.size_for(1)] == [2, 2]  # back, one at a time
    clock[0] += 1
    assert team.size_for(1) == 3


def test_the_more_often_it_is_held_up_the_longer_it_does_without(monkeypatch: pytest.MonkeyPatch):
    team, clock, pauses = Team(2), [100.0], []
    monkeypatch.setattr(threads.time, "perf_counter", lambda: clock[0])
    team._rate = 1e9
    for _ in range(8):
        held_up(team)
        pauses.append(team._until - clock[0])
        clock[0] += 1
        assert team.size_for(1) == 2
    assert pauses[0] == pytest.approx(FIRST_PAUSE)
    assert pauses == sorted(pauses)
    assert pauses[-1] == pytest.approx(LAST_PAUSE)
    for _ in range(100):
        held_up(team, share=0)
    held_up(team)
    assert team._until - clock[0] == pytest.approx(FIRST_PAUSE)


def test_large_steps_say_nothing():
    team = Team(2)
    held_up(team, rows=SMALL_STEP + 1)
    assert team.size_for(1) == 2


def test_only_so_many_take_part():
    team = Team(4)
    for size in (4, 2, 1, 3):
        names = set()

        def job(thread: int, names=names) -> None:
            names.add(threading.current_thread().name)
            time.sleep(0.1)

        team.run(job, size)
        time.sleep(0.05)
        assert len(names) == size


# ---- models


def greedy(model: Model, seed: int, count: int = 12) -> list[int]:
    """Ids that follow a random prompt, in a cache of its own."""
    sequence = KVCache(model.config).sequence()
    ids, told = np.random.default_rng(seed).integers(0, 97, 20), []
    for _ in range(count):
        told.append(int(model.forward([Chunk(sequence, ids)])[0].argmax()))
        ids = np.array(told[-1:])
    return told


@pytest.mark.parametrize("size", TEAMS)
def test_any_number_of_threads_says_the_same(monkeypatch: pytest.MonkeyPatch, size: int):
    run_by(monkeypatch, None)
    expected = greedy(Model(*random_runtime()), 1)
    run_by(monkeypatch, size)
    assert greedy(Model(*random_runtime(), threads=size), 1) == expected


def test_a_thread_that_comes_late_writes_only_to_rows_of_its_own(monkeypatch: pytest.MonkeyPatch):
    """It may be anywhere in a step that is over, while the others are at another one."""
    model = Model(*random_runtime(), threads=3)
    tape, works = model._tape, []

    def alone(work: Callable[[int], None], size: int) -> None:
        works.append(work)
        work(0)

    monkeypatch.setattr(tape._team, "run", alone)
    sequence = KVCache(model.config).sequence()
    told = [model.forward([Chunk(sequence, np.array(ids))]) for ids in ([5, 6, 7, 8, 9, 10], [11], [12, 13], [14])]

    def shared() -> list[np.ndarray]:
        pools = [array for pool in sequence.cache.pools for array in (pool.keys, pool.values)]
        return [array[: tape.most_rows].copy() for array in tape._kept] + [array.copy() for array in [*pools, *told]]

    before = shared()
    for work in works:
        for thread in (1, 2):
            work(thread)
    assert all(np.array_equal(one, other, equal_nan=True) for one, other in zip(before, shared(), strict=True))


@pytest.mark.parametrize("size", [1, 2, 3])
def test_python_threads_that_generate_at_once_say_what_they_say_alone(monkeypatch: pytest.MonkeyPatch, size: int):
    """One model for some, another for others, one team for all."""
    run_by(monkeypatch, size)
    models = [Model(*random_runtime(seed), threads=size) for seed in (0, 1)]
    alone = [greedy(models[i % 2], i) for i in range(6)]
    together: dict[int, list[list[int]]] = {}

    def generate(i: int) -> None:
        together[i] = [greedy(models[i % 2], i) for _ in range(3)]

    callers = [threading.Thread(target=generate, args=(i,), daemon=True) for i in range(6)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(PATIENCE)
    assert together == {i: [ids] * 3 for i, ids in enumerate(alone)}


# ---- processes


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("threads") / "model"
    write_model(place, *random_model())
    return place


def run_script(tmp_path: Path, folder: Path, script: str, **environment: str) -> list[str]:
    """Lines that a program prints; it may not take longer than any hang."""
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(START) + textwrap.dedent(script))
    command = [sys.executable, "-W", "ignore", str(program), str(folder)]
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


COMPILED = """
    from tinyinfer.kernels.memory import count_up, wait_for
    from tinyinfer.kernels.probe import sum_pieces
    from tinyinfer.kernels.run import run
    from tinyinfer.kernels.threads import team_of
    from tinyinfer.lab.machine import ReadProbe

    kernels = run, count_up, wait_for
    before = [len(kernel.signatures) for kernel in kernels]
    say()
    print(all(before), before == [len(kernel.signatures) for kernel in kernels])
    team = team_of()
    team.run = lambda work: print(len(sum_pieces.signatures))
    ReadProbe(team, 1).rate()
"""


@pytest.mark.skipif(not use_compiled(), reason="NumPy has threads of its own")
def test_what_a_team_runs_was_compiled_before(tmp_path: Path, folder: Path):
    """Numba's locks do not survive a Ctrl-C while threads wait for each other to compile."""
    assert run_script(tmp_path, folder, COMPILED, TINYINFER_THREADS="2") == ["True True", *["1"] * CALLS]


START = """
    import os, signal, sys, threading, time
    import tinyinfer

    llm = tinyinfer.load(sys.argv[1])

    def say(prompt=(1, 2, 3)):
        return llm.generate(list(prompt), max_tokens=8, ignore_eos=True, temperature=0).ids

    def own_threads():
        return sum(thread.name.startswith("tinyinfer-") for thread in threading.enumerate())
"""


@pytest.mark.parametrize("size", SIZES)
def test_a_process_has_the_threads_that_it_was_told(tmp_path: Path, folder: Path, size: int):
    script = "said = say(); print(said, own_threads())"
    alone, told = (run_script(tmp_path, folder, script, TINYINFER_THREADS=str(n))[0] for n in (1, size))
    assert told.rsplit(" ", 1) == [alone.rsplit(" ", 1)[0], str(size - 1)]


FORKS = """
    said = say()
    on = True

    def busy():
        while on:
            say([5, 6])

    others = [threading.Thread(target=busy) for _ in range(BUSY)]
    for other in others:
        other.start()
    for turn in range(20):
        time.sleep(0.003)
        child = os.fork()
        if not child:
            signal.alarm(30)  # which ends a child that hangs
            os._exit(0 if say() == said and own_threads() == 2 else 1)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    on = False
    for other in others:
        other.join()
    print(say() == said)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
@pytest.mark.parametrize("busy", [0, 1, 2])
def test_a_forked_child_says_the_same(tmp_path: Path, folder: Path, busy: int):
    """Also where it was forked while other threads had a forward pass half done."""
    script = textwrap.dedent(FORKS).replace("BUSY", str(busy))
    assert run_script(tmp_path, folder, script, TINYINFER_THREADS="3") == ["0"] * 20 + ["True"]


PROCESSES = """
    import multiprocessing

    if __name__ == "__main__":
        said = say()
        with multiprocessing.get_context("METHOD").Pool(2) as pool:
            print([answer == said for answer in pool.map_async(say, [(1, 2, 3)] * 4).get(60)])
        print(say() == said)
"""


@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_processes_say_the_same(tmp_path: Path, folder: Path, method: str):
    if method not in __import__("multiprocessing").get_all_start_methods():
        pytest.skip(f"the system has no {method}")
    script = textwrap.dedent(PROCESSES).replace("METHOD", method)
    assert run_script(tmp_path, folder, script, TINYINFER_THREADS="3") == [str([True] * 4), "True"]


INTERRUPTS = """
    said, count = say(), 0
    for turn in range(60):
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.0004 * (turn + 1))
            for _ in range(1000):
                say([5, 6])
        except KeyboardInterrupt:
            count += 1
        if say() != said:
            print("another answer after an interrupt")
    print(count)
"""


@pytest.mark.skipif(not hasattr(__import__("signal"), "setitimer"), reason="the system has no such timer")
def test_ctrl_c_at_any_moment_does_not_spoil_what_comes_next(tmp_path: Path, folder: Path):
    assert run_script(tmp_path, folder, INTERRUPTS, TINYINFER_THREADS="3") == ["60"]


def test_an_end_while_others_are_at_work(tmp_path: Path, folder: Path):
    """A process ends though a thread of the caller's, a daemon, is in the middle of a step."""
    script = """
        def busy():
            while True:
                say([5, 6])

        say()
        threading.Thread(target=busy, daemon=True).start()
        time.sleep(0.1)
        print("done")
    """
    assert run_script(tmp_path, folder, textwrap.dedent(script), TINYINFER_THREADS="3") == ["done"]
