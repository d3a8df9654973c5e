"""MXFP4 experts, as gpt-oss is published: all experts of a layer in one array, 32 weights to a scale.

    *_blocks   uint8 [experts, outputs, inputs / 32, 16]     byte b: weight 2 b in its low nibble, 2 b + 1 in the high
    *_scales   uint8 [experts, outputs, inputs / 32]         E8M0

    w = E2M1(code) * E8M0(scale)

What comes of it is named without the ending and has inputs before outputs, [experts, inputs, outputs], as transformers
has it. Two binary digits times a power of two: bfloat16 holds it.
OCP microscaling formats: https://arxiv.org/abs/2310.10537.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..safetensors import BFLOAT16
from .codes import E2M1_DOUBLED, E8M0_VALUES, nibbles
from .grid import FLOAT32, check_finite, holds_in_bfloat16
from .parts import BYTES, Parts, Settings

HALVES = E8M0_VALUES * np.float32(0.5)  # E2M1 codes are taken as twice what they stand for


@dataclass(frozen=True, eq=False)
class Experts:
    """The experts of a layer, [experts, inputs, outputs]; to be read like a `Grid`, an expert for a row."""

    name: str
    kind: str
    shape: tuple[int, int, int]
    stored: int
    blocks: np.ndarray
    scales: np.ndarray

    def floats(self, ids: np.ndarray) -> np.ndarray:
        """Some experts, float32 [n, inputs, outputs]."""
        codes = E2M1_DOUBLED[nibbles(self.blocks[ids].reshape(-1, 16))]
        weights = codes.astype(np.float32)
        with np.errstate(over="ignore"):
            weights *= HALVES[self.scales[ids].reshape(-1, 1)]
        check_finite(self.name, weights)
        _, inputs, outputs = self.shape
        return weights.reshape(len(ids), outputs, inputs).transpose(0, 2, 1)

    def choice(self) -> np.dtype:
        """What holds them exactly; raises `BadCheckpoint` where a scale is not finite."""
        scales = HALVES[self.scales]
        check_finite(self.name, scales)
        return BFLOAT16 if holds_in_bfloat16(scales, 2) else FLOAT32


def read(settings: Settings, parts: Parts) -> list[Experts]:
    """Every array of experts in the folder."""
    return [_experts(parts, stem) for stem in parts.stems("_blocks", "_scales")]


def _experts(parts: Parts, stem: str) -> Experts:
    blocks = parts.take(f"{stem}_blocks", BYTES, (None, None, None, 16))
    scales = parts.take(f"{stem}_scales", BYTES, blocks.shape[:3])
    experts, outputs, groups = scales.shape
    return Experts(
        name=stem,
        kind="MXFP4 experts, groups of 32",
        shape=(experts, 32 * groups, outputs),
        stored=blocks.nbytes + scales.nbytes,
        blocks=blocks,
        scales=scales,
    )
