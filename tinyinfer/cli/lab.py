"""`tinyinfer lab`: the measurements of the course, on this machine."""

from __future__ import annotations

import argparse
import datetime
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import BadRequest
from .options import Parser, text_argument
from .output import note, show_json
from .tables import markdown_table, plain_table

if TYPE_CHECKING:
    from ..lab.course.finding import Finding, Table

EPILOG = """\
Without a name, the experiments are listed in reading order. Each prints what it measured beside what the course saw,
and says what to see in it; by default in about a minute, with --full at the course's sizes.

  tinyinfer lab kv
  tinyinfer lab phases --model smollm2-135m-instruct --plot phases.svg
  tinyinfer lab all --out report
"""


def lab_command(parser: Parser) -> Callable[[argparse.Namespace], int]:
    """The flags of `lab`."""
    from ..lab.course import USUAL_MODEL

    add = parser.add_argument
    add("name", nargs="?", metavar="NAME", help="the experiment, or all")
    add("-m", "--model", default=USUAL_MODEL, metavar="MODEL", help="the model to measure (default: %(default)s)")
    add("--full", action="store_true", help="take the course's sizes, however long that takes")
    add("--text", metavar="FILE", help="a text to measure with, in place of the experiment's own")
    add("--plot", metavar="FILE", help="draw it, as .svg, .png or .pdf")
    add("--out", metavar="FOLDER", help="with all: the folder for the report")
    shape = parser.add_mutually_exclusive_group()
    shape.add_argument("--json", action="store_true", help="write a JSON object")
    shape.add_argument("--md", action="store_true", help="write Markdown")
    add("-q", "--quiet", action="store_true", help="don't say how far it is")
    parser.epilog = EPILOG
    return lab


def lab(args: argparse.Namespace) -> int:
    """List the experiments, run one, or all."""
    from ..lab.course.catalogue import EXPERIMENTS, experiment
    from ..lab.course.drawing import check_ending, draw
    from ..lab.course.setting import Setting

    if args.name is None:
        print(plain_table(("name", "what it measures"), [(one.name, one.measures) for one in EXPERIMENTS], 2))
        return 0
    say = (lambda line: None) if args.quiet else note
    text = None if args.text is None else text_argument(None, args.text, "the text")
    setting = Setting(args.model, args.full, text, say)
    if args.name == "all":
        return _all(args, setting)
    if args.out is not None:
        raise BadRequest("--out is for `tinyinfer lab all`; one experiment is drawn with --plot", "out")
    chosen = experiment(args.name)
    if args.plot is not None:
        check_ending(Path(args.plot))
    finding = chosen.run(setting)
    if args.plot is not None:
        if not finding.drawings:
            raise BadRequest(f"{chosen.name} has nothing to draw", "plot")
        draw(finding.drawings, Path(args.plot))
    if args.json:
        show_json({"name": chosen.name, "model": args.model, **_record(finding)})
    else:
        print(_shown(finding, markdown_table if args.md else plain_table))
    return 0


def _all(args: argparse.Namespace, setting: Any) -> int:
    from ..lab.course.catalogue import EXPERIMENTS
    from ..lab.course.report import write_report
    from ..lab.machine import load_average, processor_name

    if args.out is None:
        raise BadRequest("give a folder for the report: tinyinfer lab all --out FOLDER", "out")
    found = []
    for one in EXPERIMENTS:
        note(f"{one.name}: {one.measures}")
        begun = time.perf_counter()
        found.append((one.name, one.measures, one.run(setting)))
        setting.say(f"{one.name}: {time.perf_counter() - begun:.0f} s")
    path = Path(args.out) / "report.html"
    when = datetime.datetime.now().strftime("%Y-%m-%d %H:%M")
    facts = f"{args.model} on {processor_name()}, load {load_average()}, {when}"
    write_report("The course, measured here", facts, found, path)
    note(f"written to {path}")
    return 0


def _shown(finding: Finding, table: Callable) -> str:
    return "\n\n".join([*(_table(one, table) for one in finding.tables), finding.says])


def _table(one: Table, table: Callable) -> str:
    from ..lab.course.finding import shown

    rows = [[shown(cell) for cell in row] for row in one.rows]
    return f"{one.title}\n\n{table(one.columns, rows, one.left)}"


def _record(finding: Finding) -> dict[str, Any]:
    tables = [
        {"title": t.title, "columns": list(t.columns), "rows": [list(row) for row in t.rows]} for t in finding.tables
    ]
    return {"tables": tables, "says": finding.says, "drawings": [asdict(drawing) for drawing in finding.drawings]}
