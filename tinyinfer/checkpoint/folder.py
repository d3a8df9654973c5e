"""A Hugging Face folder -> a `Checkpoint`: which files count, and how they fit together."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import BadCheckpoint, ModelNotFound, UnsupportedModel
from ..files import POINTER_BYTES, refuse_pointer
from .foreign import OURS, foreign_tensors, quantization_method
from .quantized import packed_tensors
from .safetensors import open_safetensors, read_metadata
from .source import TOOL_TEMPLATE, Checkpoint, Tensor

INDEX = "model.safetensors.index.json"
_SHARD = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.safetensors")


def read_folder(folder: Path) -> Checkpoint:
    """Open a folder with config.json and safetensors; weights are memory-mapped, quantized ones too.

    Raises `ModelNotFound` where config.json is absent, `BadCheckpoint` for damaged or missing files.
    """
    from ..text.vocabulary import tokenizer_json_from_folder

    if not (folder / "config.json").is_file():
        raise ModelNotFound(f"{folder}: not a model: there is no config.json in it")
    tokenizer_config = read_json(folder / "tokenizer_config.json", missing={})
    config, tensors = _config_and_tensors(folder)
    chat_template, tool_template = _chat_templates(folder, tokenizer_config)
    return Checkpoint(
        source=folder,
        config=config,
        tensors=tensors,
        generation_config=read_json(folder / "generation_config.json", missing={}),
        tokenizer_json=tokenizer_json_from_folder(folder),
        tokenizer_config=tokenizer_config,
        chat_template=chat_template,
        tool_template=tool_template,
    )


def read_json(path: Path, missing: dict[str, Any] | None = None) -> dict[str, Any]:
    """A JSON object; `missing` where there is no such file. Raises `BadCheckpoint`, saying what is there instead."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        if missing is None:
            raise BadCheckpoint(f"{path}: no such file") from None
        return missing
    except (OSError, UnicodeDecodeError) as error:
        raise BadCheckpoint(f"{path}: can't be read: {error}") from None
    refuse_pointer(path, text[:POINTER_BYTES].encode())
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadCheckpoint(f"{path}: not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise BadCheckpoint(f"{path}: expected a JSON object, found {type(value).__name__}")
    return value


def _config_and_tensors(folder: Path) -> tuple[dict[str, Any], Mapping[str, Tensor]]:
    config = read_json(folder / "config.json")
    try:
        method = quantization_method(config)
    except UnsupportedModel as error:
        raise UnsupportedModel(f"{folder}: {error}") from None
    arrays = _open_weights(folder)
    if method is None and any(name.endswith(".qweight") for name in arrays):
        config |= _quantization_beside(folder)
        method = quantization_method(config)
    if method in (None, OURS):
        return config, packed_tensors(folder, config, arrays)
    return config, foreign_tensors(folder, config, arrays, _metadata(folder))


def _quantization_beside(folder: Path) -> dict[str, Any]:
    """What the first programs for GPTQ and AWQ wrote into a file of its own."""
    for file, method in (("quantize_config.json", "gptq"), ("quant_config.json", "awq")):
        if (folder / file).is_file():
            return {"quantization_config": {"quant_method": method} | read_json(folder / file)}
    return {}


def _metadata(folder: Path) -> dict[str, str]:
    """The metadata of all files that hold weights."""
    index = (folder / INDEX).is_file()
    files = sorted(set(read_json(folder / INDEX)["weight_map"].values())) if index else _weight_files(folder)
    return {key: value for file in files for key, value in read_metadata(folder / file).items()}


def _open_weights(folder: Path) -> dict[str, np.ndarray]:
    if (folder / INDEX).is_file():
        return _open_indexed(folder)
    tensors: dict[str, np.ndarray] = {}
    for name in _weight_files(folder):
        for tensor, array in open_safetensors(folder / name).items():
            if tensor in tensors:
                raise BadCheckpoint(f"{folder / name}: tensor {tensor!r} stands in another file too")
            tensors[tensor] = array
    return tensors


def _open_indexed(folder: Path) -> dict[str, np.ndarray]:
    """Where there is an index, it alone says which file holds which tensor."""
    weight_map = read_json(folder / INDEX).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise BadCheckpoint(f"{folder / INDEX}: expected weight_map, a JSON object of tensor and file names")
    shards: dict[str, dict[str, np.ndarray]] = {}
    for file in weight_map.values():
        if not _is_plain_name(file):
            expected = "the name of a safetensors file in this folder"
            raise BadCheckpoint(f"{folder / INDEX}: expected {expected}, found {str(file)[:80]!r}")
        if file not in shards:
            if not os.path.isfile(folder / file):
                raise BadCheckpoint(f"{folder / file}: missing, but {INDEX} lists tensors in it")
            shards[file] = open_safetensors(folder / file)
    for tensor, file in weight_map.items():
        if tensor not in shards[file]:
            raise BadCheckpoint(f"{folder / file}: tensor {tensor!r} is missing, but {INDEX} says it is there")
    return {tensor: shards[file][tensor] for tensor, file in weight_map.items()}


def _is_plain_name(file: Any) -> bool:
    """Whether an index's entry is a file's name and nothing more: no path out of the folder, nothing unprintable."""
    if not isinstance(file, str) or not file.isprintable():
        return False
    return file.endswith(".safetensors") and not set("/\\") & set(file)


def _weight_files(folder: Path) -> list[str]:
    """The files that together hold the weights, in a folder without an index."""
    found = sorted(path.name for path in folder.glob("*.safetensors") if not path.name.startswith("."))
    if "model.safetensors" in found:
        return ["model.safetensors"]
    shards = {name: match for name in found if (match := _SHARD.fullmatch(name))}
    if shards:
        stem, _, total = next(iter(shards.values())).groups()
        wanted = [f"{stem}-{number:05}-of-{total}.safetensors" for number in range(1, int(total) + 1)]
        if list(shards) != wanted:
            expected = f"shards 1 to {int(total)} of one model and no others"
            raise BadCheckpoint(f"{folder}: expected {expected}, found {', '.join(shards)}")
        return list(shards)
    if len(found) == 1:
        return found
    if found:
        raise BadCheckpoint(f"{folder}: no {INDEX} to say which of these files count: {', '.join(found)}")
    pickles = sorted(path.name for path in folder.glob("*.bin")) + sorted(path.name for path in folder.glob("*.pt*"))
    hint = f" ({pickles[0]} is a pickle, which can run code and is not read)" if pickles else ""
    raise BadCheckpoint(f"{folder}: no safetensors file in it{hint}")


def _chat_templates(folder: Path, tokenizer_config: dict[str, Any]) -> tuple[str | None, str | None]:
    """The template for chats, and one for chats with tools where there is another.

    chat_template.jinja, with more in a folder beside it, wins over chat_template.json, and that over
    tokenizer_config.json. These two may hold one template or several by name.
    """
    path = folder / "chat_template.jinja"
    if path.is_file():
        tools = folder / TOOL_TEMPLATE
        return _template_text(path), _template_text(tools) if tools.is_file() else None
    template = read_json(folder / "chat_template.json", missing=tokenizer_config).get("chat_template")
    named: dict[str, Any] = {"default": template}
    if isinstance(template, list):
        items = [item for item in template if isinstance(item, dict) and isinstance(item.get("name"), str)]
        named = {item["name"]: item.get("template") for item in reversed(items)}  # the first of a name counts
    templates = named.get("default"), named.get("tool_use")
    for found in templates:
        if found is not None and not isinstance(found, str):
            raise BadCheckpoint(f"{folder}: chat_template should be a string, found {type(found).__name__}")
    return templates


def _template_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadCheckpoint(f"{path}: can't be read: {error}") from None
