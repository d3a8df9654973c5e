"""Reading LoRA adapters as PEFT saves them: adapter_config.json and adapter_model.safetensors in a folder.

An adapter adds to some linear maps of a model a product of two narrow matrices (https://arxiv.org/abs/2106.09685):

    y = W x + scale * B (A x)    A [r, in], B [out, r], scale = lora_alpha / r, or lora_alpha / sqrt(r) with use_rslora

The file holds base_model.model.MODULE.lora_A.weight and ...lora_B.weight for each module, as transformers names it
(https://huggingface.co/docs/peft/developer_guides/checkpoint). What the config says must be what the file holds; what
would change the result in any other way is refused by name. A map that the base stores transposed (fan_in_fan_out) has
A and B of the same shapes as any other.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import BadCheckpoint, ModelNotFound, UnsupportedModel
from .folder import read_json
from .patterns import Unreadable, ends, matches_all
from .safetensors import FLOAT_DTYPES, dtype_name, open_safetensors

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_TENSOR = re.compile(r"base_model\.model\.(.+)\.lora_(A|B)\.weight")
_OF_TABLES = re.compile(r"\.lora_embedding_[AB]$|\.base_layer\.weight$")  # the latter is saved beside those only
_LAYER = re.compile(r".*?\.([0-9]{1,9})\.")  # the first number in a module's name is its layer's

# Settings that make of an adapter something other than W x + scale * B (A x); empty or false, they change nothing.
_REFUSED = {
    "use_dora": "DoRA",
    "use_qalora": "QALoRA",
    "use_bdlora": "BD-LoRA",
    "lora_bias": "biases of B",
    "modules_to_save": "modules that were trained as a whole",
    "trainable_token_indices": "tokens that were trained",
    "target_parameters": "adapters of parameters, such as those of experts,",
    "layer_replication": "repeated layers",
    "alora_invocation_tokens": "adapters that wait for a token (aLoRA)",
    "arrow_config": "routing between adapters (Arrow)",
    "kasa_config": "KaSA",
    "monteclora_config": "MonteCLoRA",
}
# Ways to begin training that leave the base as it was; others (PiSSA, OLoRA, LoftQ, ...) took something out of it.
_BEGUN = (None, True, False, "gaussian", "eva", "orthogonal", "mica")


@dataclass(frozen=True)
class LowRank:
    """What an adapter adds to one linear map: scale * up @ down."""

    down: np.ndarray  # A, [r, in], any float dtype
    up: np.ndarray  # B, [out, r]
    scale: float


@dataclass(frozen=True)
class PeftAdapter:
    """What an adapter's files say. `model/adapters.py` finds the model's tensors that it is about."""

    source: Path
    architecture: str | None  # the class of the base, where the config says it
    modules: Mapping[str, LowRank]  # by name of the module in transformers: "model.layers.0.self_attn.q_proj"
    targets: Targets


@dataclass(frozen=True)
class Targets:
    """Which modules the config says the adapter is about."""

    wanted: list[str] | str  # names, or ends of names; or an expression that the whole name must match
    excluded: list[str] | str
    layers: list[int]  # empty: all

    def __contains__(self, module: str) -> bool:
        """Whether a module is among them, by PEFT's rules. Raises `Unreadable` for an expression that can't be read."""
        if self.excluded and _is_among(self.excluded, module):
            return False
        if isinstance(self.wanted, str):
            return self.wanted == "all-linear" or matches_all(self.wanted, module)
        if module in self.wanted or not self.layers:
            return _is_among(self.wanted, module)
        layer = _LAYER.match(module)
        return _is_among(self.wanted, module) and layer is not None and int(layer[1]) in self.layers


def _is_among(names: list[str] | str, module: str) -> bool:
    if isinstance(names, str):
        return matches_all(names, module)
    return any(module == name or module.endswith(f".{name}") for name in names)


def read_adapter(folder: Path) -> PeftAdapter:
    """Open an adapter's folder; matrices are memory-mapped.

    Raises `ModelNotFound` where there is none, `BadCheckpoint` for what is damaged or does not fit together, naming the
    setting or the tensor, `UnsupportedModel` for adapters of other kinds.
    """
    if not (folder / CONFIG).is_file():
        fault = f"not an adapter: there is no {CONFIG} in it" if folder.is_dir() else "no such folder"
        raise ModelNotFound(f"{folder}: {fault}")
    settings = _Settings(folder / CONFIG)
    settings.refuse_what_is_not_lora()
    path = folder / WEIGHTS
    if not path.is_file():
        pickle = (folder / "adapter_model.bin").is_file()
        hint = " (adapter_model.bin is a pickle, which can run code and is not read)" if pickle else ""
        raise BadCheckpoint(f"{folder}: no {WEIGHTS} in it{hint}")
    targets, modules = settings.targets(), {}
    for module, (down, up) in _pairs(path).items():
        try:
            if module not in targets:
                raise BadCheckpoint(f"{path}: there are matrices for {module!r}, which {CONFIG} does not target")
            rank, scale = settings.rank_and_scale(module)
        except Unreadable as error:
            raise UnsupportedModel(f"{folder / CONFIG}: an expression that can't be read: {error}") from None
        if (down.shape[0], up.shape[1]) != (rank, rank):
            found = f"{list(down.shape)} and {list(up.shape)}"
            raise BadCheckpoint(f"{path}: {module!r} should have rank {rank} by {CONFIG}, found A and B of {found}")
        modules[module] = LowRank(down, up, scale)
    return PeftAdapter(folder, settings.architecture(), modules, targets)


def _pairs(path: Path) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """A and B of every module."""
    found: dict[str, dict[str, np.ndarray]] = {}
    for name, array in open_safetensors(path).items():
        match = _TENSOR.fullmatch(name)
        if _OF_TABLES.search(name):
            raise UnsupportedModel(f"{path}: tensor {name!r}: adapters of the embedding or the head can't be applied")
        if match is None:
            raise UnsupportedModel(f"{path}: tensor {name!r} is not a lora_A.weight or lora_B.weight of a linear map")
        if array.dtype not in FLOAT_DTYPES:
            raise UnsupportedModel(f"{path}: tensor {name!r}: expected floats, found {dtype_name(array.dtype)}")
        if array.ndim != 2:
            raise BadCheckpoint(f"{path}: tensor {name!r}: expected a matrix, found shape {list(array.shape)}")
        found.setdefault(match[1], {})[match[2]] = array
    if not found:
        raise BadCheckpoint(f"{path}: no tensors in it")
    for module, pair in found.items():
        if missing := {"A", "B"} - pair.keys():
            raise BadCheckpoint(f"{path}: {module!r} has no lora_{missing.pop()}.weight")
    return {module: (pair["A"], pair["B"]) for module, pair in found.items()}


class _Settings:
    """adapter_config.json, each setting checked when it is asked for."""

    def __init__(self, path: Path):
        self.path, self.values = path, read_json(path)

    def refuse_what_is_not_lora(self) -> None:
        values = self.values
        if values.get("peft_type") != "LORA":
            kind = str(values.get("peft_type"))[:40]
            raise UnsupportedModel(f"{self.path}: only adapters of peft_type 'LORA' can be applied, found {kind!r}")
        for name, words in _REFUSED.items():
            if values.get(name):
                raise UnsupportedModel(f"{self.path}: {words} can't be applied ({name} is {str(values[name])[:60]})")
        if values.get("bias", "none") != "none":
            found = str(values["bias"])[:40]
            raise UnsupportedModel(f"{self.path}: trained biases can't be applied (bias is {found!r}, not 'none')")
        if (found := values.get("init_lora_weights")) not in _BEGUN:
            words = "expected one that leaves the base model's weights as they are"
            raise UnsupportedModel(f"{self.path}: init_lora_weights: {words}, found {str(found)[:40]!r}")

    def architecture(self) -> str | None:
        mapping = self.values.get("auto_mapping")
        found = mapping.get("base_model_class") if isinstance(mapping, dict) else None
        return found if isinstance(found, str) else None

    def targets(self) -> Targets:
        wanted = self._names("target_modules")
        if not wanted:
            raise self._wrong("target_modules", "names of modules or an expression", self.values.get("target_modules"))
        return Targets(wanted, self._names("exclude_modules"), self._layers())

    def rank_and_scale(self, module: str) -> tuple[int, float]:
        """Those of one module, by the first pattern that fits its name. Raises `Unreadable`."""
        rank = self._by_pattern("rank_pattern", module, self.values.get("r"), "r")
        alpha = self._by_pattern("alpha_pattern", module, self.values.get("lora_alpha"), "lora_alpha")
        if type(rank) is not int or not 1 <= rank < 2**31:
            raise self._wrong("r or rank_pattern", "whole numbers from 1", rank)
        if type(alpha) not in (int, float) or not math.isfinite(alpha):
            raise self._wrong("lora_alpha or alpha_pattern", "numbers", alpha)
        rooted = self.values.get("use_rslora")
        return rank, float(alpha / (math.sqrt(rank) if rooted else rank))

    def _by_pattern(self, name: str, module: str, default: Any, usual: str) -> Any:
        patterns = self.values.get(name) or {}
        if not isinstance(patterns, dict):
            raise self._wrong(name, f"an object of names and values of {usual}", patterns)
        starts = {0} | {at + 1 for at, char in enumerate(module) if char == "."}
        found = (value for pattern, value in patterns.items() if len(module) in ends(pattern, module, starts))
        return next(found, default)

    def _names(self, name: str) -> list[str] | str:
        found = self.values.get(name) or []
        if isinstance(found, str) or (isinstance(found, list) and all(isinstance(one, str) for one in found)):
            return found
        raise self._wrong(name, "a list of names or an expression", found)

    def _layers(self) -> list[int]:
        found = self.values.get("layers_to_transform")
        layers = [found] if type(found) is int else found or []
        if isinstance(layers, list) and all(type(layer) is int and layer >= 0 for layer in layers):
            return layers
        raise self._wrong("layers_to_transform", "numbers of layers", found)

    def _wrong(self, name: str, expected: str, found: Any) -> BadCheckpoint:
        return BadCheckpoint(f"{self.path}: {name} should be {expected}, found {str(found)[:80]}")
