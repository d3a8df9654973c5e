"""A small vocabulary of vectors for compiled kernels: a few types, and one function an operation.

Operands are vectors, or tuples of vectors of one length, and then so is the result; what is not a tuple is used with
each element, as NumPy broadcasts. So a kernel for one row of x and a kernel for four are the same text: only the tuple
of where its rows start is longer. An operation on tuples is that many machine instructions; nothing is stored between.

Arrays must be C-contiguous. An `index` counts elements from the first, in any number of dimensions, and nothing checks
that it is inside. Float16 arrays come as their bits, int16.

Operations that differ between processors are in the last section, each with the instructions of AVX2 and with plain
vector code that LLVM translates for any processor; both give the same integers.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.core import cgutils

from .processor import backend
from .vectors import (
    INT,
    call,
    constant,
    f32x8,
    i8x32,
    i16x16,
    i16x32,
    i32x8,
    i32x16,
    operation,
    read,
    repeated,
    shuffled,
    write,
)

# Relaxed float flags go to instructions that have none of their own; with this one an operation stays as written, so
# that a row of x gives the same floats whatever other rows are multiplied with it.
_AS_WRITTEN = ("nsz",)
_FUSED = ("contract",)  # a product and a sum may become one instruction, which rounds once

# --- memory -----------------------------------------------------------------------------------------------------------

_BYTES = (types.int8[::1], types.uint8[::1])
_FLOATS = types.float32[::1]
_INDEX = types.intp
_NUMBERS = (_FLOATS, types.int16[::1], types.int8[::1])


@operation({(_INDEX, _INDEX): _INDEX})
def plus(builder, index, amount):
    """The sum of two indices: for tuples of them."""
    return builder.add(index, amount)


@operation({(_INDEX, _INDEX): _INDEX})
def times(builder, index, amount):
    """The product of two indices: for tuples of them."""
    return builder.mul(index, amount)


@operation({(array, _INDEX): i8x32 for array in _BYTES})
def load_bytes(builder, array, index):
    """32 bytes, as i8x32."""
    return read(builder, array, index, i8x32.llvm)


@operation({(array, _INDEX): i8x32 for array in _BYTES})
def broadcast_bytes(builder, array, index):
    """Four bytes of an array, eight times: i8x32."""
    four = read(builder, array, index, INT[32])
    return builder.bitcast(repeated(builder, four, i32x8), i8x32.llvm)


@operation({(_FLOATS, _INDEX): f32x8})
def broadcast_float(builder, array, index):
    """One float32 of an array, eight times: f32x8."""
    return repeated(builder, read(builder, array, index, f32x8.llvm.element), f32x8)


@operation({(array, _INDEX): f32x8 for array in _NUMBERS})
def load_floats(builder, array, index):
    """Eight floats, f32x8: from a float32 array, from float16's bits in an int16 one, or from int8."""
    return _widened(builder, read(builder, array, index, ir.VectorType(array.type.pointee, 8)))


def _widened(builder, numbers):
    """Eight numbers as f32x8, exactly."""
    if numbers.type == f32x8.llvm:
        return numbers
    if numbers.type.element == INT[16]:
        return _widen_half(builder, numbers)
    return builder.sitofp(builder.sext(numbers, i32x8.llvm), f32x8.llvm)


@operation({(_FLOATS, _INDEX, f32x8): types.void})
def store_floats(builder, array, index, value):
    """array[index : index + 8] = value."""
    write(builder, array, index, value)


@operation({(types.int8[::1], _INDEX, i32x8): types.void})
def store_bytes(builder, array, index, value):
    """array[index : index + 8] = the low bytes of an i32x8."""
    write(builder, array, index, builder.trunc(value, ir.VectorType(INT[8], 8)))


@operation({(array, _INDEX): types.void for array in (*_BYTES, *_NUMBERS)})
def prefetch(builder, array, index):
    """Ask for the cache line at an index, which may lie outside the array."""
    address = builder.bitcast(builder.gep(array, [index]), INT[8].as_pointer())
    function = ir.FunctionType(ir.VoidType(), [address.type] + [INT[32]] * 3)
    hint = cgutils.get_or_insert_function(builder.module, function, "llvm.prefetch.p0i8")
    builder.call(hint, [address, *(ir.Constant(INT[32], number) for number in (0, 3, 1))])  # to read, keep, data


@operation({(array, _INDEX): types.float32 for array in _NUMBERS})
def load_float(builder, array, index):
    """One number as float32, from the arrays that `load_floats` takes."""
    one = read(builder, array, index, array.type.pointee)
    if one.type == ir.FloatType():
        return one
    nothing = ir.Constant(ir.VectorType(one.type, 8), None)
    first = ir.Constant(INT[32], 0)
    return builder.extract_element(_widened(builder, builder.insert_element(nothing, one, first)), first)


@operation({(types.int16[::1], _INDEX, f32x8): types.void})
def store_halves(builder, array, index, value):
    """array[index : index + 8] = float16's bits of eight floats, to nearest; beyond its range the largest it has."""
    write(builder, array, index, _narrowed(builder, value))


@operation({(_FLOATS, _INDEX, types.float32): types.void})
def store_float(builder, array, index, value):
    """array[index] = value."""
    write(builder, array, index, value)


# --- arithmetic -------------------------------------------------------------------------------------------------------


@operation({(kind, kind): kind for kind in (i16x16, i32x8, i32x16, f32x8)} | {(types.float32,) * 2: types.float32})
def add(builder, a, b):
    """a + b, for vectors of any kind, and plain float32."""
    kind = a.type.element if isinstance(a.type, ir.VectorType) else a.type
    return builder.fadd(a, b, flags=_AS_WRITTEN) if kind == ir.FloatType() else builder.add(a, b)


@operation({(f32x8, f32x8): f32x8})
def multiply(builder, a, b):
    """a * b."""
    return builder.fmul(a, b, flags=_AS_WRITTEN)


@operation({(f32x8, f32x8, f32x8): f32x8})
def multiply_add(builder, a, b, c):
    """a * b + c: rounded once with AVX2, which has an instruction for it, and twice in plain code."""
    if backend() == "avx2":
        return call(builder, "llvm.fma.v8f32", f32x8, a, b, c)
    return builder.fadd(builder.fmul(a, b, flags=_AS_WRITTEN), c, flags=_AS_WRITTEN)


@operation({(f32x8, f32x8): f32x8})
def subtract(builder, a, b):
    """a - b."""
    return builder.fsub(a, b, flags=_AS_WRITTEN)


@operation({(f32x8, f32x8): f32x8})
def quotient(builder, a, b):
    """a / b."""
    return builder.fdiv(a, b, flags=_AS_WRITTEN)


@operation({(f32x8, f32x8): f32x8})
def maximum(builder, a, b):
    """The larger of each two floats; b's where one is a NaN."""
    return builder.select(builder.fcmp_ordered(">", a, b), a, b)


@operation({(f32x8,): types.float32})
def highest(builder, a):
    """The largest of eight floats; NaNs may be passed over."""
    return _folded(builder, lambda a, b: builder.select(builder.fcmp_ordered(">", a, b), a, b), a)


@operation({(f32x8,): types.float32})
def total(builder, a):
    """The sum of eight floats."""
    return _folded(builder, lambda a, b: builder.fadd(a, b, flags=_AS_WRITTEN), a)


@operation({(f32x8,): f32x8})
def exponential(builder, a):
    """e^a, as `pieces.exp` has it: to about 1e-7 of the value; e^-87.3 below that, e^88 above 88, NaN of NaN."""

    def number(value):
        return constant(f32x8, value)

    def add_product(x, y, z):
        return builder.fadd(builder.fmul(x, y, flags=_FUSED), z, flags=_FUSED)

    def product(x, y):
        return builder.fmul(x, y, flags=_AS_WRITTEN)

    x = builder.select(builder.fcmp_ordered(">", a, number(88.0)), number(88.0), a)
    x = builder.select(builder.fcmp_ordered("<", x, number(-87.3)), number(-87.3), x)
    # adding one and a half times 2**23 rounds to a whole number, which then stands in the lower bits
    shifted = builder.fadd(product(x, number(1.4426950408889634)), number(12582912.0), flags=_AS_WRITTEN)
    power = builder.sub(builder.bitcast(shifted, i32x8.llvm), constant(i32x8, 0x4B400000))
    n = builder.fsub(shifted, number(12582912.0), flags=_AS_WRITTEN)
    r = add_product(n, number(2.12194440e-4), add_product(n, number(-0.693359375), x))
    y = number(1.9875691500e-4)
    for factor in (1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1):
        y = add_product(y, r, number(factor))
    y = builder.fadd(add_product(y, product(r, r), r), number(1.0), flags=_AS_WRITTEN)
    scale = builder.shl(builder.add(power, constant(i32x8, 127)), constant(i32x8, 23))
    value = product(y, builder.bitcast(scale, f32x8.llvm))
    return builder.select(builder.fcmp_unordered("uno", a, a), a, value)


@operation({(types.float32,): f32x8})
def spread(builder, value):
    """Eight times the same float32."""
    return repeated(builder, value, f32x8)


@operation({(f32x8, _INDEX): types.float32})
def lane(builder, vector, index):
    """One element of a vector."""
    return builder.extract_element(vector, index)


@operation({(f32x8, _INDEX, types.float32): f32x8})
def with_lane(builder, vector, index, value):
    """The vector with one element replaced."""
    return builder.insert_element(vector, value, index)


@operation({(i32x8,): f32x8})
def to_float(builder, a):
    """Integers as float32, rounded where they have more than 24 bits."""
    return builder.sitofp(a, f32x8.llvm)


@operation({(f32x8, f32x8): i32x8})
def scaled_to_int(builder, a, scale):
    """a * scale in float32, rounded half to even, for results within +-2**22; nothing is fused or reordered."""
    # floats from 2**23 are whole numbers: adding one and a half times that rounds as every addition does
    shift, shift_bits = constant(f32x8, 12582912.0), constant(i32x8, 0x4B400000)
    product = builder.fmul(a, scale, flags=_AS_WRITTEN)
    shifted = builder.fadd(product, shift, flags=_AS_WRITTEN)
    return builder.sub(builder.bitcast(shifted, i32x8.llvm), shift_bits)


@operation({(types.float32, types.float32): types.float32})
def divide(builder, a, b):
    """a / b as IEEE has it, never by an approximate reciprocal."""
    return builder.fdiv(a, b, flags=_AS_WRITTEN)


@operation({(f32x8,): i32x8})
def magnitude_bits(builder, a):
    """The bits of abs(a): as integers they are in order of magnitude, then infinity, then NaN."""
    return builder.and_(builder.bitcast(a, i32x8.llvm), constant(i32x8, 0x7FFFFFFF))


@operation({(i32x8, i32x8): i32x8})
def larger(builder, a, b):
    """The larger of each two integers."""
    return builder.select(builder.icmp_signed(">", a, b), a, b)


def _folded(builder, combine, vector):
    """`combine` of all eight lanes, as a scalar."""
    nothing = ir.Constant(vector.type, ir.Undefined)
    for half in (4, 2, 1):
        lanes = [*range(half, 2 * half), *range(8 - half)]
        vector = combine(vector, shuffled(builder, vector, nothing, lanes))
    return builder.extract_element(vector, ir.Constant(INT[32], 0))


@operation({(i32x8,): types.int32})
def sum_of(builder, a):
    """The sum of eight integers."""
    return _folded(builder, builder.add, a)


@operation({(i32x8,): types.int32})
def largest_of(builder, a):
    """The largest of eight integers."""
    return _folded(builder, lambda a, b: builder.select(builder.icmp_signed(">", a, b), a, b), a)


@operation({(_INDEX,): types.float32})
def float_of_bits(builder, bits):
    """The float32 that has these bits, the lower 32 of an integer."""
    return builder.bitcast(builder.trunc(bits, INT[32]), ir.FloatType())


@operation({(i8x32,): i8x32})
def low_nibbles(builder, a):
    """The lower four bits of each byte, 0..15."""
    return builder.and_(a, constant(i8x32, 15))


@operation({(i8x32,): i8x32})
def high_nibbles(builder, a):
    """The upper four bits of each byte, 0..15."""
    return builder.lshr(a, constant(i8x32, 4))


# --- products of bytes, and what else differs between processors ------------------------------------------------------
#
# Four neighbouring bytes belong to one row: an i8x32 holds four k of eight rows. Products are added up in as few bits
# as hold them, and `row_sums` then adds the lanes of each row, for rows in order.


@operation({(_INDEX,): i16x16})
def no_nibble_products(builder, like):
    """Sums for `add_nibble_products` to begin with, one for each of a tuple of indices."""
    return constant(i16x16, 0)


@operation({(_INDEX,): i32x8})
def no_products(builder, like):
    """Sums for `add_products` to begin with, one for each of a tuple of indices."""
    return constant(i32x8, 0)


@operation({(_INDEX,): i32x16})
def no_level_products(builder, like):
    """Sums for `add_level_products` to begin with, one for each of a tuple of indices."""
    return constant(i32x16, 0)


@operation({(_INDEX,): f32x8})
def no_floats(builder, like):
    """Eight zeros, for each of a tuple of indices."""
    return constant(f32x8, 0.0)


@operation({(i16x16, i8x32, i8x32): i16x16})
def add_nibble_products(builder, sums, codes, x):
    """Add codes * x: codes 0..15, x -127..127. Sixteen bits hold eight such additions: 8 * 2 * 15 * 127 = 30480."""
    return builder.add(sums, _pair_products(builder, codes, x))


@operation({(i32x8, i8x32, i8x32): i32x8})
def add_products(builder, sums, w, x):
    """Add w * x, both -127..127."""
    if backend() == "avx2":
        # the instruction takes one operand without sign: abs(w), and x with the sign of w
        magnitude = call(builder, "llvm.abs.v32i8", i8x32, w, ir.Constant(ir.IntType(1), 0))
        signed = call(builder, "llvm.x86.avx2.psign.b", i8x32, x, w)
        pairs = _pair_products(builder, magnitude, signed)  # at most 2 * 127 * 127 = 32258
    else:
        wide = ir.VectorType(INT[16], 32)
        pairs = _neighbours(builder, builder.mul(builder.sext(w, wide), builder.sext(x, wide)))
    return builder.add(sums, _pair_sums(builder, pairs))


@operation({(i16x16,): i32x8, (i32x8,): i32x8, (i32x16,): i32x8})
def row_sums(builder, sums):
    """Sums of products, of whichever kind, as one int32 a row."""
    if sums.type == i16x16.llvm:
        return _pair_sums(builder, sums)
    if sums.type == i32x8.llvm:
        return sums
    if backend() == "avx2":  # lanes as _interleaved leaves them
        low = shuffled(builder, sums, sums, range(8))
        high = shuffled(builder, sums, sums, range(8, 16))
        even = shuffled(builder, low, high, (0, 2, 8, 10, 4, 6, 12, 14))
        odd = shuffled(builder, low, high, (1, 3, 9, 11, 5, 7, 13, 15))
        return builder.add(even, odd)
    return _neighbours(builder, sums)


@operation({(i8x32, types.int16[::1], _INDEX): i16x32})
def look_up(builder, codes, levels, index):
    """levels[index + code] for each code 0..15: int16, in an order of lanes that suits `add_level_products`."""
    nothing = ir.Constant(i8x32.llvm, ir.Undefined)
    table = read(builder, levels, index, i8x32.llvm)
    low_table = shuffled(builder, table, nothing, [*range(0, 32, 2)] * 2)
    high_table = shuffled(builder, table, nothing, [*range(1, 32, 2)] * 2)
    if backend() == "avx2":
        low = call(builder, "llvm.x86.avx2.pshuf.b", i8x32, low_table, codes)
        high = call(builder, "llvm.x86.avx2.pshuf.b", i8x32, high_table, codes)
        return _interleaved(builder, low, high)
    low, high = (_chosen(builder, half, codes) for half in (low_table, high_table))
    lanes = [lane for i in range(32) for lane in (i, 32 + i)]
    return builder.bitcast(shuffled(builder, low, high, lanes), i16x32.llvm)


@operation({(i32x16, i16x32, i8x32): i32x16})
def add_level_products(builder, sums, levels, x):
    """Add levels * x: levels -32767..32767 as `look_up` orders them, x -127..127 the same four for all rows."""
    if backend() != "avx2":
        wide = ir.VectorType(INT[32], 32)
        products = builder.mul(builder.sext(levels, wide), builder.sext(x, wide))
        return builder.add(sums, _neighbours(builder, products))
    # x is four bytes over and over, so that any sixteen of them, widened, suit any order of rows
    nothing = ir.Constant(i8x32.llvm, ir.Undefined)
    wide_x = builder.sext(shuffled(builder, x, nothing, range(16)), i16x16.llvm)
    halves = []
    for start in (0, 16):
        half = shuffled(builder, levels, levels, range(start, start + 16))
        halves.append(call(builder, "llvm.x86.avx2.pmadd.wd", i32x8, half, wide_x))
    return builder.add(sums, shuffled(builder, *halves, range(16)))


def _pair_products(builder, codes, x):
    """codes * x, codes without and x with sign, the products of two neighbours added: i16x16."""
    if backend() == "avx2":
        return call(builder, "llvm.x86.avx2.pmadd.ub.sw", i16x16, codes, x)
    wide = ir.VectorType(INT[16], 32)
    return _neighbours(builder, builder.mul(builder.zext(codes, wide), builder.sext(x, wide)))


def _pair_sums(builder, pairs):
    """i16x16 -> i32x8: the sums of neighbours."""
    if backend() == "avx2":
        return call(builder, "llvm.x86.avx2.pmadd.wd", i32x8, pairs, constant(i16x16, 1))
    return _neighbours(builder, builder.sext(pairs, i32x16.llvm))


def _neighbours(builder, a):
    """The sums of lanes 0 and 1, 2 and 3, ..."""
    lanes = a.type.count
    return builder.add(shuffled(builder, a, a, range(0, lanes, 2)), shuffled(builder, a, a, range(1, lanes, 2)))


def _interleaved(builder, low, high):
    """Bytes to int16 within each half of a register: rows 0, 1, 4, 5, then rows 2, 3, 6, 7."""
    order = [*range(8), *range(16, 24), *range(8, 16), *range(24, 32)]
    lanes = [lane for i in order for lane in (i, 32 + i)]
    return builder.bitcast(shuffled(builder, low, high, lanes), i16x32.llvm)


def _chosen(builder, table, codes):
    """table[code] for the codes 0..15 of each lane, by halving the candidates a bit at a time."""
    nothing = ir.Constant(table.type, ir.Undefined)
    candidates = [shuffled(builder, table, nothing, [i] * 32) for i in range(16)]
    for bit in range(4):
        is_set = builder.icmp_unsigned("!=", builder.and_(codes, constant(i8x32, 1 << bit)), constant(i8x32, 0))
        candidates = [
            builder.select(is_set, odd, even) for even, odd in zip(candidates[::2], candidates[1::2], strict=True)
        ]
    return candidates[0]


def _widen_half(builder, bits):
    """Eight float16 -> f32x8, exactly. Without an instruction for it, LLVM would call a function that is not there."""
    if backend() == "avx2":
        return builder.fpext(builder.bitcast(bits, ir.VectorType(ir.HalfType(), 8)), f32x8.llvm)
    wide = builder.zext(bits, i32x8.llvm)
    sign = builder.shl(builder.and_(wide, constant(i32x8, 0x8000)), constant(i32x8, 16))
    rest = builder.and_(wide, constant(i32x8, 0x7FFF))
    exponent = builder.and_(rest, constant(i32x8, 0x7C00))
    shifted = builder.shl(rest, constant(i32x8, 13))
    normal = builder.add(shifted, constant(i32x8, (127 - 15) << 23))
    special = builder.or_(shifted, constant(i32x8, 0x7F800000))  # infinity and NaN
    tiny = builder.fmul(builder.sitofp(rest, f32x8.llvm), constant(f32x8, 2.0**-24), flags=_AS_WRITTEN)
    is_special = builder.icmp_signed("==", exponent, constant(i32x8, 0x7C00))
    is_tiny = builder.icmp_signed("==", exponent, constant(i32x8, 0))
    value = builder.select(is_special, special, normal)
    value = builder.select(is_tiny, builder.bitcast(tiny, i32x8.llvm), value)
    return builder.bitcast(builder.or_(value, sign), f32x8.llvm)


def _narrowed(builder, value):
    """f32x8 -> eight float16 as int16, rounded half to even, clipped to +-65504; a NaN stays one."""
    bits = builder.bitcast(value, i32x8.llvm)
    size = builder.and_(bits, constant(i32x8, 0x7FFFFFFF))
    most = constant(i32x8, 0x477FE000)  # 65504
    is_nan = builder.icmp_signed(">", size, constant(i32x8, 0x7F800000))
    size = builder.select(builder.icmp_signed("<", size, most), size, most)
    # the last bit that stays decides ties; exponents have another bias
    odd = builder.and_(builder.lshr(size, constant(i32x8, 13)), constant(i32x8, 1))
    rounded = builder.add(size, builder.add(odd, constant(i32x8, 0xFFF)))
    normal = builder.sub(builder.lshr(rounded, constant(i32x8, 13)), constant(i32x8, (127 - 15) << 10))
    # below 2**-14 float16 counts in steps of 2**-24, as float32 does around a half
    around = builder.fadd(builder.bitcast(size, f32x8.llvm), constant(f32x8, 0.5), flags=_AS_WRITTEN)
    tiny = builder.sub(builder.bitcast(around, i32x8.llvm), constant(i32x8, 0x3F000000))
    half = builder.select(builder.icmp_signed("<", size, constant(i32x8, 113 << 23)), tiny, normal)
    half = builder.select(is_nan, constant(i32x8, 0x7E00), half)
    sign = builder.lshr(builder.and_(bits, constant(i32x8, -0x80000000)), constant(i32x8, 16))
    return builder.trunc(builder.or_(half, sign), ir.VectorType(INT[16], 8))
