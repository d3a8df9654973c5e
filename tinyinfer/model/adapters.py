"""Adapters and the model that they were made for: which weights they are about, as the model runs them or as files.

`checkpoint/adapters.py` reads an adapter's files. Here its modules become the plain names that the model knows; what
the base has in one tensor and the model in parts is taken apart alike.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..checkpoint.adapters import LowRank, PeftAdapter, read_adapter
from ..checkpoint.safetensors import to_float32
from ..config import ModelConfig
from ..errors import BadCheckpoint, UnsupportedModel
from ..kernels.adapted import Adapted
from .names import NAMES
from .tensors import FUSED, Tensor, Tensors, half_apart, layer_shapes, row_places

# Linear maps that the layers run one by one. Experts are run together, latent keys and values as a part of queries.
ADAPTABLE = (
    "query", "key", "value", "output", "query_down", "query_up", "latent", "rotary_key",
    "gate", "up", "down", "router", "shared_gate", "shared_up", "shared_down",
)  # fmt: skip
_NUMBER = re.compile("0|[1-9][0-9]*")
APART = 16  # numbers between rows: at a power of two from each other they would fall on the same lines of the cache


@dataclass(frozen=True, eq=False)
class Adapter:
    """An adapter that fits a model: for each layer, what is added to its weights, by their plain names."""

    source: Path
    layers: tuple[Mapping[str, LowRank], ...]
    tensors: Mapping[str, LowRank]  # the same by "LAYER.NAME", as the base's files have it below a layer's name


@dataclass(frozen=True)
class _Place:
    """A tensor of the base that adapters can change: its layer, its name below that, and the parts that it holds."""

    layer: int
    name: str  # "self_attn.qkv_proj.weight"
    parts: Mapping[str, tuple[int, ...]]  # their plain names, and shapes
    sign: str  # how the parts are fused, see `names.py`


def open_adapter(folder: Path, config: ModelConfig) -> Adapter:
    """Read an adapter, and find what it is about.

    Raises as `checkpoint.adapters.read_adapter`, `BadCheckpoint` naming what does not fit the model, and
    `UnsupportedModel` for maps that can't be adapted here.
    """
    found = read_adapter(folder)
    if found.architecture not in (None, config.architecture):
        raise BadCheckpoint(f"{folder}: made for {found.architecture}, but the model is {config.architecture}")
    places, stems = dict(_places(config)), _Stems(found, config)
    layers: list[dict[str, LowRank]] = [{} for _ in config.layers]
    tensors = {}
    for module, pair in found.modules.items():
        layer, name = stems.split(module)
        if (layer, name) not in places:
            raise stems.refusal(module, layer, name)
        place = places[layer, name]
        if f"{layer}.{place.name}" in tensors:
            raise BadCheckpoint(f"{folder}: {module!r} is there twice, by another name too")
        tensors[f"{layer}.{place.name}"] = pair
        _check_shapes(folder, module, pair, place)
        layers[layer] |= _parts(config, pair, place)
    for (layer, name), place in places.items():
        if "router" not in place.parts:  # no linear map to transformers 5, whatever its name
            stems.check_present(layer, name)
    return Adapter(folder, tuple(layers), tensors)


def _places(config: ModelConfig) -> Iterator[tuple[tuple[int, str], _Place]]:
    """Every tensor that adapters can change, by the number of its layer and the module's name below that."""
    for index, layer in enumerate(config.layers):
        shapes = layer_shapes(config, layer)
        for plain, name in NAMES[config.architecture].layer.items():
            parts = {part: shapes[part] for part in FUSED.split(plain) if part in shapes}
            if parts and set(parts) <= set(ADAPTABLE):
                sign = (FUSED.findall(plain) or ["+"])[0]
                yield (index, _module(name)), _Place(index, name, parts, sign)


def _module(name: str) -> str:
    return name.removesuffix(".T").removesuffix(".weight")


class _Stems:
    """How an adapter's names of modules are made of a prefix, a layer's number, and a name below that."""

    def __init__(self, found: PeftAdapter, config: ModelConfig):
        self.found, self.config = found, config
        self.names = NAMES[config.architecture]
        self.prefix = self.names.prefixes[0]  # that of the module split last

    def split(self, module: str) -> tuple[int, str]:
        """The layer's number and the name below it. Raises for modules that are in no layer of the model."""
        for prefix in dict.fromkeys((*self.names.prefixes, "")):
            number, dot, name = module.removeprefix(prefix + self.names.layers).partition(".")
            if module.startswith(prefix + self.names.layers) and dot and _NUMBER.fullmatch(number):
                if len(number) > 9 or int(number) >= self.config.num_layers:
                    both = f"is of layer {number[:12]}, but the model has {self.config.num_layers} layers"
                    raise self._wrong(f"{module!r} {both}, counted from 0")
                self.prefix = prefix
                return int(number), name
        tables = [_module(name) for name in (*self.names.heads, *self.names.outer.values())]
        if any(module == table or module.endswith(f".{table}") for table in tables):
            raise UnsupportedModel(f"{self.found.source}: {module!r}: only maps inside of layers can be adapted")
        raise self._wrong(f"{module!r} is no module of {self.config.architecture}")

    def refusal(self, module: str, layer: int, name: str) -> BadCheckpoint | UnsupportedModel:
        """Why a module of a layer can't be adapted: the model has it and no way to do so, or does not have it."""
        known = [self.names.layer, *self.names.variants]
        if any(_matches(_module(other), name) for table in known for other in table.values()):
            words = f"can't be adapted in {self.config.architecture}"
            return UnsupportedModel(f"{self.found.source}: {module!r} {words}")
        expected = ", ".join(sorted({name for at, name in dict(_places(self.config)) if at == layer}))
        return self._wrong(f"{module!r} is no module of {self.config.architecture}; its layers have {expected}")

    def check_present(self, layer: int, name: str) -> None:
        """Raise where the adapter should have a module by what its config targets, and does not."""
        module = f"{self.prefix}{self.names.layers}{layer}.{name}"
        if module in self.found.targets and module not in self.found.modules:
            raise self._wrong(f"there are no matrices for {module!r}, which adapter_config.json targets")

    def _wrong(self, fault: str) -> BadCheckpoint:
        return BadCheckpoint(f"{self.found.source}: {fault}")


def _matches(known: str, name: str) -> bool:
    """Whether a name is one of the table's, where "{}" stands for a number."""
    before, _, after = known.partition("{}")
    middle = name[len(before) : len(name) - len(after)]
    return name == known or ("{}" in known and name == f"{before}{middle}{after}" and middle.isdigit())


def _check_shapes(folder: Path, module: str, pair: LowRank, place: _Place) -> None:
    rows, columns = sum(shape[0] for shape in place.parts.values()), next(iter(place.parts.values()))[1]
    rank = len(pair.down)
    if (pair.down.shape, pair.up.shape) != ((rank, columns), (rows, rank)):
        expected = f"A {[rank, columns]} and B {[rows, rank]}"
        found = f"{list(pair.down.shape)} and {list(pair.up.shape)}"
        raise BadCheckpoint(f"{folder}: {module!r}: the model's weight asks for {expected}, found {found}")


def _parts(config: ModelConfig, pair: LowRank, place: _Place) -> Mapping[str, LowRank]:
    """What is added to each part of a tensor; rows in the order in which the model has them."""
    rows = [shape[0] for shape in place.parts.values()]
    ups: Mapping[str, Tensors] = {
        part: pair.up[at]
        for part, at in zip(place.parts, row_places(rows, place.sign, config.num_kv_heads), strict=True)
    }
    layer = config.layers[place.layer]
    if config.rope_interleaved and layer.rope:
        ups = half_apart(config, layer, ups)
    return {part: LowRank(pair.down, up, pair.scale) for part, up in ups.items()}


def adapted_layers(
    layers: Sequence[Mapping[str, Tensors]], adapters: Sequence[Adapter]
) -> list[Mapping[str, Tensors | Adapted]]:
    """The weights of a model's layers with what any of the adapters adds to them, numbered in their order."""
    result = []
    for index, weights in enumerate(layers):
        added = [adapter.layers[index] for adapter in adapters]
        names = dict.fromkeys(name for one in added for name in one)
        result.append(weights | {name: _adapted(weights[name], [one.get(name) for one in added]) for name in names})
    return result


def _adapted(weight: Tensor, pairs: Sequence[LowRank | None]) -> Adapted:
    there = [pair for pair in pairs if pair is not None]
    down = np.concatenate([to_float32(pair.down) for pair in there])
    up = np.empty((len(down), len(weight) + APART), np.float32)[:, : len(weight)]
    np.concatenate([to_float32(pair.up).T * np.float32(pair.scale) for pair in there], out=up)
    ranks = [0 if pair is None else len(pair.down) for pair in pairs]
    return Adapted(weight, down, up, np.cumsum([0, *ranks], dtype=np.int64))
