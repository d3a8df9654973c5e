"""What compiled code needs of memory beyond arrays: arrays at an address, and counters that threads share."""

from __future__ import annotations

import os

from llvmlite import binding, ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from .jit import jit
from .vectors import fetch


def _pointer_to(element):
    @intrinsic
    def pointer(typing_context, address):
        def generate(context, builder, signature, arguments):
            return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

        return types.CPointer(element)(types.int64), generate

    return pointer


# An int64 address as a pointer, for `numba.carray(pointer, shape)`: an array over memory that someone else owns.
float32_at = _pointer_to(types.float32)
uint16_at = _pointer_to(types.uint16)
uint8_at = _pointer_to(types.uint8)
int8_at = _pointer_to(types.int8)
int16_at = _pointer_to(types.int16)
int64_at = _pointer_to(types.int64)


@intrinsic
def fetch_add(typing_context, counters, index, amount):
    """Add to an element of an int64 array [n], at once for all threads; gives what it was before."""

    def generate(context, builder, signature, arguments):
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        return builder.atomic_rmw("add", builder.gep(array.data, [arguments[1]]), arguments[2], "seq_cst")

    return types.int64(counters, types.intp, types.int64), generate


@intrinsic
def load_shared(typing_context, counters, index):
    """An element of an int64 array [n] as other threads last left it."""

    def generate(context, builder, signature, arguments):
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        return builder.load_atomic(builder.gep(array.data, [arguments[1]]), "acquire", 8)

    return types.int64(counters, types.intp), generate


@intrinsic
def call_at(typing_context, address, a, b, c, d):
    """Call the code at an address with four int64; see `jit.Code`."""

    def generate(context, builder, signature, arguments):
        integer = ir.IntType(64)
        function = ir.FunctionType(ir.VoidType(), [integer] * 4)
        builder.call(builder.inttoptr(arguments[0], function.as_pointer()), arguments[1:])
        return context.get_dummy_value()

    return types.void(*(types.int64,) * 5), generate


@intrinsic
def fetch_line(typing_context, address):
    """Ask memory for the cache line at an address, and go on at once."""

    def generate(context, builder, signature, arguments):
        fetch(builder, builder.inttoptr(arguments[0], ir.IntType(8).as_pointer()), 0, 2)
        return context.get_dummy_value()

    return types.void(types.int64), generate


@intrinsic
def pause(typing_context):
    """Tell the processor that this is a waiting loop."""

    def generate(context, builder, signature, arguments):
        machine = binding.get_process_triple().split("-")[0]
        if machine == "x86_64":
            hint = ir.FunctionType(ir.VoidType(), [])
            builder.call(cgutils.get_or_insert_function(builder.module, hint, "llvm.x86.sse2.pause"), [])
        elif machine in ("aarch64", "arm64"):
            hint = ir.FunctionType(ir.VoidType(), [ir.IntType(32)])
            number = ir.Constant(ir.IntType(32), 1)  # yield
            builder.call(cgutils.get_or_insert_function(builder.module, hint, "llvm.aarch64.hint"), [number])
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def ticks(typing_context):
    """A clock that is cheap to read: how often it ticks a second depends on the machine. Always 0 where there is none.

    The time-stamp counter of x86, and the virtual counter of ARM.
    """

    def generate(context, builder, signature, arguments):
        machine = binding.get_process_triple().split("-")[0]
        function = ir.FunctionType(ir.IntType(64), [])
        if machine == "x86_64":
            return builder.call(cgutils.get_or_insert_function(builder.module, function, "llvm.readcyclecounter"), [])
        if machine in ("aarch64", "arm64"):
            # not by inline assembly, which needs an assembler that Numba does not set up
            name = builder.module.add_metadata([ir.MetaDataString(builder.module, "cntvct_el0")])
            function = ir.FunctionType(ir.IntType(64), [name.type])
            read = cgutils.get_or_insert_function(builder.module, function, "llvm.read_volatile_register.i64")
            return builder.call(read, [name])
        return ir.Constant(ir.IntType(64), 0)

    return types.int64(), generate


@intrinsic
def float_bits(typing_context, bits):
    """An int32 read as the float32 of the same bits."""

    def generate(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], ir.FloatType())

    return types.float32(types.int32), generate


if hasattr(os, "sched_yield"):
    give_way = types.ExternalFunction("sched_yield", types.int32())
else:  # on Windows

    @jit
    def give_way():
        """Nothing: there is no such call."""
        return 0


@jit
def count_up(counters, index):
    """Add one to a counter, seen at once by all threads."""
    fetch_add(counters, index, 1)


@jit
def wait_for(counters, index, value, patience):
    """Spin until a counter has at least `value`; gives up after so many `ticks`. Whether it came to pass."""
    began = ticks()
    while load_shared(counters, index) < value:
        pause()
        if ticks() - began >= patience:
            return False
    return True


@jit
def read_ticks():
    """`ticks`, for Python."""
    return ticks()
