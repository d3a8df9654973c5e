"""Checkpoints that other programs quantized, as they are published: read exactly, and packed where a form of ours can.

config.json says by what and how ("quant_method" in "quantization_config", or MLX's "quantization"). Each format has a
file, with its bytes drawn in it, and comes to the same thing, a `Grid` (grid.py): codes, and what groups of them share.
The rest of the package sees ordinary names, `model.layers.0.mlp.up_proj.weight`; what else a format stores is hidden.

Where one of our forms (`quant/`) holds every weight exactly, its codes go into kernel order as they are. That is asked
for each tensor, of its scales and zeros, and the smallest form wins; where none does, the tensor becomes floats, in
bfloat16 if that is exact. So nothing is ever rounded on reading, and the usual way of each format is

    format                                becomes           otherwise
    GPTQ 2, 3 bits; 4 bits, symmetric     int4-symmetric    scales beyond float16: float32
    GPTQ 4 bits, asymmetric               int5-symmetric    int4 where float16 holds each scale * zero
    GPTQ 8 bits, symmetric                int8-g32          asymmetric takes 9 bits: float32
    GPTQ with act-order                   float32           columns of a group do not lie together
    AWQ                                   int5-symmetric    as GPTQ's 4 bits, asymmetric
    bitsandbytes NF4                      nf4-g64           absmax is no float16, or is quantized: nf4-g64-wide
                                                            blocks of 32, or across rows: float32
    bitsandbytes FP4                      float32           its values are no even steps
    bitsandbytes int8                     int8-row
    compressed-tensors, whole numbers     as GPTQ           a scale a row in 8 bits: int8-row
    compressed-tensors FP8                float32           scales that are powers of two: bfloat16
    compressed-tensors NVFP4              float32           groups of 16, times a float32
    compressed-tensors MXFP4              int5-symmetric    scales beyond float16: bfloat16
    FP8 blocks                            float32           E8M0 scales: bfloat16
    MLX 2, 3, 4 bits; 5 bits              int4; int5        scales or offsets beyond float16: float32
    MLX 6, 8 bits                         float32           has an offset, which int8 has not
    MLX MXFP4                             int5-symmetric    as above
    MLX NVFP4, MXFP8                      bfloat16
    torchao int8, intx                    as GPTQ           a scale a row in 8 bits: int8-row
    torchao FP8                           float32
    HQQ                                   float32           all zeros whole: as GPTQ
    MXFP4 experts (gpt-oss)               bfloat16

A form's group is the format's, or the largest of ours that divides it; groups that are no multiple of 32 become floats
where a row has several. `tinyinfer info` shows what becomes of a folder; `tinyinfer quantize` makes less of floats, at
some loss.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import BadCheckpoint, UnsupportedModel
from ...quant import Form
from ..outlook import TypeOutlook
from ..safetensors import FLOAT_DTYPES, dtype_name, to_float32
from ..source import LazyTensors
from . import awq, bitsandbytes, compressed_tensors, fp8, gptq, hqq, mlx, mxfp4, torchao
from .grid import Grid, made
from .parts import Parts, Settings, shown

OURS = "tinyinfer"
_READERS: dict[str, Callable[[Settings, Parts], list]] = {
    "awq": awq.read,
    "bitsandbytes": bitsandbytes.read,
    "compressed-tensors": compressed_tensors.read,
    "fp8": fp8.read,
    "gptq": gptq.read,
    "hqq": hqq.read,
    "mlx": mlx.read,
    "mxfp4": mxfp4.read,
    "torchao": torchao.read,
}
METHODS = tuple(_READERS)  # as config.json calls them


def quantization_method(config: Mapping[str, Any]) -> str | None:
    """Who quantized a model, by its config.json: "tinyinfer", a method that is read here, or None for nobody.

    Raises `UnsupportedModel` for a method that is not known.
    """
    found = _quantization(config)
    return None if found is None else found[0]


def _quantization(config: Mapping[str, Any]) -> tuple[str, Settings] | None:
    """The method and its settings. What belongs to a text model inside a larger one may stand with it."""
    inner = config.get("text_config")
    places = {"config.json": config, "config.json: text_config": inner if isinstance(inner, Mapping) else {}}
    for where, place in places.items():
        said, mlx_said = place.get("quantization_config"), place.get("quantization")
        method = said.get("quant_method") if isinstance(said, Mapping) else None
        if method is None and isinstance(said, Mapping) and (said.get("load_in_4bit") or said.get("load_in_8bit")):
            method = "bitsandbytes"  # as transformers wrote it before there were others
        if method is None and mlx_said:
            return "mlx", Settings(mlx_said, f"{where}: quantization")
        if not said:
            continue
        if method != OURS and (not isinstance(method, str) or method not in _READERS):
            by = "an unnamed method" if method is None else shown(method)
            known = f"known are {', '.join(_READERS)}"
            raise UnsupportedModel(f"{where}: quantization_config: weights quantized by {by} can't be read; {known}")
        return method, Settings(said, f"{where}: quantization_config")
    return None


class ForeignTensors(LazyTensors):
    """The tensors of a foreign folder; `matrices` are those that have codes."""

    def __init__(self, arrays: Mapping[str, np.ndarray], matrices: Mapping[str, Grid | mxfp4.Experts]):
        """`arrays` are the others, as they are. Reads all scales, to tell what becomes of each matrix."""
        choices = {name: matrix.choice() for name, matrix in matrices.items()}
        forms = {name: choice for name, choice in choices.items() if isinstance(choice, Form)}
        plain = np.dtype("<f4")
        layout = {name: (plain if name in forms else choice, matrices[name].shape) for name, choice in choices.items()}
        layout |= {name: (array.dtype, array.shape) for name, array in arrays.items()}

        def make(name: str):
            return made(matrices[name], choices[name]) if name in matrices else arrays[name]

        def floats(name: str, ids: np.ndarray | None) -> np.ndarray:
            if name in matrices:
                return made(matrices[name], plain) if ids is None else matrices[name].floats(ids)
            return to_float32(arrays[name] if ids is None else arrays[name][ids])

        super().__init__(layout, make, forms, floats)
        self.matrices = dict(matrices)


def foreign_tensors(
    folder: Path, config: Mapping[str, Any], arrays: Mapping[str, np.ndarray], metadata: Mapping[str, str]
) -> ForeignTensors:
    """The tensors of a folder that another program quantized; `metadata` is that of its files.

    A matrix is made each time it is asked for: packed in the form that holds it exactly, or else as floats. Raises
    `UnsupportedModel` naming a variant that is not read, `BadCheckpoint` where what is said and what is there differ.
    """
    method, settings = _quantization(config)
    parts = Parts(folder, arrays, metadata)
    try:
        matrices = {matrix.name: matrix for matrix in _READERS[method](settings, parts)}
        for name, array in parts.left.items():
            if name.endswith(".weight") and array.dtype not in FLOAT_DTYPES:
                found = f"found {dtype_name(array.dtype)} without them"
                raise BadCheckpoint(f"tensor {name!r}: expected floats, or scales as {method} stores them, {found}")
        if not matrices:
            raise BadCheckpoint(f"{settings.where} says that {method} quantized the weights, but no tensor is so")
        if twice := matrices.keys() & parts.left.keys():
            raise BadCheckpoint(f"tensor {min(twice)!r} is there twice, quantized and not")
        return ForeignTensors(parts.left, matrices)
    except (BadCheckpoint, UnsupportedModel) as error:
        if str(folder) in str(error):
            raise
        raise type(error)(f"{folder}: {error}") from None


def foreign_outlooks(tensors: ForeignTensors) -> list[TypeOutlook]:
    """What becomes of each kind of tensor that there is in a foreign folder, the largest first; no code is read."""
    found: dict[tuple[str, str], list[str]] = {}
    for name, (dtype, _) in tensors.layout.items():
        form = tensors.forms[name].name if name in tensors.forms else dtype_name(dtype)
        kind = tensors.matrices[name].kind if name in tensors.matrices else dtype_name(dtype)
        found.setdefault((kind, form), []).append(name)
    outlooks = [_outlook(tensors, kind, form, names) for (kind, form), names in found.items()]
    return sorted(outlooks, key=lambda outlook: -outlook.bytes)


def _outlook(tensors: ForeignTensors, kind: str, form: str, names: list[str]) -> TypeOutlook:
    def size(name: str) -> int:
        dtype, shape = tensors.layout[name]
        return tensors.forms[name].nbytes(shape) if name in tensors.forms else dtype.itemsize * prod(shape)

    stored = sum(tensors.matrices[name].stored if name in tensors.matrices else size(name) for name in names)
    weights = sum(prod(tensors.layout[name][1]) for name in names)
    return TypeOutlook(kind, len(names), weights, stored, form, sum(map(size, names)), 0.0)
