"""Products with stored weights against float64, at odd sizes, compiled and in NumPy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kernels.tapes import plain_step, play
from tinyinfer.checkpoint.safetensors import BFLOAT16, to_bfloat16, to_float32
from tinyinfer.errors import BadRequest
from tinyinfer.kernels import tape as tapes
from tinyinfer.kernels.floats import matmul_floats
from tinyinfer.kernels.tape import PIECE_BYTES, Tape

STORED = {
    "float32": lambda array: array,
    "float16": lambda array: array.astype(np.float16),
    "bfloat16": to_bfloat16,
    "float64": lambda array: array.astype(np.float64),
}
TEAM = {"numba": 2, "numpy": None}
FEW_ROWS = 2  # of x, up to which a weight is read without being kept widened


@pytest.fixture(params=TEAM)
def kernels(request: pytest.FixtureRequest) -> str:
    return request.param


def product(
    x: np.ndarray,
    weights: Sequence[np.ndarray],
    kernels: str,
    biases: Sequence[np.ndarray | None] | None = None,
    add_to: np.ndarray | None = None,
) -> np.ndarray:
    """What a tape makes of it, in a buffer that is larger on all sides."""
    rows = sum(map(len, weights))
    out = np.full((len(x) + 1, rows), 7, np.float32)
    if add_to is not None:
        out[: len(x)] = add_to
    given = np.ascontiguousarray(x)
    biases = [None] * len(weights) if biases is None else biases
    play(lambda tape: tape.linear(given, weights, biases, out, add_to is not None), plain_step(len(x)), TEAM[kernels])
    assert (out[-1] == 7).all()
    assert np.array_equal(given, x)
    return out[:-1]


def check(x: np.ndarray, weights: list[np.ndarray], kernels: str) -> None:
    """A sum of k products in float32, in any order, is off by at most about k 2^-24 of the sum of their sizes."""
    found = product(x, weights, kernels)
    wide = np.concatenate([to_float32(weight) for weight in weights]).astype(np.float64)
    exact = x.astype(np.float64) @ wide.T
    sizes = np.abs(x).astype(np.float64) @ np.abs(wide).T
    assert (np.abs(found - exact) <= (x.shape[1] + 2) * 2.0**-24 * sizes + 1e-44).all()


def random(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("stored", STORED)
@pytest.mark.parametrize("n", [1, FEW_ROWS, FEW_ROWS + 1, 7, 33])
@pytest.mark.parametrize("rows", [1, 2, 3, 7, 8, 255, 519])
def test_any_number_of_rows(kernels: str, stored: str, n: int, rows: int):
    check(random(1, n, 37), [STORED[stored](random(2, rows, 37))], kernels)


@pytest.mark.parametrize("stored", STORED)
@pytest.mark.parametrize("width", [1, 2, 3, 15, 16, 17, 63, 64, 65, 576, 1001])
def test_any_width(kernels: str, stored: str, width: int):
    for n in (1, 3, 9):
        check(random(1, n, width), [STORED[stored](random(2, 19, width))], kernels)


def test_several_weights_side_by_side_and_of_different_types(kernels: str):
    """A matrix large enough to be dealt out in many pieces between two small ones."""
    weights = [to_bfloat16(random(1, 5, 64)), random(2, 3001, 64), random(3, 1, 64).astype(np.float16)]
    assert weights[1].nbytes > 10 * PIECE_BYTES
    for n in (1, FEW_ROWS, FEW_ROWS + 1):
        check(random(4, n, 64), weights, kernels)


def test_a_product_many_times_is_the_same_each_time(kernels: str):
    """Threads claim pieces in any order, and each piece once."""
    x, weight = random(1, 2, 128), to_bfloat16(random(2, 4099, 128))
    first = product(x, [weight], kernels)
    assert all(np.array_equal(product(x, [weight], kernels), first) for _ in range(20))


@pytest.mark.parametrize("stored", ["float32", "float16", "bfloat16"])
def test_weights_at_odd_addresses_and_read_only(kernels: str, stored: str):
    weight = STORED[stored](random(1, 21, 35))
    moved = np.frombuffer(b"x" + weight.tobytes(), np.uint8)[1:].view(weight.dtype).reshape(21, 35)
    assert moved.ctypes.data % 2 == 1
    assert not moved.flags.writeable
    for n in (1, 9):
        check(random(2, n, 35), [moved], kernels)


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
        found = product(np.ones((n, 1), np.float32), [weight], kernels)
        assert np.array_equal(found, np.repeat(wide.T, n, axis=0), equal_nan=True)


@pytest.mark.parametrize("dtype", [np.dtype(np.float16), BFLOAT16])
def test_every_16_bit_weight_is_widened_exactly(kernels: str, dtype: np.dtype):
    weight = np.arange(2**16, dtype=np.uint16)[:, None].view(dtype)
    for n in (1, FEW_ROWS + 1):
        with np.errstate(invalid="ignore"):  # NaNs of the signalling kind are among them
            found = product(np.ones((n, 1), np.float32), [weight], kernels)
            assert np.array_equal(found, np.repeat(to_float32(weight).T, n, axis=0), equal_nan=True)


def test_no_rows_of_x(kernels: str):
    step = plain_step(3, wanted=np.zeros(0, np.int64), vocab=5)
    play(lambda tape: tape.logits(random(1, 3, 8), random(2, 5, 8)), step, TEAM[kernels])
    assert step.logits.shape == (0, 5)


def test_x_may_be_a_view(kernels: str):
    x = random(1, 8, 30)[::2, ::3]
    for n in (1, 4):
        check(x[:n], [to_bfloat16(random(2, 11, 10))], kernels)


def test_an_unknown_choice_of_kernels_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TINYINFER_KERNELS", "cuda")
    tapes.use_compiled.cache_clear()
    with pytest.raises(BadRequest, match="'numba' or 'numpy', found 'cuda'"):
        product(random(1, 1, 4), [random(2, 2, 4)], "numba")
    tapes.use_compiled.cache_clear()


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 12), st.lists(st.integers(1, 600), min_size=1, max_size=3), st.integers(1, 80),
    st.sampled_from(list(STORED)), st.sampled_from(list(TEAM)), st.integers(0, 2**32 - 1),
)  # fmt: skip
def test_any_shape(n: int, rows: list[int], width: int, stored: str, kernels: str, seed: int):
    weights = [STORED[stored](random(seed + i + 1, count, width)) for i, count in enumerate(rows)]
    check(random(seed, n, width), weights, kernels)


# ---- biases, sums, and what a tape keeps of a weight


def test_a_bias_is_added_to_the_sums_that_are_its_own(kernels: str):
    weights, biases = [random(i, 4 + i, 8) for i in range(3)], [random(9, 4), None, random(11, 6)]
    for n in (1, 9):
        x = random(3, n, 8)
        apart = [
            w.astype(np.float64) @ x.T + (0 if b is None else b[:, None]) for w, b in zip(weights, biases, strict=True)
        ]
        expected = np.concatenate(apart).T
        found = product(x, weights, kernels, biases)
        assert np.abs(found - expected).max() < 1e-5  # eight products of order 1 in float32
        before = random(4, n, 15)
        found = product(x, weights, kernels, biases, add_to=before)
        assert np.abs(found - before - expected).max() < 1e-5


def test_linear_maps_side_by_side_are_those_apart(kernels: str):
    weights = [random(i, 4 + i, 8) for i in range(3)]
    x = random(5, 3, 8)
    apart = [product(x, [weight], kernels) for weight in weights]
    assert np.array_equal(product(x, weights, kernels), np.concatenate(apart, axis=1))
    with pytest.raises(ValueError, match="zip"):
        product(x, weights, kernels, [None])


def test_weights_that_lie_otherwise_are_copied_once_and_right(kernels: str):
    weight, x = random(1, 8, 5).T, random(2, 2, 8)
    assert np.abs(product(x, [weight], kernels) - x @ weight.T).max() < 1e-5
    for other in (weight, random(1, 10, 16)[::2, ::2], to_bfloat16(random(1, 8, 5)).T):
        check(x, [other], kernels)


def test_a_weight_that_lies_as_it_should_is_not_copied():
    for weight in (random(3, 5, 8), to_bfloat16(random(3, 5, 8)), random(3, 5, 8).astype(np.float16)):
        tape = Tape(2)
        tape.linear(tape.buffer(8), [weight], [None], tape.buffer(5))
        assert any(kept is weight for kept in tape._kept)


# ---- the kernel by itself


@pytest.mark.parametrize("n", [1, 2, 3, 8])
def test_only_the_part_asked_for_is_added_to(n: int):
    x, weight = random(1, n, 37), random(2, 27, 37)
    whole = np.zeros((n, 27), np.float32)
    matmul_floats(x, weight, whole, 0, 0, 27)
    out = np.full((n, 50), 5, np.float32)
    matmul_floats(x, weight, out, 10, 3, 22)
    assert np.abs(out[:, 13:32] - 5 - whole[:, 3:22]).max() < 1e-5
    assert (out[:, :13] == 5).all()
    assert (out[:, 32:] == 5).all()


@pytest.mark.parametrize("n", [1, 3])
def test_pieces_equal_the_whole(n: int):
    x, weight = random(1, n, 37), to_bfloat16(random(2, 40, 37)).view(np.uint16)
    whole, pieces = np.zeros((2, n, 40), np.float32)
    matmul_floats(x, weight, whole, 0, 0, 40)
    for begin, end in [(24, 40), (0, 8), (8, 24)]:
        matmul_floats(x, weight, pieces, 0, begin, end)
    assert np.array_equal(whole, pieces)
