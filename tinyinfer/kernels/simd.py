"""A small vocabulary of vectors for compiled kernels: a few types, and one function an operation.

Operands are vectors, or tuples of vectors of one length, and then so is the result; what is not a tuple is used with
each element, as NumPy broadcasts. So a kernel for one row of x and a kernel for four are the same text: only the tuple
of where its rows start is longer. An operation on tuples is that many machine instructions; nothing is stored between.

Arrays must be C-contiguous. An `index` counts elements from the first, in any number of dimensions, and nothing checks
that it is inside. Float16 arrays come as their bits, int16.

A kernel may also take sixteen rows of a weight at once, where registers are as wide: its vectors then have twice the
lanes. What is the same for all rows has eight lanes all the same.

Operations that differ between processors are in the last section, each with the instructions of AVX2 and with plain
vector code that LLVM translates for any processor; those of VNNI
are in vnni.py, those of NEON in neon.py. All give the same integers.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from . import neon, vnni
from .processor import uses
from .vectors import (
    INT,
    ChosenVector,
    call,
    constant,
    f32x8,
    f32x16,
    fetch,
    i1x8,
    i1x16,
    i8x32,
    i8x64,
    i16x16,
    i16x32,
    i16x64,
    i32x8,
    i32x16,
    i32x32,
    i64x8,
    operation,
    pointer_to,
    read,
    repeated,
    shuffled,
    u8x32,
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
_NUMBERS = (_FLOATS, types.int16[::1], types.uint16[::1], types.int8[::1])


@operation({(_INDEX, _INDEX): _INDEX})
def plus(builder, index, amount):
    """The sum of two indices: for tuples of them."""
    return builder.add(index, amount)


@operation({(_INDEX, _INDEX): _INDEX})
def times(builder, index, amount):
    """The product of two indices: for tuples of them."""
    return builder.mul(index, amount)


@operation({(_INDEX, _INDEX): _INDEX})
def at_most(builder, index, most):
    """The smaller of two indices: for tuples of them."""
    return builder.select(builder.icmp_signed("<", index, most), index, most)


@operation({(array, _INDEX): i8x32 for array in _BYTES})
def load_bytes(builder, array, index):
    """32 bytes, as i8x32."""
    return read(builder, array, index, i8x32.llvm)


@operation({(types.int8[::1], _INDEX): i8x32, (types.uint8[::1], _INDEX): u8x32})
def broadcast_bytes(builder, array, index):
    """Four bytes of an array, eight times: i8x32 or u8x32."""
    four = read(builder, array, index, INT[32])
    return builder.bitcast(repeated(builder, four, i32x8), i8x32.llvm)


@operation({(types.int8[::1], _INDEX): i16x32, (types.int16[::1], _INDEX): i16x32})
def broadcast_words(builder, array, index):
    """Four int8 or int16 of an array as int16, eight times: i16x32."""
    if array.type.pointee == INT[16]:
        return builder.bitcast(repeated(builder, read(builder, array, index, INT[64]), i64x8), i16x32.llvm)
    four = read(builder, array, index, INT[32])
    return builder.sext(builder.bitcast(repeated(builder, four, i32x8), i8x32.llvm), i16x32.llvm)


@operation({(_FLOATS, _INDEX): f32x8})
def broadcast_float(builder, array, index):
    """One float32 of an array, eight times: f32x8."""
    return repeated(builder, read(builder, array, index, f32x8.llvm.element), f32x8)


@operation({(array, _INDEX): f32x8 for array in _NUMBERS})
def load_floats(builder, array, index, *, kinds):
    """Eight numbers as f32x8: of a float32 array, float16's bits in int16, bfloat16's in uint16, or int8."""
    return _widened(builder, read(builder, array, index, ir.VectorType(array.type.pointee, 8)), kinds[0].dtype)


@operation({(array, _INDEX): f32x16 for array in _NUMBERS})
def load_sixteen(builder, array, index, *, kinds):
    """Sixteen floats, from the arrays that `load_floats` takes, where registers are as wide."""
    return _widened(builder, read(builder, array, index, ir.VectorType(array.type.pointee, 16)), kinds[0].dtype)


def _widened(builder, numbers, kind):
    """Numbers as float32, exactly."""
    if kind == types.float32:
        return numbers
    if kind == types.int16:
        return _widen_half(builder, numbers)
    lanes = numbers.type.count
    if kind == types.int8:
        return builder.sitofp(
            builder.sext(numbers, ir.VectorType(INT[32], lanes)), ir.VectorType(ir.FloatType(), lanes)
        )
    upper = builder.zext(numbers, ir.VectorType(INT[32], lanes))
    shifted = builder.shl(upper, ir.Constant(upper.type, [16] * lanes))
    return builder.bitcast(shifted, ir.VectorType(ir.FloatType(), lanes))


@operation({(_FLOATS, _INDEX, kind): types.void for kind in (f32x8, f32x16)})
def store_floats(builder, array, index, value):
    """array[index : index + 8] = value; or sixteen."""
    write(builder, array, index, value)


@operation({(_INDEX, f32x8): i1x8, (_INDEX, f32x16): i1x16})
def first_lanes(builder, count, like):
    """Which are the first `count` lanes, of as many as a vector has."""
    lanes = like.type.count
    places = ir.Constant(ir.VectorType(INT[64], lanes), list(range(lanes)))
    counts = builder.insert_element(ir.Constant(places.type, ir.Undefined), count, ir.Constant(INT[32], 0))
    return builder.icmp_signed("<", places, shuffled(builder, counts, counts, [0] * lanes))


@operation({(_FLOATS, _INDEX, i1x8): f32x8, (_FLOATS, _INDEX, i1x16): f32x16})
def load_masked(builder, array, index, which):
    """Floats from an index for the lanes that are set, zeros for others, whose memory is not touched."""
    result = f32x8 if which.type.count == 8 else f32x16
    address = builder.bitcast(builder.gep(array, [index]), result.llvm.as_pointer())
    arguments = address, ir.Constant(INT[32], 1), which, constant(result, 0.0)
    return call(builder, f"llvm.masked.load.{_masked(which)}", result, *arguments)


@operation({(_FLOATS, _INDEX, i1x8, f32x8): types.void, (_FLOATS, _INDEX, i1x16, f32x16): types.void})
def store_masked(builder, array, index, which, value):
    """Store the lanes of a vector that are set, and leave others as they are."""
    address = builder.bitcast(builder.gep(array, [index]), value.type.as_pointer())
    arguments = value, address, ir.Constant(INT[32], 1), which
    function = ir.FunctionType(ir.VoidType(), [argument.type for argument in arguments])
    name = f"llvm.masked.store.{_masked(which)}"
    builder.call(cgutils.get_or_insert_function(builder.module, function, name), arguments)


def _masked(which) -> str:
    lanes = which.type.count
    return f"v{lanes}f32.p0v{lanes}f32"


@operation({(types.int16[::1], _INDEX, i8x32): types.void})
def store_words(builder, array, index, value):
    """array[index : index + 32] = bytes with sign, as int16."""
    write(builder, array, index, builder.sext(value, i16x32.llvm))


@operation({(types.uint8[::1], _INDEX, i8x32): types.void})
def store_raised(builder, array, index, value):
    """array[index : index + 32] = bytes with sign, with 128 added."""
    write(builder, array, index, builder.xor(value, constant(i8x32, -128)))


@operation({(types.int8[::1], _INDEX, i32x8): types.void})
def store_bytes(builder, array, index, value):
    """array[index : index + 8] = the low bytes of an i32x8."""
    write(builder, array, index, builder.trunc(value, ir.VectorType(INT[8], 8)))


@operation({(array, _INDEX): types.void for array in (*_BYTES, *_NUMBERS)})
def prefetch(builder, array, index):
    """Ask for the cache line at an index, which may lie outside the array."""
    fetch(builder, builder.gep(array, [index]), 0, 3)


# Bytes ahead of what is being read, to ask memory for: by itself the processor looks less far. First from memory to a
# middle cache, then from there, so that more requests are under way than the nearest cache can wait for.
_SOON, _EARLY = 1024, 4096


@operation({(array, _INDEX): types.void for array in (*_BYTES, *_NUMBERS)})
def look_ahead(builder, array, index):
    """Ask for the cache lines that come some way after that of an index, when an array is read from end to end."""
    address = builder.gep(array, [index])
    fetch(builder, address, _SOON, 3)
    fetch(builder, address, _EARLY, 2)


@operation({(array, _INDEX): types.float32 for array in _NUMBERS})
def load_float(builder, array, index, *, kinds):
    """One number as float32, from the arrays that `load_floats` takes."""
    one, first = read(builder, array, index, array.type.pointee), ir.Constant(INT[32], 0)
    eight = builder.insert_element(ir.Constant(ir.VectorType(one.type, 8), None), one, first)
    return builder.extract_element(_widened(builder, eight, kinds[0].dtype), first)


@operation({(types.int16[::1], _INDEX, f32x8): types.void})
def store_halves(builder, array, index, value):
    """array[index : index + 8] = float16's bits of eight floats, to nearest; beyond its range the largest it has."""
    write(builder, array, index, _narrowed(builder, value))


@operation({(_FLOATS, _INDEX, types.float32): types.void})
def store_float(builder, array, index, value):
    """array[index] = value."""
    write(builder, array, index, value)


# --- arithmetic -------------------------------------------------------------------------------------------------------


@operation(
    {(kind, kind): kind for kind in (i16x16, i32x8, i32x16, f32x8, f32x16)} | {(types.float32,) * 2: types.float32}
)
def add(builder, a, b):
    """a + b, for vectors of any kind, and plain float32."""
    kind = a.type.element if isinstance(a.type, ir.VectorType) else a.type
    return builder.fadd(a, b, flags=_AS_WRITTEN) if kind == ir.FloatType() else builder.add(a, b)


@operation({(kind, kind): kind for kind in (i32x8, i32x16, f32x8)})
def subtract(builder, a, b):
    """a - b."""
    return builder.fsub(a, b, flags=_AS_WRITTEN) if a.type == f32x8.llvm else builder.sub(a, b)


@operation({(f32x8, f32x8): f32x8, (f32x16, f32x8): f32x16})
def multiply(builder, a, b):
    """a * b; where a has sixteen lanes, b goes with both halves."""
    return builder.fmul(a, _for_rows_of(builder, a, b), flags=_AS_WRITTEN)


@operation({(kind,) * 3: kind for kind in (f32x8, f32x16, types.float32)} | {(f32x16, f32x8, f32x16): f32x16})
def multiply_add(builder, a, b, c):
    """a * b + c: rounded once where there is an instruction for it, with AVX2 and NEON, and twice in plain code."""
    b = _for_rows_of(builder, a, b)
    if uses("fma") or uses("neon"):
        name = f"llvm.fma.v{a.type.count}f32" if isinstance(a.type, ir.VectorType) else "llvm.fma.f32"
        function = ir.FunctionType(a.type, [a.type] * 3)
        return builder.call(cgutils.get_or_insert_function(builder.module, function, name), [a, b, c])
    return builder.fadd(builder.fmul(a, b, flags=_AS_WRITTEN), c, flags=_AS_WRITTEN)


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


def _for_rows_of(builder, a, b):
    """b, or b twice where a has twice the lanes."""
    return b if a.type == b.type else shuffled(builder, b, b, [*range(8)] * 2)


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


@operation({(i32x8,): f32x8, (i32x16,): f32x16})
def to_float(builder, a):
    """Integers as float32, rounded where they have more than 24 bits."""
    return builder.sitofp(a, ir.VectorType(ir.FloatType(), a.type.count))


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


@operation({(f32x8,): types.float32, (f32x16,): types.float32})
def total(builder, a):
    """The sum of all floats of a vector."""

    def add_floats(a, b):
        return builder.fadd(a, b, flags=_AS_WRITTEN)

    if a.type.count == 16:
        a = add_floats(*(shuffled(builder, a, a, range(first, first + 8)) for first in (0, 8)))
    return _folded(builder, add_floats, a)


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


@operation({(i8x32,): i8x32, (i8x64,): i8x64})
def low_nibbles(builder, a):
    """The lower four bits of each byte, 0..15."""
    return builder.and_(a, ir.Constant(a.type, [15] * a.type.count))


@operation({(i8x32,): i8x32, (i8x64,): i8x64})
def high_nibbles(builder, a):
    """The upper four bits of each byte, 0..15."""
    return builder.lshr(a, ir.Constant(a.type, [4] * a.type.count))


@operation({(kind, kind, _INDEX): kind for kind in (i8x32, i8x64)})
def with_fifth_bits(builder, nibbles, bits, place):
    """nibbles 0..15 with a bit above each, 0..31: of each byte of `bits` the bit `place`, 0..7."""
    # in 16 bits, as x86 has no shifts of bytes; what comes from the neighbour is masked
    words = ir.VectorType(INT[16], nibbles.type.count // 2)
    places = builder.insert_element(ir.Constant(words, ir.Undefined), builder.trunc(place, INT[16]), INT[32](0))
    places = shuffled(builder, places, places, [0] * words.count)
    moved = builder.lshr(builder.bitcast(bits, words), places)
    moved = builder.bitcast(builder.shl(moved, ir.Constant(words, [4] * words.count)), nibbles.type)
    return builder.or_(nibbles, builder.and_(moved, ir.Constant(nibbles.type, [16] * nibbles.type.count)))


@intrinsic
def pointer(typing_context, array, index):
    """A pointer to an element of an array, or of what a pointer points to: operations take it as an array."""
    if isinstance(array, types.Array) and array.layout != "C":
        return None
    kind = array if isinstance(array, types.CPointer) else types.CPointer(array.dtype)

    def generate(context, builder, signature, arguments):
        return builder.gep(pointer_to(context, builder, signature.args[0], arguments[0]), [arguments[1]])

    return kind(array, types.intp), generate


_JOINED = {i8x32: i8x64, f32x8: f32x16}


@intrinsic
def joined(typing_context, parts):
    """The vectors of a tuple as one: those of one block of rows, or of two."""
    kind = parts.dtype

    def generate(context, builder, signature, arguments):
        vectors = cgutils.unpack_tuple(builder, arguments[0])
        return vectors[0] if len(vectors) == 1 else shuffled(builder, *vectors, range(2 * kind.llvm.count))

    return (kind if parts.count == 1 else _JOINED[kind])(parts), generate


# --- products of bytes, and what else differs between processors ------------------------------------------------------
#
# Four neighbouring bytes belong to one row: an i8x32 holds four k of eight rows. Products are added up in as few bits
# as hold them, and `row_sums` then adds the lanes of each row, for rows in order.


def _has_vnni() -> bool:
    return uses("avx512vnni") or uses("avxvnni")


nibble_sums = ChosenVector("nibble_sums", lambda: i32x8 if _has_vnni() or uses("dotprod") else i16x16)
level_sums = ChosenVector("level_sums", lambda: i32x8 if uses("neon") else i32x16)


@operation({(_INDEX, f32x8): nibble_sums, (_INDEX, f32x16): i32x16})
def no_nibble_products(builder, like, rows):
    """Sums for `add_nibble_products` to begin with, for as many rows as a vector has; one for each of a tuple of
    indices."""
    return constant(nibble_sums if rows.type == f32x8.llvm else i32x16, 0)


@operation({(_INDEX, f32x8): i32x8, (_INDEX, f32x16): i32x16})
def no_products(builder, like, rows):
    """Sums for `add_products` to begin with, likewise."""
    return constant(i32x8 if rows.type == f32x8.llvm else i32x16, 0)


@operation({(_INDEX, f32x8): level_sums, (_INDEX, f32x16): i32x32})
def no_level_products(builder, like, rows):
    """Sums for `add_level_products` to begin with, likewise."""
    return constant(level_sums if rows.type == f32x8.llvm else i32x32, 0)


@operation({(_INDEX,): f32x8})
def no_floats(builder, like):
    """Eight zeros, for each of a tuple of indices."""
    return constant(f32x8, 0.0)


@operation({(kind, _INDEX): kind for kind in (f32x8, f32x16)})
def zeros_like(builder, vector, each):
    """Zeros for as many rows as a vector has, for each of a tuple of indices."""
    return ir.Constant(vector.type, [0.0] * vector.type.count)


@operation({(nibble_sums, i8x32, i8x32): nibble_sums, (i32x16, i8x64, i8x32): i32x16})
def add_nibble_products(builder, sums, codes, x):
    """Add codes * x, x -127..127. Sixteen bits hold eight additions of codes 0..15, or four of codes 0..31:
    8 * 2 * 15 * 127 = 30480, 4 * 2 * 31 * 127 = 31496."""
    if _has_vnni():
        return vnni.add_dot_products(builder, sums, codes, x)
    if uses("dotprod"):
        return neon.add_dot_products(builder, sums, codes, x)
    return builder.add(sums, _pair_products(builder, codes, x))


@intrinsic
def settled(typing_context, sums):
    """A tuple of sums of nibbles' products as they are, but only once all before is added to them.

    LLVM would rather load what comes next, and with sums of many rows of x it then runs out of registers. With few,
    loading early is right.
    """

    def generate(context, builder, signature, arguments):
        values = cgutils.unpack_tuple(builder, arguments[0])
        if len(values) > 2 and uses("avx2") and values[0].type == i16x16.llvm:
            as_is = ir.FunctionType(i16x16.llvm, [i16x16.llvm])
            values = [builder.asm(as_is, "", "=x,0", [value], side_effect=False) for value in values]
        return cgutils.pack_array(builder, values)

    return sums(sums), generate


_PRODUCTS = {(sums, w, x): sums for sums, w in ((i32x8, i8x32), (i32x16, i8x64)) for x in (i8x32, u8x32)}


@operation(_PRODUCTS)
def add_products(builder, sums, w, x, *, kinds):
    """Add w * x, both -127..127; or, where x is a u8x32, w * x as `add_excess` tells."""
    if kinds[2] == u8x32:
        return vnni.add_dot_products(builder, sums, x, w)
    if _has_vnni():
        return vnni.add_signed_products(builder, sums, w, x)
    if uses("dotprod"):
        return neon.add_dot_products(builder, sums, w, x)
    if uses("neon"):
        pairs = neon.pair_products(builder, w, x)
    elif uses("avx2"):
        # the instruction takes one operand without sign: abs(w), and x with the sign of w
        magnitude = call(builder, "llvm.abs.v32i8", i8x32, w, ir.Constant(ir.IntType(1), 0))
        signed = call(builder, "llvm.x86.avx2.psign.b", i8x32, x, w)
        pairs = _pair_products(builder, magnitude, signed)  # at most 2 * 127 * 127 = 32258
    else:
        wide = ir.VectorType(INT[16], 32)
        pairs = _neighbours(builder, builder.mul(builder.sext(w, wide), builder.sext(x, wide)))
    return builder.add(sums, _pair_sums(builder, pairs))


@operation(_PRODUCTS)
def add_excess(builder, sums, w, x, *, kinds):
    """Add what `add_products` adds too much: 128 * w where x is a u8x32, to which 128 was added; else nothing."""
    if kinds[2] != u8x32:
        return sums
    return vnni.add_dot_products(builder, sums, constant(u8x32, 128), w)


@operation({(nibble_sums,): i32x8, (i32x8,): i32x8, (i32x16,): i32x16})
def row_sums(builder, sums):
    """Sums of products of nibbles or bytes as one int32 a row."""
    return _pair_sums(builder, sums) if sums.type == i16x16.llvm else sums


@operation({(level_sums,): i32x8, (i32x32,): i32x16})
def level_row_sums(builder, sums):
    """Sums of products of levels as one int32 a row."""
    if sums.type == i32x8.llvm:
        return sums
    if uses("avx2") and not uses("avx512bw"):  # lanes as _interleaved leaves them
        low = shuffled(builder, sums, sums, range(8))
        high = shuffled(builder, sums, sums, range(8, 16))
        even = shuffled(builder, low, high, (0, 2, 8, 10, 4, 6, 12, 14))
        odd = shuffled(builder, low, high, (1, 3, 9, 11, 5, 7, 13, 15))
        return builder.add(even, odd)
    return _neighbours(builder, sums)


@operation({(kind, types.int16[::1], _INDEX): wide for kind, wide in ((i8x32, i16x32), (i8x64, i16x64))})
def look_up(builder, codes, levels, index):
    """levels[index + code] for each code 0..15: int16, in an order of lanes that suits `add_level_products`."""
    nothing = ir.Constant(i8x32.llvm, ir.Undefined)
    table = read(builder, levels, index, i8x32.llvm)
    if uses("avx512bw"):
        return vnni.look_up(builder, table, codes)
    if uses("neon"):
        return neon.look_up(builder, table, codes)
    low_table = shuffled(builder, table, nothing, [*range(0, 32, 2)] * 2)
    high_table = shuffled(builder, table, nothing, [*range(1, 32, 2)] * 2)
    if uses("avx2"):
        low = call(builder, "llvm.x86.avx2.pshuf.b", i8x32, low_table, codes)
        high = call(builder, "llvm.x86.avx2.pshuf.b", i8x32, high_table, codes)
        return _interleaved(builder, low, high)
    low, high = (_chosen(builder, half, codes) for half in (low_table, high_table))
    lanes = [lane for i in range(32) for lane in (i, 32 + i)]
    return builder.bitcast(shuffled(builder, low, high, lanes), i16x32.llvm)


@operation({(level_sums, i16x32, i16x32): level_sums, (i32x32, i16x64, i16x32): i32x32})
def add_level_products(builder, sums, levels, x):
    """Add levels * x: levels -32767..32767 as `look_up` orders them, x -127..127 the same four for all rows."""
    if uses("avx512bw"):
        return vnni.add_level_products(builder, sums, levels, x)
    if uses("neon"):
        return neon.add_level_products(builder, sums, levels, x)
    if not uses("avx2"):
        products = builder.mul(builder.sext(levels, i32x32.llvm), builder.sext(x, i32x32.llvm))
        return builder.add(sums, _neighbours(builder, products))
    halves = []  # x is the same four over and over, so that it suits any order of rows
    for start in (0, 16):
        half, x_half = (shuffled(builder, each, each, range(start, start + 16)) for each in (levels, x))
        halves.append(call(builder, "llvm.x86.avx2.pmadd.wd", i32x8, half, x_half))
    return builder.add(sums, shuffled(builder, *halves, range(16)))


def _pair_products(builder, codes, x):
    """codes * x, codes without and x with sign, the products of two neighbours added: i16x16."""
    if uses("avx2"):
        return call(builder, "llvm.x86.avx2.pmadd.ub.sw", i16x16, codes, x)
    if uses("neon"):
        return neon.pair_products(builder, codes, x)
    wide = ir.VectorType(INT[16], 32)
    return _neighbours(builder, builder.mul(builder.zext(codes, wide), builder.sext(x, wide)))


def _pair_sums(builder, pairs):
    """i16x16 -> i32x8: the sums of neighbours."""
    if uses("avx2"):
        return call(builder, "llvm.x86.avx2.pmadd.wd", i32x8, pairs, constant(i16x16, 1))
    if uses("neon"):
        return neon.pair_sums(builder, pairs)
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
    lanes = bits.type.count
    if uses("f16c") or uses("neon"):
        halves = builder.bitcast(bits, ir.VectorType(ir.HalfType(), lanes))
        return builder.fpext(halves, ir.VectorType(ir.FloatType(), lanes))
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
