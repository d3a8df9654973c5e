"""The operations of simd.py that have instructions of their own on 64-bit ARM.

A register holds 128 bits, half of one of our vectors, so each operation is done by halves. A processor with the
extension "dotprod" (Apple's, Raspberry Pi 5) multiplies sixteen bytes and adds up four neighbours in one instruction,
sdot, which is just what the order of our rows is made for. Without it (Raspberry Pi 4) products go through 16 bits.

Functions take a builder and LLVM values, as `vectors.operation` has it.
"""

from __future__ import annotations

from .vectors import Vector, call, i16x32, shuffled

_i8x16, _i16x8, _i32x4 = Vector("i8", 16), Vector("i16", 8), Vector("i32", 4)


def add_dot_products(builder, sums, a, b):
    """i32x8 + the products of i8x32 and i8x32, four neighbours added up. Needs dotprod."""
    halves = zip(_parts(builder, sums, 2), _parts(builder, a, 2), _parts(builder, b, 2), strict=True)
    return _joined(builder, [call(builder, "llvm.aarch64.neon.sdot.v4i32.v16i8", _i32x4, *each) for each in halves])


def pair_products(builder, a, b):
    """The products of i8x32 and i8x32, two neighbours added up, which must fit in 16 bits: i16x16."""
    quarters = zip(_parts(builder, a, 4), _parts(builder, b, 4), strict=True)
    products = [call(builder, "llvm.aarch64.neon.smull.v8i16", _i16x8, *each) for each in quarters]
    halves = (products[:2], products[2:])
    return _joined(builder, [call(builder, "llvm.aarch64.neon.addp.v8i16", _i16x8, *half) for half in halves])


def pair_sums(builder, pairs):
    """i16x16 -> i32x8: the sums of neighbours."""
    halves = _parts(builder, pairs, 2)
    name = "llvm.aarch64.neon.saddlp.v4i32.v8i16"
    return _joined(builder, [call(builder, name, _i32x4, half) for half in halves])


def look_up(builder, table, codes):
    """table[code] for the codes 0..15 of i8x32: i16x32, in the order of k, and rows within.

    table: sixteen int16, as i8x32.
    """
    by_k = shuffled(builder, codes, codes, [4 * row + k for k in range(4) for row in range(8)])
    looked_up = []
    for byte in range(2):
        one = shuffled(builder, table, table, range(byte, 32, 2))
        halves = _parts(builder, by_k, 2)
        found = [call(builder, "llvm.aarch64.neon.tbl1.v16i8", _i8x16, one, half) for half in halves]
        looked_up.append(_joined(builder, found))
    lanes = [lane for i in range(32) for lane in (i, 32 + i)]
    return builder.bitcast(shuffled(builder, *looked_up, lanes), i16x32.llvm)


def add_level_products(builder, sums, levels, x):
    """i32x8 + levels * x, the products of a row added up: levels as `look_up` orders them, x int16, for k in order."""
    eights = _parts(builder, levels, 8)
    halves = _parts(builder, sums, 2)
    for k in range(4):
        factor = shuffled(builder, x, x, [k] * 4)
        for half in range(2):
            product = call(builder, "llvm.aarch64.neon.smull.v4i32", _i32x4, eights[2 * k + half], factor)
            halves[half] = builder.add(halves[half], product)
    return _joined(builder, halves)


def _parts(builder, vector, count):
    """A vector cut into a list of equal parts."""
    size = vector.type.count // count
    return [shuffled(builder, vector, vector, range(first, first + size)) for first in range(0, size * count, size)]


def _joined(builder, halves):
    """Two vectors as one."""
    return shuffled(builder, *halves, range(2 * halves[0].type.count))
