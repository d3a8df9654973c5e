"""The table of tensor names: what each family calls the arrays that the model reads, and the shapes they must have.

The model knows its tensors by the plain names on the left. Two kinds are taken apart here, so that nothing later has to
ask: a fused tensor (all of query, key and value in one) becomes views of its rows, and a tied head is the embedding.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from ..checkpoint.safetensors import FLOAT_DTYPES, dtype_name, to_float32
from ..config import ModelConfig
from ..errors import BadCheckpoint, UnsupportedModel
from ..quant import PackedWeight, dequantize, dequantize_rows
from ..quant.nf4 import expand_scales
from ..quant.packed import ROW_BLOCK

OUTER = {
    "embedding": "embed_tokens.weight",
    "final_norm": "norm.weight",
}

LLAMA = {
    "attention_norm": "input_layernorm.weight",
    "query": "self_attn.q_proj.weight",
    "key": "self_attn.k_proj.weight",
    "value": "self_attn.v_proj.weight",
    "query_bias": "self_attn.q_proj.bias",
    "key_bias": "self_attn.k_proj.bias",
    "value_bias": "self_attn.v_proj.bias",
    "query_norm": "self_attn.q_norm.weight",
    "key_norm": "self_attn.k_norm.weight",
    "output": "self_attn.o_proj.weight",
    "output_bias": "self_attn.o_proj.bias",
    "mlp_norm": "post_attention_layernorm.weight",
    "gate": "mlp.gate_proj.weight",
    "up": "mlp.up_proj.weight",
    "down": "mlp.down_proj.weight",
    "gate_bias": "mlp.gate_proj.bias",
    "up_bias": "mlp.up_proj.bias",
    "down_bias": "mlp.down_proj.bias",
}

# A name on the left with "+" is a fused tensor: its rows are those of the parts, one after the other.
PHI3 = {name: hf for name, hf in LLAMA.items() if name not in ("query", "key", "value", "gate", "up")} | {
    "query+key+value": "self_attn.qkv_proj.weight",
    "gate+up": "mlp.gate_up_proj.weight",
}

GEMMA3 = LLAMA | {
    "attention_post_norm": "post_attention_layernorm.weight",
    "mlp_norm": "pre_feedforward_layernorm.weight",
    "mlp_post_norm": "post_feedforward_layernorm.weight",
}

LAYER_NAMES = {
    "LlamaForCausalLM": LLAMA,
    "MistralForCausalLM": LLAMA,
    "Qwen2ForCausalLM": LLAMA,
    "Qwen3ForCausalLM": LLAMA,
    "Phi3ForCausalLM": PHI3,
    "Gemma3ForCausalLM": GEMMA3,
    "Gemma3ForConditionalGeneration": GEMMA3,
}

# Where a text model may sit inside a file that holds more than it.
PREFIXES = ("model.", "language_model.model.", "model.language_model.")


Tensor = np.ndarray | PackedWeight


def floats(tensor: Tensor) -> np.ndarray:
    """A whole tensor as float32."""
    return dequantize(tensor) if isinstance(tensor, PackedWeight) else to_float32(tensor)


def float_rows(tensor: Tensor, ids: np.ndarray) -> np.ndarray:
    """Some rows of a matrix as float32 [n, in]."""
    return dequantize_rows(tensor, ids) if isinstance(tensor, PackedWeight) else to_float32(tensor[ids])


@dataclass(frozen=True)
class ModelTensors:
    """Every tensor of a model by its plain name, as stored: float32, float16, bfloat16 records or quantized; mapped."""

    embedding: Tensor  # [vocab, hidden]
    final_norm: np.ndarray  # [hidden]
    head: Tensor  # [vocab, hidden]; the embedding itself where they are tied
    layers: tuple[Mapping[str, Tensor], ...]
    unused: tuple[str, ...]  # names in the checkpoint that the model does not read


def collect_tensors(config: ModelConfig, tensors: Mapping[str, Tensor]) -> ModelTensors:
    """Find every tensor that `config` calls for and check its shape.

    A head in the checkpoint is always used; where there is none, a tied model takes the embedding.
    Raises `BadCheckpoint` naming the first tensor that is missing or misshapen, `UnsupportedModel` one of no floats.
    """
    prefix = next((p for p in PREFIXES if p + OUTER["embedding"] in tensors), PREFIXES[0])
    shapes = tensor_shapes(config)
    used: set[str] = set()

    def take(name: str, shape: tuple[int, ...]) -> np.ndarray:
        if name not in tensors:
            raise BadCheckpoint(f"tensor {name!r} is missing; expected shape {list(shape)}")
        array = tensors[name]
        if array.shape != shape:
            raise BadCheckpoint(f"tensor {name!r}: expected shape {list(shape)}, found {list(array.shape)}")
        if not isinstance(array, PackedWeight) and array.dtype not in FLOAT_DTYPES:
            raise UnsupportedModel(f"tensor {name!r}: {dtype_name(array.dtype)} weights can't be read yet")
        used.add(name)
        return array

    def layer(index: int) -> Mapping[str, Tensor]:
        names = LAYER_NAMES[config.architecture]
        stem = f"{prefix}layers.{index}."
        return dict(part for name, hf in names.items() for part in _parts(name, stem + hf, shapes, take))

    embedding = take(prefix + OUTER["embedding"], shapes["embedding"])
    heads = [name for name in ("lm_head.weight", "language_model.lm_head.weight") if name in tensors]
    tied = config.tied and not heads
    return ModelTensors(
        embedding=embedding,
        final_norm=take(prefix + OUTER["final_norm"], shapes["final_norm"]),
        head=embedding if tied else take(heads[0] if heads else "lm_head.weight", shapes["embedding"]),
        layers=tuple(layer(index) for index in range(config.num_layers)),
        unused=tuple(name for name in tensors if name not in used),
    )


def _parts(name: str, hf_name: str, shapes: Mapping[str, tuple[int, ...]], take) -> Iterator[tuple[str, Tensor]]:
    """One tensor of a layer, or the parts of a fused one; nothing where the config does not call for it."""
    parts = name.split("+")
    if parts[0] not in shapes:
        return
    rows = [shapes[part][0] for part in parts]
    fused = take(hf_name, (sum(rows), *shapes[parts[0]][1:]))
    for part, end in zip(parts, np.cumsum(rows), strict=True):
        yield part, _rows(fused, end - shapes[part][0], end)


def _rows(fused: Tensor, begin: int, end: int) -> Tensor:
    if not isinstance(fused, PackedWeight):
        return fused[begin:end]
    if end - begin == len(fused):
        return fused
    if begin % ROW_BLOCK:  # kernels read whole blocks of rows
        return dequantize_rows(fused, np.arange(begin, end))
    return expand_scales(fused).rows(int(begin), int(end))


def tensor_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """The shape of each tensor that the config calls for: those of `OUTER`, then those of one layer."""
    hidden, inner = config.hidden_size, config.intermediate_size
    q, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "embedding": (config.vocab_size, hidden), "final_norm": (hidden,),
        "attention_norm": (hidden,), "query": (q, hidden), "key": (kv, hidden), "value": (kv, hidden),
        "output": (hidden, q), "mlp_norm": (hidden,), "gate": (inner, hidden), "up": (inner, hidden),
        "down": (hidden, inner),
    }  # fmt: skip
    if config.qkv_bias:
        shapes |= {"query_bias": (q,), "key_bias": (kv,), "value_bias": (kv,)}
    if config.output_bias:
        shapes |= {"output_bias": (hidden,)}
    if config.mlp_bias:
        shapes |= {"gate_bias": (inner,), "up_bias": (inner,), "down_bias": (hidden,)}
    if config.qk_norm:
        shapes |= {"query_norm": (config.head_dim,), "key_norm": (config.head_dim,)}
    if config.post_norms:
        shapes |= {"attention_post_norm": (hidden,), "mlp_post_norm": (hidden,)}
    return shapes
