"""Kernel order: where each number of a quantized matrix [N, K] lies.

Rows go in blocks of eight (NB = ceil(N / 8)), columns in chunks of 32 (G of them, once K is padded to whole groups).
Within a block and a chunk the eight rows are interleaved by four columns, so that a 32-byte register holds four
neighbouring columns of all eight rows: multiply by four activations, add neighbours, and each row's sum is in a lane of
its own.

    8-bit codes   int8 [NB, G, 8, 32]             byte   0  1  2  3 |  4  5  6  7 | ...  | 28 29 30 31
        line c holds columns 4c .. 4c + 3         row         0     |      1      | ...  |      7
                                                  column 4c +0 1 2 3|  0  1  2  3 | ...  |  0  1  2  3

    4-bit codes   uint8 [NB, G, 4, 32]            byte   0  1  2  3 |  4  5  6  7 | ...  | 28 29 30 31
        line c holds columns 8c .. 8c + 7         row         0     |      1      | ...  |      7
                                      low nibble: column 8c +0 1 2 3|  0  1  2  3 | ...  |  0  1  2  3
                                     high nibble: column 8c +4 5 6 7|  4  5  6  7 | ...  |  4  5  6  7

    5-bit codes   uint8 [NB, G, 5, 32]            four lines of nibbles, as above, then one of fifth bits:
                                                  byte   0  1  2  3 |  4  5  6  7 | ...  | 28 29 30 31
                                                  row         0     |      1      | ...  |      7
                                          bit b:  column 4b +0 1 2 3|  0  1  2  3 | ...  |  0  1  2  3

    scales, minimums  [NB, groups, 8]: the eight rows' numbers of one group stand side by side; [NB, 8] one a row

The rows that fill the last block have scale and minimum 0. The columns that fill the last group have a code that means
zero where the form has one; they meet activations that are zero.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np

from .packed import CHUNK, ROW_BLOCK, Form, PackedWeight, from_arrays

VALUES_AT_ONCE = 1 << 18  # numbers worked on at a time: few enough that memory stays near the size of the result

MOST_THREADS = 4  # NumPy lets go of the interpreter while it computes, but not between its calls

# codes [rows, K], scales and minimums [rows, groups] (minimums None where the form is symmetric)
Encoded = tuple[np.ndarray, np.ndarray, np.ndarray | None]


def pack_rows(form: Form, shape: tuple[int, int], encode: Callable[[int, int], Encoded]) -> PackedWeight:
    """Lay out a matrix whose rows `encode(begin, end)` gives, a few blocks at a time, on threads where there are cores.

    Forms whose scales are quantized are laid out with plain scales, float16, as `form` without `double`.
    """
    form = replace(form, double=False)
    arrays = {name: np.zeros(size, dtype) for name, (dtype, size) in form.arrays(shape).items()}
    columns = form.padded(shape)[1]

    def pack(begin: int, end: int) -> None:
        codes, scales, minimums = encode(begin, end)
        blocks = slice(begin // ROW_BLOCK, -(-end // ROW_BLOCK))
        codes = _filled(codes, columns, zero_code(form))
        arrays["codes"][blocks] = _BLOCKS.get(form.scheme, _nibble_blocks)(codes)
        arrays["scales"][blocks] = _scale_blocks(form, scales)
        if minimums is not None:
            arrays["minimums"][blocks] = _scale_blocks(form, minimums)

    each_span(shape, pack)
    return from_arrays(form, shape, arrays)


def each_span(shape: tuple[int, int], work: Callable[[int, int], None]) -> None:
    """Call `work(begin, end)` for all rows of a matrix, some blocks at a time, on threads where there are cores."""
    spans = row_spans(shape)
    if len(spans) < 2:
        for begin, end in spans:
            work(begin, end)
        return
    with ThreadPoolExecutor(min(os.cpu_count() or 1, MOST_THREADS)) as pool:
        for _ in pool.map(lambda span: work(*span), spans):
            pass


def row_spans(shape: tuple[int, int]) -> list[tuple[int, int]]:
    """Spans of rows to work on at a time, whole blocks all but the last."""
    step = max(VALUES_AT_ONCE // max(shape[1], 1) // ROW_BLOCK, 1) * ROW_BLOCK
    return [(begin, min(begin + step, shape[0])) for begin in range(0, shape[0], step)]


def zero_code(form: Form) -> int:
    """The code that stands for zero; where there is a minimum there is none, and 0 fills gaps."""
    if form.scheme == "nf4":
        return 7
    return {"int4": 8, "int5": 16}.get(form.scheme, 0) if form.symmetric else 0


def _filled(array: np.ndarray, columns: int, value: int) -> np.ndarray:
    """The array with rows up to a whole block, and with `columns` columns."""
    gaps = (0, -len(array) % ROW_BLOCK), (0, columns - array.shape[1])
    return np.pad(array, gaps, constant_values=value) if any(map(any, gaps)) else array


def _byte_blocks(codes: np.ndarray) -> np.ndarray:
    """int8 [8 n, 32 G] -> int8 [n, G, 8, 32]."""
    fours = np.ascontiguousarray(codes).view(np.uint32)  # four codes move as one number: NumPy is faster at that
    lines = fours.reshape(len(codes) // ROW_BLOCK, ROW_BLOCK, -1, 8).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(lines).view(codes.dtype)


def _nibble_blocks(codes: np.ndarray) -> np.ndarray:
    """uint8 [8 n, 32 G] -> uint8 [n, G, 4, 32]."""
    fours = _byte_blocks(codes)
    return fours[:, :, 0::2] | fours[:, :, 1::2] << 4


def _five_bit_blocks(codes: np.ndarray) -> np.ndarray:
    """uint8 [8 n, 32 G] -> uint8 [n, G, 5, 32]."""
    fifths = np.packbits(_byte_blocks(codes >> 4), axis=2, bitorder="little")
    return np.concatenate([_nibble_blocks(codes & 15), fifths], axis=2)


_BLOCKS = {"int8": _byte_blocks, "int5": _five_bit_blocks}  # else nibbles


def _scale_blocks(form: Form, scales: np.ndarray) -> np.ndarray:
    """[rows, groups] -> [n, groups, 8], or [n, 8] where a row has one."""
    filled = _filled(scales, (form.group_size and scales.shape[1]) or 1, 0)
    blocks = filled.reshape(-1, ROW_BLOCK, filled.shape[1])
    return blocks.transpose(0, 2, 1) if form.group_size else blocks[:, :, 0]


def codes_of_rows(packed: PackedWeight, ids: np.ndarray) -> np.ndarray:
    """The codes of some rows, in order of columns: int [n] -> int8 or uint8 [n, 32 G]."""
    lines = packed.codes.reshape(*packed.codes.shape[:3], ROW_BLOCK, 4)
    fours = lines[ids // ROW_BLOCK, :, :, ids % ROW_BLOCK]  # [n, G, lines, 4]
    if packed.scheme != "int8":
        nibbles, fifths = fours[:, :, :4], fours[:, :, 4:]
        fours = np.stack([nibbles & 15, nibbles >> 4], axis=3).reshape(*fours.shape[:2], 8, 4)
        if packed.scheme == "int5":
            fours |= np.unpackbits(fifths, axis=2, bitorder="little") << 4
    return fours.reshape(len(ids), packed.codes.shape[1] * CHUNK)


def scales_of_rows(scales: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """The scales or minimums of some rows as float32: [NB, groups, 8] or [NB, 8] -> [n, groups] or [n, 1]."""
    if scales.ndim == 2:
        return scales[ids // ROW_BLOCK, ids % ROW_BLOCK].astype(np.float32)[:, None]
    return scales[ids // ROW_BLOCK, :, ids % ROW_BLOCK].astype(np.float32)


def take_rows(packed: PackedWeight, ids: np.ndarray) -> PackedWeight:
    """A matrix of some of the rows, in any order, with the same codes and scales: int [n] -> [n, K].

    Raises `ValueError` where scales are quantized (expand them first).
    """
    if packed.scale_steps is not None:
        raise ValueError("rows with quantized scales can't be taken apart")
    filling = -len(ids) % ROW_BLOCK
    lines = packed.codes.reshape(*packed.codes.shape[:3], ROW_BLOCK, 4)
    rows = np.pad(lines[ids // ROW_BLOCK, :, :, ids % ROW_BLOCK], ((0, filling), (0, 0), (0, 0), (0, 0)))
    blocks = rows.reshape(-1, ROW_BLOCK, *rows.shape[1:]).transpose(0, 2, 3, 1, 4)
    arrays = {"codes": np.ascontiguousarray(blocks).reshape(-1, *packed.codes.shape[1:])}
    for name in ("scales", "minimums"):
        if (old := getattr(packed, name)) is not None:
            columns = old.shape[1] if old.ndim == 3 else 1
            rows = old.swapaxes(1, -1)[ids // ROW_BLOCK, ids % ROW_BLOCK].reshape(len(ids), columns)
            blocks = np.pad(rows, ((0, filling), (0, 0))).reshape(-1, ROW_BLOCK, columns)
            arrays[name] = np.ascontiguousarray(blocks.swapaxes(1, 2)).reshape(-1, *old.shape[1:])
    return PackedWeight(packed.scheme, (len(ids), packed.shape[1]), packed.group_size, **arrays)
