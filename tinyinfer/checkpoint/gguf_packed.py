"""GGUF's quantized blocks -> kernel order, without going through floats where a scheme holds what they say.

    type   bits   becomes               exact  otherwise
    Q4_0   4.5    int4-g32-symmetric    yes
    Q4_1   5      int4-g32              yes
    Q4_K   4.5    int4-g32              no     scale and minimum are products of a float16 and a 6-bit number: rounded
                                               to float16, 2^-11 of each at most; codes stay
    Q5_0   5.5    int5-g32-symmetric    yes
    Q5_1   6      int5-g32              yes
    Q5_K   5.5    int5-g32              no     as Q4_K
    Q8_0   8.5    int8-g32              yes
    Q6_K   6.6    int8-g32              no     has a scale for 16 weights: to the nearest of even steps, half of one
                                               being 1/254 to 1/192 of a group's largest weight (`quant/int8.py`)

So the 6 bits of Q6_K become 8.5: larger, but read by a kernel that there is. bfloat16 would take twice that and not be
exact either: such a weight is a scale of 11 bits times one of 7 times a code of 6, and bfloat16 holds 8. What was
rounded is not lost: `GgufTensor.values` has it. F32, F16 and BF16 stay as they are.
Block layouts: ggml-common.h of https://github.com/ggml-org/ggml, each a C struct.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from ..errors import BadCheckpoint
from ..quant import FORMS, Form, PackedWeight, encode_rows, error_ratio, quantization_error
from ..quant.layout import Encoded, pack_rows
from ..quant.study import sample_rows
from .gguf_file import BLOCKS, GgufFile, GgufTensor
from .outlook import TypeOutlook
from .safetensors import dtype_name


def packed_form(tensor: GgufTensor) -> Form | None:
    """The form that a tensor takes when it is kept quantized; None for floats, and for what is not a matrix."""
    return FORMS[_KINDS[tensor.type].form] if tensor.type in _KINDS and len(tensor.shape) == 2 else None


def is_exact(tensor: GgufTensor) -> bool:
    """Whether `pack` keeps every value of a tensor as its type encodes it."""
    return tensor.type in _KINDS and _KINDS[tensor.type].exact


def type_outlooks(file: GgufFile) -> list[TypeOutlook]:
    """What becomes of each type and form that there is in a file, the largest first. Some rows of a few types are read.

    Raises as `pack`.
    """
    found: dict[tuple[str, str], list[GgufTensor]] = {}
    for tensor in file.tensors.values():
        form = packed_form(tensor)
        found.setdefault((tensor.type, form.name if form else dtype_name(tensor.dtype)), []).append(tensor)
    outlooks = [_outlook(kind, form, tensors) for (kind, form), tensors in found.items()]
    return sorted(outlooks, key=lambda outlook: -outlook.bytes)


def _outlook(kind: str, form: str, tensors: list[GgufTensor]) -> TypeOutlook:
    weights = sum(math.prod(tensor.shape) for tensor in tensors)
    if form in FORMS:
        size = sum(FORMS[form].nbytes(tensor.shape) for tensor in tensors)
        error = 0.0 if is_exact(tensors[0]) else error_ratio(*np.sum(list(map(_sampled_error, tensors)), axis=0))
    else:
        size, error = sum(tensor.dtype.itemsize * math.prod(tensor.shape) for tensor in tensors), 0.0
    return TypeOutlook(kind, len(tensors), weights, sum(tensor.data.nbytes for tensor in tensors), form, size, error)


def _sampled_error(tensor: GgufTensor) -> tuple[float, float]:
    data = tensor.data[sample_rows(tensor.shape)]
    some = replace(tensor, shape=(len(data), tensor.shape[1]), data=data)
    return quantization_error(some.values(), pack(some))


def pack(tensor: GgufTensor, data: np.ndarray | None = None) -> PackedWeight:
    """A quantized matrix in kernel order; `data` may be its rows in another order.

    Raises `BadCheckpoint` for scales that are not finite, or are beyond float16 once multiplied out.
    """
    data, form = tensor.data if data is None else data, packed_form(tensor)

    def encode(begin: int, end: int) -> Encoded:
        rows = replace(tensor, shape=(end - begin, tensor.shape[1]), data=np.ascontiguousarray(data[begin:end]))
        with np.errstate(over="ignore", invalid="ignore"):
            return _read_rows(rows, form)

    return pack_rows(form, tensor.shape, encode)


def _read_rows(tensor: GgufTensor, form: Form) -> Encoded:
    read = _KINDS[tensor.type].read
    if read is None:
        return encode_rows(tensor.values(), form, tensor.name)
    _, _, block_bytes = BLOCKS[tensor.type]
    codes, scales, minimums = read(tensor.data.reshape(-1, block_bytes))
    if not (np.isfinite(scales).all() and (minimums is None or np.isfinite(minimums).all())):
        raise BadCheckpoint(f"tensor {tensor.name!r} of type {tensor.type}: a scale is not finite in float16")
    parts = (codes, scales, minimums)
    return tuple(part if part is None else part.reshape(tensor.shape[0], -1) for part in parts)


# ---- one reader a type: blocks uint8 [n, bytes] -> codes [n, values], scales and minimums float16 [n, groups]


def _halves(blocks: np.ndarray, at: int) -> np.ndarray:
    """The float16 at a byte of each block: [n, 1]."""
    return np.ascontiguousarray(blocks[:, at : at + 2]).view("<f2")


def _nibbles(quants: np.ndarray) -> np.ndarray:
    """Bytes [n, m] -> all low nibbles, then all high ones: [n, 2 m]."""
    return np.concatenate([quants & 15, quants >> 4], axis=1)


def _q4_0(blocks: np.ndarray) -> Encoded:
    return _nibbles(blocks[:, 2:]), _halves(blocks, 0), None


def _q4_1(blocks: np.ndarray) -> Encoded:
    return _nibbles(blocks[:, 4:]), _halves(blocks, 0), _halves(blocks, 2)


def _q5_0(blocks: np.ndarray) -> Encoded:
    return _fives(blocks[:, 2:6], blocks[:, 6:]), _halves(blocks, 0), None


def _q5_1(blocks: np.ndarray) -> Encoded:
    return _fives(blocks[:, 4:8], blocks[:, 8:]), _halves(blocks, 0), _halves(blocks, 2)


def _fives(fifths: np.ndarray, quants: np.ndarray) -> np.ndarray:
    """Fifth bits [n, 4] and nibbles [n, 16] of 32 codes: [n, 32]."""
    return _nibbles(quants) | np.unpackbits(fifths, axis=1, bitorder="little") << 4


def _q8_0(blocks: np.ndarray) -> Encoded:
    return blocks[:, 2:].view(np.int8), _halves(blocks, 0), None


def _q4_k(blocks: np.ndarray) -> Encoded:
    scale, minimum = _six_bits(blocks[:, 4:16])
    scales = _halves(blocks, 0).astype(np.float32) * scale
    minimums = _halves(blocks, 2).astype(np.float32) * minimum
    # 32 bytes hold two groups, one in their low nibbles and one in their high ones
    codes = _nibbles(blocks[:, -128:].reshape(-1, 32)).reshape(len(blocks), -1)
    return codes, scales.astype(np.float16), (-minimums).astype(np.float16)


def _q5_k(blocks: np.ndarray) -> Encoded:
    codes, scales, minimums = _q4_k(blocks)  # which has all but the fifth bits, bit b of 32 bytes for group b
    fifths = np.unpackbits(blocks[:, 16:48, None], axis=2, bitorder="little").swapaxes(1, 2)
    return codes | fifths.reshape(codes.shape) << 4, scales, minimums


def _six_bits(packed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Bytes [n, 12] -> eight scales and eight minimums of 6 bits, float32 [n, 8] each.

    Bytes 0 to 3 have the first four scales, 4 to 7 the first four minimums. The others have their low four bits in
    bytes 8 to 11, scale below and minimum above, and their high two in the top of the bytes before.
    """
    first, second, low = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = np.concatenate([first & 63, low & 15 | first >> 6 << 4], axis=1)
    minimums = np.concatenate([second & 63, low >> 4 | second >> 6 << 4], axis=1)
    return scales.astype(np.float32), minimums.astype(np.float32)


@dataclass(frozen=True)
class _Kind:
    form: str
    read: Callable[[np.ndarray], Encoded] | None  # None: through float32
    exact: bool  # whether the form holds all that the type says


_KINDS = {
    "Q4_0": _Kind("int4-g32-symmetric", _q4_0, exact=True),
    "Q4_1": _Kind("int4-g32", _q4_1, exact=True),
    "Q4_K": _Kind("int4-g32", _q4_k, exact=False),
    "Q5_0": _Kind("int5-g32-symmetric", _q5_0, exact=True),
    "Q5_1": _Kind("int5-g32", _q5_1, exact=True),
    "Q5_K": _Kind("int5-g32", _q5_k, exact=False),
    "Q6_K": _Kind("int8-g32", None, exact=False),
    "Q8_0": _Kind("int8-g32", _q8_0, exact=True),
}
