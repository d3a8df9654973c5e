"""The two phases of an answer: a prompt, whose tokens share each weight that is read, and steps, which do not."""

from __future__ import annotations

from ..bench import STEPS, Measurement, Plan, Report, bench
from .finding import Drawing, Finding, Table
from .setting import Setting

LENGTHS = (16, 32, 64, 128, 256, 512, 1024)


def measure(setting: Setting) -> Finding:
    """Prompts of 16 to 1,024 tokens, and steps behind as many."""
    fitting = tuple(n for n in LENGTHS if n + STEPS <= setting.llm.context)
    report = bench(setting.llm, Plan(fitting, fitting, (), repeats=5 if setting.full else 2))
    prefill = [one for one in report.measurements if one.phase == "prefill"]
    decode = [one for one in report.measurements if one.phase == "decode"]
    return Finding(
        [_prefill(report, prefill), _decode(report, decode)],
        "A step of decoding reads all weights for one token, so its time is that of reading memory and hardly changes "
        "with the context, until keys and values are as many bytes as the weights. A prompt reads them once for all "
        "of its tokens: the time of a token falls until the processor can multiply no faster, then it is flat. Here "
        "that is reached sooner than in the course's NumPy engine, whose every call had a cost of its own that more "
        "tokens shared.",
        [_drawing(prefill, decode)],
    )


def _milliseconds(one: Measurement) -> float:
    """A token."""
    return 1000 / one.tokens_per_second.median


def _prefill(report: Report, measured: list[Measurement]) -> Table:
    rows = [
        (one.tokens, _milliseconds(one) * one.tokens, _milliseconds(one), report.arithmetic_share(one))
        for one in measured
    ]
    columns = ("tokens", "ms", "ms a token", "share of this machine's multiply-adds")
    return Table("a prompt", columns, rows)


def _decode(report: Report, measured: list[Measurement]) -> Table:
    rows = [(one.depth, _milliseconds(one), one.bytes_per_token / 2**20, report.memory_share(one)) for one in measured]
    columns = ("tokens before it", "ms", "MiB that it reads", "share of this machine's reading speed")
    return Table("a step of decoding", columns, rows)


def _drawing(prefill: list[Measurement], decode: list[Measurement]) -> Drawing:
    lines = {
        "a prompt's token": [(one.tokens, _milliseconds(one)) for one in prefill],
        "a step of decoding": [(one.depth, _milliseconds(one)) for one in decode],
    }
    title = "A prompt's tokens share the reading of the weights"
    return Drawing(title, "tokens of the prompt, or before the step", "milliseconds a token", lines, True, True)
