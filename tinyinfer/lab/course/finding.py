"""What an experiment finds: tables, drawings, and what they say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Cell = str | int | float | None


@dataclass(frozen=True)
class Table:
    """Rows of numbers under headings with their units; what the course saw is a column like others, `course`."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    left: int = 1  # how many of the columns are names rather than numbers


@dataclass(frozen=True)
class Drawing:
    """Lines through points, one message: axes with units, and a logarithmic scale where the numbers ask for it.

    lines: for each name, x and y of its points.
    bars: the same as bars side by side, with x as their names; `lying`: names on the left, and x says lengths.
    marks: names of places on x, each an upright line.
    dots: names of lines whose points are not joined.
    """

    title: str
    x: str
    y: str
    lines: Mapping[str, Sequence[tuple[Any, float]]]
    log_x: bool = False
    log_y: bool = False
    bars: bool = False
    lying: bool = False
    marks: Mapping[str, float] = field(default_factory=dict)
    dots: Sequence[str] = ()


@dataclass(frozen=True)
class Finding:
    """All that an experiment has to say; `says` is what to see in it, in two or three sentences."""

    tables: Sequence[Table]
    says: str
    drawings: Sequence[Drawing] = field(default_factory=tuple)


def shown(cell: Cell) -> str:
    """A number for people: whole ones with commas, others to four digits; nothing where there is nothing."""
    if cell is None:
        return ""
    if isinstance(cell, float):
        return f"{cell:,.0f}" if abs(cell) >= 1000 else f"{cell:.4g}"
    return f"{cell:,}" if isinstance(cell, int) else cell
