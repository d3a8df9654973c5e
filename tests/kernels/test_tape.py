"""Every operation of a tape: compiled by one thread and by several it gives what its NumPy twin gives."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from tests.kernels.tapes import NO_ROWS, cache_of, plain_step, play
from tests.tiny_models import random_model, write_model
from tinyinfer import reference
from tinyinfer.checkpoint.safetensors import to_bfloat16, to_float32
from tinyinfer.kernels import table as t
from tinyinfer.kernels import twins
from tinyinfer.kernels.step import Step
from tinyinfer.kernels.tape import ACTIVATIONS, Tape
from tinyinfer.quant import FORMS, PackedWeight, dequantize, quantize
from tinyinfer.quant.nf4 import expand_scales

ROWS = [1, 2, 3, 7, 33]
TEAMS = [1, 3]
f32 = np.float32
UNTOUCHED = f32(1234.5)


def random(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(f32)


@dataclass
class Buffers:
    """A tape's buffers for one run: random where they are read, UNTOUCHED below the rows of the step."""

    rows: int
    seed: int = 0

    def __post_init__(self):
        self.all: list[np.ndarray] = []

    def __call__(self, width: int, rows: int | None = None) -> np.ndarray:
        array = random(self.seed + len(self.all), self.rows + 2, width)
        array[self.rows if rows is None else rows :] = UNTOUCHED
        self.all.append(array)
        return array


def assert_as_twin(
    write: Callable[[Tape, Buffers], None], make_step: Callable[[], Step], rows: int, bound: float,
    shape: tuple[int, int, int] = (1, 1, 1), written: int | None = None,
) -> np.ndarray:  # fmt: skip
    """Run on the same random buffers each way: all of them, and the logits, must be equal to within `bound`.

    `written`: how many rows the operation may write, where it is not all of the step's. Gives the twin's last buffer.
    """

    def outcome(team: int | None) -> tuple[list[np.ndarray], np.ndarray]:
        buffers, step = Buffers(rows), make_step()
        play(lambda tape: write(tape, buffers), step, team, shape)
        return buffers.all, step.logits

    expected, logits = outcome(None)
    for team in TEAMS:
        found, found_logits = outcome(team)
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=0, atol=bound)
            assert (one[rows if written is None else written :][-2:] == UNTOUCHED).all()
        np.testing.assert_allclose(found_logits, logits, rtol=0, atol=bound)
    return expected[-1]


# ---- norms, gates, gathering: values of order 1 through a few float32 operations


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("width", [1, 7, 40, 577])
@pytest.mark.parametrize("kind", ["apart", "in place", "with a sum"])
def test_norm(rows: int, width: int, kind: str):
    weight = random(9, width)

    def write(tape: Tape, buffer: Buffers) -> None:
        x = buffer(width)
        out = x if kind == "in place" else buffer(width)
        tape.norm(x, weight, 1e-5, out, buffer(width) if kind == "with a sum" else None)

    assert_as_twin(write, lambda: plain_step(rows), rows, 1e-5)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("width", [1, 7, 40, 577])
@pytest.mark.parametrize("kind", ["apart", "in place", "with a sum"])
@pytest.mark.parametrize("biased", [True, False])
def test_layer_norm(rows: int, width: int, kind: str, biased: bool):
    """Of width 1 nothing is left but the bias. What is far from zero has its mean taken off before it is squared."""
    weight, bias = random(9, width), random(8, width) if biased else None

    def write(tape: Tape, buffer: Buffers) -> None:
        x = buffer(width)
        x[: max(rows // 2, 1)] += 10
        out = x if kind == "in place" else buffer(width)
        total = buffer(width) if kind == "with a sum" else None
        tape.norm(x, weight, 1e-5, out, total, bias=bias, centered=True)

    assert_as_twin(write, lambda: plain_step(rows), rows, 1e-4)  # means of numbers near 10, at widths up to 577


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize(("heads", "dim", "weights"), [(3, 10, 1), (4, 9, 4), (1, 70, 1), (6, 2, 2)])
@pytest.mark.parametrize("centered", [True, False])
def test_norms_of_heads(rows: int, heads: int, dim: int, weights: int, centered: bool):
    weight = random(9, weights, dim)

    def write(tape: Tape, buffer: Buffers) -> None:
        x = buffer(5 + heads * dim + 3)
        tape.head_norm(x, 5, heads, weight, random(8, dim) if centered else None, 1e-3, centered)

    found = assert_as_twin(write, lambda: plain_step(rows), rows, 2e-5)
    before = random(0, rows + 2, 5 + heads * dim + 3)
    assert np.array_equal(found[:rows, :5], before[:rows, :5])
    assert np.array_equal(found[:rows, -3:], before[:rows, -3:])
    head = before[0, 5 : 5 + dim]
    head = head - head.mean() if centered else head
    expected = head / np.sqrt((head**2).mean() + f32(1e-3)) * weight[0] + (random(8, dim) if centered else 0)
    assert np.abs(found[0, 5 : 5 + dim] - expected).max() < 1e-5


@pytest.mark.parametrize("rows", ROWS)
def test_clipping(rows: int):
    def write(tape: Tape, buffer: Buffers) -> None:
        tape.clip(buffer(37), 0.75)

    found = assert_as_twin(write, lambda: plain_step(rows), rows, 0)
    assert np.abs(found[:rows]).max() == f32(0.75)


def test_positions_that_were_learned():
    """Each row's is counted from the beginning of its own text."""
    table, heads = random(9, 60, 40), Heads(texts=((0, 9), (20, 1), (3, 3), (50, 1), (0, 1)))

    def write(tape: Tape, buffer: Buffers) -> None:
        tape.add_positions(buffer(40), table, 2)

    found = assert_as_twin(write, heads.step, heads.rows, 0)
    positions = [*range(9), 20, 3, 4, 5, 50, 0]
    assert np.array_equal(found[: heads.rows], random(0, heads.rows + 2, 40)[: heads.rows] + table[2:][positions])


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("width", [1, 7, 56, 700])
@pytest.mark.parametrize("activation", [*ACTIVATIONS, "clamped"])
def test_activated_and_clamped_linear(rows: int, width: int, activation: str):
    """As below, of ups alone; and a gate within a limit, which some of the numbers are beyond."""
    if activation == "gelu" and rows * width > 3000:
        pytest.skip("the twin calls math.erf for each number")
    weights = [random(i, width, 37) / 6 for i in range(2)]
    clamp = (1.25, 1.7) if activation == "clamped" else None

    def write(tape: Tape, buffer: Buffers) -> None:
        x = buffer(37)
        if clamp:
            tape.gated_linear(x, weights, [None] * 2, "silu", buffer(2 * width), buffer(width), clamp=clamp)
        else:
            tape.gated_linear(x, weights[:1], [random(7, width)], activation, buffer(width), buffer(width))

    assert_as_twin(write, lambda: plain_step(rows), rows, 3e-4 if activation == "relu2" else 5e-5)


def test_whoever_waits_knows_where_the_next_weight_lies():
    x, y, sums = (np.zeros((4, 64), f32) for _ in range(3))
    third, packed = random(2, 64, 64), quantize(random(3, 96, 64), "int8")
    tape = Tape(4)
    tape.linear(x, [random(0, 64, 64), random(1, 64, 64)], [None, None], np.zeros((4, 128), f32))  # only one waits
    tape.norm(y, random(4, 64), 1e-5, y)
    tape.linear(y, [third], [None], sums)
    tape.logits(sums, packed)
    tape.finish(1, 1)
    ahead = [row[t.AHEAD] for row in tape._table if row[t.WAIT]]
    found = [tuple(tape._table[i, [t.WEIGHT, t.WEIGHT_ROW]]) if i else None for i in ahead]
    of_third, of_packed = (third.ctypes.data, 64 * 4), (packed.codes.ctypes.data, 64)
    # behind the first two maps, the norm, the third map, the codes of its result, the head
    assert found == [of_third, of_third, of_packed, of_packed, None]


@pytest.mark.parametrize("wanted", [[], [0], [32], [3, 4, 5, 30], list(range(33)), [9, 2]], ids=str)
def test_norm_and_gather_of_the_wanted_rows(wanted: list[int]):
    weight, rows, chosen = random(9, 40), 33, np.array(wanted, np.int64)

    def write(tape: Tape, buffer: Buffers) -> None:
        x, last = buffer(40), buffer(40, rows=0)
        tape.gather(x, last)
        tape.norm(last, weight, 1e-5, last, wanted=True)

    last = assert_as_twin(write, lambda: plain_step(rows, chosen), rows, 1e-5, written=33)
    assert (last[len(wanted) :] == UNTOUCHED).all()


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("width", [1, 7, 56, 700])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gated_linear(rows: int, width: int, activation: str):
    """Of gates and ups of order 1: 37 products, then a few operations."""
    if activation == "gelu" and rows * width > 3000:
        pytest.skip("the twin calls math.erf for each number")
    weights = [random(i, width, 37) / 6 for i in range(2)]

    def write(tape: Tape, buffer: Buffers) -> None:
        x = buffer(37)
        biases = [random(7, width), None]
        tape.gated_linear(x, weights, biases, activation, buffer(2 * width), buffer(width))

    assert_as_twin(write, lambda: plain_step(rows), rows, 3e-4 if activation == "relu2" else 3e-5)  # squares up to 30


@pytest.mark.parametrize("form", ["int4-g32", "int4-g128", "int5-g32-symmetric", "int8-row"])
@pytest.mark.parametrize("width", [1, 40, 128, 300])
@pytest.mark.parametrize("rows", ROWS)
def test_gated_linear_leaves_codes_for_its_readers(rows: int, width: int, form: str):
    """A packed weight that comes next meets the codes that the pieces left, of columns that fill no group too."""
    gate, up = (quantize(random(i, width, 40) / 6, "int8-g32") for i in range(2))
    down = quantize(random(3, 21, width), form)
    x, between = random(4, rows, 40), np.zeros((rows, width), f32)
    for team in TEAMS:
        out, both = np.zeros((rows, 21), f32), np.zeros((rows, 2 * width), f32)

        def write(tape: Tape, out=out, both=both) -> None:
            tape.gated_linear(x, [gate, up], [None, None], "silu", both, between, readers=[down])
            tape.linear(between, [down], [None], out)

        tape = play(write, plain_step(rows), team)
        assert [name for name in tape._names if name.startswith("quantize")] == ["quantize_row", "quantize_part"]
        exact, bound = exact_product(between, down)
        assert (np.abs(out - exact) <= bound).all()
        expected = reference.activation("silu", both[:, :width]) * both[:, width:]
        np.testing.assert_allclose(between, expected, rtol=0, atol=1e-5)
        assert np.abs(both - np.concatenate([exact_product(x, w)[0] for w in (gate, up)], axis=1)).max() < 1e-4


def test_each_thread_works_out_for_itself_what_is_small():
    """At a step of few rows the buffers that are own have rows for each thread; with more they are shared."""
    weight, head = random(1, 40), quantize(random(2, 700, 40), "int8-g32")
    for rows in (1, t.OWN_ROWS, t.OWN_ROWS + 1):
        x = random(3, rows, 40)
        expected = exact_product(reference.rms_norm(x, weight, 1e-5), head)[0]
        for team in (1, 3, 9):
            out = np.zeros((rows, 700), f32)

            def write(tape: Tape, out=out, x=x) -> None:
                normed = tape.buffer(40, own=True)
                tape.norm(x, weight, 1e-5, normed)
                tape.linear(normed, [head], [None], out)

            play(write, plain_step(rows), team)
            # a last bit of the norm may move a code by one, of 127
            assert np.abs(out - expected).max() < 0.05


# ---- products


STORED = {"float32": np.asarray, "float16": lambda array: array.astype(np.float16), "bfloat16": to_bfloat16}


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("add", [False, True])
@pytest.mark.parametrize("stored", STORED)
def test_linear(rows: int, bias: bool, add: bool, stored: str):
    weights = [STORED[stored](random(i, size, 37)) for i, size in enumerate((13, 1, 300))]
    biases = [random(5 + i, len(weight)) if bias else None for i, weight in enumerate(weights)]
    weights[1], biases[2] = random(7, 1, 37), None

    def write(tape: Tape, buffer: Buffers) -> None:
        x = buffer(37)
        tape.linear(x, weights, biases, buffer(314), add)

    assert_as_twin(write, lambda: plain_step(rows), rows, 2e-5)  # 37 products of order 1


@pytest.mark.parametrize("wanted", [[], [32], [3, 4, 5, 30], list(range(33))], ids=str)
@pytest.mark.parametrize("stored", STORED)
def test_logits(wanted: list[int], stored: str):
    weight, chosen = STORED[stored](random(1, 275, 37)), np.array(wanted, np.int64)

    for bias in (None, random(2, 275)):

        def write(tape: Tape, buffer: Buffers, bias=bias) -> None:
            tape.logits(buffer(37), weight, bias)

        assert_as_twin(write, lambda: plain_step(33, chosen, 275), 33, 2e-5)


# ---- products with quantized weights


def as_kernels_take(packed: PackedWeight) -> list[np.ndarray]:
    """Codes, scales and, for int4 and int5, minimums of a weight; float16 as bits."""
    packed = expand_scales(packed)
    bits = [a.view(np.int16) if a.dtype == np.float16 else a for a in (packed.scales, packed.minimums) if a is not None]
    if packed.scheme in ("int4", "int5") and packed.minimums is None:
        bits.append(np.zeros((0, 0, 8), np.int16))
    return [packed.codes, *bits]


def exact_product(x: np.ndarray, packed: PackedWeight) -> tuple[np.ndarray, np.ndarray]:
    """x in 8 bits times a packed weight, in integers, then float64: [n, rows]; and a bound for float32's roundings."""
    codes, scales, sums = twins.quantize_rows(x, packed.codes.shape[1])
    terms_of = getattr(twins, f"terms_{packed.scheme}")
    mine = (codes, scales, sums) if packed.scheme in ("int4", "int5") else (codes, scales)
    terms = terms_of(*mine, *as_kernels_take(packed))[:, : len(packed)]
    return terms.sum(-1), (terms.shape[-1] + 4) * 2.0**-24 * np.abs(terms).sum(-1)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("columns", [1, 31, 32, 40, 130])
@pytest.mark.parametrize("form", FORMS)
def test_packed_weights_meet_codes_of_x(form: str, columns: int, rows: int):
    """To the roundings of float32, for any number of rows, columns and threads; side by side, with biases, added."""
    parts = [quantize(random(i, size, columns), form) for i, size in enumerate((13, 8, 300, 1))]
    biases = [random(5, 13), None, random(6, 300), None]
    x, before = random(7, rows, columns), random(8, rows + 1, 322)
    exact, bound = (np.concatenate(part, axis=1) for part in zip(*(exact_product(x, w) for w in parts), strict=True))
    bias = np.concatenate([np.zeros(len(w)) if b is None else b for w, b in zip(parts, biases, strict=True)])
    for team in TEAMS:
        for add in (False, True):
            out = before.copy()
            play(lambda tape, add=add, out=out: tape.linear(x, parts, biases, out, add), plain_step(rows), team)
            expected = exact + bias + (before[:rows] if add else 0)
            slack = 2 * 2.0**-24 * (np.abs(expected) + np.abs(bias) + np.abs(before[:rows]) + np.abs(exact))
            assert (np.abs(out[:rows] - expected) <= bound + slack).all()
            assert np.array_equal(out[rows:], before[rows:])


@pytest.mark.parametrize("form", FORMS)
def test_packed_weights_are_near_what_the_twin_makes_of_them(form: str):
    """The twin takes x as it is; a code is off by half a step at most, and a step is 1/127 of the largest of 32.

    For normal x that is 2 of its size on average: each product is off by 0.29 * 2.1 / 127 < 0.6 % of its size.
    """
    weight, x = quantize(random(1, 100, 256), form), random(2, 33, 256)
    found = []
    for team in (None, 2):
        out = np.zeros((33, 100), f32)
        play(lambda tape, out=out: tape.linear(x, [weight], [None], out), plain_step(33), team)
        found.append(out)
    assert np.abs(found[0] - x @ dequantize(weight).T).max() < 1e-4
    assert 0 < np.linalg.norm(found[1] - found[0]) < 0.006 * np.linalg.norm(found[0])


@pytest.mark.parametrize("form", FORMS)
def test_logits_of_a_packed_head(form: str):
    weight, x = quantize(random(1, 275, 40), form), random(2, 33, 40)
    for wanted in ([], [0], [32, 7, 8]):
        step = plain_step(33, np.array(wanted, np.int64), 275)
        rows = x[wanted] if wanted else x[:0]
        last = np.concatenate([rows, random(3, 33 - len(rows), 40)])
        play(lambda tape, last=last: tape.logits(last, weight), step, 2)
        exact, bound = exact_product(rows, weight) if wanted else (np.zeros((0, 275)), 0)
        assert (np.abs(step.logits - exact) <= bound).all()


@pytest.mark.parametrize("kind", [*STORED, *FORMS])
@pytest.mark.parametrize("shape", [(1, 1), (13, 40), (50, 577)], ids=str)
def test_embedding(kind: str, shape: tuple[int, int]):
    """A product and a sum in float32 for each number, then one with the factor."""
    table = random(1, *shape)
    table = STORED[kind](table) if kind in STORED else quantize(table, kind)
    ids = np.random.default_rng(0).integers(0, shape[0], 33)
    for factor in (1.0, 3.5):
        found = []
        for team in (None, 1, 3):
            out, step = np.full((35, shape[1]), UNTOUCHED), plain_step(33)
            step.ids = ids
            play(lambda tape, out=out, factor=factor: tape.embed(table, factor, out), step, team)
            assert (out[33:] == UNTOUCHED).all()
            found.append(out[:33])
        plain = to_float32(table) if kind in STORED else dequantize(table)
        np.testing.assert_array_equal(found[0], plain[ids] * f32(factor))
        for other in found[1:]:
            np.testing.assert_allclose(other, found[0], rtol=3e-7, atol=1e-7 * factor)


def test_forms_that_differ_in_padding_share_no_codes():
    """Rows of 40 are padded to 64, or to 128 where groups are of 128; x is quantized for both."""
    weights = [quantize(random(i, 16, 40), form) for i, form in enumerate(("int4-g32", "int4-g128", "nf4-g64"))]
    x, out = random(5, 3, 40), np.zeros((3, 48), f32)
    play(lambda tape: tape.linear(x, weights, [None] * 3, out), plain_step(3), 2)
    for i, weight in enumerate(weights):
        exact, bound = exact_product(x, weight)
        assert (np.abs(out[:, 16 * i : 16 * i + 16] - exact) <= bound).all()


def test_parts_of_a_packed_matrix():
    """A fused matrix is taken apart at multiples of eight; the last block of a part may hold another's rows."""
    fused = quantize(random(1, 40, 64), "int8-g32")
    parts = [fused.rows(0, 16), fused.rows(16, 21), fused.rows(24, 40)]
    x, out = random(2, 3, 64), np.zeros((3, 37), f32)
    play(lambda tape: tape.linear(x, parts, [None] * 3, out), plain_step(3), 2)
    exact, bound = exact_product(x, fused)
    kept = np.r_[0:21, 24:40]
    assert (np.abs(out - exact[:, kept]) <= bound[:, kept]).all()


def test_activations_that_are_no_numbers_give_none():
    weight, x, out = quantize(random(1, 8, 64), "int4-g32"), random(2, 3, 64), np.zeros((3, 8), f32)
    x[1, 40] = np.nan
    play(lambda tape: tape.linear(x, [weight], [None], out), plain_step(3), 2)
    assert np.isnan(out[1]).all()
    assert np.isfinite(out[[0, 2]]).all()


# ---- attention: rotations, the cache, and what is seen


@dataclass(frozen=True)
class Heads:
    """A layer's heads, and the texts of a step: how much of each is held, and how much is new."""

    heads: int = 4
    kv_heads: int = 2
    dim: int = 12
    half: int = 6
    norms: bool = False
    window: int | None = None
    block_size: int = 4
    texts: tuple[tuple[int, int], ...] = ((0, 5),)
    dtype: str = "float32"

    @property
    def rows(self) -> int:
        return sum(new for _, new in self.texts)

    def step(self) -> Step:
        """Sequences of one cache, whose blocks interleave; what they hold is random."""
        rng = np.random.default_rng(3)
        windows = [None, self.window, self.window]
        cache = cache_of(windows, self.kv_heads, self.dim, self.block_size, self.dtype)
        sequences = [cache.sequence() for _ in self.texts]
        for turn in range(max(held for held, _ in self.texts)):
            for sequence, (held, _) in zip(sequences, self.texts, strict=True):
                if turn < held:
                    sequence.reserve(1)
                    for table in sequence.tables:
                        for layer in range(len(table.pool.keys)):
                            shape = 2, 1, self.kv_heads, self.dim
                            table.store(layer, turn, *rng.standard_normal(shape).astype(f32))
                    sequence.advance(1)
        for sequence, (_, new) in zip(sequences, self.texts, strict=True):
            sequence.reserve(new)
        angles = rng.standard_normal((2, self.rows, self.half))
        turns = [[np.cos(a).astype(f32), np.sin(a).astype(f32)] for a in angles]
        return Step(sequences, [new for _, new in self.texts], NO_ROWS, turns, np.zeros((0, 0), f32))

    def outcome(self, team: int | None) -> list[np.ndarray]:
        """After attention in one layer and another: what came out, and all that the cache holds."""
        buffers, step = Buffers(self.rows), self.step()
        shape = self.heads, self.kv_heads, self.dim
        norms = [random(1, self.dim), random(2, self.dim)] if self.norms else [None, None]
        window_pool = len(step.sequences[0].tables) - 1

        def write(tape: Tape) -> None:
            for rope, (pool, layer, window) in enumerate([(0, 0, None), (window_pool, 1, self.window)]):
                heads, mixed = buffers((self.heads + 2 * self.kv_heads) * self.dim), buffers(self.heads * self.dim)
                cap = 30.0 if rope else None
                tape.attention(heads, shape, mixed, rope, self.half, norms, 1e-6, pool, layer, window, 0.4, cap)

        play(write, step, team, shape, kv_dtype=self.dtype)
        pools = step.sequences[0].cache.pools
        arrays = [array for pool in pools for array in pool._arrays if array is not None]
        return [*buffers.all, *arrays]


HEADS = {
    **{f"{n} rows": Heads(texts=((0, n),)) for n in ROWS},
    "one more": Heads(texts=((20, 1),)),
    "a chunk more": Heads(texts=((17, 9),)),
    "one head": Heads(1, 1, 8, 4, texts=((3, 6),)),
    "one key head, an odd size": Heads(5, 1, 7, 3, texts=((3, 6),)),
    "as many key heads": Heads(3, 3, 10, 5, texts=((9, 2),)),
    "norms": Heads(norms=True, texts=((5, 3),)),
    "a part turns": Heads(half=2, texts=((5, 3),)),
    "a window": Heads(window=4, texts=((30, 11),)),
    "a window of one": Heads(window=1, texts=((30, 11),)),
    "blocks of one": Heads(block_size=1, window=3, texts=((9, 5),)),
    "blocks of 32": Heads(block_size=32, window=40, texts=((70, 5),)),
    "several texts": Heads(window=4, texts=((0, 9), (20, 1), (3, 3), (50, 1), (0, 1))),
    "a text without new tokens": Heads(texts=((4, 0), (5, 3), (0, 0), (6, 2), (1, 0))),
    "a long past for few heads": Heads(2, 1, 8, 4, window=200, block_size=32, texts=((700, 1),)),
    "long and short": Heads(2, 1, 8, 4, window=5, block_size=32, texts=((400, 1), (0, 2), (300, 1))),
}


# Of values of order 1. A key that is off by float32's last place may become the next float16 or the next code, and a
# code is 1/127 of the largest number of its head, some 2. A value is stored as it comes, to the same codes of 4 bits.
BOUNDS = {"float32": (2e-5, 0), "float16": (2e-3, 2e-3), "int8": (0.04, 1.01), "int8-int4": (0.04, 1.01)}


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("case", HEADS)
def test_attention(case: str, dtype: str):
    """The cache may not differ where nothing was stored, not even by which NaN stands there."""
    heads = replace(HEADS[case], dtype=dtype)
    bound, cache_bound = BOUNDS[dtype]
    expected = heads.outcome(None)
    for team in TEAMS:
        for found, other in zip(heads.outcome(team), expected, strict=True):
            atol = {np.int8: cache_bound, np.float16: cache_bound, np.uint8: 0}.get(found.dtype.type, bound)
            np.testing.assert_allclose(found.astype(f32), other.astype(f32), rtol=0, atol=atol, equal_nan=True)


@pytest.mark.parametrize("dtype", BOUNDS)
def test_what_is_stored_is_near_what_came(dtype: str):
    """As its twin in NumPy, compiled code keeps keys and values to a code, or the last place, of what they were."""
    for team in (None, 1, 3):
        cache = cache_of([None], 2, 12, 4, dtype)
        sequence = cache.sequence()
        sequence.reserve(9)
        heads = random(1, 9, 8 * 12)
        heads[3, 50], heads[4, 60] = 1e-41, 3e5
        step = Step([sequence], [9], NO_ROWS, [], np.zeros((0, 0), f32))
        out = np.zeros((9, 48), f32)

        def write(tape: Tape, heads=heads, out=out) -> None:
            tape.attention(heads, (4, 2, 12), out, 0, 0, [None, None], 1e-6, 0, 0, None, 0.4, None)

        play(write, step, team, (4, 2, 12), kv_dtype=dtype)
        key, value = sequence.tables[0].load(0, 0, 9)
        for found, given in ((key, heads[:, 48:72]), (value, heads[:, 72:])):
            given = given.reshape(9, 2, 12)
            if dtype == "float16":
                given = np.clip(given, -65504, 65504)
            form = dtype.split("-")[-1 if found is value else 0]
            largest = np.abs(given).max(-1, keepdims=True)
            if form == "int4":  # the largest within float16; half a step, and roundings of scale and minimum
                given = np.clip(given, -65504, 65504)
                largest = (given.max(-1, keepdims=True) - given.min(-1, keepdims=True)) * (
                    8 + 15 * 0.04
                ) + 0.04 * largest
            slack = {
                "float32": 0, "float16": np.abs(given) * 2.0**-11 + 2.0**-25, "int8": largest / 253,
                "int4": largest / 253,
            }[form]  # fmt: skip
            assert (np.abs(found.astype(np.float64) - given) <= slack).all()


@pytest.mark.parametrize("dtype", ["float16", "int8", "int8-int4"])
def test_numbers_that_are_none_do_not_look_right(dtype: str):
    """A NaN that is stored makes a NaN of whatever looks at it, and of nothing before it."""
    for team in (None, 2):
        cache = cache_of([None], 1, 12, 4, dtype)
        sequence = cache.sequence()
        sequence.reserve(9)
        heads, out = random(1, 9, 36), np.zeros((9, 12), f32)
        heads[5, 15] = np.nan
        step = Step([sequence], [9], NO_ROWS, [], np.zeros((0, 0), f32))

        def write(tape: Tape, heads=heads, out=out) -> None:
            tape.attention(heads, (1, 1, 12), out, 0, 0, [None, None], 1e-6, 0, 0, None, 0.4, None)

        play(write, step, team, kv_dtype=dtype)
        assert np.isfinite(out[:5]).all()
        assert np.isnan(out[5:]).all()


# ---- without Numba


ALONE = """
    import sys
    import tinyinfer
    llm = tinyinfer.load(sys.argv[1])
    print(llm.generate([1, 2, 3], max_tokens=5, ignore_eos=True, temperature=0).ids)
    print(any(name.split(".")[0] in ("numba", "llvmlite") for name in sys.modules))
"""


def test_numpy_needs_no_numba_and_says_the_same(tmp_path: Path):
    write_model(tmp_path / "model", *random_model())
    found = []
    for kernels in ("numpy", "numba"):
        script = "\n".join(line.strip() for line in ALONE.splitlines())
        command = [sys.executable, "-c", script, str(tmp_path / "model")]
        environment = os.environ | {"TINYINFER_KERNELS": kernels}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        found.append(done.stdout.splitlines())
    assert found[0][0] == found[1][0]
    assert (found[0][1], found[1][1]) == ("False", "True")
