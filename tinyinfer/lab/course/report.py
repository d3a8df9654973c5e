"""What all experiments found as one page, with nothing outside it: tables, drawings, and what they say."""

from __future__ import annotations

import html
import io
from collections.abc import Sequence
from pathlib import Path

from ...files import replaced_when_done
from .drawing import figure_of
from .finding import Drawing, Finding, Table, shown

STYLE = """\
body { font: 16px/1.5 system-ui, sans-serif; max-width: 52em; margin: 2em auto; padding: 0 1em; color: #111; }
table { border-collapse: collapse; margin: 1em 0; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-weight: 600; padding: .3em 0; }
th, td { padding: .2em .7em; border-bottom: 1px solid #ccc; text-align: right; }
th.name, td.name { text-align: left; }
td.name { white-space: nowrap; }
div { overflow-x: auto; }
svg { max-width: 100%; height: auto; }
"""


def write_report(title: str, facts: str, found: Sequence[tuple[str, str, Finding]], path: Path) -> None:
    """Write a page of findings, each with its name and what it measures; `facts` says of which model, where and when.

    Raises `MissingExtra` without matplotlib.
    """
    parts = [f"<h1>{html.escape(title)}</h1><p>{html.escape(facts)}</p>", "<ul>"]
    parts += [f'<li><a href="#{name}">{name}</a>: {html.escape(measures)}</li>' for name, measures, _ in found]
    parts.append("</ul>")
    for name, measures, finding in found:
        parts.append(f'<h2 id="{name}">{name}: {html.escape(measures)}</h2><p>{html.escape(finding.says)}</p>')
        parts += [_table(table) for table in finding.tables]
        parts += [_drawing(drawing) for drawing in finding.drawings]
    head = f'<meta charset="utf-8"><title>{html.escape(title)}</title><style>{STYLE}</style>'
    page = f'<!doctype html><html lang="en"><head>{head}</head><body>{"".join(parts)}</body></html>\n'
    with replaced_when_done(path) as temporary:
        temporary.write_text(page, encoding="utf-8")


def _table(table: Table) -> str:
    def row(cells: Sequence[str], tag: str) -> str:
        kinds = [' class="name"' if i < table.left else "" for i in range(len(cells))]
        marked = (f"<{tag}{kind}>{html.escape(cell)}</{tag}>" for cell, kind in zip(cells, kinds, strict=True))
        return f"<tr>{''.join(marked)}</tr>"

    rows = "".join(row([shown(cell) for cell in cells], "td") for cells in table.rows)
    head = f"<caption>{html.escape(table.title)}</caption>{row(table.columns, 'th')}"
    return f"<div><table>{head}{rows}</table></div>"  # which scrolls by itself where it is wider than the page


def _drawing(drawing: Drawing) -> str:
    """As SVG that stands in the page, without the lines that make it a file of its own."""
    written = io.StringIO()
    figure_of([drawing]).savefig(written, format="svg")
    return written.getvalue()[written.getvalue().index("<svg") :]
