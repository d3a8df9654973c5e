"""Damaged models of every architecture: what is wrong with them is said by an error of ours, or they run.

Each case takes a golden folder, spoils a value of its config.json or a few bytes of its weights' header, and runs a
few tokens. Anything but a `TinyinferError` is a fault: another exception, a crash, a hang. A case is told by its
number; TINYINFER_FUZZ_CASES asks for more of them.
"""

from __future__ import annotations

import json
import os
import random
import struct
import warnings
from pathlib import Path

import numpy as np
import pytest

import tinyinfer
from tests.tiny_models import ARCHITECTURES, golden_folder

CASES = int(os.environ.get("TINYINFER_FUZZ_CASES", "300"))
VALUES = [
    None, True, False, 0, 1, -1, 2, 3, 7, 64, 2**31, 2**63, -(2**70), 0.0, -0.5, 1e-320, 1e300, float("nan"),
    float("inf"), "", "x", "yarn", "sliding_attention", [], [None], [1, 2], ["full_attention"], {}, {"type": "yarn"},
    {"rope_type": "dynamic"}, {"a": {"b": []}},
]  # fmt: skip


def spoil(value: object, dice: random.Random) -> object:
    """Another value for one of config.json's, now and then near to what it was."""
    if isinstance(value, dict) and value and dice.random() < 0.7:
        key = dice.choice(sorted(value))
        return value | {key: spoil(value[key], dice)}
    if isinstance(value, list) and value and dice.random() < 0.7:
        index = dice.randrange(len(value))
        return [*value[:index], spoil(value[index], dice), *value[index + 1 :]]
    if type(value) in (int, float) and dice.random() < 0.4:
        return dice.choice([value + 1, value - 1, value * 2, -value])
    return dice.choice(VALUES)


def spoiled_config(text: str, dice: random.Random) -> str:
    config = json.loads(text)
    for _ in range(dice.choice([1, 1, 1, 2, 4])):
        key = dice.choice(sorted(config) or ["architectures"])
        if dice.random() < 0.2:
            config.pop(key, None)
        else:
            config[key] = spoil(config.get(key), dice)
    return json.dumps(config)


def spoiled_weights(data: bytes, dice: random.Random) -> bytes:
    length = struct.unpack("<Q", data[:8])[0]
    kind = dice.random()
    if kind < 0.2:
        return data[: dice.randrange(len(data))]
    spoiled = bytearray(data)
    for _ in range(dice.choice([1, 2, 8])):
        spoiled[dice.randrange(8 + length) if kind < 0.9 else dice.randrange(len(data))] = dice.randrange(256)
    return bytes(spoiled)


def damaged(case: int, folder: Path) -> Path:
    """The model of a case."""
    dice = random.Random(case)
    golden = golden_folder(dice.choice(ARCHITECTURES))
    folder.mkdir()
    files = {file.name: file.read_bytes() for file in golden.iterdir() if file.name != "golden.safetensors"}
    weights = sorted(name for name in files if name.endswith(".safetensors"))
    if dice.random() < 0.6:
        files["config.json"] = spoiled_config(files["config.json"].decode(), dice).encode()
    else:
        name = dice.choice(weights)
        files[name] = spoiled_weights(files[name], dice)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return folder


@pytest.mark.parametrize("first", range(0, CASES, 50))
def test_a_damaged_model_is_refused_or_runs(first: int, tmp_path: Path):
    refused: list[str] = []
    for case in range(first, min(first + 50, CASES)):
        folder = damaged(case, tmp_path / str(case))
        try:
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                tinyinfer.load(folder).forward([1, 2, 3, 4, 5])
        except tinyinfer.TinyinferError as error:
            refused.append(str(error))
        except Exception as error:
            raise AssertionError(f"case {case}: {type(error).__name__}: {error}") from error
    assert len(refused) > 10
    assert all(refused)
