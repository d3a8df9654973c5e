"""Where compiled kernels are kept: per backend, renewed when any source file of the package changes, never a must."""

from __future__ import annotations

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


@pytest.fixture
def copy(tmp_path) -> Path:
    """A package of nothing but the kernels, to be edited."""
    package = tmp_path / "tinyinfer"
    without_caches = shutil.ignore_patterns("__pycache__")
    shutil.copytree(PACKAGE / "kernels", package / "kernels", ignore=without_caches)
    shutil.copy(PACKAGE / "errors.py", package)
    (package / "__init__.py").touch()
    return package


def run(package: Path, script: str = SCRIPT, **environment: str) -> subprocess.CompletedProcess:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("NUMBA_", "TINYINFER_"))}
    command = [sys.executable, "-c", script]
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
    told = "from tinyinfer.kernels import compiling\ncompiling.listeners.append(print)\n"
    both = told + SCRIPT + "from tinyinfer.kernels.memory import count_up\ncount_up(np.zeros(1, np.int64), 0)\n"
    first = run(copy, script=both).stdout.splitlines()
    assert [line for line in first if line.startswith("compiling kernels")] == first[:1]
    assert len(first) == 2
    assert len(run(copy, script=both).stdout.splitlines()) == 1


def test_a_cache_made_on_another_processor_is_not_used(copy):
    here, other = {"TINYINFER_SIMD": "portable"}, {"TINYINFER_SIMD": "portable", "NUMBA_CPU_NAME": "generic"}
    assert run(copy, **here).stdout.split() == ["0", "1", "127"]
    for settings in (other, other | {"NUMBA_CPU_FEATURES": "+crc32,+crc"}):  # known to x86 and ARM
        assert run(copy, **settings).stdout.split() == ["0", "1", "127"]
        assert run(copy, **settings).stdout.split() == ["1", "0", "127"]
    assert run(copy, **here).stdout.split() == ["1", "0", "127"]


def test_no_place_to_write_costs_one_warning(copy):
    (copy / "kernels" / "__pycache__").touch()  # a file where a folder should be made
    done = run(copy, HOME="/dev/null", XDG_CACHE_HOME="/dev/null/cache")
    assert done.stdout.split()[2] == "127"
    assert done.stderr.count("UserWarning: no folder to keep compiled kernels") == 1
    assert done.returncode == 0


def test_a_user_folder_serves_where_the_package_is_read_only(copy):
    (copy / "kernels" / "__pycache__").touch()
    assert run(copy).stdout.split() == ["0", "1", "127"]
    assert run(copy).stdout.split() == ["1", "0", "127"]


def test_an_unknown_backend_is_refused_by_name(copy):
    done = run(copy, TINYINFER_SIMD="mmx")
    assert done.returncode != 0
    assert "TINYINFER_SIMD should be one of avx512, vnni, avx2, neon-dot, neon, portable, found 'mmx'" in done.stderr
