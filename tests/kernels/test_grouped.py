"""Linear maps of some of the rows: compiled by one thread and by several they give what their NumPy twins give."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernels.tapes import plain_step, play
from tests.kernels.test_tape import exact_product, random
from tinyinfer import reference
from tinyinfer.config import Experts
from tinyinfer.kernels.tape_grouped import GroupedTape, Routes
from tinyinfer.quant import FORMS, quantize

ROWS = [1, 2, 7, 33]
TEAMS = [1, 3]
f32 = np.float32

ROUTINGS = {
    "two of four": Experts(4, 2, 8),
    "of one": Experts(1, 1, 8),
    "all": Experts(5, 5, 8),
    "normalized and scaled": Experts(8, 3, 8, normalized=True, scale=2.5),
    "many": Experts(64, 6, 8),
    "groups": Experts(8, 2, 8, groups=4, used_groups=2),
    "groups of one": Experts(6, 2, 8, groups=6, used_groups=3),
    "sigmoids": Experts(8, 2, 8, scoring="sigmoid", normalized=True),
    "corrected groups": Experts(12, 3, 8, 0, "sigmoid", True, 2.5, 3, 2, group_judges=2, correction=True),
}


def routes_of(experts: Experts, scores: np.ndarray, correction: np.ndarray | None, team: int | None) -> Routes:
    found = []

    def write(tape: GroupedTape) -> None:
        found.append(tape.routes(experts.count, experts.used))
        tape.route(scores, correction, experts, found[0])

    play(write, plain_step(len(scores)), team, tape=GroupedTape)
    return found[0]


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("case", ROUTINGS)
def test_routes(case: str, rows: int):
    experts = ROUTINGS[case]
    scores = 2 * random(rows, rows, experts.count)
    correction = random(5, experts.count) if experts.correction else None
    chosen, shares = reference.route(experts, scores, correction)
    for team in (None, *TEAMS):
        routes = routes_of(experts, scores, correction, team)
        places = routes.places[:rows]
        used = rows * experts.used
        assert sorted(places.reshape(-1)) == list(range(used))  # a place for each
        assert np.array_equal(routes.rows[places], np.repeat(np.arange(rows), experts.used).reshape(places.shape))
        experts_there = np.searchsorted(routes.ends[1:], places, side="right")
        assert np.array_equal(experts_there, chosen)
        assert np.abs(routes.shares[:rows] - shares).max() < 2e-6  # exponentials to 1e-7, summed
        count = routes.active[-1]
        assert np.array_equal(routes.active[:count], np.unique(chosen))
        assert (routes.ends[0], routes.ends[-1]) == (0, used)


def test_of_equal_scores_the_first_are_chosen():
    for team in (None, 2):
        routes = routes_of(Experts(6, 2, 8), np.zeros((3, 6), f32), None, team)
        assert np.array_equal(routes.active[:3], [0, 1, 0])
        assert routes.active[-1] == 2
        assert np.array_equal(routes.shares[:3], np.full((3, 2), f32(1 / 6)))


@pytest.mark.parametrize("scoring", ["softmax", "sigmoid"])
def test_scores_that_are_no_numbers_send_nobody_astray(scoring: str):
    """Their row's shares are none either; other rows are as they were."""
    scores = random(1, 3, 6)
    scores[1, 2] = np.nan
    for team in (None, 2):
        routes = routes_of(Experts(6, 2, 8, scoring=scoring, normalized=True), scores, None, team)
        assert sorted(routes.places[:3].reshape(-1)) == list(range(6))
        assert np.isfinite(routes.shares[[0, 2]]).all()


def mixed(experts: Experts, weights, biases, x: np.ndarray, team: int | None, clamp=None) -> np.ndarray:
    """A whole mixture: x [rows, K] through gate and up, then down, of the experts that each row chose."""
    rows, total = len(x), np.ones((len(x), x.shape[1]), f32)
    scores = random(7, rows, experts.count)

    def write(tape: GroupedTape) -> None:
        routes = tape.routes(experts.count, experts.used)
        sent, both = tape.places(x.shape[1], routes), tape.places(2 * experts.size, routes)
        gated, result = tape.places(experts.size, routes), tape.places(x.shape[1], routes)
        tape.route(scores, None, experts, routes)
        tape.spread(x, routes, sent)
        tape.grouped_linear(sent, weights[:2], biases[:2], routes, both)
        tape.gate_places(both, "silu", routes, gated, clamp)
        tape.grouped_linear(gated, weights[2:], biases[2:], routes, result)
        tape.combine(result, routes, total)

    play(write, plain_step(rows), team, tape=GroupedTape)
    return total


def parts_of(experts: Experts, hidden: int) -> list[list[np.ndarray]]:
    shapes = [(experts.size, hidden), (experts.size, hidden), (hidden, experts.size)]
    return [
        [random(10 * i + e, *shape) / np.sqrt(shape[1]).astype(f32) for e in range(experts.count)]
        for i, shape in enumerate(shapes)
    ]


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("case", ["two of four", "of one", "all", "many"])
@pytest.mark.parametrize("clamp", [None, (0.7, 1.7)])
def test_mixtures(case: str, rows: int, clamp: tuple[float, float] | None):
    experts, x = ROUTINGS[case], random(1, rows, 21)
    weights = parts_of(experts, 21)
    biases = [[random(e, len(part[e])) for e in range(experts.count)] for part in weights]
    biases[1] = [None] * experts.count
    chosen, shares = reference.route(experts, random(7, rows, experts.count), None)
    expected = np.ones((rows, 21))
    for row in range(rows):
        for expert, share in zip(chosen[row], shares[row], strict=True):
            gate = weights[0][expert] @ x[row] + biases[0][expert]
            up = weights[1][expert] @ x[row]
            inner = reference.clamped(gate, up, *clamp) if clamp else reference.activation("silu", gate) * up
            expected[row] += share * (weights[2][expert] @ inner + biases[2][expert])
    for team in (None, *TEAMS):
        found = mixed(experts, weights, biases, x, team, clamp)
        assert np.abs(found - expected).max() < 2e-5  # values of order 1 through three products


@pytest.mark.parametrize("rows", [1, 33])
@pytest.mark.parametrize("form", FORMS)
def test_experts_with_packed_weights(form: str, rows: int):
    """Each expert's product over its own places, whose codes are its own; sizes that fill no block and no group."""
    experts, x = Experts(5, 2, 43), random(1, rows, 70)
    packed = [quantize(random(e, 43, 70), form) for e in range(5)]
    nothing = [None] * 5
    scores = random(7, rows, 5)
    for team in TEAMS:
        kept = []

        def write(tape: GroupedTape, kept=kept) -> None:
            routes = tape.routes(5, 2)
            sent, out = tape.places(70, routes), tape.places(43, routes)
            kept.extend((routes, sent, out))
            tape.route(scores, None, experts, routes)
            tape.spread(x, routes, sent)
            tape.grouped_linear(sent, [packed], [nothing], routes, out)

        play(write, plain_step(rows), team, tape=GroupedTape)
        routes, sent, out = kept
        for expert in range(5):
            places = slice(*routes.ends[expert : expert + 2])
            if places.start < places.stop:
                assert np.array_equal(sent[places], x[routes.rows[places]])
                exact, bound = exact_product(sent[places], packed[expert])
                assert (np.abs(out[places] - exact) <= bound).all()
        assert not out[2 * rows :].any()


@pytest.mark.parametrize("rows", ROWS)
def test_heads_go_to_places_and_back(rows: int):
    """Columns of a row, at strides of their own, from and to where each head's rows stand side by side."""
    x, back = random(1, rows, 4 * 10 + 3), np.full((rows, 50), 7, f32)
    for team in (None, *TEAMS):
        kept = []

        def write(tape: GroupedTape, kept=kept, back=back) -> None:
            routes = tape.routes(4, 4)
            tape.send_to_all(routes)
            places = tape.places(6, routes)
            kept.extend((routes, places))
            tape.move(x[:, 3:], 10, places, None, 4, 6)
            tape.move(places, None, back[:, 2:], 12, 4, 6)
            tape.move(x, 10, back[:, 9:], 12, 1, 2)

        play(write, plain_step(rows), team, tape=GroupedTape)
        routes, places = kept
        assert np.array_equal(routes.ends, rows * np.arange(5))
        assert np.array_equal(routes.active, np.arange(5))  # the last says how many
        for head in range(4):
            part = x[:, 3 + 10 * head : 9 + 10 * head]
            assert np.array_equal(places[rows * head : rows * (head + 1)], part)
            assert np.array_equal(back[:, 2 + 12 * head : 8 + 12 * head], part)
        assert np.array_equal(back[:, 9:11], x[:, :2])
        assert (back[:, :2] == 7).all()
        assert (back[:, 11:14] == 7).all()
