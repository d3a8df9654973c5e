"""tinyinfer's own quantized folders: a Hugging Face folder whose matrices lie in model.safetensors in kernel order.

A quantized matrix NAME is stored as the arrays that hold it, NAME.codes, NAME.scales, ... (`quant/layout.py` draws
them), so that reading is mapping and nothing else. What they are is said twice: for this program in the file's
metadata,

    format "tinyinfer", version "1", weights {"NAME": {"form": "int4-g32", "shape": [576, 1536]}, ...} as JSON

and for people and other programs in config.json:

    "quantization_config": {"quant_method": "tinyinfer", "version": 1,
        "form": "int4-g32",                                    most matrices
        "others": {"model.embed_tokens.weight": "int8-g32"},   matrices in another form, or in none ("bfloat16")
        "bits_per_weight": 5.7,                                of the quantized matrices
        "relative_error": {"int4-g32": 0.074, ...},            of those that were rounded, from what they were made of
        "method": "gptq",                                      where they were rounded by what they met
        "calibration": {"tokens": 3437, "sha256": "..."}}      while this text was read (`calibration/`)

The packed arrays stand first, then float32, then the rest: data begins on a cache line, and packed arrays are multiples
of 16 bytes or more, so that nothing is misaligned.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import BadCheckpoint, BadRequest, UnsupportedModel
from ..progress import Bar, Progress, silent
from ..quant import (
    ARRAYS,
    FORMS,
    SCHEMES,
    Form,
    PackedWeight,
    error_ratio,
    find_form,
    from_arrays,
    quantization_error,
    quantize,
)
from .safetensors import BFLOAT16, FLOAT_DTYPES, dtype_name, read_metadata, write_safetensors
from .source import (
    Checkpoint,
    Tensor,
    new_folder,
    plain,
    round_to,
    rounded_names,
    tensor_forms,
    tensor_layout,
    without_quantization,
    write_folder,
    write_texts,
)

METHOD, VERSION = "tinyinfer", 1
WEIGHTS = "model.safetensors"
PLAIN = {"float32": np.dtype("<f4"), "bfloat16": BFLOAT16, "float16": np.dtype("<f2")}

TABLE_KINDS = (*SCHEMES, *FORMS, *PLAIN)

Plan = dict[str, Form | np.dtype]


# ---- what becomes of each tensor


def quantization_plan(
    tensors: Mapping[str, Tensor],
    scheme: str = "int4",
    group_size: int | None = None,
    symmetric: bool = False,
    double: bool = False,
    head: str = "int8",
    embedding: str | None = None,
    keep: str | None = None,
) -> Plan:
    """What each tensor becomes: a `Form`, or the dtype it is stored with.

    Matrices take the form that `scheme`, `group_size`, `symmetric`, `double` name (`quant.find_form`). The head takes
    `head`: a scheme, a form, or "float32", "bfloat16", "float16". The embedding takes `embedding`, likewise, and stays
    as it is where that is None; but an embedding without a head beside it is the head, and takes `head`. Tensors whose
    name the regular expression `keep` finds stay as they are, and so does what is not floats, what is no linear map,
    what chooses experts, and what is stored transposed. Vectors become float32.
    Raises `BadRequest` for a form that does not exist, for an `embedding` that is the head, for a `keep` that is no
    expression or finds nothing, and where nothing would be quantized.
    """
    form = find_form(scheme, group_size, symmetric, double)
    head_kind = _table(head, "head")
    embedding_kind = None if embedding is None else _table(embedding, "embedding")
    layout, already = tensor_layout(tensors), tensor_forms(tensors)
    kept = _found(keep, layout)
    has_head = any(_is_head(name) for name in layout)
    if embedding_kind is not None and not has_head:
        raise BadRequest("embedding: this model has no head beside it, and it takes what head says", "embedding")

    def kind(name: str) -> Form | np.dtype:
        dtype, shape = layout[name]
        as_it_is = already.get(name, dtype)
        if name in kept or dtype not in FLOAT_DTYPES:
            return as_it_is
        if len(shape) != 2 or 0 in shape or not name.endswith(".weight") or _OTHERS.search(name):
            return as_it_is if len(shape) > 1 else np.dtype("<f4")
        if _is_embedding(name):
            return (embedding_kind or as_it_is) if has_head else head_kind
        return head_kind if _is_head(name) else form

    plan = {name: kind(name) for name in layout}
    if not any(isinstance(kind, Form) for kind in plan.values()):
        raise BadRequest("there is no matrix to quantize", "keep" if keep else "scheme")
    return plan


def _table(kind: str, parameter: str) -> Form | np.dtype:
    """What the table of tokens at either end of a model becomes."""
    if kind not in TABLE_KINDS:
        raise BadRequest(f"{parameter} should be one of {', '.join(TABLE_KINDS)}, found {kind!r}", parameter)
    return PLAIN[kind] if kind in PLAIN else find_form(kind)


def _found(keep: str | None, names: Mapping[str, Any]) -> set[str]:
    if keep is None:
        return set()
    try:
        found = {name for name in names if re.search(keep, name)}
    except re.error as error:
        raise BadRequest(f"keep should be a regular expression, found {keep!r}: {error}", "keep") from None
    if not found:
        raise BadRequest(f"keep: no tensor has a name with {keep!r} in it", "keep")
    return found


# Matrices that no vector is multiplied with: of positions, and norms of heads. Routers, whose errors send a token
# elsewhere. And those of GPT-2, which are stored as [in, out].
_OTHERS = re.compile(
    r"(wpe|embed_positions|norm|\.gate|\.router)\.weight$|(^|\.)h\.\d+\.(attn|mlp)\.c_(attn|fc|proj)\.weight$"
)
_EMBEDDINGS = ("embed_tokens.weight", "word_embeddings.weight", "wte.weight", "embed_in.weight")


def _is_head(name: str) -> bool:
    return name.endswith(("lm_head.weight", "embed_out.weight"))


def _is_embedding(name: str) -> bool:
    return name.endswith(_EMBEDDINGS)


# ---- carrying it out


def quantize_checkpoint(checkpoint: Checkpoint, progress: Progress = silent, **choices: Any) -> Checkpoint:
    """The model with its matrices quantized, in memory; `choices` are those of `quantization_plan`.

    Tensors that stay as they are stay mapped. Raises as `quantization_plan`, and as `quant.quantize`.
    """
    plan = quantization_plan(checkpoint.tensors, **choices)
    work = _Work(checkpoint, plan)
    with progress(f"quantizing {checkpoint.source.name}", work.total, "B") as bar:
        tensors = {name: work.made(name, bar) for name in plan}
    return replace(checkpoint, tensors=tensors, config=without_quantization(checkpoint.config) | work.config())


def quantize_folder(
    checkpoint: Checkpoint,
    folder: str | os.PathLike,
    progress: Progress = silent,
    facts: Mapping[str, Any] | None = None,
    **choices: Any,
) -> None:
    """Quantize a model and write it as a folder, whole or not at all, one tensor in memory at a time.

    `facts` are what config.json is to say of it besides, `choices` those of `quantization_plan`. Raises as that does,
    as `quant.quantize` does, and `BadRequest` where `folder` exists and is not empty.
    """
    plan = quantization_plan(checkpoint.tensors, **choices)
    _write(_Work(checkpoint, plan, facts), Path(folder), "quantizing to", progress)


def write_quantized(checkpoint: Checkpoint, folder: str | os.PathLike, progress: Progress = silent) -> None:
    """Write a model whose tensors are quantized already (a GGUF file, say) as they are, plain ones too.

    Raises as `quantize_folder` does of the folder.
    """
    if not tensor_forms(checkpoint.tensors):
        return write_folder(checkpoint, folder, None, progress)
    plan = {name: dtype for name, (dtype, _) in tensor_layout(checkpoint.tensors).items()}
    _write(_Work(checkpoint, plan | tensor_forms(checkpoint.tensors)), Path(folder), "writing", progress)


class _Work:
    """Tensors made one by one by a plan, and what is learnt of them on the way."""

    def __init__(self, checkpoint: Checkpoint, plan: Plan, facts: Mapping[str, Any] | None = None):
        self.checkpoint, self.plan, self.facts = checkpoint, plan, facts or {}
        self.layout, self.forms = tensor_layout(checkpoint.tensors), tensor_forms(checkpoint.tensors)
        self.bytes = {name: self._size(name) for name in plan}  # of what is made
        self.total = sum(self.bytes.values())
        self.errors: dict[str, list[float]] = {}  # by form: |difference|^2 and |weights|^2

    def _size(self, name: str) -> int:
        kind, shape = self.plan[name], self.layout[name][1]
        return kind.nbytes(shape) if isinstance(kind, Form) else kind.itemsize * prod(shape)

    def made(self, name: str, bar: Bar) -> Tensor:
        """One tensor as the plan has it."""
        kind = self.plan[name]
        if isinstance(kind, Form):
            made = self._quantized(name, kind)
        else:
            made = plain(self.checkpoint.tensors, name)
            made = made if made.dtype == kind else round_to(dtype_name(kind), made)
        bar.update(self.bytes[name])
        return made

    def _quantized(self, name: str, form: Form) -> PackedWeight:
        tensors = self.checkpoint.tensors
        if self.forms.get(name) == form:
            packed = tensors[name]
            if name in rounded_names(tensors):
                self._count(form, plain(tensors, name), packed)
            return packed
        weight = plain(tensors, name)
        packed = quantize(weight, form, name)
        self._count(form, weight, packed)
        return packed

    def _count(self, form: Form, weight: np.ndarray, packed: PackedWeight) -> None:
        sums = self.errors.setdefault(form.name, [0.0, 0.0])
        for place, part in enumerate(quantization_error(weight, packed)):
            sums[place] += part

    def config(self) -> dict[str, Any]:
        """What config.json says of it."""
        matrices = {name: kind for name, kind in self.plan.items() if len(self.layout[name][1]) > 1}
        packed = {name: kind for name, kind in matrices.items() if isinstance(kind, Form)}
        if not packed:
            return {}
        names = {name: kind.name if name in packed else dtype_name(kind) for name, kind in matrices.items()}
        usual = max(packed.values(), key=list(packed.values()).count).name
        weights = sum(prod(self.layout[name][1]) for name in packed)
        bits = 8 * sum(self.bytes[name] for name in packed)
        facts = {
            "quant_method": METHOD,
            "version": VERSION,
            "form": usual,
            "others": {name: kind for name, kind in names.items() if kind != usual},
            "bits_per_weight": round(bits / max(weights, 1), 4),
            "relative_error": {form: float(f"{error_ratio(*sums):.4g}") for form, sums in self.errors.items()},
        }
        return {"quantization_config": facts | self.facts}


def _write(work: _Work, folder: Path, doing: str, progress: Progress) -> None:
    plan = work.plan
    packed = [name for name, kind in plan.items() if isinstance(kind, Form)]
    others = sorted((name for name in plan if name not in packed), key=lambda name: -plan[name].itemsize)
    layout = {}
    for name in packed:
        layout |= {f"{name}.{part}": spec for part, spec in plan[name].arrays(work.layout[name][1]).items()}
    layout |= {name: (plan[name], work.layout[name][1]) for name in others}
    facts = {name: {"form": plan[name].name, "shape": list(work.layout[name][1])} for name in packed}
    metadata = {"format": METHOD, "version": str(VERSION), "weights": json.dumps(facts)}

    def arrays(bar: Bar) -> Iterator[tuple[str, np.ndarray]]:
        for name in packed:
            for part, array in work.made(name, bar).arrays().items():
                yield f"{name}.{part}", array
        for name in others:
            yield name, work.made(name, bar)

    with new_folder(folder, work.total) as temporary, progress(f"{doing} {folder.name}", work.total, "B") as bar:
        write_safetensors(temporary / WEIGHTS, layout, arrays(bar), metadata)
        write_texts(work.checkpoint, without_quantization(work.checkpoint.config) | work.config(), temporary)


# ---- reading


def packed_tensors(folder: Path, config: Mapping[str, Any], arrays: dict[str, np.ndarray]) -> dict[str, Tensor]:
    """The tensors of a folder, with the arrays of each quantized matrix put together; nothing is read or copied.

    A folder that tinyinfer did not quantize comes back as it is. Raises `BadCheckpoint` naming the tensor where what is
    said and what is there differ, `UnsupportedModel` for what a later version wrote.
    """
    claimed = config.get("quantization_config")
    claims = isinstance(claimed, dict) and claimed.get("quant_method") == METHOD
    path = folder / WEIGHTS
    metadata = read_metadata(path) if path.is_file() else {}
    if metadata.get("format") != METHOD:
        if claims:
            raise BadCheckpoint(f"{path}: config.json says that tinyinfer quantized it, but the file does not")
        return arrays
    if not claims:
        missing = f"expected quantization_config with quant_method {METHOD!r}, as {WEIGHTS} has such weights"
        raise BadCheckpoint(f"{folder / 'config.json'}: {missing}")
    for version in (metadata.get("version"), claimed.get("version")):
        if str(version) != str(VERSION):
            both = f"expected tinyinfer's quantized format {VERSION}, found version {str(version)[:20]!r}"
            advice = "another tinyinfer wrote it: use that one, or quantize the model again with this"
            raise UnsupportedModel(f"{path}: {both}; {advice}")
    facts = _read_facts(path, metadata.get("weights", ""))
    forms = {name: _checked_form(path, name, fact) for name, fact in facts.items()}
    _check_claims(folder, claimed, forms)
    left, tensors = dict(arrays), {}
    for name, form in forms.items():
        parts = {part: left.pop(f"{name}.{part}", None) for part in form.arrays((1, 1))}
        there = {part: array for part, array in parts.items() if array is not None}
        try:
            tensors[name] = from_arrays(form, tuple(facts[name]["shape"]), there)
        except ValueError as error:
            raise BadCheckpoint(f"{path}: tensor {name!r} in {form.name}: {error}") from None
        if name in left:
            raise BadCheckpoint(f"{path}: tensor {name!r} is there twice, quantized and not")
        if extra := [f"{name}.{part}" for part in ARRAYS if f"{name}.{part}" in left]:
            raise BadCheckpoint(f"{path}: {extra[0]} is there, but tensor {name!r} in {form.name} has none")
    return tensors | left


def _read_facts(path: Path, text: str) -> dict[str, Any]:
    try:
        facts = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadCheckpoint(f"{path}: the metadata's weights are not valid JSON: {error}") from None
    if not isinstance(facts, dict) or not all(isinstance(fact, dict) for fact in facts.values()):
        raise BadCheckpoint(f"{path}: the metadata's weights should map names to objects, found {text[:80]!r}")
    return facts


def _checked_form(path: Path, name: str, fact: dict[str, Any]) -> Form:
    form, shape = fact.get("form"), fact.get("shape")
    if not isinstance(form, str) or form not in FORMS:
        raise UnsupportedModel(f"{path}: tensor {name!r} has form {str(form)[:40]!r}; known are {', '.join(FORMS)}")
    if not isinstance(shape, list) or len(shape) != 2 or not all(type(n) is int and 0 < n < 2**31 for n in shape):
        raise BadCheckpoint(f"{path}: tensor {name!r}: expected a shape of two numbers from 1, found {str(shape)[:80]}")
    return FORMS[form]


def _check_claims(folder: Path, claimed: Mapping[str, Any], forms: Mapping[str, Form]) -> None:
    """config.json must name the forms that the file has, so that no program takes one for another, and have numbers."""
    others = claimed.get("others", {})
    others = others if isinstance(others, dict) else {}
    for name, form in forms.items():
        said = others.get(name, claimed.get("form"))
        if said != form.name:
            both = f"config.json says {str(said)[:40]!r}, {WEIGHTS} {form.name!r}"
            raise BadCheckpoint(f"{folder}: tensor {name!r}: {both}")
    bits, errors = claimed.get("bits_per_weight"), claimed.get("relative_error")
    numbers = [bits, *errors.values()] if isinstance(errors, dict) else [None]
    if not all(type(number) in (int, float) and 0 <= number <= sys.float_info.max for number in numbers):
        both = f"should be numbers from 0, found {str(bits)[:40]} and {str(errors)[:80]}"
        raise BadCheckpoint(f"{folder / 'config.json'}: bits_per_weight and relative_error {both}")
