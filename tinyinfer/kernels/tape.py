"""A forward pass as a list of operations, written down once for a model and run at every step.

Calling operation by operation from Python costs more than a small model's arithmetic. So the model's Python says once
what a layer does, in the order it does it. What that leaves behind is, for each operation, a row of a table, which
`run.py` works through in one compiled call, by as many threads as there are; and a function in NumPy that means the
same.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np

from .. import reference
from ..checkpoint.safetensors import BFLOAT16, to_float32
from ..errors import BadRequest
from ..quant import PackedWeight, dequantize
from ..quant.nf4 import expand_scales
from . import plain
from . import table as t
from .step import Step

PIECE_BYTES = 1 << 15  # of a weight, claimed by a thread at a time
STRETCH = 1024  # numbers of a row that an activation is computed for at a time
STORED = {np.dtype(np.float32): "float32", BFLOAT16: "bfloat16", np.dtype(np.float16): "float16"}
PACKED = {
    ("int4", "float16"): "linear_int4",
    ("int8", "float16"): "linear_int8",
    ("int8", "float32"): "linear_int8_row",
    ("nf4", "float16"): "linear_nf4",
    ("nf4", "float32"): "linear_nf4_double",
}
ACTIVATIONS = ("silu", "gelu", "gelu_tanh", "relu")

Array = np.ndarray
Weight = np.ndarray | PackedWeight


class Tape:
    """The operations of a model, and the buffers that they hand on: float32 [most rows, width], of which a step uses
    the first rows. Operations run over a step's new tokens; with `wanted`, over the rows that need logits.
    """

    def __init__(self, most_rows: int):
        self.most_rows = most_rows
        self._names: list[str] = []
        self._rows: list[list[int]] = []
        self._numbers: list[tuple[float, float]] = []
        self._twins: list[Callable[[Step], None]] = []
        self._kept: list[Array] = []  # what the table has addresses of
        self._codes: dict[tuple[int, int], tuple[Array, Array, Array]] = {}  # a buffer as 8-bit codes

    def buffer(self, width: int) -> Array:
        """A place for one operation's result and the next one's input."""
        return np.zeros((self.most_rows, width), np.float32)

    def norm(self, x: Array, weight: Array, eps: float, out: Array, total: Array | None = None, wanted=False) -> None:
        """out = rms_norm(x) * weight; with `total`, also total += out."""

        def twin(step: Step) -> None:
            n = len(step.wanted) if wanted else step.rows
            out[:n] = reference.rms_norm(x[:n], weight, eps)
            if total is not None:
                total[:n] += out[:n]

        self._add("norm_row", wanted, 1, [x, weight, out, x.shape[1], total], twin, (eps, 0))

    def linear(
        self, x: Array, weights: Sequence[Weight], biases: Sequence[Array | None], out: Array, add=False
    ) -> None:
        """out (+)= x weights^T + biases, the results of several weights side by side.

        Weights are arrays of floats, or quantized: those meet x rounded to 8 bits in groups of 32.
        """
        self._quantize(x, weights, wanted=False)
        column = 0
        for weight, bias in zip(weights, biases, strict=True):
            self._linear(x, weight, bias, out, out.shape[1], column, add)
            column += len(weight)

    def logits(self, x: Array, weight: Weight) -> None:
        """The step's logits = x weight^T, for the rows that need them."""
        self._quantize(x, [weight], wanted=True)
        self._linear(x, weight, None, None, len(weight), 0, False)

    def _linear(self, x, weight, bias, out, width, column, add) -> None:
        def twin(step: Step) -> None:
            n = len(step.wanted) if out is None else step.rows
            target = (step.logits if out is None else out)[:n, column : column + len(weight)]
            floats = dequantize(weight) if isinstance(weight, PackedWeight) else to_float32(weight)
            result = x[:n] @ floats.T + (0 if bias is None else bias)
            np.copyto(target, target + result if add else result)

        if isinstance(weight, np.ndarray):
            weight = _as_stored(weight)
        rows = len(weight)
        pieces = max(1, min(weight.nbytes // PIECE_BYTES, -(-rows // 8)))
        where = [rows, out, width, column, bias, add]
        if isinstance(weight, PackedWeight):
            weight = expand_scales(weight)
            groups = weight.codes.shape[1]
            spans = weight.scales.size // (8 * len(weight.codes))
            fields = [*self._codes[x.ctypes.data, groups], groups, weight.codes, weight.scales, weight.minimums, spans]
            name = PACKED[weight.scheme, weight.scales.dtype.name]
        else:
            fields = [x, weight.shape[1], weight]
            name = f"linear_{STORED[weight.dtype]}"
        self._add(name, out is None, pieces, [*where, *fields], twin, counted=t.OF_THE_WHOLE)

    def _quantize(self, x: Array, weights: Sequence[Weight], wanted: bool) -> None:
        """x as 8-bit codes for the quantized weights among those that follow; in NumPy they take x as it is."""
        for groups in {weight.codes.shape[1] for weight in weights if isinstance(weight, PackedWeight)}:
            key = x.ctypes.data, groups
            if key not in self._codes:
                shapes = ((32 * groups, np.int8), (groups, np.float32), (groups, np.float32))
                self._codes[key] = tuple(np.zeros((self.most_rows, width), dtype) for width, dtype in shapes)
            self._add("quantize_row", wanted, 1, [x, x.shape[1], *self._codes[key], groups], None)

    def rotate(self, heads: Array, shape, rope: int, half: int, norms, eps: float, pool: int, layer: int) -> None:
        """Normalise and turn queries and keys in place, and store keys and values.

        heads holds [rows, H + 2 G, D] of `shape` (H, G, D); `norms` are weights [D] for queries and keys, or None.
        """
        num_heads, kv_heads, dim = shape

        def twin(step: Step) -> None:
            split = heads[: step.rows].reshape(-1, num_heads + 2 * kv_heads, dim)
            for part, weight in zip((split[:, :num_heads], split[:, num_heads:-kv_heads]), norms, strict=True):
                if weight is not None:
                    part[:] = reference.rms_norm(part, weight, eps)
            turned = split[:, :-kv_heads]
            turned[:] = reference.rotate(turned, *step.angles[rope])
            key, value = split[:, num_heads:-kv_heads], split[:, -kv_heads:]
            for sequence, rows in step.slices():
                sequence.tables[pool].store(layer, sequence.length, key[rows], value[rows])

        fields = [heads, heads.shape[1], num_heads, kv_heads, dim, rope, half, *norms, pool, layer]
        self._add("rotate_row", False, 1, fields, twin, (eps, 0))

    def attend(self, heads: Array, shape, out: Array, pool: int, layer: int, window, scale, cap) -> None:
        """out [rows, H * D] = what every query sees in its own sequence."""
        num_heads, kv_heads, dim = shape

        def twin(step: Step) -> None:
            split = heads[: step.rows].reshape(-1, num_heads + 2 * kv_heads, dim)
            for sequence, rows in step.slices():
                end = sequence.length + rows.stop - rows.start
                table = sequence.tables[pool]
                key, value = table.load(layer, table.first_position, end)
                mixed = plain.attend(split[rows, :num_heads], key, value, scale, window, cap)
                out[rows] = mixed.reshape(-1, num_heads * dim)

        share = num_heads // kv_heads
        fields = [heads, heads.shape[1], share, dim, out, pool, layer, window or 0]
        self._add("attend_tile", False, kv_heads, fields, twin, (scale, cap or 0), t.OF_EACH_TILE)
        self._add("settle_row", False, 1, [num_heads, dim, out], None)

    def gated(self, both: Array, activation: str, out: Array) -> None:
        """out = activation(first half of `both`) * its second half."""

        def twin(step: Step) -> None:
            gate, up = np.split(both[: step.rows], 2, axis=-1)
            out[: step.rows] = reference.activation(activation, gate) * up

        width = out.shape[1]
        fields = [both, width, ACTIVATIONS.index(activation), out]
        self._add("gated_stretch", False, max(width // STRETCH, 1), fields, twin)

    def gather(self, x: Array, out: Array) -> None:
        """out = the rows of x that need logits."""

        def twin(step: Step) -> None:
            out[: len(step.wanted)] = x[step.wanted]

        self._add("gather_row", True, 1, [x, x.shape[1], out], twin)

    def finish(self, heads: int, kv_heads: int, dim: int) -> None:
        """The tape is complete."""
        self._shape = heads, kv_heads, dim
        self._table = np.array(self._rows, np.int64)
        self._table_numbers = np.array(self._numbers, np.float32)
        if use_compiled():
            from . import run

            self._table[:, t.CODE] = [getattr(run, name).address for name in self._names]

    def run(self, step: Step) -> None:
        """Do everything, for the rows of this step."""
        if not use_compiled():
            for twin in self._twins:
                twin(step)
            return
        from .run import run
        from .threads import default_team

        team = default_team()
        registers = step.registers(*self._shape, team.size)
        counters = np.zeros((len(self._table), 2 * t.COUNTER_STRIDE), np.int64)
        table, numbers = self._table, self._table_numbers

        def work() -> None:
            # `step` is named so that a thread which comes late still finds what the registers point to
            run(table, numbers, registers, counters) if step else None

        team.run(work)

    def _add(
        self, code: str, wanted: bool, pieces: int, fields, twin, numbers=(0.0, 0.0), counted=t.OF_EACH_ROW
    ) -> None:
        """`code` is what run.py calls the operation, `pieces` and `counted` how many pieces it falls into."""
        self._names.append(code)
        row = [0, t.WANTED if wanted else t.ROWS, pieces, counted, *map(self._field, fields)]
        self._rows.append(row + [0] * (t.COLUMNS - len(row)))
        self._numbers.append(numbers)
        if twin is not None:
            self._twins.append(twin)

    def _field(self, value) -> int:
        if value is None:
            return 0
        if isinstance(value, np.ndarray):
            self._kept.append(value)
            return value.ctypes.data
        return int(value)


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
