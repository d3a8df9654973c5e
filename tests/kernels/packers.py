"""Random weights in the kernels' order, packed by slow loops straight from the description of the layout."""

from __future__ import annotations

import numpy as np


def pack_nibbles(codes: np.ndarray) -> np.ndarray:
    """0..15 [N, K], K a multiple of 32 -> uint8 [blocks, G, 4, 32], rows beyond N as zeros."""
    rows, width = codes.shape
    packed = np.zeros((-(-rows // 8), width // 32, 4, 32), np.uint8)
    for row in range(rows):
        for k in range(width):
            chunk, place = k % 32 // 8, k % 8
            byte = row % 8 * 4 + place % 4
            packed[row // 8, k // 32, chunk, byte] |= int(codes[row, k]) << (4 if place >= 4 else 0)
    return packed


def pack_fives(codes: np.ndarray) -> np.ndarray:
    """0..31 [N, K], K a multiple of 32 -> uint8 [blocks, G, 5, 32], rows beyond N as zeros."""
    packed = np.pad(pack_nibbles(codes & 15), ((0, 0), (0, 0), (0, 1), (0, 0)))
    for row, k in np.argwhere(codes > 15):
        packed[row // 8, k // 32, 4, row % 8 * 4 + k % 4] |= 1 << k % 32 // 4
    return packed


def pack_bytes(codes: np.ndarray) -> np.ndarray:
    """-127..127 [N, K] -> int8 [blocks, G, 8, 32], rows beyond N as zeros."""
    rows, width = codes.shape
    packed = np.zeros((-(-rows // 8), width // 32, 8, 32), np.int8)
    for row in range(rows):
        for k in range(width):
            packed[row // 8, k // 32, k % 32 // 4, row % 8 * 4 + k % 4] = codes[row, k]
    return packed


def pack_scales(scales: np.ndarray, dtype: type = np.float16) -> np.ndarray:
    """[N, S] -> [blocks, S, 8]: float16 as int16 bits, or float32; rows beyond N as zeros."""
    rows, spans = scales.shape
    packed = np.zeros((-(-rows // 8), spans, 8), dtype)
    for row in range(rows):
        packed[row // 8, :, row % 8] = scales[row]
    return packed.view(np.int16) if dtype == np.float16 else packed
