"""Drawings, by matplotlib: readable in print and without colours, one message each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ...errors import BadRequest, MissingExtra
from ...files import replaced_when_done
from .finding import Drawing

# told apart by those who see few colours (Okabe and Ito), by their dashes and by their marks
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)))
MARKS = ("o", "s", "^", "D", "v", "P", "x")
HATCHES = ("", "//", "..", "xx", "\\\\", "++", "oo")
ENDINGS = (".svg", ".png", ".pdf")


def check_ending(path: Path) -> None:
    """Raises `BadRequest` for a file that drawings can't be written to."""
    if path.suffix.lower() not in ENDINGS:
        raise BadRequest(f"{path}: a drawing should end in {', '.join(ENDINGS)}", "plot")


def draw(drawings: Sequence[Drawing], path: Path) -> None:
    """Write drawings to one file, below each other. Raises `MissingExtra` without matplotlib."""
    check_ending(path)
    figure = figure_of(drawings)
    with replaced_when_done(path) as temporary:
        figure.savefig(temporary, format=path.suffix[1:].lower(), dpi=150)


def figure_of(drawings: Sequence[Drawing]):
    """A figure of drawings below each other. Raises `MissingExtra` without matplotlib."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtra("drawing", "plot") from None
    figure = Figure(figsize=(7, 4.2 * len(drawings)), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, drawing in zip(figure.subplots(len(drawings), squeeze=False)[:, 0], drawings, strict=True):
        (_bars if drawing.bars else _lines)(axes, drawing)
        axes.set_title(drawing.title)
        axes.set_xlabel(drawing.x)
        axes.set_ylabel(drawing.y)
        axes.grid(alpha=0.3)
        axes.set_axisbelow(True)
        if len(drawing.lines) > 1:
            axes.legend()
    return figure


def _lines(axes, drawing: Drawing) -> None:
    for number, (name, points) in enumerate(drawing.lines.items()):
        style = {"color": COLOURS[number % 7], "linestyle": DASHES[number % 7], "marker": MARKS[number % 7]}
        style |= {"linestyle": "none", "markersize": 7} if name in drawing.dots else {"markersize": 4}
        axes.plot(*zip(*points, strict=True), label=name, **style)
    for name, x in drawing.marks.items():
        axes.axvline(x, color="#555555", linewidth=1)
        axes.annotate(
            name, (x, 0.98), xycoords=("data", "axes fraction"), rotation=90, ha="right", va="top", fontsize=8
        )
    if drawing.log_x:
        axes.set_xscale("log", base=2)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter("{x:,g}")
    if drawing.log_y:
        axes.set_yscale("log")
        _write_plainly(axes.yaxis)


def _bars(axes, drawing: Drawing) -> None:
    names = list(dict.fromkeys(x for points in drawing.lines.values() for x, _ in points))
    width = 0.8 / len(drawing.lines)
    for number, (name, points) in enumerate(drawing.lines.items()):
        places = [names.index(x) + width * (number - (len(drawing.lines) - 1) / 2) for x, _ in points]
        style = {"color": COLOURS[number % 7], "hatch": HATCHES[number % 7], "edgecolor": "white"}
        bars = axes.barh if drawing.lying else axes.bar
        bars(places, [y for _, y in points], width, label=name, **style)
    names_on, numbers_on = (axes.yaxis, axes.xaxis) if drawing.lying else (axes.xaxis, axes.yaxis)
    numbers_on.set_major_formatter("{x:,g}")
    names_on.set_ticks(range(len(names)), [str(name) for name in names])
    if len(names) > 10 and not drawing.lying:  # so that names do not run into each other
        axes.tick_params("x", rotation=45)
        for label in axes.get_xticklabels():
            label.set(ha="right", rotation_mode="anchor")
    if drawing.lying:
        axes.invert_yaxis()
    if drawing.log_x if drawing.lying else drawing.log_y:
        (axes.set_xscale if drawing.lying else axes.set_yscale)("log")
        _write_plainly(numbers_on)


def _write_plainly(axis) -> None:
    """Numbers on a logarithmic axis as people write them; where it spans little, some between powers of ten too."""
    low, high = axis.get_view_interval()
    some = "235" if high < 30 * low else "25" if high < 300 * low else ""

    def plainly(x: float, place: int) -> str:
        return f"{x:,.0f}" if x >= 1 else f"{x:g}"

    axis.set_major_formatter(plainly)
    axis.set_minor_formatter(lambda x, place: plainly(x, place) if f"{x:e}"[0] in some else "")
