"""What the processor that kernels are compiled for can do, and which of the vector backends that selects."""

from __future__ import annotations

import os
from functools import lru_cache

from numba.core.registry import cpu_target

from ..errors import BadRequest

VARIABLE = "TINYINFER_SIMD"
NEEDS = {"avx2": {"avx2", "fma", "f16c"}, "portable": set()}


@lru_cache(maxsize=1)
def features() -> frozenset[str]:
    """What compiled code may use, in LLVM's words ("avx2"): what this machine has, unless NUMBA_CPU_FEATURES is set."""
    _, _, listed = cpu_target.target_context.codegen().magic_tuple()
    return frozenset(word[1:] for word in listed.split(",") if word.startswith("+"))


def widens_float16() -> bool:
    """Whether the processor widens float16 itself; where it does not, LLVM would call a function that is not there."""
    return not features().isdisjoint({"f16c", "neon"})


@lru_cache(maxsize=1)
def backend() -> str:
    """'avx2' or 'portable' (plain vector code): what TINYINFER_SIMD says, else the best that the processor has.

    Both compute the same integers. BadRequest for a backend that is unknown, or that the processor can't run.
    """
    wanted = os.environ.get(VARIABLE)
    if wanted is None:
        return next(name for name, needed in NEEDS.items() if needed <= features())
    if wanted not in NEEDS:
        raise BadRequest(f"{VARIABLE} should be one of {', '.join(NEEDS)}, found {wanted!r}", VARIABLE)
    if missing := NEEDS[wanted] - features():
        raise BadRequest(f"{VARIABLE}={wanted} needs a processor with {', '.join(sorted(missing))}", VARIABLE)
    return wanted
