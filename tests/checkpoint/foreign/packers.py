"""Foreign formats written by their rules, one number at a time: by nothing of tinyinfer's, and for any shape.

Each packer takes whole-number codes and what groups share, and gives the tensors of one layer, by their endings, as
(dtype of the safetensors header, array). What the weights are is computed beside it, from the same numbers.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

Stored = dict[str, tuple[str, np.ndarray]]

STEM = "model.layers.0.mlp.up_proj"
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]  # outputs in a word, from the lowest nibble up
HQQ_FIELDS = {8: 1, 4: 2, 2: 4, 1: 8, 3: 10}
E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]


def write_folder(
    folder: Path, quantization: Any, /, *layers: Stored, metadata: dict[str, str] | None = None, **config: Any
) -> Path:
    """A folder of one safetensors file; endings that begin with "." or "_" belong to `STEM`, others are whole names."""
    everything = [item for layer in layers for item in layer.items()]
    tensors = {STEM + name if name[0] in "._" else name: stored for name, stored in everything}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"quantization_config": quantization, **config}))
    write_safetensors(folder / "model.safetensors", tensors, metadata)
    return folder


def write_safetensors(path: Path, tensors: Stored, metadata: dict[str, str] | None = None) -> None:
    """A file put together by hand, since NumPy has neither bfloat16 nor 8-bit floats."""
    header: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    data = b""
    for name, (code, array) in tensors.items():
        raw = np.ascontiguousarray(array).tobytes()
        header[name] = {"dtype": code, "shape": list(array.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    encoded = json.dumps(header).encode()
    path.write_bytes(len(encoded).to_bytes(8, "little") + encoded + data)


def stream(codes: np.ndarray, bits: int) -> np.ndarray:
    """Rows of codes as one long number each, the first code lowest: [n, m] -> uint32 [n, ceil(m * bits / 32)]."""
    words = -(-codes.shape[1] * bits // 32)
    rows = [sum(int(code) << bits * place for place, code in enumerate(row)) for row in codes]
    return np.array([[row >> 32 * word & 0xFFFFFFFF for word in range(words)] for row in rows], np.uint32)


def bfloat16(numbers: np.ndarray) -> tuple[str, np.ndarray]:
    """Numbers that bfloat16 holds, as it stores them."""
    bits = np.ascontiguousarray(numbers, np.float32).view(np.uint32)
    assert not (bits & 0xFFFF).any()
    return "BF16", (bits >> 16).astype(np.uint16)


def rounded_to_bfloat16(numbers: np.ndarray) -> np.ndarray:
    return (np.ascontiguousarray(numbers, np.float32).view(np.uint32) & 0xFFFF0000).view(np.float32)


def e4m3(code: int) -> float:
    """What a code of E4M3 stands for."""
    sign, exponent, mantissa = code >> 7, code >> 3 & 15, code & 7
    size = math.ldexp(mantissa, -9) if exponent == 0 else math.ldexp(8 + mantissa, exponent - 10)
    return math.nan if code & 127 == 127 else -size if sign else size


def e2m1(code: int) -> float:
    return -E2M1[code & 7] if code & 8 else E2M1[code]


def each(meaning, codes: np.ndarray) -> np.ndarray:
    """What codes stand for, one by one, float32."""
    return np.array([meaning(int(code)) for code in codes.reshape(-1)], np.float32).reshape(codes.shape)


def spread(part: np.ndarray, size: int, columns: int) -> np.ndarray:
    """Numbers of groups as numbers of columns."""
    return np.array([[row[k // size] for k in range(columns)] for row in part], part.dtype)


def gptq(codes, zeros, scales, bits: int, g_idx: np.ndarray | None = None, version: int = 1) -> Stored:
    """codes [N, K], zeros and scales [N, groups]."""
    if version == 1 and bits == 3:
        words = stream((zeros.T - 1) % 8, bits)
    else:
        words = stream(zeros.T, bits)
        if version == 1:
            words = (words.astype(np.int64) - sum(1 << place for place in range(0, 32, bits))) % 2**32
    layer = {
        ".qweight": ("I32", stream(codes, bits).T),
        ".qzeros": ("I32", words.astype(np.uint32)),
        ".scales": ("F16", scales.T.astype(np.float16)),
    }
    return layer | ({".g_idx": ("I32", g_idx.astype(np.int32))} if g_idx is not None else {})


def awq(codes, zeros, scales) -> Stored:
    """codes [N, K], zeros and scales [N, groups]."""

    def words(numbers: np.ndarray) -> np.ndarray:
        out = np.zeros((numbers.shape[1], len(numbers) // 8), np.uint32)
        for k in range(out.shape[0]):
            for j in range(out.shape[1]):
                out[k, j] = sum(int(numbers[8 * j + n, k]) << 4 * place for place, n in enumerate(AWQ_ORDER))
        return out

    return {
        ".qweight": ("I32", words(codes)),
        ".qzeros": ("I32", words(zeros)),
        ".scales": ("F16", scales.T.astype(np.float16)),
    }


def bnb4(codes, absmax: np.ndarray, quant_map, kind: str, block: int, nested: dict[str, Any] | None = None) -> Stored:
    """codes [N, K]; absmax float32 [blocks], or uint8 where `nested` has map, absmax and offset."""
    flat = [*map(int, codes.reshape(-1)), 0]
    octets = np.array([[flat[i] << 4 | flat[i + 1]] for i in range(0, codes.size, 2)], np.uint8)
    state: dict[str, Any] = {"quant_type": kind, "blocksize": block, "dtype": "bfloat16", "shape": list(codes.shape)}
    layer: Stored = {
        ".weight": ("U8", octets),
        ".weight.absmax": ("U8" if nested else "F32", absmax),
        ".weight.quant_map": ("F32", quant_map),
    }
    if nested:
        state |= {"nested_blocksize": nested["block"], "nested_dtype": "float32", "nested_offset": nested["offset"]}
        layer[".weight.nested_absmax"] = ("F32", nested["absmax"])
        layer[".weight.nested_quant_map"] = ("F32", nested["map"])
    text = np.frombuffer(json.dumps(state).encode(), np.uint8)
    return layer | {f".weight.quant_state.bitsandbytes__{kind}": ("U8", text)}


def compressed(codes, scales, bits: int, zeros=None, packed_zeros: bool = True, g_idx=None) -> Stored:
    """codes signed [N, K], scales (that bfloat16 holds) and zeros [N, groups]."""
    half = 2 ** (bits - 1)
    layer = {
        ".weight_packed": ("I32", stream(codes + half, bits)),
        ".weight_shape": ("I64", np.array(codes.shape, np.int64)),
        ".weight_scale": bfloat16(scales),
    }
    if zeros is not None:
        words = ("I32", stream((zeros + half).T, bits).T) if packed_zeros else ("I8", zeros.astype(np.int8))
        layer[".weight_zero_point"] = words
    return layer | ({".weight_g_idx": ("I32", g_idx.astype(np.int32))} if g_idx is not None else {})


def mlx(codes, bits: int, scales, biases=None) -> Stored:
    """codes [N, K]; scales and biases that bfloat16 holds, or scales of bytes."""
    layer = {
        ".weight": ("U32", stream(codes, bits)),
        ".scales": ("U8", scales) if scales.dtype == np.uint8 else bfloat16(scales),
    }
    return layer | ({} if biases is None else {".biases": bfloat16(biases)})


def hqq(codes, scale, zero, bits: int, size: int, axis: int = 1, **changes: Any) -> Stored:
    """codes [N, K]; scale and zero one for each group, flat, that bfloat16 holds."""
    lines = codes.reshape(-1, size) if axis else codes.reshape(size, -1)
    fields = HQQ_FIELDS[bits]
    count = -(-len(lines) // fields)
    packed = np.zeros((count, lines.shape[1]), np.uint32)
    for row, line in enumerate(lines):
        packed[row % count] |= line.astype(np.uint32) << bits * (fields - 1 - row // count)
    shape = (-1, 1) if axis else (1, -1)
    facts = {
        "nbits": np.int32(bits), "group_size": np.int32(size), "axis": np.int32(axis),
        "shape": np.array(codes.shape, np.int64), "view_as_float": np.uint8(0), "quant_scale": np.uint8(0),
        "quant_zero": np.uint8(0), "offload_meta": np.uint8(0), "encoded_state_dict": np.uint8(1),
        "packing": np.frombuffer(("3bit_32" if bits == 3 else f"{bits}bit_u8").encode(), np.uint8),
    }  # fmt: skip
    names = {"int32": "I32", "int64": "I64", "uint8": "U8"}
    arrays = {name: np.asarray(value) for name, value in (facts | changes).items()}
    return {
        ".W_q": ("I32", packed) if bits == 3 else ("U8", packed.astype(np.uint8)),
        ".scale": bfloat16(scale.reshape(shape)),
        ".zero": bfloat16(zero.reshape(shape)),
    } | {f".{name}": (names[array.dtype.name], array) for name, array in arrays.items()}


def torchao_facts(kind: str, block: list[int], **more: Any) -> dict[str, str]:
    """The metadata of `STEM`'s weight."""
    return {f"{STEM}.weight": json.dumps({"_type": kind, "_data": {"block_size": block, **more}})}
