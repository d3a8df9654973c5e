"""What is taken for which processor; and a whole model as an older one would run it."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from llvmlite import binding

from tests.tiny_models import random_model
from tinyinfer.errors import BadRequest
from tinyinfer.kernels import processor

OLDER = {"x86_64": ("nehalem", "portable"), "aarch64": ("cortex-a53", "neon"), "arm64": ("cortex-a53", "neon")}


@pytest.fixture
def on(monkeypatch):
    """Act as a processor with some features; the choice, made once a process, is forgotten before and after."""

    def act(*features: str) -> None:
        monkeypatch.setattr(processor, "features", lambda: frozenset(features))
        processor.backend.cache_clear()

    monkeypatch.delenv("TINYINFER_SIMD", raising=False)
    yield act
    processor.backend.cache_clear()


@pytest.mark.parametrize(
    ("features", "backend"),
    [
        (["neon", "dotprod", "crc"], "neon-dot"),
        (["neon"], "neon"),
        (["avx2", "fma", "f16c"], "avx2"),
        (["avx2"], "portable"),
        ([], "portable"),
    ],
)
def test_the_best_that_the_processor_has(on, features, backend):
    on(*features)
    assert processor.backend() == backend


def test_dot_products_are_not_forced_on_a_processor_without(on, monkeypatch):
    on("neon")
    monkeypatch.setenv("TINYINFER_SIMD", "neon-dot")
    with pytest.raises(BadRequest, match="needs a processor with dotprod"):
        processor.backend()


@pytest.mark.parametrize(
    ("name", "listed", "has_dot"),
    [
        ("apple-m1", "", True),  # macOS lists no features
        ("cortex-a76", "+neon,+crc,-sve", True),  # Raspberry Pi 5: Linux lists none for dot products
        ("cortex-a72", "+neon,+crc,-sve", False),  # Raspberry Pi 4
        ("generic", "", False),
        ("generic", "+dotprod", True),
    ],
)
def test_dot_products_are_known_by_the_name_of_an_arm_processor(name, listed, has_dot):
    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    try:
        binding.Target.from_triple("aarch64")
    except RuntimeError:
        pytest.skip("this build of LLVM has no code for ARM")
    assert processor._of_arm(name, listed) == ({"neon", "dotprod"} if has_dot else {"neon"})


LOGITS = """
    import sys
    import numpy as np
    import tinyinfer
    from tinyinfer.kernels.processor import backend
    forms = (None, "int4", "int8", "nf4")
    models = [tinyinfer.load(sys.argv[1], quantize=form, kv_dtype="float32") for form in forms]
    np.save(sys.argv[2], [model.forward([*range(10)]) for model in models])
    print(backend())
"""


@pytest.mark.skipif(platform.machine() not in OLDER, reason="no older processor of this kind is known here")
def test_an_older_processor_computes_the_same(tmp_path: Path):
    """Integers are the same. Sums of floats are not, and an activation that comes to lie on the other side of a half is
    another code, which was seen to move logits, of order 1, by 0.05."""
    name, backend = OLDER[platform.machine()]
    random_model(tmp_path / "model", dtype="float16")  # which nehalem can't widen
    logits = []
    for settings in ({}, {"NUMBA_CPU_NAME": name, "NUMBA_CPU_FEATURES": ""}):
        environment = {key: value for key, value in os.environ.items() if not key.startswith("TINYINFER_")} | settings
        arguments = [tmp_path / "model", tmp_path / "logits.npy"]
        command = [sys.executable, "-c", textwrap.dedent(LOGITS), *map(str, arguments)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900)
        assert done.returncode == 0, done.stderr
        logits.append(np.load(arguments[1]))
    assert done.stdout.strip() == backend
    assert logits[0].std() > 0.9
    np.testing.assert_allclose(logits[1][0], logits[0][0], rtol=0, atol=2e-5)
    np.testing.assert_allclose(logits[1], logits[0], rtol=0, atol=0.2)
