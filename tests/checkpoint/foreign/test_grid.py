"""What a form is said to hold exactly, it holds: scales, zeros and offsets of every size, small and large groups."""

from __future__ import annotations

import numpy as np
import pytest

from tinyinfer.checkpoint.foreign.codes import E4M3_VALUES, E8M0_VALUES, stream
from tinyinfer.checkpoint.foreign.grid import Grid, digits, holds_in_bfloat16, in_float16, made
from tinyinfer.checkpoint.safetensors import BFLOAT16, to_bfloat16, to_float32
from tinyinfer.quant import Form, PackedWeight, dequantize
from tinyinfer.quant.nf4 import VALUES


def numbers(rng: np.random.Generator, kind: str, shape: tuple[int, int]) -> np.ndarray:
    """Scales as files have them: bfloat16, float16, float32, powers of two; near 1 or anywhere; some of them zero."""
    spread = rng.choice([1.0, 4.0, 12.0, 30.0])
    found = rng.choice([-1, 1], shape) * np.exp2(rng.uniform(-spread, spread / 3, shape) - 4)
    found[rng.random(shape) < 0.05] = 0
    found = found.astype(np.float32)
    if kind == "bfloat16":
        return to_float32(to_bfloat16(found))
    if kind == "float16":
        return found.astype(np.float16).astype(np.float32)
    return np.exp2(np.rint(np.log2(np.abs(found) + 1e-9))).astype(np.float32) if kind == "power" else found


def random_grid(rng: np.random.Generator) -> Grid:
    bits = int(rng.choice([2, 3, 4, 5, 8]))
    rows, columns = int(rng.integers(1, 12)), int(rng.integers(1, 200))
    group = int(rng.choice([16, 32, 48, 64, 96, 128, 256, columns]))
    shape = rows, -(-columns // group)
    low = int(rng.choice([0, -(2 ** (bits - 1))]))
    high = low + 2**bits - 1
    codes = rng.integers(low, high + 1, (rows, columns)).astype(np.int16)
    scales = numbers(rng, str(rng.choice(["bfloat16", "float16", "float32", "power"])), shape)
    kind = rng.choice(["none", "middle", "any", "fraction", "minimum"])
    zeros = {"middle": np.full(shape, (low + high + 1) // 2), "any": rng.integers(low, high + 1, shape)}.get(kind)
    zeros = rng.uniform(low, high, shape) if kind == "fraction" else zeros
    minimums = numbers(rng, "bfloat16", shape) if kind == "minimum" else None
    table = None
    if bits == 4 and low == 0 and kind == "none":
        table = VALUES
    elif bits == 8 and low == 0 and kind == "none":
        table, codes = E4M3_VALUES, np.minimum(codes, 126)
    order = rng.permutation(np.arange(columns) // group) if rng.random() < 0.1 else None

    def of_rows(part: np.ndarray | None):
        return None if part is None else lambda ids: part.astype(np.float32)[ids]

    return Grid(
        "x", "", (rows, columns), 0, lambda ids: codes[ids], of_rows(scales), group, (low, high),
        of_rows(zeros), of_rows(minimums), table, order,
    )  # fmt: skip


def test_nothing_is_rounded():
    rng = np.random.default_rng(0)
    chosen: dict[str, int] = {}
    for _ in range(1500):
        grid = random_grid(rng)
        choice = grid.choice()
        found, exact = made(grid, choice), grid.floats(np.arange(grid.shape[0]))
        values = dequantize(found) if isinstance(found, PackedWeight) else to_float32(found)
        name = choice.name if isinstance(choice, Form) else str(choice)
        assert np.array_equal(values, exact), (name, grid)
        chosen[name] = chosen.get(name, 0) + 1
    assert len(chosen) >= 12  # all forms but nf4-g64-double, or nearly, and both kinds of floats


@pytest.mark.parametrize(
    ("values", "expected"),
    [([0], 0), ([1, -2, 0.5], 1), ([3], 2), ([255], 8), ([0.1], 24), ([2.0**-140], 1), ([7, 2.0**-20], 3)],
)
def test_digits(values: list[float], expected: int):
    """0.1 is 13421773 * 2^-27 in float32, an odd number of 24 bits; rounded to bfloat16 it takes 8."""
    assert digits(np.array(values, np.float32)) == expected
    assert digits(to_float32(to_bfloat16(np.array(values, np.float32)))) <= 8


def test_what_bfloat16_holds():
    assert holds_in_bfloat16(E8M0_VALUES[:1], 2)  # 2^-127 times a number of two digits
    assert not holds_in_bfloat16(E8M0_VALUES[:1], 4, 2.0**-9)
    assert not holds_in_bfloat16(np.array([3], np.float32), 7)
    products = np.multiply.outer(E8M0_VALUES[10:240], E4M3_VALUES[np.isfinite(E4M3_VALUES)])
    assert holds_in_bfloat16(E8M0_VALUES[10:240], digits(E4M3_VALUES), 2.0**-9)
    assert np.array_equal(to_float32(to_bfloat16(products)), products)
    assert to_bfloat16(products).dtype == BFLOAT16


def test_what_float16_holds():
    assert in_float16(np.array([65504, 2.0**-24, -0.0, 2047], np.float32))
    for number in (65536, 2.0**-25, 2049, 1 / 3):
        assert not in_float16(np.array([number], np.float32))


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
@pytest.mark.parametrize("count", [1, 7, 10, 11, 32, 33, 100])
def test_streams(bits: int, count: int):
    rng = np.random.default_rng(bits)
    codes = rng.integers(0, 2**bits, (3, count))
    words = -(-count * bits // 32)
    numbers = [sum(int(code) << bits * place for place, code in enumerate(row)) for row in codes]
    packed = np.array([[number >> 32 * word & 0xFFFFFFFF for word in range(words)] for number in numbers], np.uint32)
    assert np.array_equal(stream(packed, bits, count), codes)
    assert np.array_equal(stream(packed.view(np.int32), bits, count), codes)


def test_small_floats():
    """Against the rules, a code at a time."""
    from tests.checkpoint.foreign.packers import e4m3

    assert all(E4M3_VALUES[code] == e4m3(code) for code in range(256) if code & 127 != 127)
    assert np.isnan(E4M3_VALUES[[127, 255]]).all()
    assert (E4M3_VALUES[126], E4M3_VALUES[1], E8M0_VALUES[0], E8M0_VALUES[127]) == (448, 2.0**-9, 2.0**-127, 1)
    assert np.isnan(E8M0_VALUES[255])


@pytest.mark.parametrize("group", [32, 64])
def test_the_lowest_code_of_8_bits_is_multiplied_as_it_is(group: int):
    """Forms quantized here have codes from -127 up; those of others go down to -128, which the kernels must take."""
    from tinyinfer.kernels.int8 import matmul_int8

    codes = np.full((16, 64), -128, np.int8)
    scales = np.full((16, 64 // group), 0.5, np.float32)
    grid = Grid("x", "", (16, 64), 0, lambda ids: codes[ids], lambda ids: scales[ids], group, (-128, 127))
    packed = made(grid, grid.choice())
    assert packed.form.name == ("int8-row" if group == 64 else "int8-g32")
    stored = packed.scales if group == 64 else packed.scales.view(np.int16)
    for rows in (1, 5):
        x = np.array([[-127] * 64, [127] * 64, [-127, 127] * 32, [1] * 64, [0] * 64], np.int8)[:rows]
        out = np.empty((rows, 16), np.float32)
        matmul_int8(x, np.ones((rows, 2), np.float32), packed.codes, stored, out, 0, 16, 0, 2, False)
        assert np.array_equal(out, x.astype(np.float32) @ dequantize(packed).T)
