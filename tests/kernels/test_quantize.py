"""Activations to int8: the kernel against its twin to the last bit, and what the twin promises."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from tinyinfer.kernels import twins
from tinyinfer.kernels.quantize import TINY, quantize_rows


def run(x, groups=None):
    n, width = x.shape
    groups = -(-width // 32) if groups is None else groups
    codes = np.full((n, 32 * groups), 99, np.int8)
    scales, sums = np.full((2, n, groups), 99, np.float32)
    quantize_rows(x, codes, scales, sums, 0, n)
    return codes, scales, sums


def assert_as_twin(x, groups=None):
    found = run(x, groups)
    expected = twins.quantize_rows(x, found[1].shape[1])
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)
    return found


@settings(deadline=None, max_examples=200)
@given(arrays.arrays(np.float32, arrays.array_shapes(min_dims=2, max_dims=2, max_side=70)))
def test_equals_the_twin_for_any_floats(x):
    assert_as_twin(x)


@pytest.mark.parametrize("width", [1, 7, 8, 31, 32, 33, 100, 576])
@pytest.mark.parametrize("extra", [0, 3])
def test_equals_the_twin_at_odd_widths(width, extra):
    x = np.random.default_rng(width).standard_normal((3, width)).astype(np.float32)
    codes, scales, sums = assert_as_twin(x, -(-width // 32) + extra)
    assert not codes[:, width:].any()
    back = codes.reshape(3, -1, 32) * scales[..., None]
    # half a step, and the rounding of x / scale
    assert np.all(np.abs(back.reshape(3, -1)[:, :width] - x) <= 0.501 * scales.repeat(32, axis=1)[:, :width])
    np.testing.assert_allclose(sums, back.sum(-1, dtype=np.float64), rtol=1e-6, atol=1e-6)


@settings(deadline=None)
@given(st.integers(-125, 126), st.integers(0, 1 << 30))
def test_every_magnitude_of_group(exponent, seed):
    x = np.random.default_rng(seed).standard_normal((2, 40)) * 2.0**exponent
    with np.errstate(over="ignore"):
        codes, scales, _ = assert_as_twin(x.astype(np.float32))
    assert np.abs(codes.astype(int)).max() == (127 if (scales > 0).any() else 0)


def test_rounds_half_to_even():
    x = np.zeros((1, 32), np.float32)
    x[0, :6] = [127, 0.5, 1.5, 2.5, -0.5, -1.5]
    assert run(x)[0][0, :6].tolist() == [127, 0, 2, 2, 0, -2]


@pytest.mark.parametrize("value", [0.0, -0.0, 1e-45, float(np.nextafter(TINY, np.float32(0)))])
def test_zeros_and_almost_zeros(value):
    codes, scales, sums = assert_as_twin(np.full((1, 32), value, np.float32))
    assert not codes.any()
    assert not scales.any()
    assert not sums.any()


@pytest.mark.parametrize("value", [float(TINY), 1e-30, 3.4e38])
def test_smallest_and_largest_groups_that_count(value):
    codes, scales, _ = assert_as_twin(np.full((1, 32), value, np.float32))
    assert (codes == 127).all()
    assert np.isfinite(scales).all()


@pytest.mark.parametrize("value", [np.nan, -np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 13, 31, 34])
def test_not_finite_spoils_its_group_alone(value, place):
    x = np.random.default_rng(0).standard_normal((2, 64)).astype(np.float32)
    x[1, place] = value
    codes, scales, sums = assert_as_twin(x)
    group = place // 32
    assert np.isnan([scales[1, group], sums[1, group]]).all()
    assert not codes[1, 32 * group : 32 * group + 32].any()
    assert np.isfinite(scales).sum() == 3


def test_rows_outside_are_left_alone():
    x = np.ones((3, 32), np.float32)
    codes, scales, sums = np.zeros((3, 32), np.int8), *np.zeros((2, 3, 1), np.float32)
    quantize_rows(x, codes, scales, sums, 1, 2)
    assert codes[:, 0].tolist() == [0, 127, 0]
    assert (scales != 0).ravel().tolist() == [False, True, False]
