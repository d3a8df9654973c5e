"""ggml's quantized blocks, read one value at a time in float32, as the C reference does: slow, and easy to check.

Layouts from ggml-common.h of https://github.com/ggml-org/ggml. Each function takes the bytes of one block and gives its
values; every product and sum is rounded to float32 in the order of dequantize_row_* in ggml-quants.c.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

f32 = np.float32


def half(raw: bytes) -> np.float32:
    """A float16 as float32."""
    return f32(np.frombuffer(raw, "<f2")[0])


def q4_0(b: bytes) -> list[np.float32]:
    """f16 scale; 16 bytes, low nibbles first half."""
    return [f32(q - 8) * half(b[:2]) for q in [x & 15 for x in b[2:]] + [x >> 4 for x in b[2:]]]


def q4_1(b: bytes) -> list[np.float32]:
    """f16 scale, f16 minimum; 16 bytes, low nibbles first half."""
    return [f32(q) * half(b[:2]) + half(b[2:4]) for q in [x & 15 for x in b[4:]] + [x >> 4 for x in b[4:]]]


def fifth_bits(b: bytes, n: int) -> int:
    """Bit n of a 32-bit mask."""
    return (int.from_bytes(b, "little") >> n & 1) << 4


def q5_0(b: bytes) -> list[np.float32]:
    """f16 scale; 32 fifth bits; 16 bytes."""
    low = [x & 15 for x in b[6:]] + [x >> 4 for x in b[6:]]
    return [f32((q | fifth_bits(b[2:6], n)) - 16) * half(b[:2]) for n, q in enumerate(low)]


def q5_1(b: bytes) -> list[np.float32]:
    """f16 scale, f16 minimum; 32 fifth bits; 16 bytes."""
    low = [x & 15 for x in b[8:]] + [x >> 4 for x in b[8:]]
    return [f32(q | fifth_bits(b[4:8], n)) * half(b[:2]) + half(b[2:4]) for n, q in enumerate(low)]


def q8_0(b: bytes) -> list[np.float32]:
    """f16 scale; 32 signed bytes."""
    return [f32(q) * half(b[:2]) for q in np.frombuffer(b[2:], np.int8)]


def scale_and_min(j: int, s: bytes) -> tuple[int, int]:
    """The j-th of eight 6-bit scales and minima in 12 bytes."""
    if j < 4:
        return s[j] & 63, s[j + 4] & 63
    return (s[j + 4] & 15) | (s[j - 4] >> 6) << 4, (s[j + 4] >> 4) | (s[j] >> 6) << 4


def q4_k(b: bytes) -> list[np.float32]:
    """f16 scale, f16 minimum, 12 bytes of 6-bit scales and minima; 128 bytes."""
    return _k45(b[:2], b[2:4], b[4:16], bytes(32), b[16:])


def q5_k(b: bytes) -> list[np.float32]:
    """As Q4_K, with 32 bytes of fifth bits before the nibbles."""
    return _k45(b[:2], b[2:4], b[4:16], b[16:48], b[48:])


def _k45(d: bytes, dmin: bytes, scales: bytes, fifths: bytes, nibbles: bytes) -> list[np.float32]:
    values = []
    for j in range(8):
        scale, minimum = scale_and_min(j, scales)
        d1, m1 = half(d) * f32(scale), half(dmin) * f32(minimum)
        for i in range(32):
            q = nibbles[j // 2 * 32 + i]
            q = (q >> 4 if j % 2 else q & 15) + (16 if fifths[i] >> j & 1 else 0)
            values.append(d1 * f32(q) - m1)
    return values


def q6_k(b: bytes) -> list[np.float32]:
    """128 bytes of low nibbles, 64 of high bit pairs, 16 signed scales, f16 scale."""
    low, high, scales, d = b[:128], b[128:192], np.frombuffer(b[192:208], np.int8), half(b[208:])
    values = []
    for n in range(256):
        part, quarter, i = n // 128, n % 128 // 32, n % 32
        nibble = low[part * 64 + quarter % 2 * 32 + i]
        nibble = nibble >> 4 if quarter >= 2 else nibble & 15
        q = (nibble | (high[part * 32 + i] >> 2 * quarter & 3) << 4) - 32
        values.append(d * f32(scales[n // 16]) * f32(q))
    return values


BLOCKS: dict[str, tuple[int, int, Callable[[bytes], list[np.float32]], list[int]]] = {
    # bytes and values a block, reader, where the f16 numbers stand
    "Q4_0": (18, 32, q4_0, [0]), "Q4_1": (20, 32, q4_1, [0, 2]), "Q5_0": (22, 32, q5_0, [0]),
    "Q5_1": (24, 32, q5_1, [0, 2]), "Q8_0": (34, 32, q8_0, [0]), "Q4_K": (144, 256, q4_k, [0, 2]),
    "Q5_K": (176, 256, q5_k, [0, 2]), "Q6_K": (210, 256, q6_k, [208]),
}  # fmt: skip


def random_blocks(kind: str, rows: int, blocks: int, rng: np.random.Generator) -> np.ndarray:
    """Any bytes at all, but for float16 numbers of the size that scales have: uint8 [rows, bytes]."""
    size, _, _, halves = BLOCKS[kind]
    data = rng.integers(0, 256, (rows, blocks, size), np.uint8)
    for at in halves:
        numbers = rng.uniform(-0.02, 0.02, (rows, blocks)).astype("<f2")
        numbers[rng.random((rows, blocks)) < 0.1] = 0
        data[:, :, at : at + 2] = numbers[..., None].view(np.uint8)
    return data.reshape(rows, -1)
