"""The small compiled operations against float64: bounds, odd sizes, extremes, in place."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tinyinfer import reference
from tinyinfer.kernels.pieces import GELU, GELU_TANH, RELU, SILU, add, erf, exp, gated, rms_norm, rotate
from tinyinfer.kernels.tape import ACTIVATIONS

f32 = np.float32
SIZES = [1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 64, 100, 576]
LAST = 2.0**-24  # half a unit in the last place of a number of order 1, relative


def normal(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(f32)


# ---- exp


def test_exp_is_close_over_its_whole_range():
    x = np.linspace(-87.3, 88, 40_001).astype(f32)
    found = np.array([exp(value) for value in x], np.float64)
    # two units in the last place, of which the polynomial is one
    assert np.abs(found / np.exp(x.astype(np.float64)) - 1).max() < 2 * 2 * LAST


@settings(max_examples=200, deadline=None)
@given(st.floats(-87.25, 88, width=32))
def test_exp_of_any_number(x: float):
    assert float(exp(f32(x))) == pytest.approx(math.exp(x), rel=2 * 2 * LAST)


def test_exp_beyond_its_range():
    assert exp(f32(0)) == exp(f32(-0.0)) == 1
    for x in (-88, -1e30, -math.inf):
        assert exp(f32(x)) == exp(f32(-87.3)) < 1.3e-38
    for x in (88.5, 1e30, math.inf):
        assert exp(f32(x)) == exp(f32(88)) > 1.6e38
    assert math.isnan(exp(f32(math.nan)))


# ---- erf


def test_erf_is_close_everywhere():
    x = np.linspace(-6, 6, 20_001).astype(f32)
    found = np.array([erf(value) for value in x], np.float64)
    # the formula is off by 1.5e-7, and a few roundings of numbers near 1
    assert np.abs(found - np.vectorize(math.erf)(x.astype(np.float64))).max() < 5e-7
    assert np.array_equal(found, -found[::-1])


def test_erf_at_the_ends():
    assert [erf(f32(x)) for x in (0, -0.0, 100, -100, math.inf, -math.inf)] == [0, 0, 1, -1, 1, -1]
    assert math.isnan(erf(f32(math.nan)))


# ---- norms


def exact_norm(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    wide = x.astype(np.float64)
    return wide / np.sqrt((wide**2).mean() + eps) * weight


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("size", SIZES)
def test_rms_norm(size: int, in_place: bool):
    for scale in (1e-3, 1, 1e3):
        x, weight = f32(scale) * normal(size, size), normal(size + 1, size)
        expected = exact_norm(x, weight, 1e-6)
        out = x if in_place else np.full(size, np.nan, f32)
        rms_norm(x, weight, f32(1e-6), out)
        # the sum of squares is off by at most size roundings, its root by half as many, and four more follow
        assert (np.abs(out - expected) <= (size / 2 + 4) * LAST * np.abs(expected) + 1e-45).all()


def test_rms_norm_of_zeros_and_of_what_is_no_number():
    for eps, expected in ((1e-6, 0.0), (0.0, math.nan)):
        out = np.ones(5, f32)
        rms_norm(np.zeros(5, f32), np.ones(5, f32), f32(eps), out)
        assert np.array_equal(out, np.full(5, expected, f32), equal_nan=True)
    for bad in (math.nan, math.inf):
        x, out = np.ones(9, f32), np.ones(9, f32)
        x[3] = bad
        rms_norm(x, np.ones(9, f32), f32(1e-6), out)
        assert np.isnan(out[3])


@pytest.mark.parametrize("size", SIZES)
def test_add(size: int):
    x, y = normal(1, size), normal(2, size)
    expected = x + y
    add(x, y)
    assert np.array_equal(x, expected)


# ---- rotations


@pytest.mark.parametrize(("dim", "half"), [(2, 1), (10, 5), (10, 3), (64, 32), (66, 33), (80, 16), (128, 64), (7, 3)])
def test_rotate(dim: int, half: int):
    head, angles = normal(dim, dim), normal(half, half) * 100
    cos, sin = np.cos(angles), np.sin(angles)
    z = (head[:half].astype(np.float64) + 1j * head[half : 2 * half]) * (cos.astype(np.float64) + 1j * sin)
    expected = np.concatenate([z.real, z.imag, head[2 * half :]])
    found = head.copy()
    rotate(found, cos, sin)
    # a sum of two products; each is at most the length of the pair
    length = np.abs(z)
    assert (np.abs(found - expected) <= 3 * LAST * np.concatenate([length, length, head[2 * half :] * 0])).all()
    assert np.array_equal(found[2 * half :], head[2 * half :])


# ---- gates


def activated(kind: int, x: np.ndarray) -> np.ndarray:
    if kind == SILU:
        return x / (1 + np.exp(-x))
    if kind == GELU_TANH:
        return x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2
    if kind == RELU:
        return np.maximum(x, 0)
    return x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", [SILU, GELU, GELU_TANH, RELU])
def test_gated(kind: int, size: int, in_place: bool):
    """An activation is x times a share of one that is off by 3e-7: so by as much of x, also where it comes near 0."""
    for scale in (0.1, 3, 40):
        gate, up = f32(scale) * normal(size, size), normal(size + 1, size)
        expected = activated(kind, gate.astype(np.float64)) * up
        bound = 3e-7 * np.abs(gate.astype(np.float64) * up) + 1e-44
        out = gate if in_place else np.full(size, np.nan, f32)
        gated(gate, up, kind, out)
        assert (np.abs(out - expected) <= bound).all()


@pytest.mark.parametrize("kind", [SILU, GELU, GELU_TANH, RELU])
def test_gated_at_the_ends(kind: int):
    def gate(value: float) -> np.ndarray:
        out = np.empty(9, f32)
        gated(np.full(9, value, f32), np.ones(9, f32), kind, out)
        assert np.array_equal(out, np.full(9, out[0]), equal_nan=True)
        return out[0]

    assert [gate(x) for x in (0, 100, 1e30, math.inf)] == [0, 100, f32(1e30), math.inf]
    for x in (-100, -1e30):
        assert abs(gate(x)) < 1e-7  # exactly 0 of -1e30, but exp does not go below 1e-38
    assert math.isnan(gate(math.nan))


def test_kinds_have_the_numbers_that_a_tape_writes():
    assert [ACTIVATIONS[kind] for kind in (SILU, GELU, GELU_TANH, RELU)] == ["silu", "gelu", "gelu_tanh", "relu"]
    x = normal(1, 33)
    for kind, name in enumerate(ACTIVATIONS):
        out = np.empty_like(x)
        gated(x, np.ones_like(x), kind, out)
        assert np.abs(out - reference.activation(name, x)).max() < 1e-6
