"""A few dimensions of the vectors between layers are enormous; what that does to 8 bits, and five cures.

Sources: LLM.int8, https://arxiv.org/abs/2208.07339; SmoothQuant, https://arxiv.org/abs/2211.10438; rotations, QuIP#,
https://arxiv.org/abs/2402.04396, and QuaRot, https://arxiv.org/abs/2404.00456.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from ...calibration.inputs import LayerInputs, layer_inputs
from ...quant import relative_error
from ...quant.study import absmax, absmax_groups
from .finding import Drawing, Finding, Table, shown
from .setting import Setting

TEXT = (
    "A bridge is tested before anyone may cross it. First the engineers drive empty trucks onto it, then loaded ones, "
    "and measure how far each beam bends. What they fear most is not the weight that everybody expects, but the one "
    "beam that carries ten times its share. If it fails, all the others follow, however strong they are, since none of "
    "them was made for the load that is left to it. So they look for that beam, and then they look for the next one."
)
TOKENS = 84  # as many as the course's prompt has
TAKEN_OUT = 4
FAR = 6.0  # beyond which LLM.int8 keeps a dimension in floats
ALPHA = 0.5  # of SmoothQuant: how much of the difficulty goes to the weights


def measure(setting: Setting) -> Finding:
    """The residual stream of a prompt, layer by layer, and matrix products with its worst vectors in 8 bits."""
    llm = setting.llm
    ids = llm.prompt_ids(TEXT if setting.text is None else setting.text)[:TOKENS]
    layers = list(_watched(setting, np.array(ids)))
    stream = [layers[0].before, *(layer.after for layer in layers)]
    largest = np.array([np.abs(x).max(axis=0) for x in stream])  # [layers + 1, hidden]
    worst = int(largest.max(axis=1).argmax())
    x, sizes = stream[worst], largest[worst]
    meeting = layers[min(worst, len(layers) - 1)]
    levels, (cures, far) = _levels(x, sizes, len(ids)), _cures(x, meeting)
    tables = [_by_layer(largest), levels, cures, far]
    return Finding(tables, _says(largest, worst, levels, cures), [_drawing(largest), _histogram(sizes, worst)])


def _says(largest: np.ndarray, worst: int, levels: Table, cures: Table) -> str:
    sizes, tops = largest[worst], largest.argmax(axis=1).tolist()
    rows = {name: cells for name, *cells, _ in levels.rows}
    (used, used_without), (zero, _) = rows["levels used, of 256"], rows["numbers that become zero"]
    names = list(CURES)
    errors = {name: error for name, error, *_ in cures.rows}
    integers = [name for name, product in CURES.items() if product not in (scale_a_dimension, decomposed)]
    best = min(integers, key=errors.__getitem__)
    return (
        f"After {worst} layers dimension {sizes.argmax()} reaches {shown(float(sizes.max()))}, "
        f"{sizes.max() / np.median(sizes):,.0f} times the median one, and it is the largest after "
        f"{tops.count(int(sizes.argmax()))} of {len(tops) - 1} layers: one scale for all then leaves {used} of int8's "
        f"256 levels in use, {used_without} without the top {TAKEN_OUT}, and makes {zero:.1%} of the numbers zero. A "
        "scale a dimension would cure it but can't stay outside of a product's sum, so the cures set the few apart, "
        f"hand them to the weights, or turn the space until they are spread over all of it: {cures.columns[1]} comes "
        f"out {errors[names[0]]:.2g} off with one scale, and {errors[best]:.2g} with the best that stays in integers, "
        f"{best}. The course's figures are of Qwen2.5-0.5B and its prompt: large dimensions come from training and "
        "differ between models, and norms take most of them away before a matrix is met, which the other columns show."
    )


def _watched(setting: Setting, ids: np.ndarray):
    llm = setting.llm
    for layer in layer_inputs(llm.config, llm.model.tensors, ids):
        setting.say(f"layer {layer.index + 1} of {len(llm.config.layers)}")
        yield layer


def _by_layer(largest: np.ndarray) -> Table:
    rows = [
        (index, float(sizes.max()), int(sizes.argmax()), float(np.median(sizes)), float(sizes.max() / np.median(sizes)))
        for index, sizes in enumerate(largest)
    ]
    columns = ("after layers", "largest", "in dimension", "median of dimensions", "times")
    return Table("largest magnitude of each dimension of the residual stream", columns, rows)


def _levels(x: np.ndarray, sizes: np.ndarray, tokens: int) -> Table:
    """What 8 bits with one scale make of the stream where it is worst, with and without the largest dimensions."""
    rest = np.delete(x, np.argsort(-sizes)[:TAKEN_OUT], axis=1)
    rows = [
        ("largest magnitude", float(sizes.max()), float(np.abs(rest).max()), 1579.6),
        ("median of the dimensions' largest", float(np.median(sizes)), float(np.median(np.abs(rest).max(axis=0))),
         "below 1.6"),
        ("scale of int8", float(sizes.max() / 127), float(np.abs(rest).max() / 127), 12.44),
        ("levels used, of 256", levels_used(x), levels_used(rest), 14),
        ("numbers that become zero", zeros(x), zeros(rest), None),
        ("relative error", relative_error(x, absmax(x, 8)[0]), relative_error(rest, absmax(rest, 8)[0]), None),
    ]  # fmt: skip
    title = f"the stream of {tokens} tokens where it is largest, in 8 bits with one scale"
    return Table(title, ("", "all dimensions", f"without the top {TAKEN_OUT}", "course"), rows)


def levels_used(x: np.ndarray) -> int:
    """How many of int8's levels the numbers fall on with one scale."""
    return len(np.unique(absmax(x, 8)[0]))


def zeros(x: np.ndarray) -> float:
    """The share of numbers that one scale rounds to zero."""
    return float(np.mean(absmax(x, 8)[0] == 0))


# ---- cures: inputs float32 [n, in] and a matrix float32 [out, in] -> their product [n, out], both in 8 bits

Product = Callable[[np.ndarray, np.ndarray], np.ndarray]


def rounded_product(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """A scale for each token and for each row of the matrix, as a product of integers allows."""
    return absmax(x, 8, per_row=True)[0] @ absmax(weight, 8, per_row=True)[0].T


def one_scale(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """One scale for all inputs."""
    return absmax(x, 8)[0] @ absmax(weight, 8, per_row=True)[0].T


def scale_a_dimension(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """A scale for each dimension, which no product of integers can take out of its sum: for comparison."""
    return absmax(x.T, 8, per_row=True)[0].T @ absmax(weight, 8, per_row=True)[0].T


def groups(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """A scale for each 32 dimensions of a token, which is what this engine's kernels do."""
    return absmax_groups(x, 8, 32)[0] @ absmax_groups(weight, 8, 32)[0].T


def decomposed(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """LLM.int8: dimensions with a number beyond FAR are multiplied as floats, the others as integers."""
    far = np.abs(x).max(axis=0) >= FAR
    return x[:, far] @ weight[:, far].T + rounded_product(x[:, ~far], weight[:, ~far])


def smoothed(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """SmoothQuant: divide each dimension by what its column of the matrix is multiplied with; the product is the same.

    The factor is max|x|^alpha / max|w|^(1 - alpha). Here it is taken from the inputs themselves rather than from a
    calibration text.
    """
    factor = smoothing(np.abs(x).max(axis=0), np.abs(weight).max(axis=0))
    return rounded_product(x / factor, weight * factor)


def smoothing(inputs: np.ndarray, weights: np.ndarray, alpha: float = ALPHA) -> np.ndarray:
    """SmoothQuant's factor for each dimension, from the largest of its inputs and of its column; 1 where one is 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        factor = inputs**alpha / weights ** (1 - alpha)
    return np.where(np.isfinite(factor) & (factor > 0), factor, 1).astype(np.float32)


def rotated(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Turn both by the same rotation: the product is the same, and what was in one dimension is spread over all."""
    return rounded_product(rotate(x), rotate(weight))


def rotate(vectors: np.ndarray) -> np.ndarray:
    """Vectors float32 [n, size] by a Hadamard matrix, as far as size has factors of 2, and by any rotation beyond."""
    size = vectors.shape[1]
    even = size & -size  # the largest power of 2 that divides it
    odd = size // even
    other = np.linalg.qr(np.random.default_rng(0).standard_normal((odd, odd)))[0].astype(np.float32)
    parts = vectors.reshape(len(vectors), even, odd)
    return (hadamard(even) @ (parts @ other)).reshape(vectors.shape)


def hadamard(size: int) -> np.ndarray:
    """Sylvester's matrix of a power of 2, float32 [size, size]: plus and minus 1, over sqrt(size), orthogonal."""
    matrix = np.ones((1, 1), np.float32)
    while len(matrix) < size:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return matrix / np.float32(math.sqrt(size))


CURES: dict[str, Product] = {
    "one scale": one_scale,
    "a scale a token": rounded_product,
    "a scale a dimension": scale_a_dimension,
    "a scale for 32 of a token": groups,
    f"beyond {FAR:g} in floats (LLM.int8)": decomposed,
    "SmoothQuant": smoothed,
    "Hadamard rotation": rotated,
}


def _cures(x: np.ndarray, layer: LayerInputs) -> list[Table]:
    """The error of each cure on the stream itself, and on what the matrices of that layer really meet."""
    cases = {
        f"{name}, layer {layer.index}": met[0]
        for name, met in layer.matrices.items() if name in ("query", "gate", "up", "down")
    }  # fmt: skip
    first = next((weight for weight, inputs in cases.values() if weight.shape[1] == x.shape[1]), None)
    if first is not None:
        cases = {"the stream itself": (first, x)} | cases
    rows = []
    for cure, product in CURES.items():
        errors = [relative_error(inputs @ weight.T, product(inputs, weight)) for weight, inputs in cases.values()]
        rows.append((cure, *errors))
    far = [int((np.abs(inputs).max(axis=0) >= FAR).sum()) for _, inputs in cases.values()]
    title = "relative error of products in 8 bits, weights and inputs, by cure"
    return [
        Table(title, ("cure", *cases), rows),
        Table(f"dimensions beyond {FAR:g}, which LLM.int8 keeps in floats", ("", *cases), [("dimensions", *far)]),
    ]


def _drawing(largest: np.ndarray) -> Drawing:
    lines = {
        "largest dimension": [(i, float(row.max())) for i, row in enumerate(largest)],
        "tenth": [(i, float(np.sort(row)[-min(10, len(row))])) for i, row in enumerate(largest)],
        "median dimension": [(i, float(np.median(row))) for i, row in enumerate(largest)],
    }
    title = "A few dimensions of the residual stream outgrow all others"
    return Drawing(title, "layers behind", "largest magnitude of a dimension", lines, log_y=True)


def _histogram(sizes: np.ndarray, layer: int) -> Drawing:
    """How many dimensions have their largest magnitude between powers of 2."""
    powers = np.floor(np.log2(np.maximum(sizes, 2.0**-6))).astype(int)
    bars = [(f"{2.0**power:g}", int((powers == power).sum())) for power in range(powers.min(), powers.max() + 1)]
    title = f"Most dimensions are small, after {layer} layers"
    return Drawing(title, "largest magnitude of a dimension, from this to its double", "dimensions",
                   {"dimensions": bars}, log_y=True, bars=True)  # fmt: skip
