"""Several sequences in one step: a weight is read once for all, until multiplying takes as long as reading."""

from __future__ import annotations

from ..bench import STEPS, Measurement, Plan, Report, bench
from .finding import Drawing, Finding, Table, shown
from .setting import Setting
from .workload import random_ids

DEPTH = 64
SIZES = (1, 2, 4, 8, 16, 32, 64)
COURSE = {16: (6.0, 2.67), 32: (6.0 * 1.09, None)}  # throughput and latency, in times those of one


def measure(setting: Setting) -> Finding:
    """1 to 64 sequences of 64 tokens each, and at how many of them the machine's two limits meet."""
    random_ids(setting, DEPTH, STEPS)  # says so where the context is too short
    sizes = SIZES if setting.full else SIZES[:6]
    report = bench(setting.llm, Plan((), (), sizes, 5 if setting.full else 2, DEPTH))
    measured = report.measurements
    return Finding(
        [_sizes(report, measured), *_knee(report, measured)],
        _says(report, measured),
        [_drawing(report, measured)],
    )


def _says(report: Report, measured: tuple[Measurement, ...]) -> str:
    last, (throughput, latency) = measured[-1], _times(measured[-1], measured[0])
    where = knee(report, measured[0])
    each = measured[0].bytes_per_token / measured[0].multiply_adds_per_token
    lies = "" if where is None else f", here at {shown(where)} sequences"
    sixteen = next((one for one in measured if one.sequences == 16), None)
    beside = ""
    if sixteen is not None:
        (times, _), (course, _) = _times(sixteen, measured[0]), COURSE[16]
        apart = "as in the course" if 0.8 < times / course < 1.25 else f"where the course has {course:g}"
        beside = f": 16 sequences give {times:.3g} times the throughput of one, {apart}"
    return (
        "A step reads the weights once for all, so that one more sequence is nearly free until multiplying takes as "
        f"long as reading{lies}; from there on it is paid for in full. {last.sequences} sequences give "
        f"{throughput:.3g} times the throughput of one and wait {latency:.3g} times as long for a token. Where the "
        f"knee lies goes by the machine and by the bytes of a weight, {each:.2g} here and floats in the course{beside}."
    )


def _times(one: Measurement, alone: Measurement) -> tuple[float, float]:
    """Throughput and latency, in times those of one sequence."""
    faster = one.tokens_per_second.median / alone.tokens_per_second.median
    return faster, one.sequences / faster


def _sizes(report: Report, measured: tuple[Measurement, ...]) -> Table:
    rows = []
    for one in measured:
        throughput, latency = _times(one, measured[0])
        course, course_latency = COURSE.get(one.sequences, (None, None))
        rows.append((
            one.sequences, one.tokens_per_second.median, 1000 * one.sequences / one.tokens_per_second.median,
            throughput, course, latency, course_latency, report.memory_share(one), report.arithmetic_share(one),
        ))  # fmt: skip
    columns = (
        "sequences", "tokens a second", "ms a step", "throughput, times one", "course", "latency, times one",
        "course, latency", "share of reading speed", "share of multiply-adds",
    )  # fmt: skip
    return Table(f"decoding behind {DEPTH} tokens", columns, rows)


def knee(report: Report, alone: Measurement) -> float | None:
    """At how many sequences multiplying would take as long as reading the weights, both at the machine's best."""
    if report.limits is None:
        return None
    reading = alone.bytes_per_token / report.limits.bytes_per_second.median
    return reading / (alone.multiply_adds_per_token / report.limits.multiply_adds_per_second.median)


def _knee(report: Report, measured: tuple[Measurement, ...]) -> list[Table]:
    if report.limits is None:
        return []
    alone = measured[0]
    rows = [
        ("a step for one reads, MiB", alone.bytes_per_token / 2**20),
        ("this machine reads, GiB a second", report.limits.bytes_per_second.median / 2**30),
        ("a token's multiply-adds, millions", alone.multiply_adds_per_token / 1e6),
        (
            f"this machine's of {report.limits.kind}, billions a second",
            report.limits.multiply_adds_per_second.median / 1e9,
        ),
        ("sequences at which both take the same time", knee(report, alone)),
    ]
    return [Table("where the knee should be", ("", "here"), rows)]


def _drawing(report: Report, measured: tuple[Measurement, ...]) -> Drawing:
    lines = {
        "throughput": [(one.sequences, _times(one, measured[0])[0]) for one in measured],
        "latency": [(one.sequences, _times(one, measured[0])[1]) for one in measured],
        "each for free": [(one.sequences, float(one.sequences)) for one in measured],
    }
    where = knee(report, measured[0])
    marks = {} if where is None else {"both limits meet": where}
    title = "Sequences are free until multiplying takes as long as reading"
    return Drawing(title, "sequences in a step", "times that of one", lines, log_x=True, log_y=True, marks=marks)
