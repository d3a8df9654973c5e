"""Where compiled kernels are kept: per backend, renewed when any source file of the package changes, never a must."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import tinyinfer

PACKAGE = Path(tinyinfer.__file__).parent
SCRIPT = """
import numpy as np
from tinyinfer.kernels.quantize import quantize_rows
codes, scales, sums = np.zeros((1, 32), np.int8), np.zeros((1, 1), np.float32), np.zeros((1, 1), np.float32)
quantize_rows(np.ones((1, 32), np.float32), codes, scales, sums, 0, 1)
stats = quantize_rows.stats
print(sum(stats.cache_hits.values()), sum(stats.cache_misses.values()), codes[0, 0])
"""
SEVERAL = f"""
from tinyinfer.kernels import compiling
compiling.listeners.append(print)
import numpy as np
from tinyinfer.kernels.memory import count_up
count_up(np.zeros(1, np.int64), 0)
{SCRIPT}
"""


@pytest.fixture
def copy(tmp_path) -> Path:
    """A package of nothing but the kernels, to be edited."""
    package = tmp_path / "tinyinfer"
    without_caches = shutil.ignore_patterns("__pycache__")
    shutil.copytree(PACKAGE / "kernels", package / "kernels", ignore=without_caches)
    for name in ("errors.py", "files.py"):
        shutil.copy(PACKAGE / name, package)
    (package / "__init__.py").touch()
    return package


def run(package: Path, script: str = SCRIPT, *flags: str, **environment: str) -> subprocess.CompletedProcess:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("NUMBA_", "TINYINFER_"))}
    command = [sys.executable, *flags, "-c", script]
    place = package.parent
    inherited |= {"PYTHONPATH": str(place), "HOME": str(place), "XDG_CACHE_HOME": str(place / "cache")} | environment
    return subprocess.run(command, env=inherited, cwd=place, capture_output=True, text=True, timeout=600)


def test_kept_until_any_source_changes(copy):
    assert run(copy).stdout.split() == ["0", "1", "127"]
    assert run(copy).stdout.split() == ["1", "0", "127"]
    assert run(copy, TINYINFER_SIMD="portable").stdout.split() == ["0", "1", "127"]
    assert run(copy).stdout.split() == ["1", "0", "127"]
    # not the file of the kernel, but one that it is made of
    simd = copy / "kernels" / "simd.py"
    text = simd.read_text()
    assert "builder.trunc(value, ir.VectorType(INT[8], 8))" in text
    negated = "builder.neg(builder.trunc(value, ir.VectorType(INT[8], 8)))"
    simd.write_text(text.replace("builder.trunc(value, ir.VectorType(INT[8], 8))", negated))
    assert run(copy).stdout.split() == ["0", "1", "-127"]


def test_who_listens_is_told_once_that_kernels_are_compiled(copy):
    first = run(copy, SEVERAL).stdout.splitlines()
    assert first[:-1] == ["compiling kernels for this processor: some twenty seconds, once"]
    assert len(run(copy, SEVERAL).stdout.splitlines()) == 1


def test_a_cache_made_on_another_processor_is_not_used(copy):
    here, other = {"TINYINFER_SIMD": "portable"}, {"TINYINFER_SIMD": "portable", "NUMBA_CPU_NAME": "generic"}
    assert run(copy, **here).stdout.split() == ["0", "1", "127"]
    for settings in (other, other | {"NUMBA_CPU_FEATURES": "+crc32,+crc"}):  # known to x86 and ARM
        assert run(copy, **settings).stdout.split() == ["0", "1", "127"]
        assert run(copy, **settings).stdout.split() == ["1", "0", "127"]
    assert run(copy, **here).stdout.split() == ["1", "0", "127"]


WARNING = "no folder to keep compiled kernels in can be written, so each start compiles them anew\n"


@pytest.mark.parametrize("flags", [(), ("-W", "error")])
def test_no_place_to_write_costs_one_warning_and_each_start_tells_that_it_compiles(copy, flags):
    (copy / "kernels" / "__pycache__").touch()  # a file where a folder should be made
    done = run(copy, SEVERAL, *flags, HOME="/dev/null", XDG_CACHE_HOME="/dev/null/cache")
    assert (done.returncode, done.stderr) == (0, WARNING)
    told, result = done.stdout.splitlines()
    assert told == "compiling kernels for this processor: some twenty seconds, at each start"
    assert result.split()[2] == "127"


def test_a_full_disk_costs_one_warning(copy):
    pytest.importorskip("resource", reason="this system does not limit the size of files")
    full = "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n"
    done = run(copy, full + SEVERAL, "-W", "error", PYTHONDONTWRITEBYTECODE="1")
    assert (done.returncode, done.stderr) == (0, WARNING)
    assert done.stdout.splitlines()[-1] == "0 1 127"


def empty(path: Path) -> None:
    path.write_bytes(b"")


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def scribble(path: Path) -> None:
    path.write_bytes(b"garbage" * 9)


def make_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()
    (path / "file").touch()


def call_of_a_small_kernel(source: Path) -> list[int]:
    """A kernel of that file, called as a process of its own would: from the cache or compiled; hits and misses."""
    spec = importlib.util.spec_from_file_location(source.stem, source)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.double(3) == 6
    return [sum(counts.values()) for counts in (module.double.stats.cache_hits, module.double.stats.cache_misses)]


@pytest.mark.parametrize(
    ("kind", "damage"),
    [
        ("nbi", empty), ("nbi", cut), ("nbi", scribble), ("nbi", make_a_folder),
        ("nbc", empty), ("nbc", cut), ("nbc", scribble),
    ],
)  # fmt: skip
def test_a_damaged_cache_is_compiled_anew_and_replaced(tmp_path, caplog, kind, damage):
    source = tmp_path / "small.py"
    source.write_text("from tinyinfer.kernels.jit import jit\n\n@jit\ndef double(x):\n    return 2 * x\n")
    assert call_of_a_small_kernel(source) == [0, 1]
    assert call_of_a_small_kernel(source) == [1, 0]
    (kept,) = tmp_path.rglob(f"*.{kind}")
    damage(kept)
    assert call_of_a_small_kernel(source) == [0, 1]
    assert call_of_a_small_kernel(source) == [1, 0]
    assert "compiles them anew" not in caplog.text


def test_a_user_folder_serves_where_the_package_is_read_only(copy):
    (copy / "kernels" / "__pycache__").touch()
    assert run(copy).stdout.split() == ["0", "1", "127"]
    assert run(copy).stdout.split() == ["1", "0", "127"]


def test_an_unknown_backend_is_refused_by_name(copy):
    done = run(copy, TINYINFER_SIMD="mmx")
    assert done.returncode != 0
    assert "TINYINFER_SIMD should be one of avx512, vnni, avx2, neon-dot, neon, portable, found 'mmx'" in done.stderr
