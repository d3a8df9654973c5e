"""Running the command as a person does: a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "tinyinfer"]


def environment(home: Path | None = None) -> dict[str, str]:
    """This process's environment, with the package to be found; `home` is where models are kept."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    found = os.environ | {"PYTHONPATH": path, "PYTHONIOENCODING": "utf-8:strict"}
    return found | {"TINYINFER_HOME": str(home)} if home else found


def tinyinfer(*argv: object, input: str | bytes | None = None, home: Path | None = None) -> subprocess.CompletedProcess:
    """Run `tinyinfer` with these arguments; without `input`, standard input is empty but no terminal."""
    raw = input.encode() if isinstance(input, str) else input
    done = subprocess.run(
        [*COMMAND, *map(str, argv)], input=raw or b"", capture_output=True, timeout=60, env=environment(home)
    )
    done.stdout, done.stderr = done.stdout.decode(), done.stderr.decode()
    return done


def refused(done: subprocess.CompletedProcess) -> str:
    """The sentence of a command that refused: exit code 2, nothing on standard output, one line and no traceback."""
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert done.stderr.startswith("tinyinfer: error: ")
    assert done.stderr.count("\n") == 1
    return done.stderr
