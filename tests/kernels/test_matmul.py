"""Products with stored weights against float64, at odd sizes, by the compiled way and by NumPy's."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tinyinfer.checkpoint.safetensors import to_bfloat16, to_float32
from tinyinfer.errors import BadRequest
from tinyinfer.kernels import matmul as module
from tinyinfer.kernels.matmul import FEW_ROWS, TILE_ROWS, matmul
from tinyinfer.model.linear import Linear

STORED = {
    "float32": lambda array: array,
    "float16": lambda array: array.astype(np.float16),
    "bfloat16": to_bfloat16,
    "float64": lambda array: array.astype(np.float64),
}


@pytest.fixture(params=["numba", "numpy"])
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("TINYINFER_KERNELS", request.param)
    module._compiled_types.cache_clear()
    yield request.param
    monkeypatch.undo()
    module._compiled_types.cache_clear()


def check(x: np.ndarray, weights: list[np.ndarray]) -> None:
    """A sum of k products in float32, in any order, is off by at most about k 2^-24 of the sum of their sizes."""
    found = matmul(x, weights)
    wide = np.concatenate([to_float32(weight) for weight in weights]).astype(np.float64)
    assert found.dtype == np.float32
    assert found.shape == (len(x), len(wide))
    exact = x.astype(np.float64) @ wide.T
    sizes = np.abs(x).astype(np.float64) @ np.abs(wide).T
    assert (np.abs(found - exact) <= (x.shape[1] + 2) * 2.0**-24 * sizes + 1e-44).all()


def random(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("stored", STORED)
@pytest.mark.parametrize("n", [1, 2, FEW_ROWS, FEW_ROWS + 1, 33])
@pytest.mark.parametrize("rows", [1, 7, TILE_ROWS - 1, TILE_ROWS, TILE_ROWS + 1, 2 * TILE_ROWS + 3])
def test_any_number_of_rows(kernels: str, stored: str, n: int, rows: int):
    check(random(1, n, 37), [STORED[stored](random(2, rows, 37))])


@pytest.mark.parametrize("stored", STORED)
@pytest.mark.parametrize("width", [1, 2, 3, 15, 16, 17, 63, 64, 65, 576, 1001])
def test_any_width(kernels: str, stored: str, width: int):
    for n in (1, 3, 9):
        check(random(1, n, width), [STORED[stored](random(2, 19, width))])


def test_several_weights_side_by_side_and_of_different_types(kernels: str):
    """A matrix large enough to be dealt out in many pieces between two small ones."""
    weights = [to_bfloat16(random(1, 5, 64)), random(2, 3001, 64), random(3, 1, 64).astype(np.float16)]
    for n in (1, FEW_ROWS, FEW_ROWS + 1):
        check(random(4, n, 64), weights)


def test_a_product_many_times_is_the_same_each_time(kernels: str):
    """Threads claim pieces in any order, and each piece once."""
    x, weight = random(1, 2, 128), to_bfloat16(random(2, 4099, 128))
    first = matmul(x, [weight])
    assert all(np.array_equal(matmul(x, [weight]), first) for _ in range(50))


@pytest.mark.parametrize("stored", ["float32", "float16", "bfloat16"])
def test_weights_at_odd_addresses_and_read_only(kernels: str, stored: str):
    weight = STORED[stored](random(1, 21, 35))
    moved = np.frombuffer(b"x" + weight.tobytes(), np.uint8)[1:].view(weight.dtype).reshape(21, 35)
    assert moved.ctypes.data % 2 == 1
    assert not moved.flags.writeable
    for n in (1, 9):
        check(random(2, n, 35), [moved])


@pytest.mark.parametrize("stored", ["float32", "float16", "bfloat16"])
def test_extreme_weights(kernels: str, stored: str):
    """Subnormals, the largest finite values, signed zeros, infinities and NaN come through as they are."""
    bits = np.float32(
        [0.0, -0.0, 6e-8, -6e-8, 2.0**-24, 65504.0, -65504.0, 1e-40, 3e38, -3e38, np.inf, -np.inf, np.nan]
    )
    with np.errstate(over="ignore"):
        weight = STORED[stored](bits[:, None])
    wide = to_float32(weight)
    for n in (1, FEW_ROWS + 1):
        found = matmul(np.ones((n, 1), np.float32), [weight])
        assert np.array_equal(found, np.repeat(wide.T, n, axis=0), equal_nan=True)


def test_every_16_bit_weight_is_widened_exactly(kernels: str):
    every = np.arange(2**16, dtype=np.uint16)[:, None]
    for dtype in (np.dtype(np.float16), to_bfloat16(np.zeros(1)).dtype):
        weight = every.view(dtype)
        for n in (1, FEW_ROWS + 1):
            with np.errstate(invalid="ignore"):  # NaNs of the signalling kind are among them
                found = matmul(np.ones((n, 1), np.float32), [weight])
            assert np.array_equal(found, np.repeat(to_float32(weight).T, n, axis=0), equal_nan=True)


def test_no_rows_of_x(kernels: str):
    assert matmul(np.empty((0, 8), np.float32), [random(1, 5, 8)]).shape == (0, 5)


def test_x_may_be_a_view(kernels: str):
    x = random(1, 8, 30)[::2, ::3]
    for n in (1, 4):
        check(x[:n], [to_bfloat16(random(2, 11, 10))])


def test_an_unknown_choice_of_kernels_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TINYINFER_KERNELS", "cuda")
    module._compiled_types.cache_clear()
    with pytest.raises(BadRequest, match="'numba' or 'numpy', found 'cuda'"):
        matmul(random(1, 1, 4), [random(2, 2, 4)])
    module._compiled_types.cache_clear()


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 12), st.lists(st.integers(1, 600), min_size=1, max_size=3), st.integers(1, 80),
    st.sampled_from(list(STORED)), st.integers(0, 2**32 - 1),
)  # fmt: skip
def test_any_shape(n: int, rows: list[int], width: int, stored: str, seed: int):
    check(random(seed, n, width), [STORED[stored](random(seed + i + 1, count, width)) for i, count in enumerate(rows)])


# ---- the model's linear maps


def test_a_linear_map_adds_its_bias_of_any_type():
    weight, bias = random(1, 5, 8), random(2, 5)
    for stored in STORED.values():
        linear = Linear([weight], [stored(bias)])
        for n in (1, 9):
            x = random(3, n, 8)
            expected = x.astype(np.float64) @ weight.T.astype(np.float64) + to_float32(stored(bias))
            assert np.abs(linear(x) - expected).max() < 1e-5  # eight products of order 1 in float32


def test_linear_maps_side_by_side():
    weights, biases = [random(i, 4 + i, 8) for i in range(3)], [random(9 + i, 4 + i) for i in range(3)]
    x = random(5, 3, 8)
    together = Linear(weights, biases)(x)
    apart = np.concatenate([Linear([w], [b])(x) for w, b in zip(weights, biases, strict=True)], axis=1)
    assert np.array_equal(together, apart)
    with pytest.raises(ValueError, match="every weight has a bias or none"):
        Linear(weights, [biases[0], None, None])


def test_weights_that_lie_otherwise_are_copied_once_and_right():
    weight = random(1, 8, 5).T
    x = random(2, 2, 8)
    assert np.abs(Linear([weight])(x) - x @ weight.T).max() < 1e-5
    kept = random(3, 5, 8)
    assert Linear([kept]).weights[0] is kept
