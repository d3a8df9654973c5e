"""Vector types for compiled kernels, and how an operation on them is made. The operations are in simd.py."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, models, register_model

INT = {bits: ir.IntType(bits) for bits in (1, 8, 16, 32, 64)}
_ELEMENTS = {
    "i1": ir.IntType(1),
    "i8": INT[8],
    "u8": INT[8],
    "i16": INT[16],
    "i32": INT[32],
    "i64": INT[64],
    "f32": ir.FloatType(),
}


class Vector(types.Type):
    """Numba's type of a vector: `lanes` elements of one kind, 'i1' to 'i64', 'u8' or 'f32'."""

    def __init__(self, kind: str, lanes: int):
        self.llvm = ir.VectorType(_ELEMENTS[kind], lanes)
        super().__init__(name=f"{kind}x{lanes}")


class ChosenVector(types.Type):
    """Numba's type of a vector that is not the same on all processors: `choose()` gives the Vector that it stands for.

    It is asked when code is compiled, so that a backend that can't be had is refused then, not on import.
    """

    def __init__(self, name: str, choose: Callable[[], Vector]):
        self._choose = choose
        super().__init__(name)

    @property
    def llvm(self) -> ir.VectorType:
        """LLVM's type of the vector chosen."""
        return self._choose().llvm


@register_model(Vector)
@register_model(ChosenVector)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, manager, vector):
        super().__init__(manager, vector, vector.llvm)


i8x32, i16x16, i16x32 = Vector("i8", 32), Vector("i16", 16), Vector("i16", 32)
i32x8, i32x16, f32x8 = Vector("i32", 8), Vector("i32", 16), Vector("f32", 8)
i8x64, i16x64, i32x32, f32x16 = Vector("i8", 64), Vector("i16", 64), Vector("i32", 32), Vector("f32", 16)
i1x8, i1x16, u8x32 = Vector("i1", 8), Vector("i1", 16), Vector("u8", 32)
i64x8 = Vector("i64", 8)


def operation(result_of: Mapping[tuple, types.Type]) -> Callable:
    """Make an operation of `emit(builder, *values)`, which writes LLVM code for plain operands and gives the result.

    `result_of` lists the types of operands it knows, arrays as one-dimensional; emit gets a pointer for an array, and
    where it has a parameter `kinds`, those types.
    """

    def make(emit: Callable):
        def typed(*operands):
            kinds = tuple(_plain(_element(operand)) for operand in operands)
            result = result_of.get(kinds)
            counts = {operand.count for operand in operands if isinstance(operand, types.UniTuple)}
            if result is None or len(counts) > 1:
                return None

            known = {"kinds": kinds} if emit.__code__.co_kwonlyargcount else {}

            def generate(context, builder, signature, arguments):
                values = [pointer_to(context, builder, *pair) for pair in zip(signature.args, arguments, strict=True)]
                if counts:
                    each = (_elements(builder, operands, values, i) for i in range(*counts))
                    emitted = [emit(builder, *elements, **known) for elements in each]
                else:
                    emitted = emit(builder, *values, **known)
                if result is types.void:
                    return context.get_dummy_value()
                return cgutils.pack_array(builder, emitted) if counts else emitted

            whole = types.UniTuple(result, *counts) if counts and result is not types.void else result
            return whole(*map(_passed, operands)), generate

        # Numba counts a function's parameters, so they can't be *operands
        faces = {
            1: lambda context, a: typed(a),
            2: lambda context, a, b: typed(a, b),
            3: lambda context, a, b, c: typed(a, b, c),
            4: lambda context, a, b, c, d: typed(a, b, c, d),
        }
        face = faces[emit.__code__.co_argcount - 1]
        face.__name__, face.__doc__ = emit.__name__, emit.__doc__
        return intrinsic(face)

    return make


def _element(operand):
    return operand.dtype if isinstance(operand, types.UniTuple) else operand


def _plain(operand):
    """An operand's type without what does not matter: an integer's width, an array's dimensions, a pointer for one."""
    if isinstance(operand, types.Integer):
        return types.intp
    if isinstance(operand, types.CPointer) or (isinstance(operand, types.Array) and operand.layout == "C"):
        return types.Array(operand.dtype, 1, "C")
    return operand


def _passed(operand):
    """The type that an operand is passed as."""
    if isinstance(operand, types.UniTuple):
        return types.UniTuple(_passed(operand.dtype), operand.count)
    return types.intp if isinstance(operand, types.Integer) else operand


def _elements(builder, operands, values, index):
    """The elements `index` of tuples, and what is not a tuple as it is."""
    return [
        builder.extract_value(value, index) if isinstance(operand, types.UniTuple) else value
        for operand, value in zip(operands, values, strict=True)
    ]


def pointer_to(context, builder, operand, argument):
    """The address of an array's first element; anything else as it is."""
    if isinstance(operand, types.Array):
        return context.make_array(operand)(context, builder, argument).data
    return argument


def constant(vector: Vector, value) -> ir.Constant:
    """A vector of one Python number."""
    return ir.Constant(vector.llvm, [value] * vector.llvm.count)


def repeated(builder, scalar, vector: Vector):
    """A vector of one LLVM value."""
    nothing = ir.Constant(vector.llvm, ir.Undefined)
    first = builder.insert_element(nothing, scalar, ir.Constant(INT[32], 0))
    return shuffled(builder, first, nothing, [0] * vector.llvm.count)


def shuffled(builder, a, b, lanes):
    """The chosen lanes of two vectors, b's numbered after a's; of any number."""
    return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(INT[32], len(lanes)), list(lanes)))


def read(builder, pointer, index, kind):
    """A value of an LLVM type at pointer[index], aligned or not."""
    return builder.load(builder.bitcast(builder.gep(pointer, [index]), kind.as_pointer()), align=1)


def write(builder, pointer, index, value):
    """Put a value at pointer[index], aligned or not."""
    builder.store(value, builder.bitcast(builder.gep(pointer, [index]), value.type.as_pointer()), align=1)


def call(builder, name: str, result: Vector, *arguments):
    """Call one of LLVM's intrinsic functions, which become instructions."""
    function = ir.FunctionType(result.llvm, [argument.type for argument in arguments])
    return builder.call(cgutils.get_or_insert_function(builder.module, function, name), arguments)


def fetch(builder, pointer, distance: int, nearness: int):
    """Ask for the cache line so many bytes beyond a pointer: into the nearest cache (3), or a middle one (2)."""
    address = builder.gep(builder.bitcast(pointer, INT[8].as_pointer()), [ir.Constant(INT[64], distance)])
    function = ir.FunctionType(ir.VoidType(), [address.type] + [INT[32]] * 3)
    hint = cgutils.get_or_insert_function(builder.module, function, "llvm.prefetch.p0i8")
    builder.call(hint, [address, *(ir.Constant(INT[32], number) for number in (0, nearness, 1))])
