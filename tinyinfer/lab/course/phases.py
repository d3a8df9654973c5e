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
        [_prefill(report, prefill), _decode(report, decode), _against_course(prefill, decode)],
        _says(prefill, decode),
        [_drawing(prefill, decode)],
    )


def _milliseconds(one: Measurement) -> float:
    """A token."""
    return 1000 / one.tokens_per_second.median


def _against_course(prefill: list[Measurement], decode: list[Measurement]) -> Table:
    best = min(map(_milliseconds, prefill))
    rows = [
        ("a prompt's token, the shortest prompt / the best", _milliseconds(prefill[0]) / best, "falls"),
        ("the longest prompt / the best", _milliseconds(prefill[-1]) / best, "flattens"),
        ("a step of decoding, the longest context / the shortest", _milliseconds(decode[-1]) / _milliseconds(decode[0]),
         "hardly changes"),
    ]  # fmt: skip
    return Table("times as long", ("", "here", "course"), rows)


def _says(prefill: list[Measurement], decode: list[Measurement]) -> str:
    first, best, last = prefill[0], min(prefill, key=_milliseconds), prefill[-1]
    falls, rises = (_milliseconds(one) / _milliseconds(best) for one in (first, last))
    slower = _milliseconds(decode[-1]) / _milliseconds(decode[0])
    more = decode[-1].bytes_per_token / decode[0].bytes_per_token
    why = (
        "as the kernels take several tokens for each weight that they read and have no cost of a call to share, as the "
        "course's NumPy engine has"
        if falls < 2
        else "by which more tokens share each weight that is read"
    )
    then = f"; at {last.tokens:,} it is {rises:.2f} times that, with more to look back on" if rises > 1.1 else ""
    return (
        "A prompt reads the weights once for all of its tokens and is bound by multiplying, a step of decoding reads "
        f"them for one. A prompt's token falls by {1 - 1 / falls:.0%} from {first.tokens} to {best.tokens:,} tokens, "
        f"{why}{then}. A step behind {decode[-1].depth:,} tokens takes {slower:.2f} times as long as one behind "
        f"{decode[0].depth}, and reads {more:.2f} times as many bytes, for the keys and values."
    )


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
