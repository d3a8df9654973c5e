"""The forms of keys and values: what comes back is near what came, in as many bytes as was said."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tinyinfer.cache import FORMS, KV_DTYPES
from tinyinfer.cache.forms import Int4
from tinyinfer.cli.options import Parser, add_kv_dtype

INT4 = Int4()
SIZES = (1, 7, 8, 9, 12, 16, 17, 31, 32, 33, 40, 48, 64, 72, 80, 128, 576)


def through(numbers: np.ndarray) -> np.ndarray:
    codes, scales = INT4.kept(numbers)
    assert (codes.shape, codes.dtype, scales) == ((*numbers.shape[:-1], INT4.width(numbers.shape[-1])), np.uint8, None)
    return INT4.widened(codes, None, numbers.shape[-1])


def test_the_bytes_of_a_head():
    """By hand: 20 numbers in one group, of which eight bytes hold sixteen and four bytes the rest."""
    numbers = np.float32([*range(16), 15, 14, 0, 1])
    codes, _ = INT4.kept(2 * numbers[None, None] - 7)
    assert codes[0, 0, :4].view(np.float16).tolist() == [2, -7]
    assert codes[0, 0, 4:12].tolist() == [i | (i + 8) << 4 for i in range(8)]
    assert codes[0, 0, 12:].tolist() == [15, 14, 0, 1]
    assert INT4.width(20) == 16


@pytest.mark.parametrize(
    ("dim", "width"), [(1, 5), (8, 12), (12, 12), (16, 12), (17, 13), (32, 20), (64, 40), (72, 52)]
)
def test_how_many_bytes_a_head_takes(dim: int, width: int):
    assert INT4.width(dim) == width


@settings(max_examples=150, deadline=None)
@given(
    dim=st.sampled_from(SIZES), heads=st.integers(0, 3), size=st.sampled_from([1e-9, 1e-6, 1e-3, 1.0, 300.0, 9e4]),
    middle=st.sampled_from([0.0, 1.0, -50.0]), seed=st.integers(0, 2**32 - 1),
)  # fmt: skip
def test_numbers_come_back_within_half_a_step(dim: int, heads: int, size: float, middle: float, seed: int):
    """A step is a 15th of what its group spans. float16 rounds it, fifteen times at most, and the minimum once."""
    numbers = np.random.default_rng(seed).standard_normal((2, heads, dim)) * size + middle
    numbers = numbers.astype(np.float32)
    expected = np.clip(numbers, -65504, 65504).astype(np.float64)
    found = through(numbers)
    assert found.dtype == np.float32
    for begin in range(0, dim, 32):
        group, back = expected[..., begin : begin + 32], found[..., begin : begin + 32]
        least, most = group.min(-1, keepdims=True), group.max(-1, keepdims=True)
        step = (most - least) / 15
        slack = step / 2 + 16 * (step * 2.0**-11 + 2.0**-25) + np.abs(least) * 2.0**-11 + 2.0**-25
        assert (np.abs(back - group) <= slack).all()


@pytest.mark.parametrize("value", [0.0, 1.5, -65504.0, 2.0**-20])
def test_equal_numbers_come_back_as_they_are(value: float):
    numbers = np.full((1, 2, 40), value, np.float32)
    assert np.array_equal(through(numbers), numbers)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_makes_its_group_none(bad: float):
    numbers = np.ones((1, 1, 70), np.float32)
    numbers[0, 0, 40] = bad
    found = through(numbers)[0, 0]
    assert np.isnan(found[32:64]).all()
    assert np.array_equal(found[[*range(32), *range(64, 70)]], np.ones(38))


def test_bytes_of_every_form():
    """Of a head of 64 and of 20 numbers, a key and a value, in the order of the names."""
    assert list(KV_DTYPES) == ["float16", "float32", "int8", "int8-int4"]
    assert [FORMS[name].nbytes(64) for name in KV_DTYPES] == [256, 512, 136, 68 + 40]
    assert [FORMS[name].nbytes(20) for name in KV_DTYPES] == [80, 160, 48, 24 + 16]


def test_the_command_line_knows_them_all():
    parser = Parser("run", "answer")
    add_kv_dtype(parser)
    (choices,) = (action.choices for action in parser._actions if action.dest == "kv_dtype")
    assert tuple(choices) == KV_DTYPES
