"""The vector operations one by one, on either backend, and how a backend is chosen."""

from __future__ import annotations

import numpy as np
import pytest
from numba.core.errors import TypingError

from tinyinfer.errors import BadRequest
from tinyinfer.kernels import processor, simd
from tinyinfer.kernels.jit import jit

RANDOM = np.random.default_rng(0)


@jit
def widen_all(halves, out):
    for i in range(0, halves.size, 8):
        simd.store_floats(out, i, simd.load_floats(halves, i))


def test_every_float16_is_widened_exactly():
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    out = np.zeros(halves.size, np.float32)
    widen_all(halves.view(np.int16), out)
    with np.errstate(invalid="ignore"):  # of NaNs that signal, which ARM reports
        expected = halves.astype(np.float32)
    np.testing.assert_array_equal(out, expected)
    np.testing.assert_array_equal(np.signbit(out), np.signbit(expected))


@jit
def widen_bytes(stored, out):
    """scale * code + minimum of sixteen codes behind the two numbers; and these."""
    pair = simd.load_two_halves(stored, 0)
    simd.store_floats(out, 16, pair)
    scale, least = simd.broadcast_float(out, 16), simd.broadcast_float(out, 17)
    simd.store_floats(out, 0, simd.multiply_add(simd.load_nibbles(stored, 4), scale, least))


def test_numbers_of_four_bits_are_widened_with_their_scale():
    stored = np.concatenate([np.float16([0.5, -3]).view(np.uint8), RANDOM.integers(0, 256, 8).astype(np.uint8)])
    out = np.zeros(24, np.float32)
    widen_bytes(stored, out)
    codes = np.concatenate([stored[4:] & 15, stored[4:] >> 4])
    np.testing.assert_array_equal(out[:18], [*(codes * 0.5 - 3), 0.5, -3])


@jit
def round_all(x, scale, out):
    for i in range(0, x.size, 8):
        whole = simd.scaled_to_int(simd.load_floats(x, i), simd.spread(scale))
        simd.store_floats(out, i, simd.to_float(whole))


def test_rounds_half_to_even_after_a_rounded_product():
    x = np.concatenate([np.arange(-512, 512) / 4, RANDOM.uniform(-4e6, 4e6, 1024), [0.0, -0.0, 1e-40, -1e-40] * 2])
    for scale in (np.float32(1), np.float32(0.3), np.float32(1 / 3)):
        out = np.zeros(x.size, np.float32)
        round_all(x.astype(np.float32), scale, out)
        np.testing.assert_array_equal(out, np.rint(x.astype(np.float32) * scale))


@jit
def fold(x, out):
    bits = simd.magnitude_bits(simd.load_floats(x, 0))
    out[0] = simd.float_of_bits(simd.largest_of(simd.larger(bits, simd.magnitude_bits(simd.load_floats(x, 8)))))
    out[1] = simd.sum_of(simd.scaled_to_int(simd.load_floats(x, 0), simd.spread(np.float32(1))))


@pytest.mark.parametrize("place", range(16))
def test_folds_see_every_lane(place):
    x = RANDOM.integers(-9, 9, 16).astype(np.float32)
    x[place] = -100
    out = np.zeros(2, np.float32)
    fold(x, out)
    assert out.tolist() == [100, x[:8].sum()]


@jit
def products(codes, weights, x, levels, out):
    """One instruction group of each kind, as int32 in float32: [4, 8]."""
    four, rows = simd.broadcast_bytes(x, 0), simd.no_floats(0)
    nibbles = simd.load_bytes(codes, 0)
    low, high = simd.low_nibbles(nibbles), simd.high_nibbles(nibbles)
    for kind in range(4):
        if kind == 0:
            sums = simd.row_sums(simd.add_nibble_products(simd.no_nibble_products(0, rows), low, four))
        elif kind == 1:
            sums = simd.row_sums(simd.add_nibble_products(simd.no_nibble_products(0, rows), high, four))
        elif kind == 2:
            sums = simd.row_sums(simd.add_products(simd.no_products(0, rows), simd.load_bytes(weights, 0), four))
        else:
            looked_up = simd.look_up(low, levels, 0)
            words = simd.broadcast_words(x, 0)
            sums = simd.level_row_sums(simd.add_level_products(simd.no_level_products(0, rows), looked_up, words))
        simd.store_floats(out, 8 * kind, simd.to_float(sums))


@pytest.mark.parametrize("x", [[127] * 4, [-127] * 4, [127, -127, 1, 0], [3, -5, 7, -11]])
@pytest.mark.parametrize("extreme", [False, True])
def test_products_of_bytes(x, extreme):
    codes = np.full(32, 255, np.uint8) if extreme else RANDOM.integers(0, 256, 32).astype(np.uint8)
    weights = np.full(32, -127, np.int8) if extreme else RANDOM.integers(-127, 128, 32).astype(np.int8)
    levels = RANDOM.integers(-32767, 32768, 16).astype(np.int16)
    levels[15] = -32767
    out = np.zeros((4, 8), np.float32)
    products(codes, weights, np.array(x, np.int8), levels, out)
    for found, factors in zip(out, [codes & 15, codes >> 4, weights, levels[codes & 15]], strict=True):
        sums = factors.reshape(8, 4).astype(np.int64) @ np.array(x)
        np.testing.assert_array_equal(found, sums.astype(np.float32))


@jit
def over_tuples(x, out):
    rows = (0, 8, 16)
    a = simd.load_floats(x, rows)
    shifted = simd.plus(simd.times(rows, 1), 8)
    b = simd.multiply_add(a, simd.spread(np.float32(2)), simd.load_floats(x, shifted))
    simd.store_floats(out, rows, b)
    simd.store_float(out, simd.plus(rows, 7), simd.lane(a, 0))


def test_operations_on_tuples_go_element_by_element():
    x = np.arange(32, dtype=np.float32)
    out = np.zeros(24, np.float32)
    over_tuples(x, out)
    expected = 2 * x[:24] + x[8:]
    expected[7::8] = x[:24:8]
    np.testing.assert_array_equal(out, expected)


def test_wrong_operands_do_not_compile():
    @jit
    def mixed(x):
        return simd.lane(simd.add(simd.load_floats(x, (0, 8)), simd.load_floats(x, (0, 8, 16))), 0)

    with pytest.raises(TypingError):
        mixed(np.zeros(32, np.float32))
    with pytest.raises(TypingError):
        widen_all(np.zeros(32, np.int16)[::2], np.zeros(32, np.float32))


@pytest.fixture
def fresh_choice():
    """The choice is made once a process; forget it before a test and after."""
    processor.backend.cache_clear()
    yield
    processor.backend.cache_clear()


@pytest.mark.usefixtures("fresh_choice")
def test_a_backend_is_forced_or_refused(monkeypatch):
    monkeypatch.setenv("TINYINFER_SIMD", "portable")
    assert processor.backend() == "portable"
    processor.backend.cache_clear()
    monkeypatch.setenv("TINYINFER_SIMD", "mmx")
    with pytest.raises(BadRequest, match="portable, found 'mmx'"):
        processor.backend()


@pytest.mark.usefixtures("fresh_choice")
@pytest.mark.parametrize("has", [set(), {"avx2"}, {"avx2", "fma"}])
def test_avx2_takes_all_that_it_needs(monkeypatch, has):
    monkeypatch.setattr(processor, "features", lambda: frozenset(has))
    monkeypatch.delenv("TINYINFER_SIMD", raising=False)
    assert processor.backend() == "portable"
    processor.backend.cache_clear()
    monkeypatch.setenv("TINYINFER_SIMD", "avx2")
    with pytest.raises(BadRequest, match="f16c"):
        processor.backend()
