"""The integer products against their NumPy twins, and the twins against plain loops over unpacked weights."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba.core.errors import TypingError

from tinyinfer.kernels import twins
from tinyinfer.kernels.int4 import matmul_int4
from tinyinfer.kernels.int5 import matmul_int5
from tinyinfer.kernels.int8 import matmul_int8
from tinyinfer.kernels.nf4 import LEVELS, ONE, matmul_nf4

from .packers import pack_bytes, pack_fives, pack_nibbles, pack_scales

SCHEMES = ("int4", "int4 symmetric", "int5", "int5 symmetric", "int8", "int8 a row", "nf4", "nf4 float32")
LIMITS = {"int4": (0, 15), "int5": (0, 31), "int8": (-127, 127), "nf4": (0, 15)}
PACK = {"int4": pack_nibbles, "int5": pack_fives, "int8": pack_bytes, "nf4": pack_nibbles}
NONE = np.zeros((0, 0, 8), np.int16)
OUTSIDE = np.float32(12345.0)


class Case:
    """A weight of one scheme and some rows of x; `run` computes their product, `terms` what it is the sum of."""

    def __init__(self, scheme, n=1, rows=8, groups=1, per_scale=1, seed=0):
        random = np.random.default_rng(seed)
        self.scheme, self.n, self.rows, self.groups = scheme, n, rows, groups
        self.x_codes = random.integers(-127, 128, (n, 32 * groups)).astype(np.int8)
        self.x_scales = random.uniform(0.01, 2, (n, groups)).astype(np.float32)
        self.x_sums = self.x_scales * self.x_codes.reshape(n, groups, 32).sum(-1, dtype=np.float32)
        low, high = LIMITS[scheme.split()[0]]
        self.weight_codes = random.integers(low, high + 1, (rows, 32 * groups))
        spans = 1 if scheme == "int8 a row" else groups // per_scale
        wide = scheme in ("int8 a row", "nf4 float32")
        self.set_scales(random.uniform(0.001, 0.1, (rows, spans)), np.float32 if wide else np.float16)
        self.minimums = pack_scales(random.uniform(-1, 0, (rows, spans))) if scheme in ("int4", "int5") else NONE
        self.set_codes(self.weight_codes)

    def set_codes(self, codes):
        self.weight_codes = codes
        self.codes = PACK[self.scheme.split()[0]](codes)

    def set_scales(self, scales, dtype=np.float16):
        self.scales = pack_scales(scales, dtype)

    def make_units(self):
        """All scales one, so that sums of integers come out as they are."""
        self.x_scales[:] = 1
        self.x_sums[:] = 0
        one = np.ones(self.scales.shape, np.float32 if self.scales.dtype == np.float32 else np.float16)
        self.scales = one if one.dtype == np.float32 else one.view(np.int16)

    def operands(self):
        if "int4" in self.scheme or "int5" in self.scheme:
            return self.x_codes, self.x_scales, self.x_sums, self.codes, self.scales, self.minimums
        return self.x_codes, self.x_scales, self.codes, self.scales

    def kernel(self):
        kernels = {"int4": matmul_int4, "int5": matmul_int5, "int8": matmul_int8, "nf4": matmul_nf4}
        return kernels[self.scheme.split()[0]]

    def run(self, out=None, column=0, begin=0, end=None, accumulate=False):
        if out is None:
            out = np.full((self.n, self.rows), OUTSIDE, np.float32)
        end = len(self.codes) if end is None else end
        self.kernel()(*self.operands(), out, column, self.rows, begin, end, accumulate)
        return out

    def terms(self):
        twin = getattr(twins, f"terms_{self.scheme.split()[0]}")
        return twin(*self.operands())[:, : self.rows]


def assert_close(out: np.ndarray, terms: np.ndarray) -> None:
    """Within a rounding for each term that is added, and four for what a term is the product of.

    Products of scales that fall below normal float32 lose bits, up to 2**-149, before they meet a sum of up to 2**27.
    """
    size = np.abs(terms).sum(-1)
    bound = (terms.shape[-1] + 4) * 2.0**-24 * size + terms.shape[-1] * 2.0**-122
    assert np.all(np.abs(out - terms.sum(-1)) <= bound)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("n", [1, 2, 3, 7, 8, 9, 16, 27])
@pytest.mark.parametrize(("rows", "groups"), [(1, 1), (8, 2), (13, 4), (24, 8)])
def test_equals_the_twin(scheme, n, rows, groups):
    case = Case(scheme, n, rows, groups, seed=n + rows)
    assert_close(case.run(), case.terms())


@settings(deadline=None, max_examples=60)
@given(
    scheme=st.sampled_from(SCHEMES),
    n=st.integers(1, 20),
    rows=st.integers(1, 40),
    spans=st.integers(1, 4),
    per_scale=st.sampled_from([1, 2, 4]),
    seed=st.integers(0, 1 << 30),
)
def test_equals_the_twin_for_any_shape(scheme, n, rows, spans, per_scale, seed):
    case = Case(scheme, n, rows, spans * per_scale, per_scale, seed)
    assert_close(case.run(), case.terms())


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("n", [1, 2, 8])
def test_integer_sums_are_exact(scheme, n):
    # with unit scales and sums below 2**24 nothing is rounded, so the group sums themselves come out
    case = Case(scheme, n, rows=11, groups=3, seed=5)
    case.make_units()
    if "nf4" in scheme:
        case.x_codes //= 16  # 32 * 8 * 32767 < 2**24
    case.minimums[:] = 0
    levels = LEVELS[case.weight_codes].astype(np.int64) if "nf4" in scheme else case.weight_codes
    for group in range(case.groups):
        case.x_scales[:] = 0
        case.x_scales[:, group] = 1
        part = slice(32 * group, 32 * group + 32)
        sums = case.x_codes[:, part].astype(np.int64) @ levels[:, part].T
        # for nf4 the sum is scaled by 1 / ONE, rounded once; undone in float64 it is off by less than half
        found = np.rint(case.run().astype(np.float64) * ONE) if "nf4" in scheme else case.run()
        np.testing.assert_array_equal(found, sums)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("n", [1, 2, 8])
@pytest.mark.parametrize("sign", [1, -1, 0])
def test_largest_codes_everywhere_do_not_overflow(scheme, n, sign):
    case = Case(scheme, n, rows=8, groups=2)
    case.make_units()
    alternating = np.where(np.arange(64) % 2, -127, 127).astype(np.int8)
    case.x_codes[:] = 127 * sign if sign else alternating
    if "int8" in scheme:
        largest = np.where(np.arange(64) % 2, -127, 127) if sign == 0 else np.full(64, 127 * sign)
    else:
        largest = np.full(64, LIMITS[scheme.split()[0]][1])
    case.set_codes(np.tile(largest, (8, 1)))
    case.minimums[:] = 0
    levels = np.ones(64, int) if "nf4" in scheme else largest
    expected = int(case.x_codes[0].astype(int) @ levels)
    np.testing.assert_array_equal(case.run(), np.full((n, 8), expected, np.float32))


@pytest.mark.parametrize("scheme", ["int8", "int8 a row"])
def test_opposite_largest_codes(scheme):
    case = Case(scheme, n=2, rows=8, groups=1)
    case.make_units()
    case.x_codes[:] = -127
    case.set_codes(np.full((8, 32), 127))
    np.testing.assert_array_equal(case.run(), np.full((2, 8), -127 * 127 * 32, np.float32))


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("n", [1, 3, 8])
def test_writes_only_its_own_part(scheme, accumulate, n):
    case = Case(scheme, n, rows=27, groups=2, seed=9)
    terms = case.terms()
    out = np.full((n, 50), OUTSIDE, np.float32)
    case.run(out, column=10, begin=1, end=4, accumulate=accumulate)
    before = np.full((n, 19, 1), OUTSIDE) if accumulate else np.zeros((n, 19, 1))
    assert_close(out[:, 18:37], np.concatenate([before, terms[:, 8:27]], axis=-1))
    assert np.all(out[:, :18] == OUTSIDE)
    assert np.all(out[:, 37:] == OUTSIDE)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("n", [1, 8])
def test_pieces_equal_the_whole(scheme, n):
    case = Case(scheme, n, rows=40, groups=3, seed=2)
    out = np.full((n, 40), OUTSIDE, np.float32)
    for begin, end in [(3, 5), (0, 1), (1, 3)]:
        case.run(out, begin=begin, end=end)
    np.testing.assert_array_equal(out, case.run())


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_row_of_x_does_not_depend_on_its_neighbours(scheme):
    # the tile is wider, the arithmetic of a row is the same; only the order of a sum may differ
    case = Case(scheme, n=19, rows=16, groups=4, seed=3)
    together = case.run()
    for t in range(19):
        alone = Case(scheme, n=1, rows=16, groups=4, seed=3)
        alone.codes, alone.scales, alone.minimums = case.codes, case.scales, case.minimums
        alone.x_codes = case.x_codes[t : t + 1].copy()
        alone.x_scales, alone.x_sums = case.x_scales[t : t + 1].copy(), case.x_sums[t : t + 1].copy()
        np.testing.assert_array_equal(alone.run()[0], together[t])


@pytest.mark.parametrize("scheme", SCHEMES)
def test_zero_groups(scheme):
    case = Case(scheme, n=2, rows=9, groups=3, seed=4)
    case.x_codes[:, 32:64] = 0
    case.x_scales[:, 1] = case.x_sums[:, 1] = 0
    case.scales[:, -1] = 0
    assert_close(case.run(), case.terms())


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize(
    ("scale", "x_scale"),
    [(65504.0, 1e28), (2.0**-24, 1e-20), (3 * 2.0**-24, 1.0), (2.0**-14, 1e-38), (-0.25, 1e30), (2.0**-15, 2.0**-118)],
)
def test_extreme_and_subnormal_scales(scheme, scale, x_scale):
    case = Case(scheme, n=9, rows=9, groups=2, seed=6)
    case.scales = np.full(case.scales.shape, scale, np.float32 if case.scales.dtype == np.float32 else np.float16)
    if case.scales.dtype == np.float16:
        case.scales = case.scales.view(np.int16)
    case.x_scales[:] = x_scale
    case.x_sums[:] = np.float32(x_scale) * case.x_codes.reshape(9, 2, 32).sum(-1, dtype=np.float32)
    assert_close(case.run(), case.terms())


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("n", [1, 8])
def test_nan_scale_of_x_makes_its_row_nan(scheme, n):
    case = Case(scheme, n, rows=8, groups=2)
    case.x_codes[0, :32] = 0
    case.x_scales[0, 0] = case.x_sums[0, 0] = np.nan
    out = case.run()
    assert np.isnan(out[0]).all()
    assert np.isfinite(out[1:]).all()


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("n", [1, 8])
def test_x_may_have_more_groups_than_the_weight(scheme, n):
    # as when weights with groups of 32 and of 128 share it
    case = Case(scheme, n, rows=9, groups=2, seed=7)
    expected = case.run()
    case.x_codes = np.concatenate([case.x_codes, case.x_codes], axis=1)
    case.x_scales = np.concatenate([case.x_scales, np.full((n, 2), np.nan, np.float32)], axis=1)
    case.x_sums = np.concatenate([case.x_sums, np.full((n, 2), np.nan, np.float32)], axis=1)
    np.testing.assert_array_equal(case.run(), expected)


def test_accepts_read_only_and_unaligned_weights():
    # as they come out of a memory-mapped file
    case = Case("int4", n=2, rows=16, groups=2)
    expected = case.run()
    moved = np.zeros(case.codes.nbytes + 1, np.uint8)[1:]
    moved[:] = case.codes.ravel()
    case.codes = moved.reshape(case.codes.shape)
    case.codes.flags.writeable = False
    np.testing.assert_array_equal(case.run(), expected)


def test_refuses_arrays_with_gaps():
    case = Case("int4", n=2, rows=16, groups=2)
    case.codes = case.codes[::-1]
    with pytest.raises(TypingError):
        case.run()


def test_twins_unpack_what_was_packed():
    random = np.random.default_rng(0)
    nibbles, whole = random.integers(0, 16, (16, 96)), random.integers(-127, 128, (16, 96))
    fives = random.integers(0, 32, (16, 96))
    np.testing.assert_array_equal(twins.unpack_fives(pack_fives(fives)).reshape(16, 96), fives)
    np.testing.assert_array_equal(twins.unpack_nibbles(pack_nibbles(nibbles)).reshape(16, 96), nibbles)
    np.testing.assert_array_equal(twins.unpack_bytes(pack_bytes(whole)).reshape(16, 96), whole)
    scales = random.uniform(0, 1, (16, 3)).astype(np.float16)
    np.testing.assert_array_equal(twins.spread_scales(pack_scales(scales), 6), scales.repeat(2, axis=1))


def test_levels_are_symmetric_at_the_ends_and_have_a_zero():
    assert (LEVELS[0], LEVELS[7], LEVELS[15]) == (-ONE, 0, ONE)
    assert np.all(np.diff(LEVELS.astype(int)) > 0)
