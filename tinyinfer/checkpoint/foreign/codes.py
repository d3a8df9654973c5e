"""Small numbers packed in words and bytes, and what the codes of small floats stand for.

    stream     fields of b bits in 32-bit words, the first from bit 0 up; where b does not divide 32 a field may begin
               in one word and end in the next:

               3 bits    word 0 |0 0 0 1 1 1 2 2 2 ... 9 9 9 10 10|  word 1 |10 11 11 11 ...|      bit 0 on the left

    E2M1       s e e m               0 0.5 1 1.5 2 3 4 6, and the same below zero
    E4M3       s e e e e m m m       (1 + m / 8) 2^(e - 7), or m / 8 2^-6 where e is 0; up to 448; 127 and 255 are NaN
    E8M0       e e e e e e e e       2^(e - 127); 255 is NaN

The small floats are those of the Open Compute Project: its 8-bit floating point (OFP8) and microscaling formats (MX).
"""

from __future__ import annotations

import numpy as np

E2M1_DOUBLED = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int8)  # whole numbers: twice each


def _e4m3() -> np.ndarray:
    codes = np.arange(256)
    exponent, mantissa = codes >> 3 & 15, codes & 7
    size = np.where(exponent == 0, mantissa / 8 * 2.0**-6, (1 + mantissa / 8) * 2.0 ** (exponent - 7))
    values = np.where(codes < 128, size, -size)
    values[[127, 255]] = np.nan
    return values.astype(np.float32)


E4M3_VALUES = _e4m3()
E8M0_VALUES = np.append(np.ldexp(np.float32(1), np.arange(-127, 128)), np.nan).astype(np.float32)


def raw_bytes(array: np.ndarray) -> np.ndarray:
    """The bytes of each row of a matrix: [n, m] of any dtype -> uint8 [n, m * itemsize]."""
    return np.ascontiguousarray(array).view(np.uint8)


def stream(words: np.ndarray, bits: int, count: int) -> np.ndarray:
    """The first `count` fields of a stream that runs along the last axis: 32-bit [n, words] -> uint8 [n, count]."""
    octets = raw_bytes(words)
    if bits in (4, 8):
        return (octets if bits == 8 else nibbles(octets))[:, :count]
    eights = -(-count // 8)  # eight fields fill as many bytes as one has bits
    missing = eights * bits - octets.shape[1]
    octets = np.pad(octets, ((0, 0), (0, missing))) if missing > 0 else octets[:, : eights * bits]
    numbers = np.zeros((len(words), eights, 8), np.uint8)
    numbers[:, :, :bits] = octets.reshape(len(words), eights, bits)
    numbers = numbers.view("<u8")[:, :, 0]
    mask = np.uint64(2**bits - 1)
    fields = np.empty((len(words), eights, 8), np.uint8)
    for place in range(8):
        fields[:, :, place] = numbers >> np.uint64(place * bits) & mask
    return fields.reshape(len(words), -1)[:, :count]


def nibbles(octets: np.ndarray) -> np.ndarray:
    """The low nibble of each byte, then its high one: uint8 [n, m] -> uint8 [n, 2 m]."""
    return np.stack([octets & 15, octets >> 4], axis=-1).reshape(len(octets), -1)


def words_for(count: int, bits: int) -> int:
    """How many 32-bit words that many fields take."""
    return -(-count * bits // 32)
