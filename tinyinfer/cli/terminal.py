"""How a person's turn is read, from a terminal line by line or from a pipe."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress

PROMPT, CONTINUED = "> ", ". "

ReadLine = Callable[[str], "str | None"]


def line_reader(interactive: bool) -> ReadLine:
    """A function that shows a prompt, if someone is there to see it, and gives the next line, or None at the end."""
    if not interactive:
        return lambda prompt: _piped_line()
    with suppress(ImportError):  # Windows has none
        import readline  # noqa: F401  input() then has line editing and a history
    return _typed_line


def _piped_line() -> str | None:
    line = sys.stdin.readline()
    return line.rstrip("\r\n") if line else None


def _typed_line(prompt: str) -> str | None:
    try:
        if sys.stdout.isatty():
            return input(prompt)
        # the answers go to a file, the prompts must not
        print(prompt, end="", file=sys.stderr, flush=True)
        return input()
    except EOFError:
        return None


def read_turn(read_line: ReadLine) -> str | None:
    r'''One turn: a line, lines that end in \ with the next, or all between `"""` and `"""`; None at the end.'''
    line = read_line(PROMPT)
    if line is None:
        return None
    if line.lstrip().startswith('"""'):
        return _read_block(line.lstrip()[3:], read_line)
    lines = []
    while line is not None and line.endswith("\\"):
        lines.append(line[:-1])
        line = read_line(CONTINUED)
    return "\n".join([*lines, line or ""])


def _read_block(line: str | None, read_line: ReadLine) -> str:
    lines = []
    while line is not None and not line.rstrip().endswith('"""'):
        lines.append(line)
        line = read_line(CONTINUED)
    if line is not None:
        lines.append(line.rstrip()[:-3])
    return "\n".join(lines).strip("\n")
