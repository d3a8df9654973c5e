"""The plainest quantizers: by definition, and in the order that theory gives."""

from __future__ import annotations

import numpy as np
import pytest

from tinyinfer.errors import BadRequest
from tinyinfer.quant import FORMS, bits_per_weight, dequantize, quantize, relative_error
from tinyinfer.quant.study import absmax, absmax_groups, outlooks, sample_rows


@pytest.mark.parametrize(("bits", "top"), [(4, 7), (8, 127)])
def test_by_definition(bits: int, top: int):
    weight = np.array([[1.0, -0.52, 0.26], [0.1, 0.0, -0.04]], np.float32)
    for per_row in (False, True):
        found, size = absmax(weight, bits, per_row)
        for row, values in enumerate(weight.tolist()):
            largest = max(abs(value) for value in values) if per_row else 1.0
            expected = [round(value / (largest / top)) * largest / top for value in values]
            assert found[row] == pytest.approx(expected, abs=1e-7)
        assert size == pytest.approx(bits + 32 * (2 if per_row else 1) / 6)
        assert found.dtype == np.float32


def test_fewer_weights_a_scale_are_more_exact():
    rng = np.random.default_rng(0)
    weight = (rng.standard_normal((64, 256)) * rng.uniform(0.2, 2, (64, 1))).astype(np.float32)
    for bits, form in ((4, "int4-g32"), (8, "int8-g32")):
        by_matrix, by_row = (relative_error(weight, absmax(weight, bits, per_row)[0]) for per_row in (False, True))
        assert by_matrix > by_row > relative_error(weight, dequantize(quantize(weight, form)))


def test_zeros_and_nothing():
    assert not absmax(np.zeros((2, 3), np.float32), 4)[0].any()
    assert absmax(np.zeros((0, 3), np.float32), 8, True)[0].shape == (0, 3)


def test_refusals():
    with pytest.raises(BadRequest, match="4 or 8"):
        absmax(np.ones((2, 2), np.float32), 3)
    with pytest.raises(BadRequest, match="NaN or infinity"):
        absmax(np.array([[np.nan]], np.float32), 8)


def test_outlooks_over_all_rows_are_what_quantizing_gives():
    rng = np.random.default_rng(0)
    first, second = rng.standard_normal((16, 128), np.float32), 3 * rng.standard_normal((9, 64), np.float32)
    for outlook, form in zip(outlooks([(16, 128), (9, 64)], [first, second]), FORMS, strict=True):
        packed = [quantize(first, form), quantize(second, form)]
        assert outlook.form == form
        assert outlook.bytes == packed[0].nbytes + packed[1].nbytes
        assert outlook.bits_per_weight == pytest.approx(8 * outlook.bytes / (16 * 128 + 9 * 64))
        if "double" not in form:  # whose scales depend on their neighbours
            flat = [
                np.concatenate([matrix.ravel() for matrix in pair])
                for pair in ([first, second], map(dequantize, packed))
            ]
            assert outlook.relative_error == pytest.approx(relative_error(*flat), rel=1e-9)


def test_outlooks_of_some_rows():
    weight = np.random.default_rng(0).standard_normal((512, 256), np.float32)
    some = outlooks([weight.shape], [weight[sample_rows(weight.shape, 32)]])
    for outlook, whole in zip(some, outlooks([weight.shape], [weight]), strict=True):
        assert (outlook.bytes, outlook.bits_per_weight) == (whole.bytes, whole.bits_per_weight)
        # a sixteenth of the rows: measured to within 3 %
        assert outlook.relative_error == pytest.approx(whole.relative_error, rel=0.06)
    assert [outlook.bits_per_weight for outlook in some] == [bits_per_weight(quantize(weight, name)) for name in FORMS]


@pytest.mark.parametrize(("rows", "expected"), [(1, [0]), (3, [0, 1, 2]), (31, [0, 10, 20, 30])])
def test_sampled_rows_are_spread_over_all(rows: int, expected: list[int]):
    assert sample_rows((rows, 5), 4).tolist() == expected


def test_groups_are_rows_of_their_own_and_the_last_may_be_smaller():
    weight = np.random.default_rng(0).standard_normal((3, 10)).astype(np.float32)
    found, bits = absmax_groups(weight, 4, 4)
    for begin, end in ((0, 4), (4, 8), (8, 10)):
        np.testing.assert_array_equal(found[:, begin:end], absmax(weight[:, begin:end], 4, per_row=True)[0])
    assert bits == 4 + 32 * 9 / 30
    assert absmax_groups(np.zeros((0, 3), np.float32), 8, 2)[0].shape == (0, 3)
