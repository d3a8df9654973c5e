"""Where every operation of prefill and decode stands under this machine's roof. Williams et al., CACM 52 (4), 2009.

An operation can't be faster than its bytes can be read, nor than its numbers can be multiplied: its intensity, FLOP for
each byte, says which of the two holds it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from ...llm import LLM
from ...model.footprint import kv_bytes_per_token
from ...model.tensors import ModelTensors
from ..bench import Limits, Measurement, Plan, bench
from ..cost import tensor_bytes
from .finding import Drawing, Finding, Table, shown
from .setting import Setting

PREFILL, DEPTH = 128, 512
COURSE_DECODE = "1 to 2"


@dataclass(frozen=True)
class Operation:
    """What all layers do of one kind in a pass: floating-point operations, and bytes that must be moved."""

    name: str
    flop: float
    bytes: float

    @property
    def intensity(self) -> float:
        """FLOP for each byte."""
        return self.flop / self.bytes


def measure(setting: Setting) -> Finding:
    """The machine's two limits, what each operation needs of them, and what passes reach."""
    llm = setting.llm
    prefill = 512 if setting.full else min(PREFILL, llm.context)
    depth = min(DEPTH, llm.context // 2)
    setting.say("measuring the machine and the model by turns")
    report = bench(llm, Plan((prefill,), (depth,), (), 5 if setting.full else 2))
    passes = {
        f"prefill of {prefill}": operations(llm, prefill, 0),
        f"decode behind {depth}": operations(llm, 1, depth),
    }
    says = _says(passes, report.limits)
    tables = [_operations(passes, report.limits)]
    if report.limits is None:
        return Finding(tables, says)
    tables = [_machine(report.limits), *tables, _passes(passes, report.measurements, report.limits)]
    return Finding(tables, says, [_drawing(passes, report.measurements, report.limits)])


def _says(passes: dict[str, list[Operation]], limits: Limits | None) -> str:
    prompt, step = ({one.name: one.intensity for one in done if one.name != "attention"} for done in passes.values())
    del prompt["head"]  # which runs for the last token alone
    prompt, step = prompt.values(), step.values()
    if limits is None:
        where = "Without compiled kernels there is no limit to measure"
    else:
        knee = _knee(limits)[2]
        held = sum(x < knee for x in prompt)
        below = "lies far down the slope" if max(step) < knee / 2 else "lies near the roof here"
        climbs = "climbs to the roof" if held == 0 else f"climbs, though {held} of {len(prompt)} stay below {knee:.3g}"
        where = (
            f"On this machine arithmetic takes over at {knee:.3g} FLOP a byte; a step {below}, and a prompt {climbs}"
        )
    return (
        "Decoding reads every weight for one multiplication, whatever the machine: 1 FLOP a byte with weights of 16 "
        f"bits, 2 with 8, more with fewer, and here {min(step):.2g} to {max(step):.2g}, where the course has "
        f"{COURSE_DECODE}. A prompt uses each weight for all of its tokens, which makes {shown(min(prompt))} to "
        f"{shown(max(prompt))}, and is why its token costs less than an answer's. {where}."
    )


def operations(llm: LLM, tokens: int, depth: int) -> list[Operation]:
    """What a pass of `tokens` behind `depth` others does, with logits for the last: weights, vectors, cache.

    Vectors are float32. Attention is counted as it is defined: what a token can't see costs nothing.
    """
    config, sums = llm.config, {}
    for name, tensor, use in _matrices(llm.model.tensors):
        rows = 1 if name == "head" else use * tokens
        read = tensor_bytes(tensor) * (1 if name == "head" else 1 - (1 - use) ** tokens)
        flop, size = sums.get(name, (0.0, 0.0))
        sums[name] = (flop + 2 * rows * math.prod(tensor.shape), size + read + 4 * rows * sum(tensor.shape))
    pairs = tokens * depth + tokens * (tokens + 1) // 2  # of a token and one that it sees
    width = config.num_heads * config.head_dim
    flop = 4.0 * pairs * width * config.num_layers  # scores, and the mix of values
    held = kv_bytes_per_token(config, llm.model.kv_dtype) * (depth + tokens)
    sums["attention"] = (flop, held + 8 * tokens * width * config.num_layers)
    return [Operation(name, *numbers) for name, numbers in sums.items()]


def _matrices(tensors: ModelTensors) -> Iterator[tuple]:
    """Every matrix by its kind, and by which part of the tokens it is used."""
    for layer in tensors.layers:
        for name, tensor in layer.items():
            parts = tensor if isinstance(tensor, tuple) else (tensor,)
            use = tensors.experts_used / len(parts) if name.startswith("expert_") else 1.0
            yield from ((name, one, use) for one in parts if len(one.shape) == 2)
    yield "head", tensors.head, 1.0


def _knee(limits: Limits) -> tuple[float, float, float]:
    """Bytes a second, FLOP a second, and the intensity where one limit takes over from the other."""
    read, flop = limits.bytes_per_second.median, 2 * limits.multiply_adds_per_second.median
    return read, flop, flop / read


def _machine(limits: Limits) -> Table:
    read, flop, knee = _knee(limits)
    columns = ("memory, GB/s", f"arithmetic with {limits.kind} weights, GFLOP/s", "where they meet, FLOP a byte")
    return Table("this machine, with the model's threads", columns, [(read / 1e9, flop / 1e9, knee)], 0)


def _operations(passes: dict[str, list[Operation]], limits: Limits | None) -> Table:
    rows = []
    for name, done in passes.items():
        for one in done:
            held, least = None, None
            if limits is not None:
                read, flop, knee = _knee(limits)
                held = "memory" if one.intensity < knee else "arithmetic"
                least = 1000 * max(one.bytes / read, one.flop / flop)
            course = COURSE_DECODE if name.startswith("decode") and one.name != "attention" else None
            rows.append((name, one.name, held or "", one.flop / 1e6, one.bytes / 1e6, one.intensity, least, course))
    columns = ("pass", "operation", "held by", "MFLOP", "MB", "FLOP a byte", "ms at best", "course, FLOP a byte")
    return Table("operations, all layers together", columns, rows, 3)


def _passes(passes: dict[str, list[Operation]], measured: tuple[Measurement, ...], limits: Limits) -> Table:
    read, flop, _ = _knee(limits)
    rows = []
    for (name, done), found in zip(passes.items(), measured, strict=True):
        best = sum(max(one.bytes / read, one.flop / flop) for one in done)
        took = found.tokens / found.tokens_per_second.median
        rows.append((name, 1000 * took, 1000 * best, best / took))
    return Table("whole passes", ("pass", "ms measured", "ms at best", "reached"), rows)


def _drawing(passes: dict[str, list[Operation]], measured: tuple[Measurement, ...], limits: Limits) -> Drawing:
    read, flop, knee = _knee(limits)
    lines = {"this machine's limit": [(x, min(read * x, flop) / 1e9) for x in (0.25, 1, knee, 4 * knee, 16 * knee)]}
    for (name, done), found in zip(passes.items(), measured, strict=True):
        lines[f"{name}: operations at best"] = [(o.intensity, min(read * o.intensity, flop) / 1e9) for o in done]
        whole = Operation(name, sum(o.flop for o in done), sum(o.bytes for o in done))
        took = found.tokens / found.tokens_per_second.median
        lines[f"{name}: the pass, measured"] = [(whole.intensity, whole.flop / took / 1e9)]
    title = "Decoding lies on memory's slope, prefill climbs from it"
    return Drawing(title, "FLOP for each byte", "GFLOP a second", lines, True, True, dots=tuple(lines)[1:])
