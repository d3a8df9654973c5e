"""What llama.cpp's converter did to a model, per architecture, so that it can be undone.

It renames tensors and keys, and for some architectures changes numbers: the rows of q and k are reordered for `llama`,
and 1 is added to gemma's norms. Facts from convert_hf_to_gguf.py of https://github.com/ggml-org/llama.cpp.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..errors import BadCheckpoint, UnsupportedModel
from .gguf_file import GgufFile

_OUTER = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_HEAD_NORMS = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
_GEMMA3_NORMS = {
    "ffn_norm": "pre_feedforward_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_PHI3_FUSED = {
    "attn_norm": "input_layernorm",
    "attn_qkv": "self_attn.qkv_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_up": "mlp.gate_up_proj",
    "ffn_down": "mlp.down_proj",
}
ROPE_TENSORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")


@dataclass(frozen=True)
class Architecture:
    """How one of llama.cpp's architectures maps to one of Hugging Face's."""

    model_type: str
    class_name: str
    layer_names: dict[str, str]
    permuted: bool = False  # rows of q and k come in llama.cpp's rotary order
    norms_plus_one: bool = False  # norm weights come with the 1 of (1 + weight) already added
    config: dict[str, Any] = field(default_factory=dict)  # facts that the architecture implies


ARCHITECTURES = {
    "llama": Architecture("llama", "LlamaForCausalLM", _LAYER, permuted=True, config={"hidden_act": "silu"}),
    "qwen2": Architecture("qwen2", "Qwen2ForCausalLM", _LAYER, config={"hidden_act": "silu"}),
    "qwen3": Architecture("qwen3", "Qwen3ForCausalLM", _LAYER | _HEAD_NORMS, config={"hidden_act": "silu"}),
    "gemma3": Architecture(
        "gemma3_text",
        "Gemma3ForCausalLM",
        _LAYER | _HEAD_NORMS | _GEMMA3_NORMS,
        norms_plus_one=True,
        config={"hidden_activation": "gelu_pytorch_tanh"},
    ),
    "phi3": Architecture("phi3", "Phi3ForCausalLM", _PHI3_FUSED, config={"hidden_act": "silu"}),
}


def hugging_face_name(file: GgufFile, name: str, architecture: Architecture, layers: int) -> str:
    """`blk.3.attn_q.weight` -> `model.layers.3.self_attn.q_proj.weight`; raises `UnsupportedModel` for a stranger."""
    parts = name.split(".")
    if len(parts) == 2 and parts[0] in _OUTER and parts[1] == "weight":
        return f"{_OUTER[parts[0]]}.weight"
    if len(parts) == 4 and parts[0] == "blk" and parts[1].isdecimal() and parts[3] in ("weight", "bias"):
        if int(parts[1]) >= layers:
            raise BadCheckpoint(f"{file.path}: tensor {name!r} belongs to no layer: the model has {layers}")
        if parts[2] in architecture.layer_names:
            return f"model.layers.{int(parts[1])}.{architecture.layer_names[parts[2]]}.{parts[3]}"
    raise UnsupportedModel(f"{file.path}: tensor {name!r} has no place in a plain {architecture.model_type} model")


def unpermuted(rows: np.ndarray, heads: int) -> np.ndarray:
    """Undo llama.cpp's row order of q and k: [heads * head_dim, n] or [heads * head_dim], any dtype.

    Hugging Face rotates row i of a head with row i + head_dim/2; llama.cpp rotates neighbours, so its rows go
    0, d/2, 1, d/2 + 1, ...
    """
    pairs = rows.reshape(heads, len(rows) // heads // 2, 2, -1)
    return pairs.swapaxes(1, 2).reshape(rows.shape)


@dataclass(frozen=True)
class Keys:
    """The metadata of a file, read with the type that is expected; `.name` stands for `architecture.name`."""

    file: GgufFile
    architecture: str

    def get(self, key: str, kinds: tuple[type, ...], default: Any = None) -> Any:
        """The value, or `default` where there is none; raises `BadCheckpoint` where it is of another type."""
        key = self.architecture + key if key.startswith(".") else key
        value = self.file.metadata.get(key, default)
        if value is not default and (not isinstance(value, kinds) or (bool not in kinds and isinstance(value, bool))):
            expected = " or ".join(kind.__name__ for kind in kinds)
            raise BadCheckpoint(f"{self.file.path}: key {key!r} should be {expected}, found {str(value)[:60]!r}")
        return value

    def whole(self, key: str, default: int | None = None, least: int = 0) -> int | None:
        """A whole number from `least`. An array of one number for each layer counts where all are equal."""
        value = self.get(key, (int, np.ndarray), default)
        if isinstance(value, np.ndarray):
            if value.size == 0 or value.dtype.kind not in "iu" or np.any(value != value[0]):
                raise UnsupportedModel(f"{self.file.path}: key {key!r} differs from layer to layer")
            value = int(value[0])
        if value is not None and not least <= value < 2**31:
            raise BadCheckpoint(f"{self.file.path}: key {key!r} should be at least {least}, found {value}")
        return value

    def needed(self, key: str) -> int:
        """A whole number from 1 that must be there."""
        value = self.whole(key, least=1)
        if value is None:
            raise BadCheckpoint(f"{self.file.path}: key {self.architecture + key!r} is missing")
        return value

    def real(self, key: str, default: float | None = None) -> float | None:
        """A finite number. What was 1e-5 before it was stored as float32 is 1e-5 again."""
        value = self.get(key, (float, int), default)
        if value is None:
            return None
        if not math.isfinite(value):
            raise BadCheckpoint(f"{self.file.path}: key {key!r} should be finite, found {value}")
        return float(str(np.float32(value)))


def llama3_scaling(file: GgufFile, divisors: np.ndarray, theta: float) -> dict[str, Any] | None:
    """The llama3 rotary scaling that divides frequencies by these numbers, float32 [head_dim / 2]; None if all are 1.

    The file keeps only the divisors. They depend on low, high and original length through the ratios low/original and
    high/original alone, so published models' low = 1 and high = 4 lose nothing, and the original length follows.
    Raises `UnsupportedModel` where no power of two gives the divisors to within float32 rounding.
    """
    if np.all(divisors == 1):
        return None
    factor = float(divisors.max())
    rates = theta ** (-np.arange(len(divisors)) / len(divisors)) / (2 * math.pi)  # turns a token
    for original in (2**n for n in range(4, 25)):
        smooth = np.clip((original * rates - 1) / (4 - 1), 0, 1)
        if np.allclose(1 / ((1 - smooth) / factor + smooth), divisors, rtol=2e-5, atol=0):
            return {
                "rope_type": "llama3",
                "factor": factor,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": original,
            }
    raise UnsupportedModel(f"{file.path}: rope_freqs.weight is not what a llama3 rotary scaling gives")
