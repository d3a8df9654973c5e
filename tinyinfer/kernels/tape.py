"""A forward pass as a list of operations, written down once for a model and run at every step.

Calling operation by operation from Python costs more than a small model's arithmetic. So the model's Python says once
what a layer does, in the order it does it. What that leaves behind is, for each operation, a row of a table, which
`run.py` works through in one compiled call, by as many threads as there are; and a function in NumPy that means the
same.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np

from .. import reference
from ..checkpoint.safetensors import BFLOAT16, to_float32
from ..errors import BadRequest
from ..quant import PackedWeight, dequantize, dequantize_rows
from ..quant.nf4 import expand_scales
from ..quant.packed import ROW_BLOCK
from . import plain
from . import table as t
from .adapted import Adapted, AdaptedMaps, plain_weight
from .step import Step

PIECE_BYTES = 1 << 15  # of a weight, claimed by a thread at a time
STORED = {np.dtype(np.float32): "float32", BFLOAT16: "bfloat16", np.dtype(np.float16): "float16"}
PACKED = {
    ("int4", "float16"): "int4",
    ("int5", "float16"): "int5",
    ("int8", "float16"): "int8",
    ("int8", "float32"): "int8_row",
    ("nf4", "float16"): "nf4",
    ("nf4", "float32"): "nf4_double",
}
ACTIVATIONS = ("silu", "gelu", "gelu_tanh", "relu", "relu2")

Array = np.ndarray
Weight = np.ndarray | PackedWeight | Adapted


class Tape(AdaptedMaps):
    """The operations of a model, and the buffers that they hand on: float32 [most rows, width], of which a step uses
    the first rows. Operations run over a step's new tokens; with `wanted`, over the rows that need logits.

    Of a buffer that is `own`, the team's threads each have rows of their own, OWN_ROWS of them after the first
    `most_rows`: at a step of few rows, what is written there they work out for themselves. A thread that comes late
    may do so while the others are at a later step; nobody else looks at its rows, and it finds nothing to use them for.
    """

    def __init__(self, most_rows: int, kv_dtype: str = "float32", threads: int | None = None):
        super().__init__()
        self.most_rows, self.kv_dtype = most_rows, kv_dtype
        self._own_rows = 0
        if use_compiled():
            from .threads import team_of

            self._team = team_of(threads)
            self._own_rows = (self._team.size - 1) * t.OWN_ROWS
        self._names: list[str] = []
        self._rows: list[list[int]] = []
        self._numbers: list[tuple[float, ...]] = []
        self._twins: list[Callable[[Step], None]] = []
        self._kept: list[Array] = []  # what the table has addresses of
        self._own: set[int] = set()  # addresses of buffers
        self._weights: dict[int, tuple[Weight, Weight]] = {}  # by id: as given, and as the kernels see it
        self._codes: dict[tuple[int, int], tuple[Array, Array, Array]] = {}  # a buffer as 8-bit codes
        self._current: set[tuple[int, int]] = set()  # which of those are of what the buffer now holds
        self._last_head = 0  # the row of the table that the last operation is done with
        self._row_result: Array | None = None  # what the last operation wrote, if it goes row by row
        self._vectors: Array | None = None  # what the layers work on
        self._layers = 0, 0  # operations and twins up to the end of the layers

    def buffer(self, width: int, own: bool = False) -> Array:
        """A place for one operation's result and the next one's input."""
        array = np.zeros((self.most_rows + (self._own_rows if own else 0), width), np.float32)
        if own:
            self._own.add(array.ctypes.data)
        return array

    def norm(
        self, x: Array, weight: Array, eps: float, out: Array, total: Array | None = None, wanted=False,
        bias: Array | None = None, centered=False,
    ) -> None:  # fmt: skip
        """out = rms_norm(x) * weight; if `centered`, layer_norm(x) * weight + bias. With `total`, also total += out."""

        def twin(step: Step) -> None:
            n = len(step.wanted) if wanted else step.rows
            out[:n] = _normed(x[:n], weight, bias, eps, centered)
            if total is not None:
                total[:n] += out[:n]

        fields = [x, weight, out, x.shape[1], total]
        name, fields = ("layer_norm_row", [*fields, bias]) if centered else ("norm_row", fields)
        self._add(name, fields, twin, (eps,), source=x, target=out, wanted=wanted)
        self._changed(total)

    def head_norm(self, x: Array, begin: int, count: int, weight: Array, bias, eps: float, centered: bool) -> None:
        """Normalise `count` vectors of each row, side by side from column `begin` on, in place.

        weight [n, D]: they take its rows in turn; bias [D] or None.
        """
        dim = weight.shape[1]

        def twin(step: Step) -> None:
            part = x[: step.rows, begin : begin + count * dim]
            heads = part.reshape(step.rows, -1, len(weight), dim)
            part[:] = _normed(heads, weight, bias, eps, centered).reshape(part.shape)

        fields = [x, x.shape[1], begin, count, dim, weight, len(weight), bias]
        self._add("head_norm_row", fields, twin, (eps, float(centered)), target=x)

    def clip(self, x: Array, limit: float) -> None:
        """x is kept within -limit and limit."""

        def twin(step: Step) -> None:
            np.clip(x[: step.rows], -np.float32(limit), np.float32(limit), out=x[: step.rows])

        self._add("clip_row", [x, x.shape[1]], twin, (limit,), target=x)

    def add_positions(self, x: Array, table: Array, offset: int) -> None:
        """x += the rows of a float32 table that belong to the tokens' positions, from row `offset` on."""

        def twin(step: Step) -> None:
            for start, (_, rows) in zip(step.starts, step.slices(), strict=True):
                first = start + offset
                x[rows] += table[first : first + rows.stop - rows.start]

        self._add("positions_row", [x, x.shape[1], table, offset], twin, target=x)

    def linear(
        self, x: Array, weights: Sequence[Weight], biases: Sequence[Array | None], out: Array, add=False
    ) -> None:
        """out (+)= x weights^T + biases, the results of several weights side by side.

        Weights are arrays of floats, or quantized: those meet x rounded to 8 bits in groups of 32. Either may be
        adapted, for which x stays as it is.
        """
        narrow = self._prepare(x, weights)
        column = 0
        for i, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
            wait, head, pieces = i == len(weights) - 1, len(self._rows), pieces_of(len(weight), weight.nbytes)
            self._linear(x, plain_weight(weight), bias, out, column, add, wait, pieces)
            if isinstance(weight, Adapted):
                self._widen(x, weight, out, column, narrow, i, pieces)
                self._join(head, wait)
            column += len(weight)

    def logits(self, x: Array, weight: Weight, bias: Array | None = None) -> None:
        """The step's logits = x weight^T + bias, for the rows that need them."""
        self._quantize(x, [weight], wanted=True)
        self._linear(x, weight, bias, None, 0, False)

    def gated_linear(
        self, x: Array, weights: Sequence[Weight], biases: Sequence[Array | None], activation: str, both: Array,
        out: Array, readers: Sequence[Weight] = (), clamp: tuple[float, float] | None = None,
    ) -> None:  # fmt: skip
        """out = activation(gate) * up, where gate and up are x times the two weights, of one shape, plus biases.

        With a single weight, out = activation(up). `clamp`: limit and slope of gpt-oss's gate, see `reference.gated`.
        A piece of it goes through in one go, for all rows; also into codes, for those `readers` of it that take codes.
        `both` [rows, width of all weights] holds what is between.
        """
        narrow = self._prepare(x, weights)
        width = out.shape[1]
        pieces = pieces_of(width, sum(weight.nbytes for weight in weights))
        head = len(self._rows)
        for i, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
            self._linear(x, plain_weight(weight), bias, both, i * width, False, pieces=pieces)
            if isinstance(weight, Adapted):
                self._widen(x, weight, both, i * width, narrow, i, pieces)

        def twin(step: Step) -> None:
            *gate, up = np.split(both[: step.rows], len(weights), axis=-1)
            if clamp:
                out[: step.rows] = reference.clamped(gate[0], up, *clamp)
            else:
                bent = reference.activation(activation, gate[0] if gate else up)
                out[: step.rows] = bent * up if gate else bent

        name = "clamped_part" if clamp else "gated_part" if len(weights) == 2 else "activated_part"
        fields = [both, width, ACTIVATIONS.index(activation), out]
        self._add(name, fields, twin, clamp or (), pieces=pieces, counted=t.OF_THE_WHOLE, target=out)
        for groups in group_counts(readers):
            self._add_codes("quantize_part", out, groups, pieces=pieces, counted=t.OF_THE_WHOLE)
        self._join(head)

    def _linear(self, x, weight, bias, out, column, add, wait=True, pieces=None) -> None:
        def twin(step: Step) -> None:
            n = len(step.wanted) if out is None else step.rows
            target = (step.logits if out is None else out)[:n, column : column + len(weight)]
            floats = dequantize(weight) if isinstance(weight, PackedWeight) else to_float32(weight)
            result = x[:n] @ floats.T + (0 if bias is None else bias)
            np.copyto(target, target + result if add else result)

        name, fields = self._linear_fields(x, weight, bias, out, column, add)
        self._add(
            name, fields, twin, wanted=out is None, pieces=pieces or pieces_of(len(weight), weight.nbytes),
            counted=t.OF_THE_WHOLE, wait=wait, source=x, target=out, bulk=self._bulk(weight),
        )  # fmt: skip

    def _bulk(self, weight: Weight) -> tuple[int, int]:
        """Where most of a weight lies as the kernels see it, and how many bytes of that a row takes."""
        bulk = next(field for field in self._weight(weight)[1] if isinstance(field, np.ndarray))
        return bulk.ctypes.data, bulk[0].nbytes // (ROW_BLOCK if isinstance(weight, PackedWeight) else 1)

    def _linear_fields(self, x, weight, bias, out, column, add) -> tuple[str, list]:
        """What the operation of a linear map is called, and its fields."""
        kind, fields = self._weight(weight)
        rows, codes = len(weight), [x]
        if isinstance(weight, PackedWeight):
            codes = self._codes[x.ctypes.data, weight.codes.shape[1]]
        where = [rows, out, rows if out is None else out.shape[1], column, bias, add]
        return f"linear_{kind}", [*where, *codes, *fields]

    def embed(self, table: Weight, factor: float, out: Array) -> None:
        """out = the table's rows of the step's tokens, times a factor."""

        def twin(step: Step) -> None:
            rows = dequantize_rows if isinstance(table, PackedWeight) else lambda table, ids: to_float32(table[ids])
            out[: step.rows] = rows(table, step.ids) * np.float32(factor)

        kind, fields = self._weight(table)
        nothing = [0] * (3 if isinstance(table, PackedWeight) else 1)  # where a linear map has what it multiplies
        self._add(
            f"embed_{kind}", [len(table), out, out.shape[1], 0, 0, 0, *nothing, *fields], twin, (factor,), target=out
        )

    def _weight(self, weight: Weight) -> tuple[str, list]:
        """What kind of weight the kernels see, and the fields that say where it is."""
        if id(weight) not in self._weights:  # a tied head is the embedding: what is made of it is made once
            packed = isinstance(weight, PackedWeight)
            self._weights[id(weight)] = weight, expand_scales(weight) if packed else _as_stored(weight)
        weight = self._weights[id(weight)][1]
        if not isinstance(weight, PackedWeight):
            return STORED[weight.dtype], [weight.shape[1], weight]
        spans = weight.scales.size // (8 * len(weight.codes))
        fields = [weight.codes.shape[1], weight.codes, weight.scales, weight.minimums, spans]
        return PACKED[weight.scheme, weight.scales.dtype.name], fields

    def _prepare(self, x: Array, weights: Sequence[Weight]) -> list[int]:
        """What linear maps need beside x; see `_quantize` and `_make_narrow`."""
        head = self._last_head if self._row_result is x else None
        self._quantize(x, weights)
        return self._make_narrow(x, weights, head)

    def _quantize(self, x: Array, weights: Sequence[Weight], wanted: bool = False) -> None:
        """x as 8-bit codes for the quantized weights among those that follow; in NumPy they take x as it is."""
        head = self._last_head if self._row_result is x else None
        for groups in group_counts(weights):
            if (x.ctypes.data, groups) not in self._current:
                self._add_codes("quantize_row", x, groups, wanted=wanted)
                if head is not None:  # what is there row by row becomes codes row by row
                    self._join(head)

    def _add_codes(self, name: str, x: Array, groups: int, **how) -> None:
        key = x.ctypes.data, groups
        if key not in self._codes:
            shapes = ((32 * groups, np.int8), (groups, np.float32), (groups, np.float32))
            self._codes[key] = tuple(np.zeros((len(x), width), dtype) for width, dtype in shapes)
        self._add(name, [x, x.shape[1], *self._codes[key], groups], None, source=x, target=x, **how)
        self._current.add(key)

    def attention(
        self, heads: Array, shape: tuple[int, int, int], out: Array, rope: int, half: int, norms, eps: float,
        pool: int, layer: int, window: int | None, scale: float, cap: float | None, slopes: Array | None = None,
        sinks: Array | None = None,
    ) -> None:  # fmt: skip
        """Store keys and values, and out [rows, H * D] = what every query sees in its own sequence.

        heads holds [rows, H + 2 G, D] of `shape` (H, G, D), as the linear maps left it. Queries and keys are normalised
        by `norms`, weights [D] or None for either, and 2 * `half` of their numbers turned by rotation `rope`.
        pool, layer: where the layer's keys and values are. slopes, sinks: see `plain.attend`.
        """
        num_heads, kv_heads, dim = shape

        def twin(step: Step) -> None:
            split = heads[: step.rows].reshape(-1, num_heads + 2 * kv_heads, dim)
            parts = split[:, :num_heads], split[:, num_heads:-kv_heads]
            query, key = (
                part if weight is None else reference.rms_norm(part, weight, eps)
                for part, weight in zip(parts, norms, strict=True)
            )
            if half:
                query, key = (reference.rotate(part, *step.angles[rope]) for part in (query, key))
            for sequence, position, rows in step.stores():
                sequence.tables[pool].store(layer, position, key[rows], split[rows, -kv_heads:])
            for start, (sequence, rows) in zip(step.starts, step.slices(), strict=True):
                table = sequence.tables[pool]
                seen = table.load(layer, table.first_position, start + rows.stop - rows.start)
                mixed = plain.attend(query[rows], *seen, scale, window, cap, slopes, sinks)
                out[rows] = mixed.reshape(-1, num_heads * dim)

        place = [heads, *shape, rope, half, *norms, pool, layer]
        numbers = eps, scale, cap or 0
        kind = self.kv_dtype.replace("-", "_")
        self._add(f"store_{kind}", place, None, numbers, pieces=kv_heads, counted=t.OF_EACH_STORE)
        self._add(
            f"attend_{kind}", [*place, out, window or 0, slopes, sinks], twin, numbers,
            pieces=kv_heads, counted=t.OF_EACH_LOOK,
        )  # fmt: skip
        self._add("settle_row", [num_heads, dim, out], None, target=out)

    def gather(self, x: Array, out: Array) -> None:
        """out = the rows of x that need logits."""

        def twin(step: Step) -> None:
            out[: len(step.wanted)] = x[step.wanted]

        self._add("gather_row", [x, x.shape[1], out], twin, target=out, wanted=True)

    def end_layers(self, vectors: Array) -> None:
        """All that follows makes logits of `vectors`, a buffer: `run_layers` leaves it out."""
        self._vectors, self._layers = vectors, (len(self._rows), len(self._twins))

    def finish(self, heads: int, dim: int) -> None:
        """The tape is complete."""
        self._shape = heads, dim
        self._table = np.array(self._rows, np.int64)
        self._table_numbers = np.zeros((len(self._rows), t.NUMBERS), np.float32)
        for row, numbers in zip(self._table_numbers, self._numbers, strict=True):
            row[: len(numbers)] = numbers
        self._note_next_weights()
        if use_compiled():
            from .run import run

            self._table[:, t.CODE] = list(map(code_of, self._names))
            # of nothing, so that it is compiled, and not first by several threads at once: see `Team`
            nothing = self._table[:0], self._table_numbers[:0], np.zeros((1, 1), np.int64), 0, np.zeros(1, np.int64)
            run(*nothing, 1, 0, self._team.waited)

    def run(self, step: Step) -> None:
        """Do everything, for the rows of this step."""
        self._run(step, len(self._rows), len(self._twins))

    def run_layers(self, step: Step) -> Array:
        """Do what comes before logits; gives the vectors that the layers left, float32 [rows, width], a copy."""
        self._run(step, *self._layers)
        return self._vectors[: step.rows].copy()

    def _run(self, step: Step, operations: int, twins: int) -> None:
        if not use_compiled():
            for twin in self._twins[:twins]:
                twin(step)
            return
        from .run import run
        from .threads import PATIENCE_SECONDS

        team = self._team
        size, waited, began = team.size_for(step.rows), int(team.waited[0]), time.perf_counter()
        patience = team.ticks(PATIENCE_SECONDS)
        own_from = self.most_rows if (team.size - 1) * t.OWN_ROWS <= self._own_rows else None
        steps = step.registers(*self._shape, size, own_from)
        counters = np.zeros(operations * (size + 1), np.int64)
        table = self._table[:operations]  # what is looked up behind its end, the next weight, is still there

        def work(thread: int) -> None:
            # the step and the tape are named so that a thread which comes late still finds what there are addresses of
            if step and self:
                run(table, self._table_numbers, steps, thread, counters, size, patience, team.waited)

        team.run(work, size)
        team.note(step.rows, int(team.waited[0]) - waited, time.perf_counter() - began)

    def _note_next_weights(self) -> None:
        """Which weight comes after each wait: a thread that waits has memory fetch the beginning of its share."""
        heads, index = [], 0
        while index < len(self._table):
            heads.append(index)
            index += self._table[index, t.PARTS]
        following = 0
        for index in reversed(heads):
            row = self._table[index]
            if row[t.WAIT]:
                row[t.AHEAD] = following
            if row[t.WEIGHT]:
                following = index

    def _add(
        self, name: str, fields, twin, numbers: tuple[float, ...] = (), *, source: Array | None = None,
        target: Array | None = None, wanted=False, pieces=1, counted=t.OF_EACH_ROW, wait=True, bulk=(0, 0),
    ) -> None:  # fmt: skip
        """`name` is what the compiled operation is called, `pieces` and `counted` how many pieces it falls into.

        source, target: the buffers that it reads and writes, where threads may have rows of their own.
        """
        own = [array is not None and array.ctypes.data in self._own for array in (source, target)]
        head = [0, t.WANTED if wanted else t.ROWS, pieces, counted, 1, wait, *own, *bulk, 0]
        row = [*map(int, head), *map(self._field, fields)]
        self._last_head = len(self._rows)
        self._row_result = target if counted == t.OF_EACH_ROW else None
        self._names.append(name)
        self._rows.append(row + [0] * (t.COLUMNS - len(row)))
        self._numbers.append(numbers)
        if twin is not None:
            self._twins.append(twin)
        self._changed(target)

    def _changed(self, array: Array | None) -> None:
        """Codes of what was there before are no longer of use."""
        if array is not None:
            whole = array if array.base is None else array.base
            self._current = {key for key in self._current if key[0] not in (array.ctypes.data, whole.ctypes.data)}

    def _join(self, head: int, wait: bool = True) -> None:
        """What follows row `head` of the table is done together with it, piece by piece."""
        self._rows[head][t.PARTS] = len(self._rows) - head
        self._rows[head][t.WAIT] = int(wait)
        self._last_head = head

    def _field(self, value) -> int:
        if value is None:
            return 0
        if isinstance(value, np.ndarray):
            self._kept.append(value)
            return value.ctypes.data
        return int(value)


def code_of(name: str) -> int:
    """The address of an operation's compiled code."""
    from . import embedding, grouped, linear, lora, operations, rows

    rooms = operations, linear, embedding, rows, grouped, lora
    return next(vars(room)[name].address for room in rooms if name in vars(room))


def _normed(x: Array, weight: Array, bias: Array | None, eps: float, centered: bool) -> Array:
    return reference.layer_norm(x, weight, bias, eps) if centered else reference.rms_norm(x, weight, eps)


def pieces_of(rows: int, nbytes: int) -> int:
    """Into how many pieces to deal out a weight of so many rows; a piece is at least 32."""
    return max(1, min(nbytes // PIECE_BYTES, -(-rows // 32)))


def group_counts(weights: Sequence[Weight]) -> list[int]:
    """Into how many groups the quantized ones among some weights take a row of x."""
    plain = map(plain_weight, weights)
    return list(dict.fromkeys(weight.codes.shape[1] for weight in plain if isinstance(weight, PackedWeight)))


def _as_stored(weight: Array) -> Array:
    """A float matrix as the kernels read it, row after row; a copy only where they can't read it as it lies."""
    return np.ascontiguousarray(weight if _can_read(weight.dtype) else to_float32(weight))


def _can_read(dtype: np.dtype) -> bool:
    if dtype == np.float16 and use_compiled():
        from .processor import widens_float16

        return widens_float16()
    return dtype in STORED


@lru_cache(maxsize=1)
def use_compiled() -> bool:
    """Whether operations run compiled: TINYINFER_KERNELS is "numba", the default, and not "numpy"."""
    wanted = os.environ.get("TINYINFER_KERNELS", "numba")
    if wanted not in ("numba", "numpy"):
        raise BadRequest(f"TINYINFER_KERNELS should be 'numba' or 'numpy', found {wanted!r}", "TINYINFER_KERNELS")
    return wanted == "numba"
