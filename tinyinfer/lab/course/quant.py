"""What rounding weights to 8 and 4 bits does to them: finer blocks, better levels, and a few large weights."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from ...quant import FORMS, bits_per_weight, dequantize, nf4, quantize, relative_error
from ...quant.study import absmax, absmax_groups
from ..cost import weight_forms
from .finding import Drawing, Finding, Table
from .matrices import projections, some_layers
from .setting import Setting

Rounded = tuple[np.ndarray, float]  # a matrix as it comes back, and bits a weight

SCHEMES: dict[str, Callable[[np.ndarray], Rounded]] = {
    "8 bits, a scale a tensor": lambda w: absmax(w, 8),
    "8 bits, a scale a row": lambda w: absmax(w, 8, per_row=True),
    "8 bits, groups of 128": lambda w: absmax_groups(w, 8, 128),
    "4 bits, a scale a tensor": lambda w: absmax(w, 4),
    "4 bits, a scale a row": lambda w: absmax(w, 4, per_row=True),
    "4 bits, groups of 128": lambda w: absmax_groups(w, 4, 128),
    "4 bits, groups of 64": lambda w: absmax_groups(w, 4, 64),
    "NF4, groups of 128": lambda w: normal_float(w, 128),
    "NF4, groups of 64": lambda w: normal_float(w, 64),
    "tinyinfer's int4-g64": lambda w: engine(w, "int4-g64"),
    "tinyinfer's int4-g32": lambda w: engine(w, "int4-g32"),
}
# mean and worst relative error, where the course gives them
COURSE = {
    "4 bits, a scale a tensor": (None, 0.99),
    "4 bits, groups of 128": (0.1323, None),
    "NF4, groups of 64": (0.0952, None),
}
QUICK_LAYERS = 2
FAR = 6  # standard deviations


def measure(setting: Setting) -> Finding:
    """Round every projection matrix by every scheme, and count the weights that stand far out."""
    tensors = setting.llm.model.tensors
    layers = some_layers(len(tensors.layers), len(tensors.layers) if setting.full else QUICK_LAYERS)
    errors: dict[str, list[float]] = {name: [] for name in SCHEMES}
    bits: dict[str, list[float]] = {name: [] for name in SCHEMES}
    tails, farthest, shares = [], 0.0, []
    for name, weight in projections(tensors, layers):
        setting.say(name)
        for scheme, rounded in SCHEMES.items():
            back, size = rounded(weight)
            errors[scheme].append(relative_error(weight, back))
            bits[scheme].append(size)
        tails.append(_tail(name, weight))
        if tails[-1][2] > farthest:
            farthest, shares = tails[-1][2], _beyond(weight)
    rows = [
        (scheme, float(np.mean(bits[scheme])), float(np.mean(found)), max(found), *COURSE.get(scheme, (None, None)))
        for scheme, found in errors.items()
    ]
    columns = ("scheme", "bits a weight", "mean error", "worst error", "course", "course, worst")
    title = f"relative error of {len(tails)} matrices, layers {', '.join(map(str, layers))}"
    apart = _apart(rows)
    says = _says(
        rows, apart, [form for form in weight_forms(tensors) if form in FORMS], len(layers) < len(tensors.layers)
    )
    return Finding([Table(title, columns, rows), apart, _tails(tails)], says, [_drawing(rows), _far(shares)])


def normal_float(weight: np.ndarray, size: int) -> Rounded:
    """NF4 with any number of columns that share an absmax of 16 bits, by the engine's encoder."""
    rows, columns = weight.shape
    blocks = np.pad(weight, ((0, 0), (0, -columns % size))).reshape(rows, -1, size)
    codes, scales, _ = nf4.encode(blocks, np.dtype(np.float16))
    back = nf4.decode(codes, scales.astype(np.float32)).reshape(rows, -1)[:, :columns]
    return back, 4 + 16 * scales.size / weight.size


def engine(weight: np.ndarray, form: str) -> Rounded:
    """A form that the kernels read."""
    packed = quantize(weight, form)
    return dequantize(packed), bits_per_weight(packed)


def _apart(rows: list[tuple]) -> Table:
    """Blocks and levels each changed alone, which the course changed together."""
    error = {row[0]: row[2] for row in rows}
    found = [
        (size, error[f"4 bits, groups of {size}"], error[f"NF4, groups of {size}"],
         1 - error[f"NF4, groups of {size}"] / error[f"4 bits, groups of {size}"])
        for size in (128, 64)
    ]  # fmt: skip
    columns = ("weights that share a scale", "even levels", "NF4's levels", "less error by levels")
    return Table("finer blocks and better levels told apart, mean error", columns, found)


def _tail(name: str, weight: np.ndarray) -> tuple[str, int, float, int]:
    deviation = float(weight.std())
    largest = float(np.abs(weight).max())
    far = int(np.count_nonzero(np.abs(weight) > FAR * deviation))
    return name, weight.size, largest / deviation if deviation else 0.0, far


def _tails(tails: list[tuple]) -> Table:
    """The three with the farthest, beside the course's one."""
    rows = sorted(tails, key=lambda row: -row[2])[:3]
    rows.append(("course: one of Qwen2.5-0.5B", 4_358_144, 24.1, 692))
    return Table("the matrices with the farthest weights", ("matrix", "weights", "max / std", "beyond 6 std"), rows)


def _beyond(weight: np.ndarray) -> list[tuple[float, float]]:
    """The share of weights farther from zero than so many standard deviations."""
    sizes = np.sort(np.abs(weight.reshape(-1))) / weight.std()
    return [(t, 1 - np.searchsorted(sizes, t) / sizes.size) for t in np.geomspace(0.5, sizes[-1], 24).tolist()[:-1]]


def _says(rows: list[tuple], apart: Table, forms: list[str], some: bool) -> str:
    """`forms` are those that the weights are stored in, none of floats; `some`: only some layers were measured."""
    by_name = {row[0]: row for row in rows}
    tensor, groups = by_name["4 bits, a scale a tensor"], by_name["4 bits, groups of 128"]
    (_, wide, _, _), (_, fine, both, levels) = apart.rows
    stored = (
        f"this model is stored as {', '.join(forms)}, so that 4 bits round anew what lies on a grid already, and "
        "change nothing where the grid is the same"
        if forms
        else "this model's floats are what its own training made of them"
    )
    return (
        "One far weight sets the step for all that share its scale: with one scale a tensor 4 bits are "
        f"{tensor[3]:.2f} off at the worst, where the course has 0.99, and with groups of 128 {groups[2]:.4f} in the "
        f"mean, where it has 0.1323. NF4 in the course has both finer blocks and better levels; blocks of 64 alone "
        f"take {1 - fine / wide:.0%} off the error of 128, NF4's levels alone {levels:.0%} at 64, and together they "
        f"come to {both:.4f}. The course's figures are of Qwen2.5-0.5B's bfloat16 weights; {stored}"
        f"{', and without --full these are a few layers' if some else ''}."
    )


def _drawing(rows: list[tuple]) -> Drawing:
    lines = {
        "mean": [(_short(row[0]), row[2]) for row in rows if not row[0].startswith("tiny")],
        "worst": [(_short(row[0]), row[3]) for row in rows if not row[0].startswith("tiny")],
    }
    title = "Fewer weights that share a scale, less error"
    return Drawing(title, "bits and what shares a scale", "relative error", lines, log_y=True, bars=True)


def _short(scheme: str) -> str:
    kind, _, what = scheme.partition(", ")
    return f"{kind.removesuffix(' bits')}\n{what.removeprefix('a scale a ').replace('groups of ', 'g')}"


def _far(shares: list[tuple[float, float]]) -> Drawing:
    lines = {
        "farthest-reaching matrix": shares,
        "normal distribution": [(t, math.erfc(t / math.sqrt(2))) for t, _ in shares if t <= FAR],
    }
    title = "Weights have longer tails than a normal distribution"
    return Drawing(title, "standard deviations from zero", "share of weights beyond", lines, True, True)
