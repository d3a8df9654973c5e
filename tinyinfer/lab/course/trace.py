"""One request from text to text, each stage by itself, with its time."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np

from ...cached_sequence import PREFILL_CHUNK
from ...llm import LLM
from ...model.forward import Chunk
from ...sampling.sampler import Sampler
from ...text.stream import StreamDecoder
from ..timing import in_turn, seconds
from .finding import Cell, Drawing, Finding, Table, shown
from .setting import Setting
from .workload import random_ids

QUESTION = "Name three fruits that are red."
ANSWER = 16  # tokens at most, until something can be read
STEP = "a step: layers, norm, head"
PASSES = ("prefill, all layers", "norm and head", STEP)
IDS = 24  # of the prompt of a model without a tokenizer


@dataclass(frozen=True)
class Stage:
    """What one stage took and made, and its seconds."""

    name: str
    goes_in: str
    comes_out: str
    seconds: float


class Trace:
    """The stages of one request, noted as they are done."""

    def __init__(self):
        self.stages: list[Stage] = []
        self.ids: list[int] = []  # of the prompt
        self.readable: int | None = None  # how many there were when something could be read

    def stage(self, name: str, goes_in: str, work: Callable[[], Any], shown: Callable[[Any], str]) -> Any:
        """Do one, and give what it makes; `shown` says in words what that is."""
        begun = time.perf_counter()
        made = work()
        seconds = time.perf_counter() - begun
        self.stages.append(Stage(name, goes_in, shown(made), seconds))
        return made


def measure(setting: Setting) -> Finding:
    """A question asked of the model, the second time: what is done but once, such as compiling, is behind it."""
    trace(setting)
    found = trace(setting)
    stages = found.stages
    sums = list(accumulate(1000 * stage.seconds for stage in stages))
    rows: list[tuple[Cell, ...]] = [
        (str(number), s.name, s.goes_in, s.comes_out, 1000 * s.seconds, after)
        for number, (s, after) in enumerate(zip(stages, sums, strict=True), 1)
    ]
    columns = ("", "stage", "in", "out", "ms", "since the question, ms")
    lines = {"time": [(f"{number} {s.name}", 1000 * s.seconds) for number, s in enumerate(stages, 1)]}
    drawing = Drawing(
        "The forward passes are what takes time", "milliseconds", "", lines, log_x=True, bars=True, lying=True
    )
    return Finding(
        [Table("one request", columns, rows, 4), *_first_text(setting, found, sums)],
        _says(stages),
        [drawing],
    )


def _says(stages: list[Stage]) -> str:
    whole, passes = sum(s.seconds for s in stages), sum(s.seconds for s in stages if s.name in PASSES)
    step = next((s.seconds for s in stages if s.name == STEP), None)
    prompt, head = (next(s.seconds for s in stages if s.name == name) for name in PASSES[:2])
    steps = "" if step is None else f", then {shown(1000 * step)} ms for each further token"
    return (
        f"The course's ten arrows, from a question to characters and round again, are {len(stages)} stages here, of "
        f"whose time forward passes take {passes / whole:.1%}: all else, template, tokenizer, sampling and decoder, "
        f"takes {shown(1000 * (whole - passes))} ms. A reader waits {shown(1000 * (prompt + head))} ms for the "
        f"prompt{steps}. The head, a product with the whole vocabulary, is done for the last token of the prompt "
        "alone."
    )


def _first_text(setting: Setting, found: Trace, sums: list[float]) -> list[Table]:
    """The first character that can be read, by these stages and by the clock that every answer has."""
    if found.readable is None:
        return []
    clock = setting.llm.generate(found.ids, temperature=0, max_tokens=ANSWER).timings.time_to_first_text
    before = sum(1000 * s.seconds for s in found.stages if s.name in ("template", "tokenizer"))
    rows = [
        ("by the stages", sums[found.readable - 1] - before),
        ("by the clock of an answer to the same ids", clock and 1000 * clock),
    ]
    return [Table("the first character that can be read, from ids on", ("", "ms"), rows)]


def trace(setting: Setting) -> Trace:
    """All stages in their order."""
    llm, config, found = setting.llm, setting.config, Trace()
    ids = found.ids = _ids(setting, found)
    vectors = f"vectors [{len(ids)}, {config.hidden_size}]"
    sequence = llm.model.new_cache().sequence()
    found.stage(PASSES[0], f"{len(ids)} ids", lambda: _run(llm, sequence, ids), lambda _: vectors)
    logits, took = _head(llm, sequence, ids)
    found.stages.append(Stage(PASSES[1], "the last vector", f"logits [{config.vocab_size}]", took))
    sampler = Sampler(llm.resolved_params(temperature=0), config.vocab_size, ids, llm.stop_ids)
    tokens = found.stage("sampling: what may come", "logits", lambda: sampler.distribution(logits), _candidates)
    id = found.stage("sampling: the draw", "candidates", lambda: sampler.take(tokens), lambda id: f"id {id}")
    _decode(llm, sequence, id, sampler, found)
    return found


def _ids(setting: Setting, found: Trace) -> list[int]:
    """The prompt, by the model's own template where it has one."""
    llm = setting.llm
    if llm.checkpoint.tokenizer_json is None:
        return random_ids(setting, IDS, ANSWER)
    text, special = QUESTION, True
    if llm.checkpoint.chat_template is not None:
        messages, special = [{"role": "user", "content": QUESTION}], False
        render = llm.chat_template.render
        text = found.stage("template", "a conversation", lambda: render(messages), lambda t: f"{len(t)} characters")
    encode = llm.tokenizer.encode
    return found.stage("tokenizer", "text", lambda: encode(text, special), lambda ids: f"{len(ids)} ids")


def _run(llm: LLM, sequence: Any, ids: list[int]) -> None:
    """Through all layers, without logits."""
    for begin in range(0, len(ids), PREFILL_CHUNK):
        part = np.array(ids[begin : begin + PREFILL_CHUNK])
        llm.model.forward([Chunk(sequence, part, len(ids), slice(0))])


def _head(llm: LLM, sequence: Any, ids: list[int]) -> tuple[np.ndarray, float]:
    """Logits float32 [vocab] after the last token, and the seconds that they take.

    A pass makes them in the same call as the layers: so the last token is run with and without, several times in turn,
    and what is between the two is theirs.
    """

    def last(wanted: slice) -> np.ndarray:
        sequence.rewind(len(ids) - 1)
        return llm.model.forward([Chunk(sequence, np.array(ids[-1:]), len(ids), wanted)])

    measures = [lambda: seconds(lambda: last(slice(0))), lambda: seconds(lambda: last(slice(-1, None)))]
    without, with_head = in_turn(measures, 9)
    return last(slice(-1, None))[0], max(with_head.median - without.median, 0.0)


def _decode(llm: LLM, sequence: Any, id: int, sampler: Sampler, found: Trace) -> None:
    """Tokens become text, and further ones come, until something can be read; one step at least, to see its time."""
    decoder = StreamDecoder(llm.tokenizer) if llm.checkpoint.tokenizer_json is not None else None
    for step in range(ANSWER):
        if decoder is not None:
            text = found.stage("decoder", f"id {id}", lambda: decoder.push(id), repr)  # noqa: B023
            if text.strip() and found.readable is None:
                found.readable = len(found.stages)
        if step and (decoder is None or found.readable or id in llm.stop_ids):
            return
        logits = found.stage(STEP, f"id {id}", lambda: _step(llm, sequence, id), lambda _: "logits")  # noqa: B023
        id = found.stage("sampling", "logits", lambda: sampler.sample(logits), lambda id: f"id {id}")  # noqa: B023


def _step(llm: LLM, sequence: Any, id: int) -> np.ndarray:
    return llm.model.forward([Chunk(sequence, np.array([id]))])[0]


def _candidates(tokens: Any) -> str:
    return f"{len(tokens.ids)} candidates"
