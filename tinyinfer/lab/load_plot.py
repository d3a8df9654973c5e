"""The picture of a load test. Needs the extra `plot`: matplotlib."""

from __future__ import annotations

from pathlib import Path

from ..errors import BadRequest, MissingExtra
from ..files import replaced_when_done
from .load import Report

KINDS = ("png", "svg", "pdf")


def check_plot(path: Path) -> None:
    """Raises `BadRequest` or `MissingExtra` where nothing could be drawn into that file: best known before the run."""
    if path.suffix.removeprefix(".") not in KINDS:
        raise BadRequest(f"the plot's name should end in one of .{', .'.join(KINDS)}, found {path.name!r}", "plot")
    try:
        import matplotlib  # noqa: F401
    except ModuleNotFoundError as error:
        raise MissingExtra("plotting", "plot") from error


def draw(report: Report, path: Path, title: str) -> None:
    """Left, what share of requests had no longer times than these; right, each request's time to its first token by
    when it arrived, and how many were under way."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.5), layout="constrained")
    shares, course = figure.subplots(1, 2)
    for name, label in (("ttft", "to first token"), ("tpot", "a token after it")):
        values = sorted(value for one in report.answered if (value := getattr(one, name)) is not None)
        shares.step(values, [100 * (i + 1) / len(values) for i in range(len(values))], where="post", label=label)
    shares.set(xscale="log", xlabel="seconds", ylabel="percent of requests", ylim=(0, 100))
    shares.grid(alpha=0.3)
    shares.legend()
    course.plot([one.at for one in report.answered], [one.ttft for one in report.answered], ".", label="first token")
    failed = [one for one in report.sent if one.error is not None]
    if failed:
        course.plot([one.at for one in failed], [0] * len(failed), "rx", label="error")
    course.set(xlabel="arrival, seconds", ylabel="seconds to first token", ylim=(0, None))
    course.grid(alpha=0.3)
    course.legend(loc="upper left")
    under_way = course.twinx()
    under_way.step(*_under_way(report), where="post", color="grey", alpha=0.5)
    under_way.set(ylabel="requests under way", ylim=(0, None))
    figure.suptitle(title)
    with replaced_when_done(path) as temporary:
        figure.savefig(temporary, format=path.suffix.removeprefix("."), dpi=120)


def _under_way(report: Report) -> tuple[list[float], list[int]]:
    changes = sorted([(one.at, 1) for one in report.sent] + [(one.end, -1) for one in report.sent])
    counts, times = [0], [0.0]
    for at, change in changes:
        times.append(at)
        counts.append(counts[-1] + change)
    return times, counts
