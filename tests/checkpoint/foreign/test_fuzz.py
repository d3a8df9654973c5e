"""Foreign folders damaged at random: what is read is finite and of the shape that was said, or one of our errors."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.checkpoint.foreign import packers
from tests.checkpoint.foreign.packers import write_folder
from tests.checkpoint.foreign.test_refusals import CODES, METHODS, ONES, sound
from tinyinfer.checkpoint.safetensors import to_float32
from tinyinfer.checkpoint.source import open_checkpoint, plain, tensor_layout
from tinyinfer.errors import TinyinferError

ROUNDS = 150  # of each method: a second
NONSENSE: list[Any] = [
    None, True, False, -1, 0, 1, 3, 2**31, 2**70, 1e300, float("nan"), "", "int4", "re:(", "4", [], [0], [-1, 2],
    [1] * 3, {}, {"a": 1}, {"num_bits": 4}, [[["x"]]], "\ud800",
]  # fmt: skip
DTYPES = {"I8": "i1", "U8": "u1", "F8_E4M3": "u1", "F8_E8M0": "u1", "BF16": "u2", "F16": "f2", "I32": "i4", "U32": "u4",
          "F32": "f4", "I64": "i8", "BOOL": "?"}  # fmt: skip


def damaged_settings(rng: np.random.Generator, settings: Any) -> Any:
    """One value somewhere within replaced, taken away or repeated under another key."""
    keys = list(settings) if isinstance(settings, dict) else list(range(len(settings)))
    if not keys:
        return NONSENSE[rng.integers(len(NONSENSE))]
    key = keys[rng.integers(len(keys))]
    if isinstance(settings[key], (dict, list)) and settings[key] and rng.random() < 0.7:
        settings[key] = damaged_settings(rng, settings[key])
    elif isinstance(settings, dict) and rng.random() < 0.2:
        del settings[key]
    else:
        settings[key] = NONSENSE[rng.integers(len(NONSENSE))]
    return settings


def damaged_tensor(rng: np.random.Generator, code: str, array: np.ndarray) -> tuple[str, np.ndarray]:
    """Other bytes, another shape, another dtype, or a part of it."""
    what = rng.integers(5)
    if what == 0 and array.size:
        raw = bytearray(np.ascontiguousarray(array).tobytes())
        for _ in range(rng.integers(1, 4)):
            raw[rng.integers(len(raw))] = rng.integers(256)
        return code, np.frombuffer(bytes(raw), array.dtype).reshape(array.shape)
    if what == 1:
        return code, array.reshape(-1)
    if what == 2:
        return code, array[: len(array) // 2] if array.ndim else array.reshape(1, 1)
    if what == 3:
        return code, array.T
    code = list(DTYPES)[rng.integers(len(DTYPES))]
    raw = np.ascontiguousarray(array).tobytes()
    size = np.dtype(DTYPES[code]).itemsize
    if code == "BOOL":
        return code, np.zeros(array.shape, bool)
    return code, np.frombuffer(raw[: len(raw) // size * size], DTYPES[code])


def read_all(folder: Path) -> None:
    tensors = open_checkpoint(folder).tensors
    for name, (_, shape) in tensor_layout(tensors).items():
        values = plain(tensors, name)
        assert values.shape == shape
        if name.endswith("up_proj.weight"):
            assert np.isfinite(to_float32(values)).all()


@pytest.mark.parametrize("method", [*METHODS, "mlx"])
def test_damage_is_one_of_our_errors(tmp_path: Path, method: str):
    rng = np.random.default_rng(METHODS.index(method) if method in METHODS else 99)
    refused: list[str] = []
    for _ in range(ROUNDS):
        if method == "mlx":
            settings: dict[str, Any] = {"bits": 4, "group_size": 32, packers.STEM: {"bits": 4}}
            layer, metadata = packers.mlx(CODES, 4, ONES, ONES), {}
        else:
            settings, layer, metadata = copy.deepcopy(sound(method))
        if rng.random() < 0.5:
            settings = damaged_settings(rng, settings)
        else:
            name = list(layer)[rng.integers(len(layer))]
            layer[name] = damaged_tensor(rng, *layer[name])
        config = {"quantization": settings} if method == "mlx" else {}
        folder = write_folder(tmp_path / "m", settings if not config else {}, layer, metadata=metadata, **config)
        try:
            read_all(folder)
        except TinyinferError as error:
            refused.append(str(error))
    assert len(refused) > ROUNDS / 5
    assert not any("\n" in message for message in refused)
