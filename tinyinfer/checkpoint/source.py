"""A model as it came: what its files say and the arrays they hold, whether a Hugging Face folder or a GGUF file.

Whatever the form on disk, the rest of the package sees one `Checkpoint`, with tensors named as Hugging Face names them.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import BadCheckpoint, BadRequest, ModelNotFound, UnsupportedModel
from ..files import DISK_FULL, held, remove_stale, replaced_when_done
from ..progress import Progress, silent
from ..quant import Form, PackedWeight, dequantize, dequantize_rows
from .safetensors import BFLOAT16, FLOAT_DTYPES, dtype_name, to_bfloat16, to_float32, write_safetensors

Layout = dict[str, tuple[np.dtype, tuple[int, ...]]]
Tensor = np.ndarray | PackedWeight
TOOL_TEMPLATE = "additional_chat_templates/tool_use.jinja"  # where transformers keeps it


@dataclass(frozen=True)
class Checkpoint:
    """What a model's files say. Nothing here has been interpreted: `config/` and `text/` do that."""

    source: Path  # the folder or file
    config: dict[str, Any]  # config.json
    tensors: Mapping[str, Tensor]  # memory-mapped, or made when asked for
    generation_config: dict[str, Any] = field(default_factory=dict)  # generation_config.json
    tokenizer_json: str | None = None  # the text of tokenizer.json
    tokenizer_config: dict[str, Any] = field(default_factory=dict)  # tokenizer_config.json
    chat_template: str | None = None  # Jinja source
    tool_template: str | None = None  # the one for conversations with tools, where that is another


class LazyTensors(Mapping[str, Tensor]):
    """Tensors that are computed each time they are asked for, with dtypes and shapes known beforehand.

    `forms` has an entry for each that comes quantized; its place in `layout` says what it dequantizes to. `rounded`
    names those whose form holds them only nearly: `floats` then gives what they were, all rows or those of `ids`.
    """

    def __init__(
        self,
        layout: Layout,
        make: Callable[[str], Tensor],
        forms: Mapping[str, Form] | None = None,
        floats: Callable[[str, np.ndarray | None], np.ndarray] | None = None,
        rounded: Collection[str] = (),
    ):
        self.layout, self.forms, self.floats, self.rounded = layout, forms or {}, floats, frozenset(rounded)
        self._make = make

    def __getitem__(self, name: str) -> Tensor:
        if name not in self.layout:
            raise KeyError(name)
        return self._make(name)

    def __contains__(self, name: object) -> bool:
        return name in self.layout  # without making it, as a Mapping would

    def __iter__(self) -> Iterator[str]:
        return iter(self.layout)

    def __len__(self) -> int:
        return len(self.layout)


def tensor_layout(tensors: Mapping[str, Tensor]) -> Layout:
    """The dtype and shape of every tensor, without computing any; a quantized one counts as float32."""
    if isinstance(tensors, LazyTensors):
        return tensors.layout
    return {name: (_plain_dtype(tensor), tensor.shape) for name, tensor in tensors.items()}


def _plain_dtype(tensor: Tensor) -> np.dtype:
    return np.dtype("<f4") if isinstance(tensor, PackedWeight) else tensor.dtype


def tensor_forms(tensors: Mapping[str, Tensor]) -> dict[str, Form]:
    """The form of every quantized tensor, without computing any."""
    if isinstance(tensors, LazyTensors):
        return dict(tensors.forms)
    return {name: tensor.form for name, tensor in tensors.items() if isinstance(tensor, PackedWeight)}


def stored_bytes(tensors: Mapping[str, Tensor]) -> dict[str, int]:
    """How many bytes all tensors of a kind take: by name of dtype, or of form where they are quantized."""
    sizes: dict[str, int] = {}
    forms = tensor_forms(tensors)
    for name, (dtype, shape) in tensor_layout(tensors).items():
        kind = forms[name].name if name in forms else dtype_name(dtype)
        count = forms[name].nbytes(shape) if name in forms else _nbytes((dtype, shape))
        sizes[kind] = sizes.get(kind, 0) + count
    return sizes


def plain(tensors: Mapping[str, Tensor], name: str) -> np.ndarray:
    """One tensor as an array: a quantized one as float32, without what its form has rounded; another as it is."""
    if name in rounded_names(tensors):
        return tensors.floats(name, None)
    tensor = tensors[name]
    return dequantize(tensor) if isinstance(tensor, PackedWeight) else tensor


def plain_rows(tensors: Mapping[str, Tensor], name: str, ids: np.ndarray) -> np.ndarray:
    """Some rows of a matrix as `plain` has them, float32 [n, K]; the whole is not made where that can be helped."""
    if isinstance(tensors, LazyTensors) and tensors.floats is not None:
        return tensors.floats(name, ids)
    tensor = tensors[name]
    return dequantize_rows(tensor, ids) if isinstance(tensor, PackedWeight) else to_float32(tensor[ids])


def rounded_names(tensors: Mapping[str, Tensor]) -> frozenset[str]:
    """The quantized tensors that are not exactly what the file says, because no form holds that."""
    return tensors.rounded if isinstance(tensors, LazyTensors) else frozenset()


def dequantized(checkpoint: Checkpoint) -> Checkpoint:
    """The same model with plain arrays only: quantized ones become float32 each time they are asked for.

    Those are exactly the values that the files encode, also where a GGUF file's were rounded to be kept quantized.
    """
    tensors, config = checkpoint.tensors, without_quantization(checkpoint.config)
    if not tensor_forms(tensors):
        return checkpoint if config == checkpoint.config else replace(checkpoint, config=config)
    arrays = LazyTensors(tensor_layout(tensors), lambda name: plain(tensors, name))
    return replace(checkpoint, tensors=arrays, config=config)


def without_quantization(config: dict[str, Any]) -> dict[str, Any]:
    """The same config.json, saying nothing of quantized weights."""
    kept = {key: value for key, value in config.items() if key not in ("quantization_config", "quantization")}
    if isinstance(kept.get("text_config"), dict):
        kept["text_config"] = without_quantization(kept["text_config"])
    return kept


def open_checkpoint(path: str | os.PathLike) -> Checkpoint:
    """Open a Hugging Face folder or a GGUF file; weights are mapped, not read.

    What is quantized stays so where it can: the matrices of a folder of ours are mapped as they lie, those of a GGUF
    file are put into kernel order when asked for (`gguf_packed.py` says which lose something by it), and so are those
    of a folder that another program quantized (`foreign/` says which become floats). `dequantized` widens them all.
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


@contextmanager
def naming(source: Path) -> Iterator[None]:
    """Errors of what a model's files hold say which model it is."""
    try:
        yield
    except (BadCheckpoint, UnsupportedModel) as error:
        if str(source) in str(error):
            raise
        raise type(error)(f"{source}: {error}") from None


def round_to(dtype: str, array: np.ndarray) -> np.ndarray:
    """Any float array as "float32", "bfloat16" or "float16", to nearest; `BadRequest` where float16 can't hold it."""
    return _ROUND[dtype][1](array)


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
    tensors that are not floats do. Quantized tensors are dequantized, exactly, to float32 where `dtype` is None
    (`quantized.write_quantized` keeps them). Raises `BadRequest` for another dtype, for weights too large for float16,
    and where `folder` exists and is not empty.
    """
    folder = Path(folder)
    if dtype is not None and dtype not in _ROUND:
        raise BadRequest(f"dtype should be one of {', '.join(_ROUND)}, found {dtype!r}", "dtype")
    layout = tensor_layout(checkpoint.tensors)
    converted = {name for name, (stored, _) in layout.items() if dtype and stored in FLOAT_DTYPES}
    layout = {name: (_ROUND[dtype][0], spec[1]) if name in converted else spec for name, spec in layout.items()}
    total = sum(_nbytes(spec) for spec in layout.values())

    def tensors(bar: Any) -> Iterator[tuple[str, np.ndarray]]:
        for name in layout:
            array = plain(checkpoint.tensors, name)
            if name in converted:
                array = round_to(dtype, array)
            yield name, array
            bar.update(array.nbytes)

    widest = max(layout.values(), key=_nbytes, default=(np.dtype("<f4"), ()))[0]
    config = {key: value for key, value in without_quantization(checkpoint.config).items() if key != "dtype"}
    with new_folder(folder, total) as temporary, progress(f"writing {folder.name}", total, "B") as bar:
        write_safetensors(temporary / "model.safetensors", layout, tensors(bar), {"format": "pt"})
        write_texts(checkpoint, config | {"torch_dtype": dtype_name(widest)}, temporary)


@contextmanager
def new_folder(folder: Path, nbytes: int) -> Iterator[Path]:
    """A temporary folder, for so many bytes, that takes the name `folder` when all went well, and else is gone.

    Where `folder` is a link, it is the folder that it leads to. What a killed process left there is removed first.
    Raises `BadRequest` where `folder` exists and is not empty, leads nowhere, or is no name; `OSError` that names
    `folder` where it can't be written, at once where the disk has fewer bytes left.
    """
    if folder.name in ("", ".."):
        raise BadRequest(f"expected the name of a folder to make, found {str(folder)!r}")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise BadRequest(f"{folder}: already there and not an empty folder")
    if folder.is_symlink() and not folder.exists():
        raise BadRequest(f"{folder}: a link to {os.readlink(folder)}, which is not there")
    target = folder.resolve()
    try:
        with replaced_when_done(target) as temporary:
            remove_stale(target)
            temporary.mkdir()
            with held(temporary):
                _check_space(temporary, nbytes)
                yield temporary
    except OSError as error:
        reason = error.strerror or str(error)
        reason += f"; it takes {nbytes:,} bytes" if error.errno in DISK_FULL else ""
        raise OSError(error.errno, reason, str(folder)) from error


def _check_space(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise OSError(errno.ENOSPC, f"only {free:,} bytes are free there")


def _nbytes(spec: tuple[np.dtype, tuple[int, ...]]) -> int:
    dtype, shape = spec
    return dtype.itemsize * int(np.prod(shape, dtype=np.int64))


def write_texts(checkpoint: Checkpoint, config: dict[str, Any], folder: Path) -> None:
    """Write all of a model that is not weights, with `config` as its config.json."""
    files = {"config.json": json.dumps(config, indent=2)}
    if checkpoint.generation_config:
        files["generation_config.json"] = json.dumps(checkpoint.generation_config, indent=2)
    if checkpoint.tokenizer_json is not None:
        files["tokenizer.json"] = checkpoint.tokenizer_json
    if checkpoint.tokenizer_config:
        without_template = {key: value for key, value in checkpoint.tokenizer_config.items() if key != "chat_template"}
        files["tokenizer_config.json"] = json.dumps(without_template, indent=2)
    if checkpoint.chat_template is not None:
        files["chat_template.jinja"] = checkpoint.chat_template
    if checkpoint.tool_template is not None:
        (folder / TOOL_TEMPLATE).parent.mkdir(exist_ok=True)
        files[TOOL_TEMPLATE] = checkpoint.tool_template
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
