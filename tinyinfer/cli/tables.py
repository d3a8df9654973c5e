"""Tables of text: columns that line up on a terminal, or Markdown."""

from __future__ import annotations

from collections.abc import Sequence

Rows = Sequence[Sequence[str]]


def plain_table(headings: Sequence[str], rows: Rows, left: int = 1) -> str:
    """Columns that line up: the first `left` of them to the left, the others, which are numbers, to the right."""
    lines = [headings, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(headings))]
    shown = []
    for line in lines:
        cells = [cell.ljust(width) for cell, width in zip(line[:left], widths[:left], strict=True)]
        cells += [cell.rjust(width) for cell, width in zip(line[left:], widths[left:], strict=True)]
        shown.append("  ".join(cells).rstrip())
    return "\n".join(shown)


def markdown_table(headings: Sequence[str], rows: Rows, left: int = 1) -> str:
    """The same in Markdown; a bar in a cell is escaped."""
    rule = ["---"] * left + ["---:"] * (len(headings) - left)
    escaped = [[cell.replace("|", "\\|") for cell in line] for line in (headings, *rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in (escaped[0], rule, *escaped[1:]))
