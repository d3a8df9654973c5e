"""Which tests need compiled tapes."""

from __future__ import annotations

import pytest

from tinyinfer.kernels.tape import use_compiled

COMPILED = ("test_tape.py", "test_grouped.py", "test_threads.py")


@pytest.fixture(autouse=True)
def compiled(request: pytest.FixtureRequest) -> None:
    """TINYINFER_KERNELS=numpy leaves nothing to compare: the twins are then tested by tests/model."""
    if request.path.name in COMPILED and not use_compiled():
        pytest.skip("TINYINFER_KERNELS=numpy runs nothing compiled")
