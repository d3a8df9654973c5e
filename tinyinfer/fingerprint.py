"""Which model, tokenizer, template and adapters keys and values came from: the key that a saved cache is kept under.

Weights are told apart by all of their bytes. Samples of them would be read in no time, but miss what people do: give a
few rows of the embedding another meaning, or edit one matrix. SHA-256 reads more than a gigabyte a second for each
thread, so that it takes a tenth of a second where a model has 150 MB, and less than running a page of text through it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from .checkpoint.source import Checkpoint, tensor_forms
from .config import ModelConfig
from .kernels.tape import use_compiled
from .model.adapters import Adapter
from .model.forward import Model
from .model.tensors import ModelTensors, Tensors
from .quant import PackedWeight


def fingerprints(checkpoint: Checkpoint, model: Model) -> dict[str, str]:
    """What keys and values depend on beside ids and adapters, each as a string."""
    eight_bits = use_compiled() and tensor_forms(checkpoint.tensors)
    return {
        "model": model_fingerprint(model.config, model.tensors),
        "tokenizer": tokenizer_fingerprint(checkpoint),
        "template": template_fingerprint(checkpoint),
        "kv_dtype": model.kv_dtype,
        "activations": "int8" if eight_bits else "f32",
    }


def model_fingerprint(config: ModelConfig, tensors: ModelTensors) -> str:
    """64 hexadecimal digits of all facts that the forward pass reads, and all weights as they are loaded."""
    return _digest([repr(config)], _weights(tensors))


def tokenizer_fingerprint(checkpoint: Checkpoint) -> str:
    """The same of the tokenizer's files, or "none"."""
    if checkpoint.tokenizer_json is None:
        return "none"
    settings = {key: value for key, value in checkpoint.tokenizer_config.items() if key != "chat_template"}
    return _digest([checkpoint.tokenizer_json, json.dumps(settings, sort_keys=True)], ())


def template_fingerprint(checkpoint: Checkpoint) -> str:
    """The same of the chat template, or "none"."""
    return "none" if checkpoint.chat_template is None else _digest([checkpoint.chat_template], ())


def adapters_fingerprint(adapters: Sequence[tuple[Adapter, float]]) -> str:
    """The same of adapters with their scales, or "none"."""
    if not adapters:
        return "none"
    scales = [repr(scale) for _, scale in adapters]
    pieces = [
        (f"{number}.{name}.{part}.{pair.scale!r}", array)
        for number, (adapter, _) in enumerate(adapters)
        for name, pair in sorted(adapter.tensors.items())
        for part, array in (("down", pair.down), ("up", pair.up))
    ]
    return _digest(scales, pieces)


def _weights(tensors: ModelTensors) -> Iterator[tuple[str, np.ndarray]]:
    yield from _arrays("embedding", tensors.embedding)
    if tensors.head is not tensors.embedding:
        yield from _arrays("head", tensors.head)
    stems: list[tuple[str, Mapping[str, Tensors]]] = [("", tensors.outer)]
    stems += [(f"layers.{number}.", layer) for number, layer in enumerate(tensors.layers)]
    for stem, named in stems:
        for name in sorted(named):
            yield from _arrays(stem + name, named[name])


def _arrays(name: str, tensor: Tensors) -> Iterator[tuple[str, np.ndarray]]:
    if isinstance(tensor, tuple):
        for number, part in enumerate(tensor):
            yield from _arrays(f"{name}.{number}", part)
    elif isinstance(tensor, PackedWeight):
        for part, array in tensor.arrays().items():
            yield f"{name}.{tensor.form.name}.{part}", array
    else:
        yield name, tensor


def _digest(texts: Sequence[str], arrays: Any) -> str:
    """Of texts and named arrays, in order; several arrays at a time, as hashing lets other threads run."""
    whole = hashlib.sha256()
    for text in texts:
        whole.update(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest())
    arrays = list(arrays)
    if arrays:
        with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
            for digest in pool.map(_digest_of, arrays):
                whole.update(digest)
    return whole.hexdigest()


def _digest_of(named: tuple[str, np.ndarray]) -> bytes:
    name, array = named
    found = hashlib.sha256(f"{name} {array.dtype} {array.shape} ".encode())
    found.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8))
    return found.digest()
