"""The operations of simd.py that have instructions of their own on x86 processors with VNNI.

They multiply four bytes, or two numbers of 16 bits, with their like and add the products to a sum of 32 bits at once:
just what the order of our rows is made for. Registers of 512 bits have room for sixteen rows; a vector that is the same
for all rows then goes with both halves.

Functions take a builder and LLVM values, as `vectors.operation` has it.
"""

from __future__ import annotations

from llvmlite import ir

from .vectors import INT, call, i8x32, i16x32, i32x8, i32x16, shuffled

_SUMS = {8: i32x8, 16: i32x16}


def add_dot_products(builder, sums, a, b):
    """sums + a * b, four neighbours added up: a without and b with sign, 32 or 64 of each."""
    lanes = 4 * sums.type.count
    return _multiply_add(builder, "vpdpbusd", sums, _for_all_rows(builder, a, lanes), _for_all_rows(builder, b, lanes))


def add_signed_products(builder, sums, w, x):
    """sums + w * x, four neighbours added up: both -127..127, w i8x32 or i8x64, x i8x32."""
    # the instruction takes one operand without sign: abs(w), and x with the sign of w
    x = _for_all_rows(builder, x, w.type.count)
    is_negative = builder.icmp_signed("<", w, ir.Constant(w.type, [0] * w.type.count))
    magnitude = builder.select(is_negative, builder.neg(w), w)
    if w.type.count == 32:
        signed = call(builder, "llvm.x86.avx2.psign.b", i8x32, x, w)
    else:
        signed = builder.select(is_negative, builder.neg(x), x)
    return _multiply_add(builder, "vpdpbusd", sums, magnitude, signed)


def look_up(builder, table, codes):
    """table[code] for the codes 0..15 of i8x32 or i8x64, in their order: i16x32 or i16x64. Needs 512 bits.

    table: sixteen int16, as i8x32.
    """
    table = builder.bitcast(table, ir.VectorType(INT[16], 16))
    twice = shuffled(builder, table, table, [*range(16)] * 2)
    wide = builder.zext(codes, ir.VectorType(INT[16], codes.type.count))
    found = [call(builder, "llvm.x86.avx512.permvar.hi.512", i16x32, twice, part) for part in _parts(builder, wide, 32)]
    return _joined(builder, found)


def add_level_products(builder, sums, levels, x):
    """sums + levels * x, two neighbours added up: levels i16x32 or i16x64, x i16x32. Needs 512 bits."""
    pairs = zip(_parts(builder, sums, 16), _parts(builder, levels, 32), strict=True)
    return _joined(builder, [_multiply_add(builder, "vpdpwssds", *pair, x) for pair in pairs])


def _for_all_rows(builder, x, lanes):
    """A vector of so many bytes as it is; one of half of them, the same for all rows, twice."""
    if x.type.count == lanes:
        return x
    words = builder.bitcast(x, i32x8.llvm)  # so LLVM sees that it is one number over and over
    return builder.bitcast(shuffled(builder, words, words, [*range(8)] * 2), ir.VectorType(INT[8], 64))


def _multiply_add(builder, name, sums, a, b):
    kind = _SUMS[sums.type.count]
    a, b = builder.bitcast(a, kind.llvm), builder.bitcast(b, kind.llvm)
    return call(builder, f"llvm.x86.avx512.{name}.{32 * sums.type.count}", kind, sums, a, b)


def _parts(builder, vector, lanes):
    """A vector cut into a list of vectors of so many lanes."""
    return [
        shuffled(builder, vector, vector, range(first, first + lanes)) for first in range(0, vector.type.count, lanes)
    ]


def _joined(builder, parts):
    """One or two vectors as one."""
    return parts[0] if len(parts) == 1 else shuffled(builder, *parts, range(2 * parts[0].type.count))
