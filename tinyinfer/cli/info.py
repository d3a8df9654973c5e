"""`tinyinfer info`: a model's shape and size, and what fits into this machine's memory beside it."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import BadRequest
from .options import Parser, add_kv_dtype, add_model, settle_model
from .output import show_json, size
from .quantize import quantization_line

if TYPE_CHECKING:
    from ..checkpoint.outlook import TypeOutlook

USERS = (1, 4, 16)


def info_command(parser: Parser) -> Callable[[argparse.Namespace], int]:
    """The flags of `info`."""
    add_model(parser)
    schemes_help = "also show what each quantized form would make of the model; takes some seconds"
    parser.add_argument("--schemes", action="store_true", help=schemes_help)
    supported_help = "instead of a model's facts, show which families can be run, and what sets each apart"
    parser.add_argument("--supported", action="store_true", help=supported_help)
    add_kv_dtype(parser)
    parser.add_argument("--json", action="store_true", help="write a JSON object")
    parser.epilog = (
        "Of weights only some rows of each matrix are read: by --schemes, and to tell what a .gguf file's types cost.\n"
        "Of a folder that another program quantized, scales are read: they decide what each matrix becomes.\n"
        "What fits is what memory is free now, less the weights; work space is not counted."
    )
    return info


def info(args: argparse.Namespace) -> int:
    """Print the facts of a model, or what models there can be."""
    if args.supported:
        return show_supported(args)
    settle_model(args)
    from ..checkpoint.places import find_model
    from ..lab.machine import free_memory

    path = find_model(args.model)
    facts = facts_of(path, free_memory(), args.kv_dtype)
    if path.is_file():
        facts["gguf_types"] = gguf_types(path)
    elif types := foreign_types(path):
        facts["foreign_types"] = types
    if args.schemes:
        facts["schemes"] = schemes(path)
    if args.json:
        show_json(facts)
    else:
        print("\n".join(f"{name:15}{value}" for name, value in rows(facts)))
        types = facts.get("gguf_types", []) + facts.get("foreign_types", [])
        for name, value in type_rows(types) + scheme_rows(facts.get("schemes", [])):
            print(f"{name:15}{value}")
    return 0


def show_supported(args: argparse.Namespace) -> int:
    """Print the families that can be run."""
    from .supported import supported, supported_text

    if args.model or args.model_flag or args.schemes:
        raise BadRequest("--supported is about no model: give it alone, or with --json", "supported")
    facts = supported()
    if args.json:
        show_json(facts)
    else:
        print(supported_text(facts))
    return 0


def gguf_types(path: Path) -> list[dict[str, Any]]:
    """What becomes of each type of tensor in a .gguf file, and what that costs."""
    from ..checkpoint.gguf_file import open_gguf
    from ..checkpoint.gguf_packed import type_outlooks

    return list(map(_as_dict, type_outlooks(open_gguf(path))))


def foreign_types(path: Path) -> list[dict[str, Any]]:
    """What becomes of each kind of tensor in a folder that another program quantized; nothing for other folders."""
    from ..checkpoint.foreign import ForeignTensors, foreign_outlooks
    from ..checkpoint.source import open_checkpoint

    tensors = open_checkpoint(path).tensors
    return list(map(_as_dict, foreign_outlooks(tensors))) if isinstance(tensors, ForeignTensors) else []


def _as_dict(outlook: TypeOutlook) -> dict[str, Any]:
    return asdict(outlook) | {"bits_per_weight": outlook.bits_per_weight}


def type_rows(found: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """The types for people: (heading, values)."""
    width = max([6, *(len(one["type"]) + 1 for one in found)])
    lines = [
        f"{one['type']:{width}}{size(one['file_bytes']):>7} in {one['tensors']} {_tensors(one['tensors'])} "
        f"as {one['form']}: {one['bits_per_weight']:.3g} bits a weight, {size(one['bytes'])}, "
        + (f"relative error {one['relative_error']:.2g}" if one["relative_error"] else "exact")
        for one in found
    ]
    return [("in the file" if number == 0 else "", line) for number, line in enumerate(lines)]


def _tensors(count: int) -> str:
    return "tensor" if count == 1 else "tensors"


def schemes(path: Path) -> list[dict[str, Any]]:
    """What each quantized form would make of a model's matrices, its tables of tokens among them."""
    from ..checkpoint.source import open_checkpoint, plain_rows, tensor_layout
    from ..quant.study import outlooks, sample_rows

    tensors = open_checkpoint(path).tensors
    shapes = {name: shape for name, (_, shape) in tensor_layout(tensors).items() if len(shape) == 2}
    samples = [plain_rows(tensors, name, sample_rows(shape)) for name, shape in shapes.items()]
    return [asdict(outlook) for outlook in outlooks(list(shapes.values()), samples)]


def scheme_rows(found: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """The forms for people: (heading, values)."""
    lines = [
        f"{one['form']:20}{one['bits_per_weight']:5.3f} bits a weight, {size(one['bytes']):>7}, "
        f"relative error {one['relative_error']:.3g}"
        for one in found
    ]
    return [("as" if number == 0 else "", line) for number, line in enumerate(lines)]


def facts_of(path: Path, memory: int | None, kv_dtype: str = "float16") -> dict[str, Any]:
    """What is known of the model at `path` without reading weights; `memory` is how many bytes are free, if known."""
    from ..checkpoint.foreign import quantization_method
    from ..checkpoint.source import stored_bytes
    from ..model.footprint import kv_bytes, kv_bytes_per_token, parameters, tokens_that_fit
    from ..model.tensors import open_complete

    checkpoint, config = open_complete(path)
    sizes = stored_bytes(checkpoint.tensors)
    weights = sum(sizes.values())
    windows = {layer.window for layer in config.layers if layer.window}
    facts = {
        "path": str(path),
        "architecture": config.architecture,
        "layers": config.num_layers,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "heads": config.num_heads,
        "kv_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "latent_dim": config.cache_shape[1] if config.latent else None,
        "experts": config.experts.count if config.experts else None,
        "experts_used": config.experts.used if config.experts else None,
        "windowed_layers": sum(1 for layer in config.layers if layer.window),
        "window": max(windows, default=None),
        "vocabulary": config.vocab_size,
        "tied": config.tied,
        "context": config.context,
        "chat_template": checkpoint.chat_template is not None,
        "parameters": parameters(config),
        "weight_bytes": weights,
        "weight_bytes_by_dtype": sizes,
        "quantization": checkpoint.config.get("quantization_config") or checkpoint.config.get("quantization"),
        "quantized_by": quantization_method(checkpoint.config),
        "kv_dtype": kv_dtype,
        "kv_bytes_per_token": kv_bytes_per_token(config, kv_dtype),
        "kv_bytes_full_context": kv_bytes(config, config.context, kv_dtype),
        "free_memory_bytes": memory,
    }
    if memory is not None:
        left = max(memory - weights, 0)
        facts["tokens_that_fit"] = {str(users): tokens_that_fit(config, left, users, kv_dtype) for users in USERS}
    return facts


def rows(facts: dict[str, Any]) -> list[tuple[str, str]]:
    """The facts for people: (name, value)."""
    dtypes = ", ".join(facts["weight_bytes_by_dtype"]) or "no tensors"
    heads = f"{facts['heads']} heads of {facts['head_dim']} dimensions, {facts['kv_heads']} for keys and values"
    if facts["latent_dim"]:
        heads += f", unpacked from {facts['latent_dim']} numbers"
    if facts["window"]:
        heads += f"; {facts['windowed_layers']} layers see {facts['window']:,} tokens back"
    width = f"{facts['hidden_size']:,} wide, feed-forward {facts['intermediate_size']:,}"
    if facts["experts"]:
        width += f", {facts['experts']} experts, {facts['experts_used']} for each token"
    table = [
        ("path", facts["path"]),
        ("architecture", f"{facts['architecture']}: {facts['layers']} layers, {width}"),
        ("attention", heads),
        ("vocabulary", f"{facts['vocabulary']:,} tokens, {'tied' if facts['tied'] else 'separate'} head"),
        ("context", f"{facts['context']:,} tokens"),
        ("chat template", "yes" if facts["chat_template"] else "no"),
        ("parameters", f"{facts['parameters']:,}"),
        ("weights", f"{size(facts['weight_bytes'])} ({dtypes})"),
        (
            "KV cache",
            f"{facts['kv_bytes_per_token']:,} bytes a token in {facts['kv_dtype']}, "
            f"{size(facts['kv_bytes_full_context'])} at full context",
        ),
    ]
    if facts["quantized_by"] == "tinyinfer":
        table.append(("quantization", quantization_line(facts["quantization"])))
    elif facts["quantized_by"]:
        table.append(("quantization", f"by {facts['quantized_by']}"))
    if facts["free_memory_bytes"] is None:
        return [*table, ("memory", "how much is free can't be told on this system")]
    table.append(("memory", f"{size(facts['free_memory_bytes'])} free; beside the weights fit"))
    for users, tokens in facts["tokens_that_fit"].items():
        whole = ", the whole context" if tokens == facts["context"] else ""
        table.append(("", f"{users:>4} {'user' if users == '1' else 'users'}: {tokens:,} tokens each{whole}"))
    return table
