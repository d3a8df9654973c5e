"""A checkpoint's tensors by the plain names that the model knows, and the shapes that they must have.

`names.py` says what each family calls them. Here a fused tensor becomes its parts, a tied head the embedding, and rows
are put in the order that the model turns them in; so nothing later has to ask how a family stores anything.
"""

from __future__ import annotations

import os
import re
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..checkpoint.safetensors import FLOAT_DTYPES, dtype_name, to_float32
from ..checkpoint.source import Checkpoint, naming, open_checkpoint, tensor_layout
from ..config import LayerConfig, ModelConfig, read_config
from ..errors import BadCheckpoint, UnsupportedModel
from ..quant import PackedWeight, dequantize, dequantize_rows, take_rows
from ..quant.nf4 import expand_scales
from ..quant.packed import ROW_BLOCK
from .names import NAMES, TensorNames

Tensor = np.ndarray | PackedWeight
Tensors = Tensor | tuple[Tensor, ...]  # one for each expert, or for each head
Shapes = dict[str, tuple[int, ...]]

FUSED = re.compile(r"[+|~]")
# What old checkpoints hold beside weights, and every model works out for itself: rotary speeds and masks.
BUFFERS = re.compile(r"(^|\.)(rotary_emb\.inv_freq|(attn|attention)\.(masked_)?bias)$")


def floats(tensor: Tensors) -> np.ndarray:
    """A whole tensor as float32; several of one shape, stacked."""
    if isinstance(tensor, tuple):
        return np.stack([floats(part) for part in tensor])
    return dequantize(tensor) if isinstance(tensor, PackedWeight) else to_float32(tensor)


def float_rows(tensor: Tensor, ids: np.ndarray) -> np.ndarray:
    """Some rows of a matrix as float32 [n, in]."""
    return dequantize_rows(tensor, ids) if isinstance(tensor, PackedWeight) else to_float32(tensor[ids])


@dataclass(frozen=True)
class ModelTensors:
    """Every tensor of a model by its plain name, as stored: float32, float16, bfloat16 records or quantized; mapped."""

    embedding: Tensor  # [vocab, hidden]
    head: Tensor  # [vocab, hidden]; the embedding itself where they are tied
    outer: Mapping[str, Tensor]  # what else stands before and after the layers: "final_norm", "positions", ...
    layers: tuple[Mapping[str, Tensors], ...]
    experts_used: int  # by each token, of those of a layer; 0 where there are none
    unused: tuple[str, ...]  # names in the checkpoint that the model does not read


def collect_tensors(config: ModelConfig, tensors: Mapping[str, Tensor]) -> ModelTensors:
    """Find every tensor that `config` calls for and check its shape.

    A head in the checkpoint is always used; where there is none, a tied model takes the embedding.
    Raises `BadCheckpoint` naming the first tensor that is missing or misshapen, `UnsupportedModel` one of no floats.
    """
    used = check_tensors(config, tensor_layout(tensors))
    names = NAMES[config.architecture]
    prefix = tensor_prefix(names, tensors)
    outer = dict(_read(prefix, names.outer, outer_shapes(config), 1, tensors))
    embedding = outer.pop("embedding")
    head_name = _head_name(names, tensors)
    head = tensors[head_name] if head_name in used else embedding
    if config.head_bias:
        outer["head_bias"] = tensors[_bias_name(head_name)]
    layers = tuple(read_layer(config, index, tensors) for index in range(config.num_layers))
    unused = tuple(name for name in tensors if name not in used and not BUFFERS.search(name))
    return ModelTensors(embedding, head, outer, layers, config.experts.used if config.experts else 0, unused)


def check_tensors(config: ModelConfig, layout: Mapping[str, tuple[np.dtype, tuple[int, ...]]]) -> set[str]:
    """The names of all tensors that `config` calls for, of a checkpoint whose dtypes and shapes are given.

    Raises as `collect_tensors` does, without reading any.
    """
    used = set()
    for name, shape in _needed(config, layout):
        if name not in layout:
            raise BadCheckpoint(f"tensor {name!r} is missing; expected shape {list(shape)}")
        dtype, found = layout[name]
        if found != shape:
            raise BadCheckpoint(f"tensor {name!r}: expected shape {list(shape)}, found {list(found)}")
        if dtype not in FLOAT_DTYPES:
            raise UnsupportedModel(f"tensor {name!r}: {dtype_name(dtype)} weights can't be read yet")
        used.add(name)
    return used


def open_complete(path: str | os.PathLike) -> tuple[Checkpoint, ModelConfig]:
    """A model's files, and the facts that they say, where every tensor is there; no weights are read.

    Raises as `open_checkpoint` and `collect_tensors` do.
    """
    checkpoint = open_checkpoint(path)
    with naming(checkpoint.source):
        config = read_config(checkpoint.config)
        check_tensors(config, tensor_layout(checkpoint.tensors))
    return checkpoint, config


def tensor_prefix(names: TensorNames, tensors: Container[str]) -> str:
    """What the names of a checkpoint's tensors begin with."""
    return next((p for p in names.prefixes if p + names.outer["embedding"] in tensors), names.prefixes[0])


def _head_name(names: TensorNames, tensors: Container[str]) -> str:
    return next((name for name in names.heads if name in tensors), names.heads[0])


def _needed(config: ModelConfig, tensors: Container[str]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The name and shape of every tensor that must be there, in a checkpoint that has `tensors`."""
    names = NAMES[config.architecture]
    prefix = tensor_prefix(names, tensors)
    yield from _stored_all(prefix, names.outer, outer_shapes(config))
    head = _head_name(names, tensors)
    if head in tensors or not config.tied:
        yield head, (config.vocab_size, config.hidden_size)
    if config.head_bias:
        yield _bias_name(head), (config.vocab_size,)
    for i, layer in enumerate(config.layers):
        stem = f"{prefix}{names.layers}{i}."
        yield from _stored_all(stem, _layer_names(names, stem, tensors), layer_shapes(config, layer))


@dataclass(frozen=True)
class Stored:
    """A tensor of a layer as the checkpoint has it, and the rows of the parts that it holds, by their plain names."""

    name: str
    shape: tuple[int, ...]
    parts: Mapping[str, slice | np.ndarray]
    expert: int | None  # whose it is, where each has a tensor of its own


def stored_tensors(config: ModelConfig, index: int, tensors: Container[str]) -> Iterator[Stored]:
    """What the checkpoint has of one layer, but for what it stores transposed."""
    names = NAMES[config.architecture]
    stem = f"{tensor_prefix(names, tensors)}{names.layers}{index}."
    shapes = layer_shapes(config, config.layers[index])
    for name, sign, wanted in _wanted(stem, _layer_names(names, stem, tensors), shapes):
        many = _are_many(name, next(iter(wanted)))
        places = row_places([shape[many] for shape in wanted.values()], sign, config.num_kv_heads)
        if not name.endswith(".T"):
            for number, (stored, shape) in enumerate(_stored(name, wanted)):
                yield Stored(stored, shape, dict(zip(wanted, places, strict=True)), number if many else None)


def read_layer(config: ModelConfig, index: int, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensors]:
    """The tensors of one layer by their plain names, from a checkpoint's that were checked."""
    names = NAMES[config.architecture]
    stem = f"{tensor_prefix(names, tensors)}{names.layers}{index}."
    return _layer(config, config.layers[index], names, stem, tensors)


def _layer(
    config: ModelConfig, layer: LayerConfig, names: TensorNames, stem: str, tensors: Mapping[str, Tensor]
) -> Mapping[str, Tensors]:
    table = _layer_names(names, stem, tensors)
    found = dict(_read(stem, table, layer_shapes(config, layer), config.num_kv_heads, tensors))
    return half_apart(config, layer, found) if config.rope_interleaved and layer.rope else found


def _layer_names(names: TensorNames, stem: str, tensors: Container[str]) -> Mapping[str, str]:
    """What the tensors of a layer are called in this checkpoint, which may fuse others than most do."""
    table = dict(names.layer)
    for variant in names.variants:
        if stem + next(iter(variant.values())) in tensors:
            parts = {part for plain in variant for part in FUSED.split(plain)}
            table = {plain: hf for plain, hf in table.items() if not parts & set(FUSED.split(plain))} | variant
    return table


def _read(
    stem: str, table: Mapping[str, str], shapes: Shapes, groups: int, tensors: Mapping[str, Tensor]
) -> Iterator[tuple[str, Tensors]]:
    """The tensors that `shapes` calls for, under their plain names; `groups`: how often "|" takes turns."""
    for name, sign, wanted in _wanted(stem, table, shapes):
        yield from _parts(name, wanted, sign, groups, tensors)


def _stored_all(stem: str, table: Mapping[str, str], shapes: Shapes) -> Iterator[tuple[str, tuple[int, ...]]]:
    for name, _, wanted in _wanted(stem, table, shapes):
        yield from _stored(name, wanted)


def _wanted(stem: str, table: Mapping[str, str], shapes: Shapes) -> Iterator[tuple[str, str, Shapes]]:
    """Names in the checkpoint, with which sign it fuses the parts, and the parts that `shapes` calls for."""
    for plain, hf in table.items():
        for ending, name in (("", hf), ("_bias", _bias_name(hf))):
            parts = [part + ending for part in FUSED.split(plain)]
            wanted = {part: shapes[part] for part in parts if part in shapes}
            if wanted:
                yield stem + name, (FUSED.findall(plain) or ["+"])[0], wanted


def _bias_name(name: str) -> str:
    name = name.removesuffix(".T")
    return f"{name.removesuffix('weight')}bias" if name.endswith(".weight") else f"{name}_bias"


def _stored(name: str, shapes: Shapes) -> list[tuple[str, tuple[int, ...]]]:
    """The tensors that hold some parts, with their shapes: one fused tensor, or one for each of many."""
    first, shape = next(iter(shapes.items()))
    many = _are_many(name, first)
    stored = (sum(shape[many] for shape in shapes.values()), *shape[many + 1 :])
    if name.endswith(".T"):
        name, stored = name.removesuffix(".T"), stored[::-1]
    if "{}" in name:
        return [(name.format(i), stored) for i in range(shape[0])]
    return [(name, (shape[0], *stored) if many else stored)]


def _are_many(name: str, part: str) -> bool:
    """Whether there is such a part for each expert, or for each head."""
    return "{}" in name or part.startswith("expert_")


def _parts(
    name: str, shapes: Shapes, sign: str, groups: int, tensors: Mapping[str, Tensor]
) -> Iterator[tuple[str, Tensors]]:
    """The parts of one fused tensor, or of each of many, which one tensor or several hold."""
    many = _are_many(name, next(iter(shapes)))
    whole = [tensors[stored] for stored, _ in _stored(name, shapes)]
    if many and "{}" not in name:
        whole = list(_array(whole[0]))
    if name.endswith(".T"):
        whole = [_array(one).T for one in whole]
    rows = [shape[many] for shape in shapes.values()]
    for part, place in zip(shapes, row_places(rows, sign, groups), strict=True):
        taken = tuple(_rows(one, place) for one in whole)
        yield part, taken if many else taken[0]


def row_places(rows: Sequence[int], sign: str, groups: int) -> list[slice | np.ndarray]:
    """Where the rows of each part are in a fused tensor; `names.py` explains the signs."""
    ends = np.cumsum(rows).tolist()
    if sign == "~":
        return [slice(i, None, len(rows)) for i in range(len(rows))]
    if sign == "|" and groups > 1:
        places = np.arange(ends[-1]).reshape(groups, -1)
        return [part.reshape(-1) for part in np.split(places, [end // groups for end in ends[:-1]], axis=1)]
    return [slice(end - count, end) for end, count in zip(ends, rows, strict=True)]


def _rows(tensor: Tensor, place: slice | np.ndarray) -> Tensor:
    """Some rows: a view where they lie together, a copy where not."""
    if not isinstance(tensor, PackedWeight):
        together = isinstance(place, slice) and place.step is None
        return tensor[place] if together else np.ascontiguousarray(tensor[place])
    if isinstance(place, slice) and place.step is None:
        if place.start == 0 and place.stop == len(tensor):
            return tensor
        if place.start % ROW_BLOCK == 0:  # kernels read whole blocks of rows
            return expand_scales(tensor).rows(place.start, place.stop)
    return take_rows(expand_scales(tensor), np.arange(len(tensor))[place])


def _array(tensor: Tensor) -> np.ndarray:
    """A tensor as an array, for what can't be done with codes."""
    return dequantize(tensor) if isinstance(tensor, PackedWeight) else tensor


def half_apart(config: ModelConfig, layer: LayerConfig, tensors: Mapping[str, Tensors]) -> dict[str, Tensors]:
    """Put the rows of queries and keys in the order in which dimensions d and d + half of a head turn together.

    Scores are sums over dimensions, so that their order is free, as long as queries and keys have the same.
    """
    turning = layer.rope.dims
    latent = config.latent
    plain = latent.plain if latent else 0  # dimensions before those that turn
    order = np.arange(config.head_dim)
    order[plain : plain + turning] = plain + np.arange(turning).reshape(-1, 2).T.reshape(-1)
    orders = dict.fromkeys(("query", "query_up", "key"), order) | {"rotary_key": order[plain:] - plain}
    changed = dict(tensors)
    for name, order in orders.items():
        for found in (name, f"{name}_bias"):
            if found in tensors:
                heads = np.arange(0, len(tensors[found]), len(order))
                changed[found] = _rows(tensors[found], (heads[:, None] + order).reshape(-1))
        if f"{name}_norm" in tensors:
            changed[f"{name}_norm"] = np.ascontiguousarray(_array(tensors[f"{name}_norm"])[..., order])
    return changed


def outer_shapes(config: ModelConfig) -> Shapes:
    """The shapes of the tensors before and after the layers, but for the head's."""
    hidden = config.hidden_size
    shapes: Shapes = {"embedding": (config.vocab_size, hidden)}
    if config.position_offset is not None:
        shapes["positions"] = (config.max_positions + config.position_offset, hidden)
    return shapes | _norm_shapes(config, ["final_norm", *(["embedding_norm"] if config.embedding_norm else [])])


def layer_shapes(config: ModelConfig, layer: LayerConfig) -> Shapes:
    """The shape of each tensor that one layer has."""
    shapes = _norm_shapes(config, config.layer_norms)
    shapes |= _latent_shapes(config) if config.latent else _attention_shapes(config)
    if config.sinks:
        shapes["sinks"] = (config.num_heads,)
    return shapes | (_expert_shapes(config) if layer.sparse else _mlp_shapes(config, config.intermediate_size))


def _norm_shapes(config: ModelConfig, names: Sequence[str]) -> Shapes:
    norm, size = config.norm, (config.hidden_size,)
    weights = dict.fromkeys(names, size) if norm.weight else {}
    return weights | (_biases(weights) if norm.bias else {})


def _attention_shapes(config: ModelConfig) -> Shapes:
    hidden, heads = config.hidden_size, {"query": config.num_heads, "key": config.num_kv_heads}
    q, kv = (count * config.head_dim for count in heads.values())
    projections: Shapes = {"query": (q, hidden), "key": (kv, hidden), "value": (kv, hidden)}
    output: Shapes = {"output": (hidden, q)}
    shapes = projections | output
    if config.qkv_bias:
        shapes |= _biases(projections)
    if config.output_bias:
        shapes |= _biases(output)
    for name, count in heads.items():
        dim = config.head_dim
        sizes = {"head": (dim,), "each head": (count, dim), "all heads": (count * dim,)}
        if config.qk_norm:
            shapes[f"{name}_norm"] = sizes[config.qk_norm]
        if config.qk_norm == "head" and config.norm.bias:
            shapes[f"{name}_norm_bias"] = sizes["head"]
    return shapes


def _latent_shapes(config: ModelConfig) -> Shapes:
    hidden, heads, latent = config.hidden_size, config.num_heads, config.latent
    down: Shapes = {"latent": (latent.rank, hidden), "rotary_key": (latent.rotary, hidden)}
    output: Shapes = {"output": (hidden, heads * latent.value_dim)}
    if latent.query_rank:
        down["query_down"] = (latent.query_rank, hidden)
        queries = {"query_down_norm": (latent.query_rank,), "query_up": (heads * config.head_dim, latent.query_rank)}
    else:
        queries = {"query": (heads * config.head_dim, hidden)}
    up = {"latent_key": (heads * latent.plain, latent.rank), "latent_value": (heads * latent.value_dim, latent.rank)}
    biases = _biases(down if config.qkv_bias else {}) | _biases(output if config.output_bias else {})
    return down | queries | {"latent_norm": (latent.rank,)} | up | output | biases


def _mlp_shapes(config: ModelConfig, size: int) -> Shapes:
    hidden = config.hidden_size
    shapes: Shapes = {"gate": (size, hidden)} if config.gated else {}
    shapes |= {"up": (size, hidden), "down": (hidden, size)}
    return shapes | (_biases(shapes) if config.mlp_bias else {})


def _expert_shapes(config: ModelConfig) -> Shapes:
    experts, hidden = config.experts, config.hidden_size
    one = _mlp_shapes(config, experts.size)
    shapes: Shapes = {f"expert_{name}": (experts.count, *shape) for name, shape in one.items()}
    shapes["router"] = (experts.count, hidden)
    if experts.bias:
        shapes |= {f"expert_{name}_bias": (experts.count, shape[0]) for name, shape in one.items()}
        shapes["router_bias"] = (experts.count,)
    if experts.correction:
        shapes["router_correction"] = (experts.count,)
    if experts.shared_size:
        shapes |= {f"shared_{name}": shape for name, shape in _mlp_shapes(config, experts.shared_size).items()}
    return shapes


def _biases(shapes: Shapes) -> Shapes:
    return {f"{name}_bias": shape[:1] for name, shape in shapes.items()}
