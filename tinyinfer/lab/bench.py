"""How fast a model prefills and decodes, and what share of this machine's limits that is.

Forward passes alone are timed, without text and without sampling, as llama-bench does it. All is measured in turn, the
machine with the model, round after round: what else the machine does meanwhile falls on all alike, and shows in the
spread.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import numpy as np

from ..cache import Sequence as CachedTokens
from ..errors import BadRequest
from ..kernels.tape import use_compiled
from ..model.forward import MOST_ROWS, Chunk, Model
from ..progress import Progress, silent
from .cost import cache_bytes, multiply_adds, weight_bytes, weight_forms
from .machine import MultiplyProbe, ReadProbe, load_average, probe_bytes, processor_name
from .timing import Samples, in_turn, seconds

if TYPE_CHECKING:
    from ..llm import LLM

STEPS = 16  # tokens of each sequence, one after the other, in a sample of decoding
BATCH_DEPTH = 8  # tokens that sequences decoded together hold when they begin


@dataclass(frozen=True)
class Plan:
    """What to measure: prompts of so many tokens, decoding behind so many, so many sequences at once; how often.

    batch_depth   tokens that each of several sequences holds when they begin
    """

    prefill: tuple[int, ...] = (16, 128, 512)
    decode: tuple[int, ...] = (8, 512, 2048)
    batch: tuple[int, ...] = (1, 4, 16)
    repeats: int = 5
    batch_depth: int = BATCH_DEPTH

    def __post_init__(self):
        """Raises `BadRequest` for what can't be measured of any model."""
        for name, least, most in (("prefill", 1, None), ("decode", 0, None), ("batch", 1, MOST_ROWS)):
            for value in getattr(self, name):
                if value < least or (most and value > most):
                    expected = f"numbers from {least} to {most}" if most else f"numbers from {least}"
                    raise BadRequest(f"{name} should be {expected}, found {value}", name)
        if self.repeats < 1:
            raise BadRequest(f"repeats should be a whole number from 1, found {self.repeats}", "repeats")
        if not (self.prefill or self.decode or self.batch):
            raise BadRequest("nothing to measure: prefill, decode and batch are all empty")


@dataclass(frozen=True)
class Measurement:
    """One kind of pass: `sequences` at once, each with `tokens` new ones behind `depth` held before.

    tokens_per_second   of all sequences together
    bytes_per_token     what must be read: the weights once a pass, and each sequence's keys and values
    multiply_adds_per_token   with weights; attention's are not counted
    """

    name: str
    phase: Literal["prefill", "decode", "batch"]
    sequences: int
    tokens: int
    depth: int
    tokens_per_second: Samples
    bytes_per_token: float
    multiply_adds_per_token: float

    @property
    def bytes_per_second(self) -> float:
        """Of the median."""
        return self.bytes_per_token * self.tokens_per_second.median

    @property
    def multiply_adds_per_second(self) -> float:
        """Of the median."""
        return self.multiply_adds_per_token * self.tokens_per_second.median


@dataclass(frozen=True)
class Limits:
    """What the machine can do, measured in every round and once more at the end, with the model's number of threads.

    bytes_per_second           of a sum over `array_bytes`
    multiply_adds_per_second   of `kind`, "int8" or "float32": what most of the model's weights are multiplied with
    """

    bytes_per_second: Samples
    array_bytes: int
    multiply_adds_per_second: Samples
    kind: str


@dataclass(frozen=True)
class Report:
    """A model's measurements, and all that they were made with.

    weights    bytes that every pass reads, by form
    threads    None where NumPy computes, which has threads of its own; then there are no limits either
    backend    the vector instructions of the kernels, or "numpy"
    kv_dtype   what keys and values are kept in
    load       the machine's load average before and after; None where the system doesn't say
    skipped    what was asked for and not measured, a sentence each
    """

    model: str
    weights: dict[str, int]
    threads: int | None
    backend: str
    kv_dtype: str
    processor: str
    load: tuple[float | None, float | None]
    repeats: int
    limits: Limits | None
    measurements: tuple[Measurement, ...]
    skipped: tuple[str, ...]

    def memory_share(self, measurement: Measurement) -> float | None:
        """The part of the machine's reading speed that a measurement reached; None where that was not measured."""
        return self.limits and measurement.bytes_per_second / self.limits.bytes_per_second.median

    def arithmetic_share(self, measurement: Measurement) -> float | None:
        """The part of the machine's multiply-adds that a measurement reached; None where they were not measured."""
        return self.limits and measurement.multiply_adds_per_second / self.limits.multiply_adds_per_second.median


class Prefill:
    """Prompts of `tokens`, the logits of the last one wanted, as `generate` feeds them: MOST_ROWS at a time."""

    phase, sequences, depth = "prefill", 1, 0

    def __init__(self, model: Model, tokens: int):
        self.model, self.tokens = model, tokens
        self.name, self.length = f"prefill {tokens:,}", tokens
        self.sequence = model.new_cache().sequence()

    @cached_property
    def ids(self) -> np.ndarray:
        """Random ids [tokens]."""
        return np.random.default_rng(0).integers(self.model.config.vocab_size, size=self.tokens)

    def rate(self) -> float:
        """Tokens a second, of one prompt."""
        self.sequence.release()
        return self.tokens / seconds(lambda: feed(self.model, self.sequence, self.ids, slice(-1, None)))

    def bytes_per_token(self) -> float:
        """Bytes that must be read, by token; once `rate` has been called."""
        total = 0.0
        for begin in range(0, self.tokens, MOST_ROWS):
            new = min(MOST_ROWS, self.tokens - begin)
            total += weight_bytes(self.model.tensors, new) + cache_bytes(self.sequence.cache, begin + new, new)
        return total / self.tokens

    def multiply_adds_per_token(self) -> float:
        """Multiply-adds with weights, by token."""
        wanted = -(-self.tokens // MOST_ROWS)
        return sum(multiply_adds(self.model.tensors, self.tokens, wanted).values()) / self.tokens


class Decode:
    """`sequences` at once that go on from `depth` tokens, STEPS times by one."""

    tokens = 1

    def __init__(self, model: Model, depth: int, sequences: int = 1, phase: str = "decode"):
        self.model, self.depth, self.sequences, self.phase = model, depth, sequences, phase
        self.name = f"decode at {depth:,}" if phase == "decode" else f"batch of {sequences} at {depth:,}"
        self.length = depth + STEPS
        self.cache = model.new_cache()
        self.held = [self.cache.sequence() for _ in range(sequences)]

    @cached_property
    def ids(self) -> np.ndarray:
        """Random ids [sequences, depth + STEPS]."""
        shape = (self.sequences, self.length)
        return np.random.default_rng(0).integers(self.model.config.vocab_size, size=shape)

    def rate(self) -> float:
        """Tokens a second of all sequences together, over STEPS passes."""
        for sequence, ids in zip(self.held, self.ids, strict=True):
            if sequence.can_rewind(self.depth):
                sequence.rewind(self.depth)
            else:  # new, or a window has moved on
                sequence.release()
                feed(self.model, sequence, ids[: self.depth], slice(0))
        return self.sequences * STEPS / seconds(self._step_by_step)

    def _step_by_step(self) -> None:
        for position in range(self.depth, self.length):
            new = self.ids[:, position : position + 1]
            self.model.forward([Chunk(sequence, ids) for sequence, ids in zip(self.held, new, strict=True)])

    def bytes_per_token(self) -> float:
        """Bytes that must be read, by token; once `rate` has been called."""
        lengths = range(self.depth + 1, self.length + 1)  # with the token itself
        cached = sum(cache_bytes(self.cache, length) for length in lengths) / STEPS
        return weight_bytes(self.model.tensors, self.sequences) / self.sequences + cached

    def multiply_adds_per_token(self) -> float:
        """Multiply-adds with weights, by token."""
        return sum(multiply_adds(self.model.tensors, 1, 1).values())


def feed(model: Model, sequence: CachedTokens, ids: np.ndarray, logits: slice) -> None:
    """Run ids, int [n], through the model, MOST_ROWS at a time; `logits` says which of each time's need them."""
    length = sequence.length + len(ids)
    for begin in range(0, len(ids), MOST_ROWS):
        model.forward([Chunk(sequence, ids[begin : begin + MOST_ROWS], length, logits)])


def bench(llm: LLM, plan: Plan, progress: Progress = silent) -> Report:
    """Measure what `plan` says, as far as the context allows. Raises `BadRequest` where it allows nothing."""
    cases, skipped = _cases(llm, plan)
    if not cases:
        raise BadRequest(f"nothing to measure: {'; '.join(skipped)}")
    before = load_average()
    probes = _probes(llm.model) if use_compiled() else []
    rates = [part.rate for part in (*probes, *cases)]
    with progress("measuring", len(rates) * (1 + plan.repeats), "samples") as bar:
        found = in_turn(rates, plan.repeats, tick=lambda: bar.update(1))
    last = [Samples((*samples.values, probe.rate())) for probe, samples in zip(probes, found, strict=False)]
    return Report(
        model=str(llm.path),
        weights=weight_forms(llm.model.tensors),
        threads=probes[0].team.size if probes else None,
        backend=_backend(),
        kv_dtype=llm.model.kv_dtype,
        processor=processor_name(),
        load=(before, load_average()),
        repeats=plan.repeats,
        limits=Limits(last[0], probes[0].nbytes, last[1], probes[1].kind) if probes else None,
        measurements=tuple(_measured(*pair) for pair in zip(cases, found[len(probes) :], strict=True)),
        skipped=tuple(skipped),
    )


def _cases(llm: LLM, plan: Plan) -> tuple[list[Prefill | Decode], list[str]]:
    """What fits into the context, in the order of the table, and a sentence on each that does not."""
    model = llm.model
    asked: list[Prefill | Decode] = [Prefill(model, tokens) for tokens in plan.prefill]
    asked += [Decode(model, depth) for depth in plan.decode]
    asked += [Decode(model, plan.batch_depth, sequences, "batch") for sequences in plan.batch]
    skipped = [
        f"{case.name} takes {case.length:,} tokens, more than the context of {llm.context:,}"
        for case in asked
        if case.length > llm.context
    ]
    return [case for case in asked if case.length <= llm.context], skipped


def _probes(model: Model) -> list[ReadProbe | MultiplyProbe]:
    from ..kernels.threads import team_of

    team, counts = team_of(model.threads), multiply_adds(model.tensors, 1, 1)
    return [ReadProbe(team, probe_bytes()), MultiplyProbe(team, max(counts, key=counts.__getitem__))]


def _measured(case: Prefill | Decode, rates: Samples) -> Measurement:
    what = case.name, case.phase, case.sequences, case.tokens, case.depth
    return Measurement(*what, rates, case.bytes_per_token(), case.multiply_adds_per_token())


def _backend() -> str:
    if not use_compiled():
        return "numpy"
    from ..kernels.processor import backend

    return backend()
