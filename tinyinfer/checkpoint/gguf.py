"""A GGUF file -> a `Checkpoint`, as if the model had come as a Hugging Face folder.

Read `gguf_file.py` first (the container), then this (configuration and tensors); `gguf_names.py` holds what
llama.cpp's converter did to each architecture, `gguf_packed.py` how quantized tensors stay so, `gguf_vocabulary.py`
the tokenizer.
"""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import BadCheckpoint, UnsupportedModel
from .gguf_file import GgufFile, import_gguf, open_gguf
from .gguf_names import ARCHITECTURES, ROPE_TENSORS, Architecture, Keys, hugging_face_name, llama3_scaling, unpermuted
from .gguf_packed import is_exact, pack, packed_form
from .gguf_vocabulary import GgufVocabulary
from .safetensors import to_float32
from .source import Checkpoint, LazyTensors, Tensor


def read_gguf(path: str | os.PathLike) -> Checkpoint:
    """Open a GGUF file; tensors keep Hugging Face's names and order of rows, and are made when asked for.

    F16, BF16 and F32 tensors keep their dtype. Quantized matrices become `PackedWeight`; `gguf_packed.py` has a table
    of what that costs. Quantized vectors, and what `source.dequantized` makes of the matrices, become float32, exactly
    as llama.cpp's reference has it.
    Raises `MissingExtra` without the gguf package, `BadCheckpoint` for a damaged file, `UnsupportedModel` for an
    architecture, tensor type, rotary scaling or tokenizer that this version does not know.
    """
    import_gguf()
    file = open_gguf(path)
    name = Keys(file, "").get("general.architecture", (str,), "")
    if name not in ARCHITECTURES:
        raise UnsupportedModel(f"{path}: architecture {name!r} can't be imported; known are {', '.join(ARCHITECTURES)}")
    architecture, keys = ARCHITECTURES[name], Keys(file, name)
    if keys.whole(".expert_count", 0):
        raise UnsupportedModel(f"{path}: a mixture of experts of architecture {name!r} can't be imported")
    vocabulary = GgufVocabulary(file)
    config = _config(file, keys, architecture) | vocabulary.config_ids()
    return Checkpoint(
        source=Path(path),
        config=config,
        tensors=_tensors(file, config, architecture),
        generation_config=vocabulary.generation_config(),
        tokenizer_json=vocabulary.tokenizer_json(),
        tokenizer_config=vocabulary.tokenizer_config(config["max_position_embeddings"]),
        chat_template=Keys(file, "").get("tokenizer.chat_template", (str,)),
        tool_template=Keys(file, "").get("tokenizer.chat_template.tool_use", (str,)),
    )


# ---- configuration


def _config(file: GgufFile, keys: Keys, architecture: Architecture) -> dict[str, Any]:
    """config.json in the form of transformers 4, which version 5 reads too."""
    if "token_embd.weight" not in file.tensors:
        raise BadCheckpoint(f"{file.path}: tensor 'token_embd.weight' is missing")
    heads = keys.needed(".attention.head_count")
    hidden = keys.needed(".embedding_length")
    config = {
        "architectures": [architecture.class_name],
        "model_type": architecture.model_type,
        "vocab_size": file.tensors["token_embd.weight"].shape[0],
        "hidden_size": hidden,
        "intermediate_size": keys.needed(".feed_forward_length"),
        "num_hidden_layers": keys.needed(".block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": keys.whole(".attention.head_count_kv", heads, least=1),
        "head_dim": keys.whole(".attention.key_length", hidden // heads, least=1),
        "max_position_embeddings": keys.needed(".context_length"),
        "rms_norm_eps": keys.real(".attention.layer_norm_rms_epsilon", 1e-6),
        "rope_theta": keys.real(".rope.freq_base", 10000.0),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "attention_bias": "blk.0.attn_q.bias" in file.tensors,
    } | architecture.config
    config |= _rotary(file, keys, config)
    return config | _BY_ARCHITECTURE[keys.architecture](file, keys, config)


def _rotary(file: GgufFile, keys: Keys, config: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    rotated = keys.whole(".rope.dimension_count", config["head_dim"], least=2)
    if rotated > config["head_dim"] or rotated % 2:
        raise BadCheckpoint(f"{file.path}: {rotated} rotated dimensions in heads of {config['head_dim']}")
    if rotated != config["head_dim"]:
        found["partial_rotary_factor"] = rotated / config["head_dim"]
    divisors = {name: _divisors(file, name, rotated // 2) for name in ROPE_TENSORS if name in file.tensors}
    kind = keys.get(".rope.scaling.type", (str,), "none")
    original = keys.whole(".rope.scaling.original_context_length", least=2)
    if "rope_freqs.weight" in divisors:
        scaling = llama3_scaling(file, divisors["rope_freqs.weight"], config["rope_theta"])
    elif "rope_factors_long.weight" in divisors and "rope_factors_short.weight" in divisors:
        original = original or config["max_position_embeddings"]
        scaling = _longrope(keys, divisors, original, config["max_position_embeddings"])
        found["original_max_position_embeddings"] = original
    elif kind in ("linear", "yarn"):
        scaling = {"rope_type": kind, "factor": _factor(keys)}
        if kind == "yarn":
            scaling |= _yarn(keys, original)
    elif kind == "none":
        factor = keys.real(".rope.scale_linear", 1.0)
        scaling = {"rope_type": "linear", "factor": factor} if factor != 1 else None
    else:
        raise UnsupportedModel(f"{file.path}: rotary scaling {kind!r} can't be imported")
    return found | ({"rope_scaling": scaling} if scaling else {})


def _divisors(file: GgufFile, name: str, count: int) -> np.ndarray:
    values = to_float32(file.tensors[name].values())
    if values.shape != (count,) or not np.all(np.isfinite(values) & (values > 0)):
        raise BadCheckpoint(f"{file.path}: tensor {name!r} should be {count} positive numbers, found {values.shape}")
    return values


def _factor(keys: Keys) -> float:
    factor = keys.real(".rope.scaling.factor", 1.0)
    if factor <= 0:
        raise BadCheckpoint(f"{keys.file.path}: a rotary scaling factor of {factor}; expected more than 0")
    return factor


def _longrope(keys: Keys, divisors: dict[str, np.ndarray], original: int, longest: int) -> dict[str, Any]:
    shorts, longs = (
        [float(str(value)) for value in divisors[f"rope_factors_{which}.weight"]] for which in ("short", "long")
    )
    scaling = {"rope_type": "longrope", "short_factor": shorts, "long_factor": longs}
    scale = longest / original
    usual = math.sqrt(1 + math.log(scale) / math.log(original)) if scale > 1 else 1.0
    stored = keys.real(".rope.scaling.attn_factor", usual)
    # transformers works the usual factor out by itself
    return scaling if math.isclose(stored, usual, rel_tol=1e-5) else scaling | {"attention_factor": stored}


def _yarn(keys: Keys, original: int | None) -> dict[str, Any]:
    found: dict[str, Any] = {"original_max_position_embeddings": original} if original else {}
    for name in ("beta_fast", "beta_slow"):
        value = keys.real(f".rope.scaling.yarn_{name}")
        if value is not None:
            found[name] = value
    share = keys.real(".rope.scaling.attn_factor", 1.0)
    if share != 1:  # llama.cpp multiplies, transformers replaces
        found["attention_factor"] = share * (0.1 * math.log(_factor(keys)) + 1)
    return found


def _llama(file: GgufFile, keys: Keys, config: dict[str, Any]) -> dict[str, Any]:
    window = keys.whole(".attention.sliding_window", 0)
    if window:
        return {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": window}
    return {"mlp_bias": "blk.0.ffn_down.bias" in file.tensors}


def _qwen(file: GgufFile, keys: Keys, config: dict[str, Any]) -> dict[str, Any]:
    return {"use_sliding_window": False}


def _gemma3(file: GgufFile, keys: Keys, config: dict[str, Any]) -> dict[str, Any]:
    """Every sixth layer sees everything and has the file's theta; the others have a window and their own."""
    layers = config["num_hidden_layers"]
    pattern = keys.get(".attention.sliding_window_pattern", (int, np.ndarray), 6)
    if isinstance(pattern, np.ndarray):
        slides = [bool(value) for value in pattern]
    else:
        slides = [pattern > 0 and (layer + 1) % pattern != 0 for layer in range(layers)]
    if len(slides) != layers:
        raise BadCheckpoint(
            f"{file.path}: a sliding window pattern for {len(slides)} layers, but the model has {layers}"
        )
    # The file does not hold the scalar. llama.cpp: heads' own size, but for the 27B model (62 layers) width / heads.
    scalar = config["hidden_size"] // config["num_attention_heads"] if layers == 62 else config["head_dim"]
    scale = keys.real(".attention.scale")
    return {
        "query_pre_attn_scalar": round(scale**-2) if scale else scalar,
        "sliding_window": keys.whole(".attention.sliding_window", 1024, least=1),
        "layer_types": ["sliding_attention" if slide else "full_attention" for slide in slides],
        "rope_theta": keys.real(".rope.freq_base", 1_000_000.0),
        "rope_local_base_freq": keys.real(".rope.freq_base_swa", 10_000.0),
        "attn_logit_softcapping": keys.real(".attn_logit_softcapping"),
        "final_logit_softcapping": keys.real(".final_logit_softcapping"),
    }


def _phi3(file: GgufFile, keys: Keys, config: dict[str, Any]) -> dict[str, Any]:
    original = config.get("original_max_position_embeddings", config["max_position_embeddings"])
    window = keys.whole(".attention.sliding_window", 0)
    # a window as long as the context hides nothing
    useful = window if 0 < window < config["max_position_embeddings"] else None
    return {"original_max_position_embeddings": original, "sliding_window": useful}


_BY_ARCHITECTURE = {"llama": _llama, "qwen2": _qwen, "qwen3": _qwen, "gemma3": _gemma3, "phi3": _phi3}


# ---- tensors


def _tensors(file: GgufFile, config: dict[str, Any], architecture: Architecture) -> LazyTensors:
    layers = config["num_hidden_layers"]
    names = {
        hugging_face_name(file, name, architecture, layers): tensor
        for name, tensor in file.tensors.items()
        if name not in ROPE_TENSORS
    }
    heads = (
        {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
        if architecture.permuted
        else {}
    )
    for name, tensor in names.items():
        count = heads.get(name.split(".")[-2])
        if count and tensor.shape[0] % (2 * count):
            raise BadCheckpoint(f"{file.path}: {tensor.shape[0]} rows of {tensor.name!r} are not {count} even heads")

    def is_shifted(name: str) -> bool:
        return architecture.norms_plus_one and name.endswith("norm.weight")

    forms = {name: form for name, tensor in names.items() if (form := packed_form(tensor))}

    def rows(name: str) -> np.ndarray:
        """The bytes of a matrix, in Hugging Face's order of rows: they are whole, whatever they are packed in."""
        count = heads.get(name.split(".")[-2])
        return unpermuted(names[name].data, count) if count else names[name].data

    def floats(name: str, ids: np.ndarray | None) -> np.ndarray:
        return to_float32(names[name].values(rows(name) if ids is None else rows(name)[ids]))

    def make(name: str) -> Tensor:
        tensor, count = names[name], heads.get(name.split(".")[-2])
        if is_shifted(name):
            return to_float32(tensor.values()) - np.float32(1)
        if count and len(tensor.shape) == 1:
            return unpermuted(tensor.values(), count)
        return pack(tensor, rows(name)) if name in forms else tensor.values(rows(name))

    dtypes = {name: np.dtype("<f4") if is_shifted(name) else tensor.dtype for name, tensor in names.items()}
    layout = {name: (dtypes[name], tensor.shape) for name, tensor in names.items()}
    return LazyTensors(layout, make, forms, floats, [name for name in forms if not is_exact(names[name])])
