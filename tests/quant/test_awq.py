"""AWQ's factors and ranges: never worse than none by what they are judged by, and where they should be large."""

from __future__ import annotations

import numpy as np
import pytest

from tests.quant.test_gptq import case, decoded, moved
from tinyinfer.quant import STEPS, awq, dequantize, encode_rows, find_form, quantize
from tinyinfer.quant.curvature import hessian


def outlying(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Inputs of which a few dimensions are thirty times the others."""
    rng = np.random.default_rng(seed)
    inputs = rng.standard_normal((200, 128)).astype(np.float32)
    inputs[:, rng.choice(128, 4, replace=False)] *= 30
    return rng.standard_normal((24, 128)).astype(np.float32), inputs


@pytest.mark.parametrize("name", ["int4-g32", "int4-g64-symmetric", "int5-g64"])
@pytest.mark.parametrize("seed", range(3))
def test_factors_make_products_more_exact(name: str, seed: int):
    weight, inputs = outlying(seed)
    factors = awq.factors([weight], [inputs[:50], inputs[50:]], find_form(name))
    rounded = dequantize(quantize(weight * factors, name)) / factors
    assert moved(weight, rounded, inputs) < 0.9 * moved(weight, dequantize(quantize(weight, name)), inputs)
    large = np.argsort(-np.abs(inputs).mean(axis=0))[:4]
    assert factors[large].min() > np.delete(factors, large).max()
    assert factors.max() * factors.min() == pytest.approx(1, rel=1e-5)


def test_even_inputs_ask_for_no_factors():
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((16, 64)).astype(np.float32)
    signs = rng.choice([-1, 1], (100, 64)).astype(np.float32)
    np.testing.assert_array_equal(awq.factors([weight], [signs], find_form("int4-g32")), 1)


def test_without_inputs_there_are_no_factors():
    weight = np.ones((8, 32), np.float32)
    for nothing in ([], [np.empty((0, 32), np.float32)], [np.zeros((3, 32), np.float32)]):
        np.testing.assert_array_equal(awq.factors([weight], nothing, find_form("int4-g32")), 1)


def test_tied_columns_have_one_factor():
    weight, inputs = outlying(1)
    factors = awq.factors([weight], [inputs], find_form("int4-g32"), lambda sizes: np.repeat(sizes[:64], 2))
    np.testing.assert_array_equal(factors[::2], factors[1::2])
    assert len(np.unique(factors)) > 2


@pytest.mark.parametrize("name", ["int4-g32", "int4-g64-symmetric", "int5-g64", "int4-g128"])
def test_ranges_are_cut_where_each_groups_products_gain(name: str):
    form, (weight, inputs) = find_form(name), case(16, 130, 200, 3)
    steps, curvature = STEPS[form.scheme], hessian([inputs], 130)
    cut, nearest = awq.encode(weight, form, steps, curvature), encode_rows(weight, form, "weight")
    assert [part.dtype for part in cut[:2]] == [part.dtype for part in nearest[:2]]
    for begin in range(0, 130, form.group_size):
        group = slice(begin, begin + form.group_size)
        costs = [moved(weight[:, group], decoded(form, found)[:, group], inputs[:, group]) for found in (cut, nearest)]
        assert costs[0] < 1.02 * costs[1]  # the nearest has shares of its own, which need not be among those tried
    assert moved(weight, decoded(form, cut), inputs) < moved(weight, decoded(form, nearest), inputs)
