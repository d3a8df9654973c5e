"""The tests of vectors and products once more, by plain vector code, for a processor with none of the extras."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
FILES = [str(HERE / f"test_{name}.py") for name in ("simd", "products", "quantize")]


@pytest.mark.skipif(os.environ.get("TINYINFER_SIMD") == "portable", reason="all tests run that way already")
def test_portable_backend_passes_the_same_tests():
    environment = os.environ | {"TINYINFER_SIMD": "portable", "NUMBA_CPU_NAME": "generic"}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *FILES]
    done = subprocess.run(command, env=environment, cwd=HERE.parents[1], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-3000:]
