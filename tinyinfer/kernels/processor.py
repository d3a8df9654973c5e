"""What the processor that kernels are compiled for can do, and which of the vector backends that selects."""

from __future__ import annotations

import os
from functools import lru_cache

from llvmlite import binding
from numba.core.registry import cpu_target

from ..errors import BadRequest

VARIABLE = "TINYINFER_SIMD"
_AVX2 = {"avx2", "fma", "f16c"}
NEEDS = {  # the best first
    "avx512": _AVX2 | {"avx512f", "avx512bw", "avx512vl", "avx512vnni"},
    "vnni": _AVX2 | {"avxvnni"},
    "avx2": _AVX2,
    "neon-dot": {"neon", "dotprod"},
    "neon": {"neon"},
    "portable": set(),
}

# Sixteen products of bytes added up, which LLVM makes a dot product of where the processor has one.
_DOT = """
target triple = "aarch64"
declare i32 @llvm.vector.reduce.add.v16i32(<16 x i32>)
define i32 @dot(<16 x i8> %a, <16 x i8> %b) {
  %x = sext <16 x i8> %a to <16 x i32>
  %y = sext <16 x i8> %b to <16 x i32>
  %products = mul <16 x i32> %x, %y
  %sum = call i32 @llvm.vector.reduce.add.v16i32(<16 x i32> %products)
  ret i32 %sum
}
"""


@lru_cache(maxsize=1)
def features() -> frozenset[str]:
    """What compiled code may use, in LLVM's words ("avx2"): what this machine has, unless NUMBA_CPU_FEATURES is set."""
    triple, name, listed = cpu_target.target_context.codegen().magic_tuple()
    found = {word[1:] for word in listed.split(",") if word.startswith("+")}
    return frozenset(found | (_of_arm(name, listed) if triple.startswith(("aarch64", "arm64")) else set()))


def _of_arm(name: str, listed: str) -> set[str]:
    """Of "neon" and "dotprod", those that LLVM uses on a 64-bit ARM processor by its name.

    It lists few features there, and on macOS none: the rest it derives from the name, and only its code shows them.
    """
    machine = binding.Target.from_triple("aarch64").create_target_machine(cpu=name, features=listed)
    code = machine.emit_assembly(binding.parse_assembly(_DOT))
    return {"neon", "dotprod"} if "sdot" in code else {"neon"}  # without NEON there is no 64-bit ARM


def widens_float16() -> bool:
    """Whether the processor widens float16 itself; where it does not, LLVM would call a function that is not there."""
    return not features().isdisjoint({"f16c", "neon"})


@lru_cache(maxsize=1)
def backend() -> str:
    """Which instructions vectors are made of: what TINYINFER_SIMD says, else the best of `NEEDS` that there is.

    'avx512', registers of 512 bits that multiply and add bytes in one instruction; 'vnni', those of 256 bits that do;
    'avx2'; 'neon-dot', or 'neon' where an ARM processor has no dot products; 'portable', plain vector code. All compute
    the same integers.
    BadRequest for a backend that is unknown, or that the processor can't run.
    """
    wanted = os.environ.get(VARIABLE)
    if wanted is None:
        return next(name for name, needed in NEEDS.items() if needed <= features())
    if wanted not in NEEDS:
        raise BadRequest(f"{VARIABLE} should be one of {', '.join(NEEDS)}, found {wanted!r}", VARIABLE)
    if missing := NEEDS[wanted] - features():
        raise BadRequest(f"{VARIABLE}={wanted} needs a processor with {', '.join(sorted(missing))}", VARIABLE)
    return wanted


def uses(feature: str) -> bool:
    """Whether the backend has the instructions of one of LLVM's features."""
    return feature in NEEDS[backend()]
