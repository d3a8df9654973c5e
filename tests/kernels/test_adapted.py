"""Weights with adapters: compiled as in NumPy, and both as plain arithmetic says, for rows that have other adapters."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from tests.kernels.tapes import NO_ROWS, cache_of, play
from tinyinfer import reference
from tinyinfer.kernels import table as t
from tinyinfer.kernels.adapted import Adapted
from tinyinfer.kernels.step import Step
from tinyinfer.kernels.tape import Tape
from tinyinfer.quant import PackedWeight, dequantize, quantize

f32 = np.float32
TEAMS = [None, 1, 3]
Used = Sequence[Sequence[tuple[int, float]]]
# rows of each text, and what it goes through
TEXTS: dict[str, tuple[list[int], Used]] = {
    "one row": ([1], [[(0, 1.0)]]),
    "one row, none": ([1], [[]]),
    "few rows": ([1, 2, 1], [[(2, 0.5)], [], [(0, 1.0), (2, -2.0)]]),
    "a prompt": ([33], [[(1, 1.0), (0, 3.0)]]),
    "mixed": ([9, 1, 1, 20, 0, 2], [[(0, 1.0)], [], [(1, 0.25)], [(2, 1.0), (1, 1.0), (0, 1.0)], [(0, 1.0)], []]),
}
RANKS = [3, 0, 8]


def random(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(f32)


def step_of(counts: Sequence[int], used: Used | None) -> Step:
    cache = cache_of([None], 1, 1, 32)
    sequences = [cache.sequence() for _ in counts]
    for sequence, count in zip(sequences, counts, strict=True):
        sequence.reserve(count)
    return Step(sequences, list(counts), NO_ROWS, [], np.zeros((0, 0), f32), adapters=used)


def adapted(seed: int, rows: int, columns: int, form: str | None = None, ranks: Sequence[int] = RANKS) -> Adapted:
    """Numbers of order 1 come out of it."""
    weight, total = random(seed, rows, columns) / f32(np.sqrt(columns)), sum(ranks)
    down, up = random(seed + 1, total, columns) / f32(np.sqrt(columns)), random(seed + 2, total, rows) / 3
    starts = np.cumsum([0, *ranks], dtype=np.int64)
    apart = np.zeros((total, rows + 5), f32)[:, :rows]  # rows need not lie next to each other
    apart[:] = up
    return Adapted(quantize(weight, form) if form else weight, down, apart, starts)


def added(x: np.ndarray, weight: Adapted, step: Step) -> np.ndarray:
    """What adapters add, row by row in float64."""
    out = np.zeros((len(x), len(weight)))
    for (_, rows), used in zip(step.slices(), step.adapters, strict=True):
        for row in range(rows.start, rows.stop):
            for number, scale in used:
                part = slice(weight.starts[number], weight.starts[number + 1])
                narrow = weight.down[part].astype(np.float64) @ x[row]
                out[row] += scale * (weight.up[part].T.astype(np.float64) @ narrow)
    return out


def plain(weight: np.ndarray | PackedWeight) -> np.ndarray:
    return (dequantize(weight) if isinstance(weight, PackedWeight) else weight).astype(np.float64)


def outcomes(write: Callable[[Tape], np.ndarray], make_step: Callable[[], Step]) -> list[np.ndarray]:
    """What the operations leave in the array that `write` gives: in NumPy, and by teams."""
    found = []
    for team in TEAMS:
        made: list[np.ndarray] = []
        play(lambda tape, made=made: made.append(write(tape)), make_step(), team)
        found.append(made[0])
    return found


@pytest.mark.parametrize("case", TEXTS)
@pytest.mark.parametrize("add", [False, True])
@pytest.mark.parametrize("own", [False, True], ids=["shared", "own"])
def test_linear(case: str, add: bool, own: bool):
    """Three maps side by side, of which the one between has no adapters; x comes from a norm, or lies there."""
    counts, used = TEXTS[case]
    n, step = sum(counts), step_of(counts, used)
    x, before = random(1, n, 40), random(2, n + 1, 13 + 8 + 70)
    weights = [adapted(3, 13, 40), random(6, 8, 40) / 6, adapted(7, 70, 40)]
    ones = np.ones(40, f32)

    def write(tape: Tape) -> np.ndarray:
        out, given = before.copy(), tape.buffer(40, own=own)
        tape.norm(np.concatenate([x, random(9, 1, 40)]), ones, 1e-6, given)
        tape.linear(given, weights, [None, random(8, 8), None], out, add)
        return out

    given = reference.rms_norm(x, ones, 1e-6).astype(np.float64)
    parts = [given @ plain(getattr(w, "weight", w)).T for w in weights]
    parts[1] += random(8, 8)
    for i in (0, 2):
        parts[i] += added(given, weights[i], step)
    expected = np.concatenate(parts, axis=1) + (before[:n] if add else 0)
    for found in outcomes(write, lambda: step_of(counts, used)):
        np.testing.assert_allclose(found[:n], expected, rtol=0, atol=5e-5)  # sums of 40, then 11, of order 1 to 10
        assert np.array_equal(found[n:], before[n:])


@pytest.mark.parametrize("case", TEXTS)
@pytest.mark.parametrize("which", ["both", "gate", "up"])
def test_gated_linear(case: str, which: str):
    """What adapters add comes before the bend."""
    counts, used = TEXTS[case]
    n, step = sum(counts), step_of(counts, used)
    x, width = random(1, n, 40), 300
    pair = [adapted(3, width, 40), adapted(6, width, 40)]
    pair = [w if which in ("both", name) else w.weight for w, name in zip(pair, ("gate", "up"), strict=True)]

    def write(tape: Tape) -> np.ndarray:
        out = np.zeros((n, width), f32)
        tape.gated_linear(x, pair, [None, None], "silu", np.zeros((n, 2 * width), f32), out)
        return out

    gate, up = (
        x.astype(np.float64) @ w.weight.T + added(x, w, step) if isinstance(w, Adapted) else x @ w.T for w in pair
    )
    expected = gate / (1 + np.exp(-gate)) * up
    for found in outcomes(write, lambda: step_of(counts, used)):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=2e-4)  # products of numbers of up to some 30


@pytest.mark.parametrize("form", ["int4-g32", "int8-g32", "nf4-g64", "int8-row"])
def test_of_packed_weights(form: str):
    """They meet x in 8 bits, what adapters add does not: it is the same as without them, and exact on top."""
    counts, used = TEXTS["mixed"]
    n, step = sum(counts), step_of(counts, used)
    x, weight = random(1, n, 40), adapted(3, 77, 40, form)

    def run(weight: Adapted | PackedWeight, team: int | None) -> np.ndarray:
        out = np.zeros((n, 77), f32)
        play(lambda tape: tape.linear(x, [weight], [None], out), step_of(counts, used), team)
        return out

    for team in TEAMS:
        difference = run(weight, team) - run(weight.weight, team).astype(np.float64)
        np.testing.assert_allclose(difference, added(x, weight, step), rtol=0, atol=5e-5)


def test_what_an_adapted_map_reads_of_gated_parts_is_in_codes_already():
    gate, up = (adapted(i, 128, 40, "int8-g32") for i in (1, 4))
    down = adapted(7, 21, 128, "int8-g32")
    x = random(9, 5, 40)

    def write(tape: Tape) -> None:
        between = np.zeros((5, 128), f32)
        tape.gated_linear(x, [gate, up], [None, None], "silu", np.zeros((5, 256), f32), between, readers=[down])
        tape.linear(between, [down], [None], np.zeros((5, 21), f32))

    tape = play(write, step_of([5], [[(0, 1.0)]]), 2)
    names = [name for name in tape._names if "linear" not in name]
    assert names == [
        "quantize_row", "narrow_row", "narrow_row", "widen_part", "widen_part", "gated_part", "quantize_part",
        "narrow_row", "widen_part",
    ]  # fmt: skip


def test_hand_overs_stay_few():
    """The narrow products go with the norm before them, the wide ones with the pieces of their maps."""
    weights = [adapted(3, 64, 40), adapted(6, 64, 40)]

    def write(tape: Tape) -> None:
        given, out = tape.buffer(40, own=True), np.zeros((5, 128), f32)
        tape.norm(random(1, 5, 40), np.ones(40, f32), 1e-6, given)
        tape.linear(given, weights, [None, None], out)

    tape = play(write, step_of([5], [[(2, 1.0)]]), 2)
    assert tape._names == [
        "norm_row", "narrow_row", "narrow_row", "linear_float32", "widen_part", "linear_float32", "widen_part",
    ]  # fmt: skip
    assert [row[t.PARTS] for row in tape._rows] == [3, 1, 1, 2, 1, 2, 1]
    assert [row[t.WAIT] for row in tape._rows][3::2] == [0, 1]


def test_rows_that_threads_share_are_not_narrowed_with_the_norm():
    """Of a few rows each thread makes the narrow products for itself, but only one has the row that the norm wrote."""

    def write(tape: Tape) -> None:
        given = tape.buffer(40)
        tape.norm(random(1, 2, 40), np.ones(40, f32), 1e-6, given)
        tape.linear(given, [adapted(3, 64, 40)], [None], np.zeros((2, 64), f32))

    tape = play(write, step_of([2], [[(2, 1.0)]]), 2)
    assert [row[t.PARTS] for row in tape._rows] == [1, 1, 2, 1]
    assert [row[t.TARGET_OWN] for row in tape._rows][:2] == [0, 1]
