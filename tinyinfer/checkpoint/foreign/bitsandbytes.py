"""bitsandbytes: NF4 and FP4 in blocks of a flat array, and int8 with a scale for each row.

4 bits. The matrix [N, K] is read as one row of N * K weights; a block of them, 64 as a rule, shares an absmax.

    weight                 uint8 [N * K / 2, 1]     byte b: weight 2 b in its high nibble, 2 b + 1 in the low one
    weight.absmax          float32 [blocks]         or uint8, where absmax is quantized itself
    weight.quant_map       float32 [16]             what a code stands for
    weight.quant_state.bitsandbytes__nf4 (or fp4)   uint8: JSON with shape, blocksize, quant_type

    w[i] = quant_map[code[i]] * absmax[i // blocksize]

    double quantized: absmax = nested_quant_map[absmax] * nested_absmax[b // nested_blocksize] + nested_offset

    weight.nested_absmax   float32 [ceil(blocks / 256)]
    weight.nested_quant_map   float32 [256]

8 bits.

    weight   int8 [N, K]
    SCB      float32 [N]      the largest weight of each row in size

    w[n, k] = weight[n, k] * (SCB[n] / 127)      the library multiplies one after the other: a unit in the last place

QLoRA: https://arxiv.org/abs/2305.14314; LLM.int8(): https://arxiv.org/abs/2208.07339.
"""

from __future__ import annotations

import json
from math import prod

import numpy as np

from ...errors import BadCheckpoint
from ..safetensors import BFLOAT16
from .codes import raw_bytes
from .grid import Grid, Rows
from .parts import BYTES, SIGNED_BYTES, Parts, Settings

FLOAT32 = (np.dtype("<f4"),)
STORAGE = (*BYTES, BFLOAT16, np.dtype("<f2"), np.dtype("<f4"))  # bytes may lie in arrays of floats
STATE = ".weight.quant_state.bitsandbytes__"
TYPES = ("nf4", "fp4")
LARGEST = np.float32(127)


def read(settings: Settings, parts: Parts) -> list[Grid]:
    """Every matrix of the folder that has codes."""
    settings.text("bnb_4bit_quant_storage", ("uint8", "bfloat16", "float16", "float32"), "uint8")
    fours = [_four_bits(parts, stem, kind) for kind in TYPES for stem in parts.stems(STATE + kind)]
    return fours + [_eight_bits(parts, stem) for stem in parts.stems(".SCB")]


def _eight_bits(parts: Parts, stem: str) -> Grid:
    weight = parts.take(f"{stem}.weight", SIGNED_BYTES, (None, None))
    largest = parts.take(f"{stem}.SCB", FLOAT32, (len(weight),))
    if f"{stem}.weight_format" in parts.left and (layout := parts.take_number(f"{stem}.weight_format")):
        parts.refuse(f"{stem}.weight_format", f"expected 0, rows one after the other, found layout {layout}")
    return Grid(
        name=f"{stem}.weight",
        kind="bitsandbytes int8, a scale a row",
        shape=weight.shape,
        stored=weight.nbytes + largest.nbytes,
        codes=lambda ids: weight[ids],
        scales=lambda ids: largest[ids, None] / LARGEST,
        group=weight.shape[1],
        levels=(-128, 127),
    )


def _four_bits(parts: Parts, stem: str, kind: str) -> Grid:
    name = f"{stem}.weight"
    state = _state(parts, stem, kind)
    shape, block = state.sizes("shape", 2), state.size("blocksize")
    count, columns = prod(shape), shape[1]
    octets = raw_bytes(parts.take(name, STORAGE).reshape(1, -1))[0]
    if octets.size != -(-count // 2):
        parts.refuse(name, f"expected {-(-count // 2)} bytes for {list(shape)} weights of 4 bits, found {octets.size}")
    absmax, absmax_bytes = _absmax(parts, name, state, -(-count // block))
    whole = columns % block == 0  # else a block may end in the middle of a row: a scale for each weight then
    per_row = columns // block if whole else columns

    def scales(ids: np.ndarray) -> np.ndarray:
        places = ids[:, None] * per_row + np.arange(per_row)
        return absmax(places if whole else places // block)

    return Grid(
        name=name,
        kind=f"bitsandbytes {kind.upper()}, blocks of {block}{', double' if state.get('nested_blocksize') else ''}",
        shape=shape,
        stored=octets.nbytes + absmax_bytes,
        codes=lambda ids: _nibbles(octets, ids, columns),
        scales=scales,
        group=block if whole else 1,
        levels=(0, 15),
        values=np.array(parts.take(f"{name}.quant_map", FLOAT32, (16,))),
    )


def _nibbles(octets: np.ndarray, ids: np.ndarray, columns: int) -> np.ndarray:
    """The codes of some rows: uint8 [n, columns]. A row may begin in the middle of a byte."""
    if columns % 2:
        places = ids[:, None] * columns + np.arange(columns)
        return octets[places // 2] >> np.where(places % 2, 0, 4).astype(np.uint8) & np.uint8(15)
    pairs = octets.reshape(-1, columns // 2)[ids]
    return np.stack([pairs >> 4, pairs & 15], axis=-1).reshape(len(ids), columns)


def _absmax(parts: Parts, name: str, state: Settings, blocks: int) -> tuple[Rows, int]:
    """The absmax of blocks by their numbers, float32, and how many bytes they take in the file."""
    nested = state.get("nested_blocksize") is not None
    absmax = parts.take(f"{name}.absmax", BYTES if nested else FLOAT32, (blocks,))
    if not nested:
        return lambda ids: absmax[ids], absmax.nbytes
    size, offset = state.size("nested_blocksize"), np.float32(state.number("nested_offset"))
    steps = parts.take(f"{name}.nested_absmax", FLOAT32, (-(-blocks // size),))
    meanings = parts.take(f"{name}.nested_quant_map", FLOAT32, (256,))

    def widened(ids: np.ndarray) -> np.ndarray:
        with np.errstate(over="ignore", invalid="ignore"):
            return meanings[absmax[ids]] * steps[ids // size] + offset

    return widened, absmax.nbytes + steps.nbytes + meanings.nbytes


def _state(parts: Parts, stem: str, kind: str) -> Settings:
    name = f"{stem}{STATE}{kind}"
    where = f"{parts.source}: tensor {name!r}"
    try:
        state = Settings(json.loads(parts.take(name, BYTES, (None,)).tobytes().decode()), where)
    except (ValueError, RecursionError) as error:
        raise BadCheckpoint(f"{where}: not valid JSON: {error}") from None
    state.choice("quant_type", (kind,))
    return state
