"""A model as it came: what its files say and the arrays they hold, whether a Hugging Face folder or a GGUF file.

Whatever the form on disk, the rest of the package sees one `Checkpoint`, with tensors named as Hugging Face names them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import BadRequest, ModelNotFound
from ..files import replaced_when_done
from ..progress import Progress, silent
from .safetensors import BFLOAT16, FLOAT_DTYPES, dtype_name, to_bfloat16, to_float32, write_safetensors

Layout = dict[str, tuple[np.dtype, tuple[int, ...]]]


@dataclass(frozen=True)
class Checkpoint:
    """What a model's files say. Nothing here has been interpreted: `config.py` and `text/` do that."""

    source: Path  # the folder or file
    config: dict[str, Any]  # config.json
    tensors: Mapping[str, np.ndarray]  # memory-mapped, or made when asked for
    generation_config: dict[str, Any] = field(default_factory=dict)  # generation_config.json
    tokenizer_json: str | None = None  # the text of tokenizer.json
    tokenizer_config: dict[str, Any] = field(default_factory=dict)  # tokenizer_config.json
    chat_template: str | None = None  # Jinja source


class LazyTensors(Mapping[str, np.ndarray]):
    """Tensors that are computed each time they are asked for, with dtypes and shapes known beforehand."""

    def __init__(self, layout: Layout, make: Callable[[str], np.ndarray]):
        self.layout, self._make = layout, make

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self.layout:
            raise KeyError(name)
        return self._make(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.layout)

    def __len__(self) -> int:
        return len(self.layout)


def tensor_layout(tensors: Mapping[str, np.ndarray]) -> Layout:
    """The dtype and shape of every tensor, without computing any."""
    if isinstance(tensors, LazyTensors):
        return tensors.layout
    return {name: (array.dtype, array.shape) for name, array in tensors.items()}


def open_checkpoint(path: str | os.PathLike) -> Checkpoint:
    """Open a Hugging Face folder or a GGUF file; weights are mapped, not read.

    Raises `ModelNotFound` where there is neither, `BadCheckpoint` or `UnsupportedModel` for what the files hold.
    """
    path = Path(path)
    if path.is_dir():
        from .folder import read_folder

        return read_folder(path)
    if path.is_file() and path.suffix.lower() == ".gguf":
        from .gguf import read_gguf

        return read_gguf(path)
    if path.exists():
        raise ModelNotFound(f"{path}: expected a Hugging Face folder or a .gguf file")
    raise ModelNotFound(f"{path}: no such folder or file")


_ROUND: dict[str, tuple[np.dtype, Callable[[np.ndarray], np.ndarray]]] = {
    "float32": (np.dtype("<f4"), to_float32),
    "bfloat16": (BFLOAT16, lambda array: to_bfloat16(to_float32(array))),
    "float16": (np.dtype("<f2"), lambda array: _to_float16(to_float32(array))),
}


def _to_float16(array: np.ndarray) -> np.ndarray:
    with np.errstate(over="raise"):
        try:
            return array.astype(np.float16)
        except FloatingPointError:
            raise BadRequest("the model has weights beyond float16's 65,504; bfloat16 holds them", "dtype") from None


def write_folder(
    checkpoint: Checkpoint, folder: str | os.PathLike, dtype: str | None = None, progress: Progress = silent
) -> None:
    """Write a checkpoint as a Hugging Face folder, whole or not at all, one tensor in memory at a time.

    `dtype` is "float32", "bfloat16" or "float16" (values are rounded to nearest); None keeps what each tensor has, as
    tensors that are not floats do. Raises `BadRequest` for another dtype, for weights too large for float16, and where
    `folder` exists and is not empty.
    """
    folder = Path(folder)
    if dtype is not None and dtype not in _ROUND:
        raise BadRequest(f"dtype should be one of {', '.join(_ROUND)}, found {dtype!r}", "dtype")
    if folder.name in ("", ".."):
        raise BadRequest(f"expected the name of a folder to make, found {str(folder)!r}")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise BadRequest(f"{folder}: already there and not an empty folder")
    layout = tensor_layout(checkpoint.tensors)
    converted = {name for name, (stored, _) in layout.items() if dtype and stored in FLOAT_DTYPES}
    layout = {name: (_ROUND[dtype][0], spec[1]) if name in converted else spec for name, spec in layout.items()}
    total = sum(_nbytes(spec) for spec in layout.values())

    def tensors(bar: Any) -> Iterator[tuple[str, np.ndarray]]:
        for name in layout:
            array = checkpoint.tensors[name]
            if name in converted:
                array = _ROUND[dtype][1](array)
            yield name, array
            bar.update(array.nbytes)

    with replaced_when_done(folder) as temporary:
        temporary.mkdir()
        for name, text in _text_files(checkpoint, layout).items():
            (temporary / name).write_text(text, encoding="utf-8")
        with progress(f"writing {folder.name}", total, "B") as bar:
            write_safetensors(temporary / "model.safetensors", layout, tensors(bar), {"format": "pt"})


def _nbytes(spec: tuple[np.dtype, tuple[int, ...]]) -> int:
    dtype, shape = spec
    return dtype.itemsize * int(np.prod(shape, dtype=np.int64))


def _text_files(checkpoint: Checkpoint, layout: Layout) -> dict[str, str]:
    widest = max(layout.values(), key=_nbytes, default=(np.dtype("<f4"), ()))[0]
    config = {key: value for key, value in checkpoint.config.items() if key != "dtype"}
    files = {"config.json": json.dumps(config | {"torch_dtype": dtype_name(widest)}, indent=2)}
    if checkpoint.generation_config:
        files["generation_config.json"] = json.dumps(checkpoint.generation_config, indent=2)
    if checkpoint.tokenizer_json is not None:
        files["tokenizer.json"] = checkpoint.tokenizer_json
    if checkpoint.tokenizer_config:
        without_template = {key: value for key, value in checkpoint.tokenizer_config.items() if key != "chat_template"}
        files["tokenizer_config.json"] = json.dumps(without_template, indent=2)
    if checkpoint.chat_template is not None:
        files["chat_template.jinja"] = checkpoint.chat_template
    return files
