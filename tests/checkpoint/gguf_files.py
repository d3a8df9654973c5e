"""GGUF files for tests, written with the gguf package: tiny models converted the way llama.cpp's converter would.

The names and the row order are written out here a second time, in the other direction and in another way than in the
package, so that a mistake there does not cancel itself.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from tests.checkpoint.ggml_blocks import BLOCKS, random_blocks
from tinyinfer.checkpoint.safetensors import BFLOAT16, open_safetensors

GOLDEN = Path(__file__).parent.parent / "golden"
TYPES = gguf.GGMLQuantizationType

_NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.qkv_proj": "attn_qkv",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "mlp.gate_up_proj": "ffn_up",
}  # fmt: skip
_GEMMA3_NAMES = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


def golden_model(name: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """config.json and the bfloat16 tensors of a folder of golden/architectures."""
    folder = GOLDEN / "architectures" / name
    tensors: dict[str, np.ndarray] = {}
    for path in sorted(folder.glob("model*.safetensors")):
        tensors |= open_safetensors(path)
    return json.loads((folder / "config.json").read_text(encoding="utf-8")), tensors


def widened(array: np.ndarray) -> np.ndarray:
    """Float16, bfloat16 or float32 as float32."""
    if array.dtype == BFLOAT16:
        return (array["bfloat16"].astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.float32)


def gguf_name(name: str, arch: str) -> str:
    """`model.layers.3.mlp.up_proj.weight` -> `blk.3.ffn_up.weight`."""
    names = _NAMES | (_GEMMA3_NAMES if arch == "gemma3" else {})
    stem, kind = name.rsplit(".", 1)
    if not stem.startswith("model.layers."):
        return f"{names[stem]}.{kind}"
    _, _, layer, rest = stem.split(".", 3)
    return f"blk.{layer}.{names[rest]}.{kind}"


def permuted(rows: np.ndarray, heads: int) -> np.ndarray:
    """llama.cpp's order: within each head, row i of the first half, then row i of the second half."""
    size = len(rows) // heads
    order = [head * size + half * size // 2 + i for head in range(heads) for i in range(size // 2) for half in (0, 1)]
    return rows[order]


def as_llama_cpp(name: str, array: np.ndarray, arch: str, config: dict[str, Any]) -> np.ndarray:
    """What the converter does to the numbers of one tensor; float32 in and out."""
    if arch == "llama" and ".q_proj." in name:
        return permuted(array, config["num_attention_heads"])
    if arch == "llama" and ".k_proj." in name:
        return permuted(array, config["num_key_value_heads"])
    if arch == "gemma3" and name.endswith("norm.weight"):
        return array + np.float32(1)
    return array


def write_model(path: Path, name: str, arch: str, form: str = "BF16", **extra: Any) -> None:
    """Write a golden model as GGUF: matrices as `form` (BF16, F16, F32 or Q8_0), vectors as F32, `extra` keys added."""
    config, tensors = golden_model(name)
    writer = gguf.GGUFWriter(path, arch)
    add_config(writer, config)
    add_keys(writer, extra)
    for tensor, array in tensors.items():
        values = as_llama_cpp(tensor, widened(array), arch, config)
        if values.ndim == 1:
            writer.add_tensor(gguf_name(tensor, arch), values)
        else:
            packed = gguf.quants.quantize(values, TYPES[form])
            writer.add_tensor(gguf_name(tensor, arch), packed, raw_dtype=TYPES[form])
    finish(writer)


def write_types(path: Path, kinds: dict[str, str]) -> None:
    """A llama of one layer, 256 wide, with 4 heads of 64, 2 for keys and values, and 40 tokens: random numbers.

    `kinds` has the types of matrices; others are F32. Blocks of a quantized type are random bytes, since the gguf
    package can't make those of all types.
    """
    writer, rng = gguf.GGUFWriter(path, "llama"), np.random.default_rng(0)
    rope = {"rope_theta": 10000.0}
    add_config(writer, {
        "rope_parameters": rope, "num_hidden_layers": 1, "max_position_embeddings": 64, "hidden_size": 256,
        "intermediate_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-5,
    })  # fmt: skip
    layer = {"attn_q": 256, "attn_k": 128, "attn_v": 128, "attn_output": 256, "ffn_gate": 256, "ffn_up": 256}
    rows = {f"blk.0.{name}": count for name, count in (layer | {"ffn_down": 256}).items()}
    for name, count in (rows | {"token_embd": 40, "output": 40}).items():
        kind = kinds.get(name, "F32")
        if kind in BLOCKS:
            data = random_blocks(kind, count, 256 // BLOCKS[kind][1], rng)
        else:
            data = gguf.quants.quantize(rng.standard_normal((count, 256), np.float32) / 16, TYPES[kind])
        writer.add_tensor(f"{name}.weight", data, raw_dtype=TYPES[kind])
    for name in ("blk.0.attn_norm", "blk.0.ffn_norm", "output_norm"):
        writer.add_tensor(f"{name}.weight", np.ones(256, np.float32))
    finish(writer)


def add_config(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    """The keys that llama.cpp's converter writes from config.json."""
    rope = config["rope_parameters"]
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(rope.get("full_attention", rope)["rope_theta"])
    if "head_dim" in config:
        writer.add_key_length(config["head_dim"])
        writer.add_value_length(config["head_dim"])
    if config.get("sliding_window"):
        writer.add_sliding_window(config["sliding_window"])


def add_keys(writer: gguf.GGUFWriter, keys: dict[str, Any]) -> None:
    """Add metadata; `__` in a name stands for a dot, a leading `__` for the architecture."""
    kinds = {bool: "bool", int: "uint32", float: "float32", str: "string", list: "array"}
    for key, value in keys.items():
        key = (writer.arch if key.startswith("__") else "") + key.replace("__", ".")
        getattr(writer, f"add_{kinds[type(value)]}")(key, value)


def finish(writer: gguf.GGUFWriter) -> None:
    """Write everything out and close the file."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_minimal(path: Path, arch: str = "llama", tensors: dict[str, Any] | None = None, **keys: Any) -> None:
    """The smallest file that opens as a model: one layer's worth of keys, an embedding, and what is given."""
    writer = gguf.GGUFWriter(path, arch)
    base = {"__block_count": 1, "__context_length": 64, "__embedding_length": 32, "__feed_forward_length": 64}
    add_keys(writer, base | {"__attention__head_count": 2} | keys)
    for name, array in ({"token_embd.weight": np.zeros((16, 32), np.float32)} | (tensors or {})).items():
        writer.add_tensor(name, array)
    finish(writer)


def same_values(found: np.ndarray, expected: np.ndarray) -> bool:
    """Whether two float arrays of any 16- or 32-bit dtype hold the same numbers."""
    return found.shape == expected.shape and np.array_equal(widened(found), widened(expected))


def vocabulary_keys(**keys: object) -> dict[str, object]:
    """Keys of a small SentencePiece-style vocabulary of 265 tokens, and what is given."""
    tokens = [
        "<unk>",
        "<s>",
        "</s>",
        *(f"<0x{byte:02X}>" for byte in range(256)),
        "▁",
        "a",
        "b",
        "▁a",
        "ab",
        "<|im_end|>",
    ]
    types = [2, 3, 3, *[6] * 256, 1, 1, 1, 1, 1, 4]
    scores = [0.0] * 259 + [-10.0, -11.0, -12.0, -1.0, -2.0, 0.0]
    names = {"model": "llama", "tokens": tokens, "scores": scores, "token_type": types}
    return {f"tokenizer__ggml__{key}": value for key, value in names.items()} | keys
