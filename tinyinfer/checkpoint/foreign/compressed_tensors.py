"""compressed-tensors, as llm-compressor writes it: one container for whole numbers and small floats of several layouts.

config.json has groups of layers, each with a format and a scheme ("weights": num_bits, type, strategy, group_size).

    pack-quantized          weight_packed      int32 [N, ceil(K * bits / 32)]   streams along rows: q + 2^(bits - 1)
                            weight_shape       int64 [2]                        N and K
                            weight_scale       float [N, groups]
                            weight_zero_point  int32 [ceil(N * bits / 32), groups]   streams down columns, also moved
                                               by 2^(bits - 1); or int8 [N, groups] as it is; absent: 0
                            weight_g_idx       int32 [K]                        the group of each input, or in order
    int-quantized           weight             int8 [N, K], and weight_scale, weight_zero_point (int8) likewise
    float-quantized         weight             E4M3 [N, K]
                            weight_scale       float: one, [N, 1], or one for each block of rows and columns
    nvfp4-pack-quantized    weight_packed      uint8 [N, K / 2]                 E2M1, the low nibble first
                            weight_scale       E4M3 [N, K / 16]
                            weight_global_scale   float32 [1]
    mxfp4-pack-quantized    weight_packed      as for nvfp4
                            weight_scale       uint8 [N, K / 32]                E8M0

    whole numbers    w = (q - zero_point) * weight_scale
    FP8, MXFP4       w = value * weight_scale
    NVFP4            w = value * (weight_scale / weight_global_scale)

What input_scale, output_scale and their like say is of activations. A group of layers is named by their class
("Linear"), by name, or by an expression after "re:". https://github.com/vllm-project/compressed-tensors
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ...errors import BadCheckpoint
from ..safetensors import to_float32
from .codes import E2M1_DOUBLED, E4M3_VALUES, E8M0_VALUES, nibbles, stream, words_for
from .fp8 import e4m3_blocks
from .gptq import group_words
from .grid import Grid
from .parts import BYTES, E4M3, E8M0, FLOATS, SIGNED_BYTES, WHOLE, WORDS, Parts, Settings, matches

OF_ACTIVATIONS = ("input_scale", "input_zero_point", "input_global_scale", "output_scale", "output_zero_point")
ENDINGS = (".weight_packed", ".weight_scale")
CLASSES = ("Linear", "Embedding")
STRANGE = 3  # the rank of a target that is none of a layer's
STRATEGIES = ("tensor", "channel", "group")
HALF = np.float32(0.5)  # E2M1 codes are taken as twice what they stand for


def read(settings: Settings, parts: Parts) -> list[Grid]:
    """Every matrix of the folder that has scales."""
    settings.refuse_unless_empty("transform_config", "weights that were turned can't be read yet")
    sparsity = settings.part("sparsity_config")
    sparsity.text("format", ("dense",), "dense")
    settings.text("quantization_status", ("compressed", "frozen"), "compressed")
    parts.drop([name for name in parts.left if name.rpartition(".")[2] in OF_ACTIVATIONS])
    stated = settings.part("config_groups")
    groups = [Settings(group, stated.where) for group in stated.values.values()]
    found = []
    for stem in parts.stems(*ENDINGS):
        group = _group_of(groups, stem, settings.where)
        scheme = group.part("weights")
        layout = group.text("format", tuple(_LAYOUTS), settings.get("format"))
        found.append(_LAYOUTS[layout](scheme, parts, stem))
    return found


def _group_of(groups: list[Settings], stem: str, where: str) -> Settings:
    """The group that a layer is in: named before fitting an expression before being of a class."""
    if len(groups) == 1:
        return groups[0]
    named = [(target, place) for place, group in enumerate(groups) for target in _targets(group)]
    rank, place = min(((_rank(target, stem, where), place) for target, place in named), default=(STRANGE, 0))
    if rank == STRANGE:
        raise BadCheckpoint(f"{where}: config_groups: none has {stem} among its targets")
    return groups[place]


def _targets(group: Settings) -> list[str]:
    targets = group.get("targets")
    if not isinstance(targets, list) or not all(isinstance(target, str) for target in targets):
        raise BadCheckpoint(f"{group.where}: targets should be a list of names, found {str(targets)[:80]}")
    return targets


def _rank(target: str, stem: str, where: str) -> int:
    if target == stem:
        return 0
    if target.startswith("re:"):
        return 1 if matches(target[3:], stem, f"{where}: targets") else STRANGE
    return 2 if target in CLASSES else STRANGE


def _group_size(scheme: Settings) -> int | None:
    """Columns that share a scale, by the scheme's strategy; None where the whole row does."""
    usual = "group" if scheme.get("group_size") else "tensor"
    return scheme.size("group_size") if scheme.text("strategy", STRATEGIES, usual) == "group" else None


def _scales(scheme: Settings, parts: Parts, stem: str, shape: tuple[int, int], size: int) -> np.ndarray:
    """The scales of whole numbers as they are stored: [N, groups], or [1, 1] for all."""
    rows, groups = shape[0], -(-shape[1] // size)
    one = [(1,), (), (1, 1)] if scheme.get("strategy") == "tensor" else []
    scale = parts.take_any(f"{stem}.weight_scale", FLOATS, *one, *([] if one else [(rows, groups)]))
    return scale.reshape(1, 1) if one else scale


def _packed(scheme: Settings, parts: Parts, stem: str) -> Grid:
    bits = scheme.choice("num_bits", (2, 4, 8))
    name = f"{stem}.weight_shape"
    rows, columns = parts.take(name, WHOLE, (2,)).tolist()
    if not (0 < rows < 2**31 and 0 < columns < 2**31):
        parts.refuse(name, f"expected two numbers from 1, found {[rows, columns]}")
    packed = parts.take(f"{stem}.weight_packed", WORDS, (rows, words_for(columns, bits)))
    name, zeros = f"{stem}.weight_zero_point", None
    if name in parts.left and parts.left[name].dtype in WORDS:
        groups = -(-columns // (_group_size(scheme) or columns))
        zeros = _signed(stream(parts.take(name, WORDS, (words_for(rows, bits), groups)).T, bits, rows), bits).T

    def codes(ids: np.ndarray) -> np.ndarray:
        return _signed(stream(packed[ids], bits, columns), bits)

    return _whole_numbers(scheme, parts, stem, (rows, columns), bits, packed.nbytes, codes, zeros)


def _signed(codes: np.ndarray, bits: int) -> np.ndarray:
    """What codes mean that stand 2^(bits - 1) above it: uint8 -> int8."""
    return (codes - np.uint8(2 ** (bits - 1))).view(np.int8)


def _bytes(scheme: Settings, parts: Parts, stem: str) -> Grid:
    bits = scheme.choice("num_bits", tuple(range(2, 9)))
    weight = parts.take(f"{stem}.weight", SIGNED_BYTES, (None, None))
    return _whole_numbers(scheme, parts, stem, weight.shape, bits, weight.nbytes, lambda ids: weight[ids])


def _whole_numbers(
    scheme: Settings, parts: Parts, stem: str, shape: tuple[int, int], bits: int, stored: int,
    codes: Callable[[np.ndarray], np.ndarray], zeros: np.ndarray | None = None,
) -> Grid:  # fmt: skip
    """A matrix of codes int8; `zeros` int8 [N, groups] are those that were packed."""
    scheme.text("type", ("int",), "int")
    said = _group_size(scheme)
    size = said or shape[1]
    scale = _scales(scheme, parts, stem, shape, size)
    if zeros is None and f"{stem}.weight_zero_point" in parts.left:
        any_shape = [scale.shape, *([(1,), ()] if scale.shape == (1, 1) else [])]
        zeros = parts.take_any(f"{stem}.weight_zero_point", SIGNED_BYTES, *any_shape).reshape(scale.shape)
    order = _order(parts, f"{stem}.weight_g_idx", shape[1], scale.shape[1], size)

    def of_rows(numbers: np.ndarray, ids: np.ndarray) -> np.ndarray:
        return numbers[ids if len(numbers) == shape[0] else np.zeros_like(ids)]

    return Grid(
        name=f"{stem}.weight",
        kind=f"compressed-tensors {bits}-bit{group_words(said)}{', act-order' if order is not None else ''}",
        shape=shape,
        stored=stored + scale.nbytes + (0 if zeros is None else zeros.size * bits // 8),
        codes=codes,
        scales=lambda ids: to_float32(of_rows(scale, ids)),
        zeros=None if zeros is None else lambda ids: of_rows(zeros, ids).astype(np.float32),
        group=size,
        levels=(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1),
        order=order,
    )


def _order(parts: Parts, name: str, columns: int, groups: int, size: int) -> np.ndarray | None:
    """The group of each column, None where they are in order; a -1 in it says that it was never filled in."""
    if name not in parts.left:
        return None
    g_idx = parts.take(name, WHOLE, (columns,))
    if (g_idx == -1).any() or np.array_equal(g_idx, np.arange(columns) // size):
        return None
    if g_idx.min() < 0 or g_idx.max() >= groups:
        parts.refuse(name, f"expected groups from 0 to {groups - 1}, found {g_idx.min()} to {g_idx.max()}")
    return g_idx.astype(np.int64)


def _float8(scheme: Settings, parts: Parts, stem: str) -> Grid:
    scheme.choice("num_bits", (8,))
    scheme.text("type", ("float",))
    weight = parts.take(f"{stem}.weight", E4M3, (None, None))
    strategy = scheme.text("strategy", ("tensor", "channel", "group", "block"), "tensor")
    blocks = {"tensor": weight.shape, "channel": (1, weight.shape[1])}
    if strategy == "group":
        blocks["group"] = 1, scheme.size("group_size")
    if strategy == "block":
        blocks["block"] = scheme.sizes("block_structure", 2)
    name = f"{stem}.weight_scale"
    words = {"tensor": "one scale", "channel": "a scale a row"}.get(strategy, f"blocks of {list(blocks[strategy])}")
    kind = f"compressed-tensors FP8, {words}"
    return e4m3_blocks(f"{stem}.weight", kind, weight, parts, name, blocks[strategy])


def _nvfp4(scheme: Settings, parts: Parts, stem: str) -> Grid:
    over = to_float32(parts.take_any(f"{stem}.weight_global_scale", FLOATS, (1,), (), (1, 1))).reshape(())
    if not over > 0:
        parts.refuse(f"{stem}.weight_global_scale", f"expected a number above 0, found {over}")

    def meaning(scale: np.ndarray) -> np.ndarray:
        with np.errstate(over="ignore"):
            return E4M3_VALUES[scale.view(np.uint8)] / over * HALF

    return _float4(scheme, parts, stem, "NVFP4", 16, E4M3, meaning)


def _mxfp4(scheme: Settings, parts: Parts, stem: str) -> Grid:
    return _float4(scheme, parts, stem, "MXFP4", 32, E8M0, lambda scale: E8M0_VALUES[scale.view(np.uint8)] * HALF)


def _float4(scheme: Settings, parts: Parts, stem: str, kind: str, size: int, dtypes, meaning) -> Grid:
    scheme.choice("num_bits", (4,))
    scheme.text("type", ("float",))
    scheme.choice("group_size", (size,), size)
    name = f"{stem}.weight_packed"
    packed = parts.take(name, BYTES, (None, None))
    rows, columns = len(packed), 2 * packed.shape[1]
    scale = parts.take(f"{stem}.weight_scale", dtypes, (rows, parts.size(name, columns, size, "columns")))
    return Grid(
        name=f"{stem}.weight",
        kind=f"compressed-tensors {kind}, groups of {size}",
        shape=(rows, columns),
        stored=packed.nbytes + scale.nbytes,
        codes=lambda ids: E2M1_DOUBLED[nibbles(packed[ids])],
        scales=lambda ids: meaning(scale[ids]),
        group=size,
        levels=(-12, 12),
    )


def _naive(scheme: Settings, parts: Parts, stem: str) -> Grid:
    return (_float8 if scheme.text("type", ("int", "float")) == "float" else _bytes)(scheme, parts, stem)


_LAYOUTS: dict[str, Callable[[Settings, Parts, str], Grid]] = {
    "pack-quantized": _packed,
    "int-quantized": _bytes,
    "float-quantized": _float8,
    "naive-quantized": _naive,
    "nvfp4-pack-quantized": _nvfp4,
    "mxfp4-pack-quantized": _mxfp4,
}
