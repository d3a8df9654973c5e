"""Small random models: seeded normal weights, grouped keys, an odd size of head.

Folders are written by `json` and the safetensors library, or by hand: by nothing of tinyinfer's.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

from tinyinfer.config import ModelConfig, read_config
from tinyinfer.model.tensors import ModelTensors, collect_tensors

GOLDEN = Path(__file__).parent / "golden" / "architectures"


def golden_folder(name: str) -> Path:
    """The folder of one of ARCHITECTURES or VARIANTS."""
    return GOLDEN.parent / ("variants" if name in VARIANTS else "architectures") / name


ARCHITECTURES = sorted(folder.name for folder in GOLDEN.iterdir())
VARIANTS = sorted(folder.name for folder in (GOLDEN.parent / "variants").iterdir() if folder.is_dir())

# the golden folders that `float64_model.py` knows the equations of
LLAMA_LIKE = [
    "llama", "llama-mqa-bias", "llama-rope-dynamic", "llama-rope-linear", "llama-rope-llama3", "llama-rope-yarn",
    "llama-tied-headdim", "mistral-swa", "qwen2", "qwen3", "gemma3", "phi3", "phi3-longrope",
]  # fmt: skip

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 97, "hidden_size": 40,
    "intermediate_size": 56, "num_hidden_layers": 3, "num_attention_heads": 6, "num_key_value_heads": 2,
    "head_dim": 10, "max_position_embeddings": 128, "rms_norm_eps": 1e-6, "tie_word_embeddings": False,
    "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}, "dtype": "float32",
}  # fmt: skip

# the window model: a token sees itself and three before it in the first two layers, all in the third
WINDOWED = {
    "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "sliding_window": 4,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"], "query_pre_attn_scalar": 10,
    "rope_parameters": {
        "full_attention": {"rope_theta": 1000000.0, "rope_type": "default"},
        "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"},
    },
}  # fmt: skip


def random_model(
    folder: Path | None = None, seed: int = 0, dtype: str = "float32", **changes: Any
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """config.json of a random model, and its tensors as float32 that `dtype` holds exactly.

    With `folder`, both are written there too. `changes` are keys of config.json; a None takes the key away.
    """
    config = {key: value for key, value in {**CONFIG, **changes, "dtype": dtype}.items() if value is not None}
    rng = np.random.default_rng(seed)
    tensors = {name: _rounded(_random(rng, name, shape), dtype) for name, shape in _shapes(config).items()}
    if folder is not None:
        write_model(folder, config, tensors, dtype)
    return config, tensors


def random_runtime(seed: int = 0, **changes: Any) -> tuple[ModelConfig, ModelTensors]:
    """A random model as the forward pass takes it."""
    config, tensors = random_model(None, seed, **changes)
    facts = read_config(config)
    return facts, collect_tensors(facts, tensors)


def write_model(folder: Path, config: dict[str, Any], tensors: dict[str, np.ndarray], dtype: str = "float32") -> None:
    """A Hugging Face folder of one safetensors file."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    if dtype == "bfloat16":  # NumPy has none, so the file is put together by hand
        header, data = {}, b""
        for name, array in tensors.items():
            upper = np.ascontiguousarray(array).view("<u2")[..., 1::2].tobytes()
            header[name] = {"dtype": "BF16", "shape": array.shape, "data_offsets": [len(data), len(data) + len(upper)]}
            data += upper
        encoded = json.dumps(header).encode()
        (folder / "model.safetensors").write_bytes(len(encoded).to_bytes(8, "little") + encoded + data)
    else:
        stored = {name: array.astype(dtype) for name, array in tensors.items()}
        safetensors.numpy.save_file(stored, folder / "model.safetensors")


def version4(config: dict[str, Any]) -> dict[str, Any]:
    """config.json as transformers 4 wrote it, from the form of version 5.

    Rotary settings at top level, "type" for "rope_type", no head_dim where it is the quotient, "torch_dtype", and the
    kinds of layer left to be told from a pattern.
    """
    old = {key: value for key, value in config.items() if key not in ("rope_parameters", "dtype", "layer_types")}
    old["torch_dtype"] = config.get("dtype", "float32")
    if config["model_type"] == "llama" and old.get("head_dim") == old["hidden_size"] // old["num_attention_heads"]:
        del old["head_dim"]  # other classes have a default of their own
    if config["model_type"] == "qwen3_moe" and "num_local_experts" in old:
        old["num_experts"] = old.pop("num_local_experts")
    rope = config.get("rope_parameters")
    if rope is None:  # positions are learned, or bias attention
        return old
    if "full_attention" in rope:
        old["rope_local_base_freq"] = rope["sliding_attention"]["rope_theta"]
        if "_sliding_window_pattern" in old:
            old["sliding_window_pattern"] = old.pop("_sliding_window_pattern")
        rope = rope["full_attention"]
    scaling = {key: value for key, value in rope.items() if key not in ("rope_theta", "partial_rotary_factor")}
    scaling["type"] = scaling.pop("rope_type")
    names = {"rope_theta": "rope_theta", "partial_rotary_factor": "partial_rotary_factor"}
    if config["model_type"] == "gpt_neox":
        names = {"rope_theta": "rotary_emb_base", "partial_rotary_factor": "rotary_pct"}
    old["rope_scaling"] = None if scaling["type"] == "default" else scaling
    return old | {names[key]: value for key, value in rope.items() if key in names}


def _random(rng: np.random.Generator, name: str, shape: tuple[int, ...]) -> np.ndarray:
    if name.endswith("norm.weight"):
        return (1 + 0.2 * rng.standard_normal(shape)).astype(np.float32)
    if name.endswith("bias"):
        return (0.1 * rng.standard_normal(shape)).astype(np.float32)
    return (rng.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)


def _rounded(array: np.ndarray, dtype: str) -> np.ndarray:
    if dtype == "bfloat16":
        return (array.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    return array.astype(dtype).astype(np.float32)


def _shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Hugging Face's names and shapes of a model's tensors."""
    kind, hidden, inner = config["model_type"], config["hidden_size"], config["intermediate_size"]
    dim = config.get("head_dim") or hidden // config["num_attention_heads"]
    q, kv = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config["vocab_size"], hidden),
        "model.norm.weight": (hidden,),
    }
    if not config.get("tie_word_embeddings"):
        shapes["lm_head.weight"] = (config["vocab_size"], hidden)
    norms = ["input_layernorm", "post_attention_layernorm"]
    if kind == "gemma3_text":
        norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
    linears = {"self_attn.o_proj": (hidden, q), "mlp.down_proj": (hidden, inner)}
    if kind == "phi3":
        linears |= {"self_attn.qkv_proj": (q + 2 * kv, hidden), "mlp.gate_up_proj": (2 * inner, hidden)}
    else:
        linears |= {"self_attn.q_proj": (q, hidden), "self_attn.k_proj": (kv, hidden)}
        linears |= {"self_attn.v_proj": (kv, hidden), "mlp.gate_proj": (inner, hidden), "mlp.up_proj": (inner, hidden)}
    biased = [name for name in linears if _has_bias(config, name)]
    for i in range(config["num_hidden_layers"]):
        stem = f"model.layers.{i}."
        shapes |= {f"{stem}{name}.weight": (hidden,) for name in norms}
        shapes |= {f"{stem}{name}.weight": shape for name, shape in linears.items()}
        shapes |= {f"{stem}{name}.bias": linears[name][:1] for name in biased}
        if kind in ("qwen3", "gemma3_text"):
            shapes |= {f"{stem}self_attn.{name}_norm.weight": (dim,) for name in "qk"}
    return shapes


def _has_bias(config: dict[str, Any], name: str) -> bool:
    if name.startswith("mlp"):
        return bool(config.get("mlp_bias"))
    if config["model_type"] == "qwen2":
        return name != "self_attn.o_proj"
    return bool(config.get("attention_bias"))
