"""GPTQ against the paper's equations as they stand, with the inverse of all that is left at every column."""

from __future__ import annotations

import numpy as np
import pytest

from tinyinfer.errors import BadRequest
from tinyinfer.quant import STEPS, encode_rows, find_form, gptq
from tinyinfer.quant.curvature import DAMPING, damped, hessian
from tinyinfer.quant.layout import Encoded
from tinyinfer.quant.packed import Form
from tinyinfer.quant.steps import quadratic

FORMS = ["int4-g32", "int4-g64-symmetric", "int5-g32", "int4-g128"]


def case(rows: int, columns: int, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """A matrix, and inputs whose dimensions say much the same."""
    rng = np.random.default_rng(seed)
    mixed = rng.standard_normal((columns, columns)) * np.exp(rng.standard_normal(columns))
    inputs = rng.standard_normal((count, columns)) @ mixed / np.sqrt(columns)
    return rng.standard_normal((rows, columns)).astype(np.float32), inputs.astype(np.float32)


def decoded(form: Form, encoded: Encoded) -> np.ndarray:
    """What codes and scales stand for, float64 [rows, columns]."""
    codes, scales, minimums = encoded
    group = np.arange(codes.shape[1]) // form.group_size
    scale = scales.astype(np.float64)[:, group]
    if form.symmetric:
        return scale * (codes - np.float64(STEPS[form.scheme].middle))
    return scale * codes + minimums.astype(np.float64)[:, group]


def moved(weight: np.ndarray, rounded: np.ndarray, inputs: np.ndarray) -> float:
    """How far products move, relatively."""
    exact = inputs.astype(np.float64) @ weight.T
    return float(np.linalg.norm(inputs @ rounded.T - exact) / np.linalg.norm(exact))


def slowly(weight: np.ndarray, form: Form, curvature: np.ndarray, damping: float) -> np.ndarray:
    """Codes by equations 2 and 3 of https://arxiv.org/abs/2210.17323, in float64, the inverse reduced at each column.

    Scales are the engine's own choice, from the floats as they are when a group is reached, and from what errors of the
    group cost if all later columns are then moved for the best: the inverse of its block of the inverse.
    """
    weight, steps = weight.astype(np.float64), STEPS[form.scheme]
    curvature = curvature + damping * np.trace(curvature) / len(curvature) * np.eye(len(curvature))
    inverse = np.linalg.inv(curvature.astype(np.float64))
    codes = np.empty(weight.shape)
    for column in range(weight.shape[1]):
        if column % form.group_size == 0:
            group = np.ascontiguousarray(weight[:, column : column + form.group_size].T, np.float32)
            cost = np.linalg.inv(inverse[: len(group), : len(group)]).astype(np.float32)
            scale, minimum = steps.wide.choose(group, form.symmetric, quadratic(cost))
        codes[:, column] = np.clip(np.rint((weight[:, column] - minimum) / np.where(scale, scale, 1)), 0, steps.top)
        error = weight[:, column] - (codes[:, column] * scale + minimum)
        weight[:, column:] -= error[:, None] * inverse[0] / inverse[0, 0]
        inverse = (inverse - np.outer(inverse[:, 0], inverse[0]) / inverse[0, 0])[1:, 1:]
    return codes


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("columns", [128, 100])
def test_codes_are_those_of_the_papers_equations(name: str, columns: int):
    form, (weight, inputs) = find_form(name), case(24, columns, 400, columns)
    curvature = hessian([inputs[:100], inputs[100:]], columns)
    codes = gptq.encode(weight, form, STEPS[form.scheme], curvature)[0]
    expected = slowly(weight, form, curvature, DAMPING)
    # float32 against float64: a weight that falls between two codes may fall to the other side, and then its row
    # goes another way
    same = (codes == expected).all(axis=1)
    assert same.mean() >= 0.9
    assert np.abs(codes[:, 0] - expected[:, 0]).max() == 0


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("count", [40, 400])  # fewer inputs than columns leave much undecided
@pytest.mark.parametrize("seed", range(3))
def test_products_move_less_than_by_the_nearest_codes(name: str, count: int, seed: int):
    form, (weight, inputs) = find_form(name), case(16, 130, count, seed)
    chosen = gptq.encode(weight, form, STEPS[form.scheme], hessian([inputs], 130))
    nearest = encode_rows(weight, form, "weight")
    assert [part.shape for part in chosen[:2]] == [part.shape for part in nearest[:2]]
    assert [part.dtype for part in chosen[:2]] == [part.dtype for part in nearest[:2]]
    assert (chosen[2] is None) == (nearest[2] is None)
    assert moved(weight, decoded(form, chosen), inputs) < 0.9 * moved(weight, decoded(form, nearest), inputs)


def test_rows_do_not_depend_on_each_other():
    form, (weight, inputs) = find_form("int4-g32"), case(16, 64, 100, 0)
    curvature = hessian([inputs], 64)
    whole = gptq.encode(weight, form, STEPS["int4"], curvature)
    half = gptq.encode(weight[8:], form, STEPS["int4"], curvature)
    for part, other in zip(whole, half, strict=True):
        assert (part[8:] == other).mean() > 0.99  # products of other sizes may round otherwise in the last bit


@pytest.mark.parametrize("curvature", [np.zeros((64, 64)), np.eye(64) * 3])
def test_inputs_that_say_nothing_leave_the_nearest_codes(curvature: np.ndarray):
    form, (weight, _) = find_form("int4-g32"), case(8, 64, 1, 0)
    chosen = gptq.encode(weight, form, STEPS["int4"], curvature.astype(np.float32))
    nearest = STEPS["int4"].wide.encode(weight.reshape(8, 2, 32), symmetric=False)
    np.testing.assert_array_equal(chosen[0], nearest[0].reshape(8, 64))
    for part, other in zip(chosen[1:], nearest[1:], strict=True):
        np.testing.assert_array_equal(part, other)


def test_the_factor_is_of_the_damped_curvature():
    _, inputs = case(1, 48, 100, 1)
    curvature = hessian([inputs], 48)
    factor = gptq.upper_factor(damped(curvature)).astype(np.float64)
    assert not np.tril(factor, -1).any()
    expected = curvature + 0.01 * np.diagonal(curvature).mean() * np.eye(48)
    np.testing.assert_allclose(factor @ factor.T, expected, atol=1e-5 * np.abs(expected).max())  # float32's roundings


def test_inputs_that_are_no_numbers_are_refused():
    with pytest.raises(BadRequest, match="calibration text makes numbers that are not finite"):
        damped(np.full((32, 32), np.nan))
