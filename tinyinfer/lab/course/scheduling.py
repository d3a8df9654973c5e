"""Who shares a step: batches that wait for their longest answer, or requests that join and leave at every step.

What is compared. Requests come all at once, or by chance (a Poisson process) at a share of what continuous batching can
just serve. A static engine takes those who wait when it is free, SLOTS at most, runs all of them to the longest answer,
as padding does, and gives them their answers when the batch ends; a continuous one gives each its answer when that is
done. Latency runs from when a request comes to when it has its whole answer, so waiting for a turn counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ...cached_sequence import CachedSequence
from ...engine import Engine
from ...llm import LLM
from ..bench import Decode, Prefill
from ..timing import in_turn, seconds
from .finding import Drawing, Finding, Table
from .setting import Setting
from .workload import LONGEST, REQUESTS, answer_lengths, prompt_lengths, random_ids

SLOTS = 8
DEPTH = 32  # tokens before a step whose time is measured: about the middle of a short answer
QUICK = 32  # requests that the engine runs without --full
SIZES = (1, 2, 4, 8)  # sequences in the steps that are timed without it
ADDED = (0.02, 0.1, 0.3, 0.7)  # to the time of a step by each further sequence
LOADS = (0.3, 0.7, 0.9)  # of what continuous batching can just serve
REALLY = LOADS[1:]  # those that the engine runs too, where there is time
WIDER = 16  # slots, to compare
COURSE_THROUGHPUT, COURSE_LATENCY = 1.6, 10  # the second is "over"


@dataclass(frozen=True)
class Costs:
    """Seconds of a step for 1, 2, ... SLOTS sequences, and of a prompt's token."""

    steps: Sequence[float]
    prompt_token: float


@dataclass(frozen=True)
class Served:
    """When each request came and when its whole answer was there, in seconds."""

    came: Sequence[float]
    done: Sequence[float]

    @property
    def tokens_per_second(self) -> float:
        """Of all answers, until the last is done."""
        return sum(answer_lengths()[: len(self.done)]) / max(self.done)

    @property
    def latency(self) -> float:
        """Seconds from coming to being answered, in the mean."""
        return float(np.mean(np.subtract(self.done, self.came)))


def measure(setting: Setting) -> Finding:
    """The course's 64 requests in 8 slots: simulated from measured steps, and run by the engine."""
    setting.say("the time of steps")
    costs = measured_costs(setting)
    arrivals = arrivals_for(costs)
    simulated = [(name, *both(came, costs)) for name, came in arrivals.items()]
    requests = REQUESTS if setting.full else QUICK
    really = [("all at once", *run_both(setting, [0.0] * requests))]
    for name, came in list(arrivals.items())[-len(REALLY) :] if setting.full else ():
        really.append((name, *run_both(setting, came)))
    others = _by_step()
    return Finding(
        [
            _table("simulated from the time of steps", simulated),
            _table(f"run by the engine, {'all' if setting.full else 'the first'} {requests} requests", really),
            *([_by_slots(setting, really[0][2]), _overhead(setting)] if setting.full else ()),
            others,
            _against_course(simulated, really),
        ],
        _says(simulated, really, max(max(row[1:]) for row in others.rows)),
        [_drawing(simulated)],
    )


Found = Sequence[tuple[str, Served, Served]]  # how requests come, and how both ways served them


def _faster(found: tuple[str, Served, Served]) -> float:
    """Continuous batching's throughput, in times that of static."""
    return max(found[1].done) / max(found[2].done)


def _slower(found: tuple[str, Served, Served]) -> float:
    """Static batching's mean latency, in times that of continuous."""
    return found[1].latency / found[2].latency


def _against_course(simulated: Found, really: Found) -> Table:
    rows = [
        ("throughput, times that of static, simulated", _faster(simulated[0]), COURSE_THROUGHPUT),
        ("run by the engine", _faster(really[0]), COURSE_THROUGHPUT),
        ("mean latency of static, times that of continuous, at the worst of these arrivals",
         max(map(_slower, simulated)), f"over {COURSE_LATENCY}"),
    ]  # fmt: skip
    return Table("beside the course", ("", "here", "course"), rows)


def _says(simulated: Found, really: Found, elsewhere: float) -> str:
    """`elsewhere` is the largest ratio of latencies on other machines."""
    at_once, worst = simulated[0], max(simulated, key=_slower)
    course = (
        "as the course's does"
        if _slower(worst) > COURSE_LATENCY
        else f"where the course's is over {COURSE_LATENCY}: that takes steps which cost more the more sequences they "
        f"have, by which it is up to {elsewhere:.2g} in the table of other machines"
    )
    return (
        "A static batch runs as long as its longest answer and gives all answers when it ends; a continuous one gives "
        f"a slot to the next request as soon as it is free, and so serves {_faster(at_once):.3g} times as much by the "
        f"time of steps, and {_faster(really[0]):.3g} times as run here ({COURSE_THROUGHPUT} in the course). Where "
        f"all come at once everybody waits in either, {_slower(at_once):.2g} times as long in static batches; where "
        f"more come than these can serve, {1 / _faster(at_once):.0%} of what continuous ones can, their queue only "
        f"grows. The ratio of mean latencies then comes to {_slower(worst):.3g} ({worst[0]}), {course}."
    )


def arrivals_for(costs: Costs) -> dict[str, list[float]]:
    """When requests come: all at once, and at random at shares of what continuous batching can just serve."""
    at_once = [0.0] * REQUESTS
    capacity = REQUESTS / max(continuous(at_once, costs).done)  # requests a second
    return {"all at once": at_once} | {f"at random, {load:.0%} of capacity": poisson(load * capacity) for load in LOADS}


def poisson(rate: float) -> list[float]:
    """When the requests come, at random, so many a second in the mean; the first at 0."""
    gaps = np.random.default_rng(2).exponential(1 / rate, REQUESTS)
    return [0.0, *np.cumsum(gaps)[:-1].tolist()]


def both(came: Sequence[float], costs: Costs) -> tuple[Served, Served]:
    """Static and continuous, simulated."""
    return static(came, costs), continuous(came, costs)


def static(came: Sequence[float], costs: Costs) -> Served:
    """Whoever waits when a batch ends makes the next, of SLOTS at most; all run to the longest of them."""
    lengths, prompts = answer_lengths(), prompt_lengths()
    now, first, done = 0.0, 0, []
    while first < len(came):
        now = max(now, came[first])
        batch = [i for i in range(first, min(first + SLOTS, len(came))) if came[i] <= now]
        now += costs.prompt_token * sum(prompts[i] for i in batch)
        now += costs.steps[len(batch) - 1] * (max(lengths[i] for i in batch) - 1)  # a prompt gives the first token
        done += [now] * len(batch)
        first += len(batch)
    return Served(came, done)


def continuous(came: Sequence[float], costs: Costs) -> Served:
    """At each step those who wait take the free slots; who is done leaves."""
    lengths, prompts = answer_lengths(), prompt_lengths()
    now, first, left, done = 0.0, 0, {}, [0.0] * len(came)
    while first < len(came) or left:
        if not left:
            now = max(now, came[first])
        new = [i for i in range(first, min(first + SLOTS - len(left), len(came))) if came[i] <= now]
        first += len(new)
        now += costs.prompt_token * sum(prompts[i] for i in new)
        now += costs.steps[len(left) - 1] if left else 0.0
        left = {i: count - 1 for i, count in [*left.items(), *((i, lengths[i]) for i in new)]}
        for i in [i for i, count in left.items() if count == 0]:
            done[i] = now
            del left[i]
    return Served(came, done)


def measured_costs(setting: Setting) -> Costs:
    """By the forward passes that `tinyinfer bench` times; on a straight line between sizes that are not timed."""
    random_ids(setting, 40, LONGEST)  # says so where the context is too short
    model = setting.llm.model
    prompt = Prefill(model, DEPTH)
    all_sizes = range(1, SLOTS + 1)
    sizes = all_sizes if setting.full else SIZES
    steps = [Decode(model, DEPTH, size) for size in sizes]
    speed, *speeds = in_turn([prompt.rate, *(step.rate for step in steps)], 5 if setting.full else 2)
    took = [size / one.median for size, one in zip(sizes, speeds, strict=True)]
    return Costs(np.interp(all_sizes, sizes, took).tolist(), 1 / speed.median)


def run_both(setting: Setting, came: Sequence[float]) -> tuple[Served, Served]:
    """Static and continuous, by the engine: the first requests, as many as `came` has."""
    llm = setting.llm
    prompts = [random_ids(setting, length) for length in prompt_lengths()[: len(came)]]
    served = []
    for name, way in (("static", run_static), ("continuous", run_continuous)):
        setting.say(f"the engine, {name}")
        served.append(way(llm, prompts, came))
    return served[0], served[1]


def run_continuous(llm: LLM, prompts: Sequence[list[int]], came: Sequence[float], slots: int = SLOTS) -> Served:
    """One engine, to which requests are added when they come."""
    engine, lengths = Engine(llm, slots=slots, prefix_cache=False), answer_lengths()
    done, numbers, begun = [0.0] * len(came), {}, time.perf_counter()
    while len(numbers) < len(came) or engine.busy:
        now = time.perf_counter() - begun
        while len(numbers) < len(came) and came[len(numbers)] <= now:
            i = len(numbers)
            numbers[_add(engine, prompts[i], lengths[i])] = i
        if not engine.busy:
            time.sleep(max(came[len(numbers)] - now, 0))
        _step(engine, lambda id: done.__setitem__(numbers[id], time.perf_counter() - begun))
    return Served(came, done)


def run_static(llm: LLM, prompts: Sequence[list[int]], came: Sequence[float]) -> Served:
    """An engine for each batch, whose requests all run to the longest, as padding does."""
    lengths, done, begun = answer_lengths(), [], time.perf_counter()
    while len(done) < len(came):
        first = len(done)
        time.sleep(max(came[first] - (time.perf_counter() - begun), 0))
        now = time.perf_counter() - begun
        batch = [i for i in range(first, min(first + SLOTS, len(came))) if i == first or came[i] <= now]
        engine = Engine(llm, slots=SLOTS, prefix_cache=False)
        for i in batch:
            _add(engine, prompts[i], max(lengths[i] for i in batch))
        while engine.busy:
            _step(engine)
        done += [time.perf_counter() - begun] * len(batch)
    return Served(came, done)


def _add(engine: Engine, prompt: list[int], count: int) -> int:
    return engine.add(prompt, max_tokens=count, ignore_eos=True, temperature=0)


def _step(engine: Engine, ended: Callable[[int], object] = lambda id: None) -> None:
    for event in engine.step_now(in_no_hurry=True):
        if event.error:
            raise event.error
        if event.piece and event.piece.completion:
            ended(event.id)


def _table(title: str, found: Found) -> Table:
    rows = [
        (
            name, one.tokens_per_second, other.tokens_per_second, _faster((name, one, other)),
            one.latency, other.latency, _slower((name, one, other)),
        )
        for name, one, other in found
    ]  # fmt: skip
    columns = (
        "requests come", "tokens a second, static", "continuous", "times as many", "mean latency, s, static",
        "continuous", "times as long",
    )  # fmt: skip
    return Table(title, columns, rows)


def _by_slots(setting: Setting, eight: Served) -> Table:
    """One after another, and more at once; all requests are there from the beginning."""
    prompts, at_once = [random_ids(setting, length) for length in prompt_lengths()], [0.0] * REQUESTS
    setting.say("the engine, other numbers of slots")
    one, wide = (run_continuous(setting.llm, prompts, at_once, slots) for slots in (1, WIDER))
    rows = [
        (slots, served.tokens_per_second, max(one.done) / max(served.done), served.latency)
        for slots, served in ((1, one), (SLOTS, eight), (WIDER, wide))
    ]
    return Table("continuous, all at once", ("slots", "tokens a second", "times that of one", "mean latency, s"), rows)


def _overhead(setting: Setting) -> Table:
    """What the engine adds to forward passes and nothing else, for one request; by turns, since it is little."""
    llm, prompt, steps = setting.llm, random_ids(setting, DEPTH, LONGEST), LONGEST - 1
    setting.say("one request, by the engine and without")

    def engine() -> float:
        served = Engine(llm, slots=1, prefix_cache=False)
        _add(served, prompt, LONGEST)
        served.step_now(in_no_hurry=True)  # the prompt, and the first token
        return seconds(lambda: [served.step_now(in_no_hurry=True) for _ in range(steps)]) / steps

    def bare() -> float:
        held = CachedSequence(llm.model)
        ids = [int(held.prefill(prompt)[0].argmax())]
        return seconds(lambda: [ids.append(int(held.step(ids[-1]).argmax())) for _ in range(steps)]) / steps

    by_engine, alone = (samples.median for samples in in_turn([engine, bare], 5))
    columns = ("one request", "milliseconds a token", "times the bare loop's")
    return Table("what the engine adds", columns, [
        ("forward passes and the likeliest token", 1000 * alone, 1.0),
        ("the engine", 1000 * by_engine, by_engine / alone),
    ])  # fmt: skip


def _by_step() -> Table:
    """Mean latencies' ratio for machines whose steps cost more or less with each sequence."""
    rows, names = [], ()
    for added in ADDED:
        costs = Costs([1 + added * others for others in range(SLOTS)], 0.1)
        arrivals = arrivals_for(costs)
        names = tuple(arrivals)
        pairs = (both(came, costs) for came in arrivals.values())
        rows.append((added, *(one.latency / other.latency for one, other in pairs)))
    columns = ("each further sequence adds to a step, times that of one", *names)
    return Table("mean latency of static, times that of continuous, for other machines, simulated", columns, rows)


def _drawing(simulated: Found) -> Drawing:
    lines = {"static": [], "continuous": []}
    for name, *ways in simulated:
        for points, served in zip(lines.values(), ways, strict=True):
            points.append((name.replace(", ", ",\n"), served.latency))
    title = "A batch that waits for its longest makes everybody wait"
    return Drawing(title, "requests come", "mean latency, seconds", lines, bars=True)
