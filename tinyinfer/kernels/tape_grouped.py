"""A tape with linear maps of which each row takes some: those of the experts it is sent to, or of all its heads."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .. import reference
from ..checkpoint.safetensors import to_float32
from ..config import Experts
from ..quant import PackedWeight, dequantize
from . import table as t
from .step import Step
from .tape import ACTIVATIONS, Array, Tape, Weight, code_of, group_counts, pieces_of, use_compiled

MOST_PIECES = 4  # of one expert's matrix: several experts are at work at a time


class Routes:
    """Who uses which expert at a step: each row stands at as many places as it uses experts, sorted by expert.

    shares  float32 [rows, used]: of each expert that a row uses
    places  int64 [rows, used]: where it stands for each
    rows    int64 [rows * used]: the row that stands at a place
    ends    int64 [E + 1]: where the places of each expert begin, and at the last where they end
    active  int64 [E + 1]: the experts that are used, and at the last how many
    """

    def __init__(self, count: int, used: int, most_rows: int):
        self.count, self.used = count, used
        self.shares = np.zeros((most_rows, used), np.float32)
        self.places = np.zeros((most_rows, used), np.int64)
        self.rows = np.zeros(most_rows * used, np.int64)
        self.ends, self.active = np.zeros((2, count + 1), np.int64)

    def set(self, chosen: Array, shares: Array) -> None:
        """From the experts that each row chose, and its shares of them: int and float32 [n, used]."""
        n, places = len(chosen), np.argsort(chosen.reshape(-1), kind="stable")
        self.shares[:n] = shares
        self.places[:n].reshape(-1)[places] = np.arange(places.size)
        self.rows[: places.size] = places // self.used
        counts = np.bincount(chosen.reshape(-1), minlength=self.count)
        self.ends[:] = [0, *np.cumsum(counts)]
        used = np.flatnonzero(counts)
        self.active[: len(used)], self.active[-1] = used, len(used)


def _columns(stride: int, heads: int, width: int) -> Array:
    return stride * np.arange(heads)[:, None] + np.arange(width)


def _heads_of(array: Array, rows: int, stride: int | None, heads: int, width: int) -> Array:
    """[rows, heads, width] of rows that hold heads side by side, or of places."""
    if stride is None:
        return array[: heads * rows].reshape(heads, rows, -1)[..., :width].swapaxes(0, 1)
    return array[:rows, _columns(stride, heads, width)]


class GroupedTape(Tape):
    """A `Tape` with operations for experts and heads. Buffers of places have `used` times as many rows as others."""

    def __init__(self, *arguments, **how):
        super().__init__(*arguments, **how)
        self._maps: list[tuple[Array, list[str]]] = []  # tables of linear maps, and what their operations are called

    def routes(self, count: int, used: int) -> Routes:
        """A place for what `route` or `send_to_all` finds out."""
        return Routes(count, used, self.most_rows)

    def places(self, width: int, routes: Routes) -> Array:
        """A buffer with a row for each place."""
        return np.zeros((self.most_rows * routes.used, width), np.float32)

    def route(self, scores: Array, correction: Array | None, experts: Experts, routes: Routes) -> None:
        """From the router's scores [rows, E], who uses which expert; `correction` [E] changes the choice alone."""

        def twin(step: Step) -> None:
            routes.set(*reference.route(experts, scores[: step.rows], correction))

        counts = [experts.count, experts.used, experts.groups, experts.used_groups, experts.group_judges]
        fields = [scores, *counts, correction, routes.shares, routes.places, routes.rows, routes.ends, routes.active]
        numbers = experts.scale, float(experts.scoring == "sigmoid"), float(experts.normalized)
        self._add("route", fields, twin, numbers, counted=t.OF_THE_WHOLE)

    def send_to_all(self, routes: Routes) -> None:
        """Each row stands at a place for each of all: heads, of which all are used."""

        def twin(step: Step) -> None:
            routes.set(np.tile(np.arange(routes.count), (step.rows, 1)), np.ones((), np.float32))

        self._add("send_to_all", [routes.count, routes.ends, routes.active], twin, counted=t.OF_THE_WHOLE)

    def move(self, x: Array, stride: int | None, out: Array, out_stride: int | None, heads: int, width: int) -> None:
        """Copy `width` numbers of each head of each row from x to out.

        A stride is how far apart heads are in a row; None: x, or out, holds places of a row for each head. Views that
        begin at a later column begin there.
        """

        def twin(step: Step) -> None:
            found = _heads_of(x, step.rows, stride, heads, width)
            if out_stride is None:
                out[: heads * step.rows] = found.swapaxes(0, 1).reshape(-1, width)
            else:
                out[: step.rows, _columns(out_stride, heads, width)] = found

        row_strides = [array.strides[0] // array.itemsize for array in (x, out)]
        fields = [x, row_strides[0], stride or 0, out, row_strides[1], out_stride or 0, heads, width]
        self._add("move_row", fields, twin, target=out)

    def spread(self, x: Array, routes: Routes, out: Array) -> None:
        """out[place] = the row of x that stands there."""
        used = routes.used

        def twin(step: Step) -> None:
            rows = routes.rows[: step.rows * used]
            out[: len(rows)] = x[rows]

        self._add("spread_row", [x, x.shape[1], used, routes.rows, out], twin, source=x, target=out, pieces=used)

    def grouped_linear(
        self, x: Array, weights: Sequence[Sequence[Weight]], biases: Sequence[Sequence[Array | None]], routes: Routes,
        out: Array,
    ) -> None:  # fmt: skip
        """out[place] = x[place] times the weights of its expert plus biases; of each expert several, side by side.

        weights: for each part of `out`, one weight of every expert, all of one shape and form.
        """
        used = routes.used
        for groups in group_counts([weight for part in weights for weight in part]):
            self._add_codes("quantize_row", x, groups, pieces=used)

        def twin(step: Step) -> None:
            for expert in routes.active[: routes.active[-1]]:
                places, column = slice(*routes.ends[expert : expert + 2]), 0
                for part, bias in zip(weights, biases, strict=True):
                    weight = part[expert]
                    floats = dequantize(weight) if isinstance(weight, PackedWeight) else to_float32(weight)
                    result = x[places] @ floats.T + (0 if bias[expert] is None else bias[expert])
                    out[places, column : column + len(weight)] = result
                    column += len(weight)

        each = min(MOST_PIECES, pieces_of(len(weights[0][0]), weights[0][0].nbytes))
        maps = self._expert_maps(x, weights, biases, out, each)
        fields = [maps, len(weights[0]), len(weights), each, routes.ends, routes.active]
        self._add("grouped_part", fields, twin, target=out, pieces=used * len(weights) * each)

    def _expert_maps(self, x: Array, weights, biases, out: Array, each: int) -> Array:
        """A row for each linear map, as it would be in the table; expert by expert."""
        rows, names = [], []
        for expert in range(len(weights[0])):
            column = 0
            for part, bias in zip(weights, biases, strict=True):
                name, fields = self._linear_fields(x, part[expert], bias[expert], out, column, False)
                head = [0, t.ROWS, each, t.OF_THE_WHOLE, 1, *[0] * (t.FIELDS - t.WAIT)]
                row = [*map(int, head), *map(self._field, fields)]
                row += [0] * (t.COLUMNS - len(row))
                row[t.TAKES_CODES] = int(isinstance(part[expert], PackedWeight))
                rows.append(row)
                names.append(name)
                column += len(part[expert])
        maps = np.array(rows, np.int64)
        self._maps.append((maps, names))
        return maps

    def gate_places(
        self, both: Array, activation: str, routes: Routes, out: Array, clamp: tuple[float, float] | None = None
    ) -> None:
        """out[place] = activation(gate) * up, of both [places, 2 width]; clamp as in `gated_linear`."""
        used, width = routes.used, out.shape[1]

        def twin(step: Step) -> None:
            n = step.rows * used
            gate, up = np.split(both[:n], 2, axis=-1)
            out[:n] = reference.clamped(gate, up, *clamp) if clamp else reference.activation(activation, gate) * up

        fields = [both, width, ACTIVATIONS.index(activation), out, used]
        self._add("gated_place", fields, twin, clamp or (), target=out, pieces=used)

    def combine(self, y: Array, routes: Routes, total: Array) -> None:
        """total += each row's shares of what its experts made of it, y [places, width]."""
        used = routes.used

        def twin(step: Step) -> None:
            places, shares = routes.places[: step.rows], routes.shares[: step.rows]
            total[: step.rows] += np.einsum("nk,nkw->nw", shares, y[places])

        fields = [y, y.shape[1], used, routes.shares, routes.places, total]
        self._add("combine_row", fields, twin, target=total)

    def finish(self, heads: int, dim: int) -> None:
        """The tape is complete."""
        super().finish(heads, dim)
        if use_compiled():
            for maps, names in self._maps:
                maps[:, t.CODE] = list(map(code_of, names))
