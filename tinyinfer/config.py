"""config.json -> a frozen `ModelConfig`: the one place that knows Hugging Face's key names.

Architectures are data. What sets a family apart is a handful of facts; the model reads the facts and never asks which
family it is. To add a family: an entry in `FAMILIES`, and its tensor names in `model/names.py` if they differ.

config.json comes in two forms. transformers 4 wrote `rope_theta` and `rope_scaling` at the top level; transformers 5
writes `rope_parameters`, and one such block per kind of layer where kinds differ. Both load to the same `ModelConfig`.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .checkpoint.foreign import quantization_method
from .errors import BadCheckpoint, UnsupportedModel

ACTIVATIONS = {
    "silu": "silu", "swish": "silu", "gelu": "gelu", "relu": "relu",
    "gelu_pytorch_tanh": "gelu_tanh", "gelu_new": "gelu_tanh", "gelu_fast": "gelu_tanh",
}  # fmt: skip
ROPE_KINDS = ("default", "linear", "dynamic", "llama3", "yarn", "longrope")
MAX_LAYERS = 1_000
SMALLEST, LARGEST = 1e-30, 1e30  # numbers that float32 arithmetic can still work with


@dataclass(frozen=True)
class Rope:
    """How positions turn into angles: base frequencies and the stretch that makes a longer context of them."""

    theta: float
    dims: int  # how many of a head's dimensions turn, the first ones; even
    kind: str = "default"
    factor: float = 1.0
    original_length: int = 0  # the context before it was stretched
    low_freq_factor: float = 1.0  # llama3
    high_freq_factor: float = 4.0  # llama3
    beta_fast: float = 32.0  # yarn
    beta_slow: float = 1.0  # yarn
    truncate: bool = True  # yarn: round the ramp's ends to whole dimensions
    magnitude: float = 1.0  # yarn, longrope: cosines and sines are multiplied by it
    short_factor: tuple[float, ...] = ()  # longrope, one for each pair of dimensions
    long_factor: tuple[float, ...] = ()


@dataclass(frozen=True)
class LayerConfig:
    """What may differ from one layer to the next."""

    rope: Rope
    window: int | None = None  # a token sees itself and the window - 1 before it; None: all before it


@dataclass(frozen=True)
class ModelConfig:
    """The facts that the forward pass reads."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_positions: int  # the context the model was made for
    norm_eps: float
    activation: str  # of the feed-forward's gate: silu, gelu, gelu_tanh, relu
    attention_scale: float  # scores are multiplied by it
    tied: bool  # the head is the embedding
    layers: tuple[LayerConfig, ...]
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False  # RMSNorm over each query and key head
    post_norms: bool = False  # a norm after attention and after the feed-forward too
    norm_offset: float = 0.0  # norms multiply by weight + offset
    embedding_scale: float = 1.0
    attention_softcap: float | None = None
    logit_softcap: float | None = None
    eos_ids: tuple[int, ...] = ()

    @property
    def num_layers(self) -> int:
        """How many layers there are."""
        return len(self.layers)

    @property
    def context(self) -> int:
        """Tokens that a text may have unless the caller says otherwise; dynamic scaling and yarn stretch what was."""
        stretched = [_stretched(layer.rope) for layer in self.layers if layer.rope.kind in ("dynamic", "yarn")]
        return max([self.max_positions, *stretched])

    @property
    def longest_context(self) -> int:
        """Tokens that a text may have at most; configs of linear scaling differ in whether max_positions has it in."""
        stretched = [self.max_positions * layer.rope.factor for layer in self.layers if layer.rope.kind == "linear"]
        return max([self.context, *map(int, stretched)])


def _stretched(rope: Rope) -> int:
    return int(rope.original_length * rope.factor)


@dataclass(frozen=True)
class Family:
    """What config.json leaves unsaid about the models of one architecture."""

    model_type: str
    defaults: Mapping[str, Any] = field(default_factory=dict)  # Hugging Face keys: the value where the key is absent
    facts: Mapping[str, Any] = field(default_factory=dict)  # ModelConfig fields that no key says
    default_theta: float = 10_000.0
    local_theta: float | None = None  # sliding layers turn at this base, unstretched
    windows: bool = True  # whether the family looks at sliding windows at all
    window_key: str | None = None  # a boolean key that switches sliding windows on
    rope_names: Mapping[str, str] = field(default_factory=dict)  # its own names for rotary kinds


_GEMMA3 = Family(
    model_type="gemma3_text",
    defaults={
        "vocab_size": 262_208, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
        "hidden_act": "gelu_pytorch_tanh", "tie_word_embeddings": True, "query_pre_attn_scalar": 256,
        "sliding_window": 4096, "sliding_window_pattern": 6, "max_position_embeddings": 131_072,
    },
    facts={
        "qk_norm": True, "post_norms": True, "norm_offset": 1.0, "embedding_scale": "sqrt(hidden_size)",
        "attention_softcap": None,  # stands in config.json but, with norms on queries and keys, is not used
    },
    default_theta=1_000_000.0,
    local_theta=10_000.0,
)  # fmt: skip

# The keys are the class names that config.json's "architectures" gives.
FAMILIES: dict[str, Family] = {
    "LlamaForCausalLM": Family("llama", windows=False, defaults={"max_position_embeddings": 2048}),
    "MistralForCausalLM": Family(
        "mistral", defaults={"num_key_value_heads": 8, "sliding_window": 4096, "max_position_embeddings": 131_072}
    ),
    "Qwen2ForCausalLM": Family(
        "qwen2", facts={"qkv_bias": True, "output_bias": False}, window_key="use_sliding_window",
        defaults={"num_key_value_heads": 32, "sliding_window": 4096, "max_window_layers": 28},
    ),
    "Qwen3ForCausalLM": Family(
        "qwen3", facts={"qk_norm": True}, window_key="use_sliding_window",
        defaults={"num_key_value_heads": 32, "head_dim": 128, "sliding_window": 4096, "max_window_layers": 28},
    ),
    "Phi3ForCausalLM": Family(
        "phi3", rope_names={"su": "longrope", "yarn": "longrope"},
        defaults={"rms_norm_eps": 1e-5, "max_position_embeddings": 4096, "original_max_position_embeddings": 4096},
    ),
    "Gemma3ForCausalLM": _GEMMA3,
    "Gemma3ForConditionalGeneration": _GEMMA3,  # the text half; its settings stand under "text_config"
}  # fmt: skip


def read_config(config: Mapping[str, Any]) -> ModelConfig:
    """Turn the contents of config.json into the facts that the model reads.

    Raises `UnsupportedModel` naming an architecture, rotary kind, activation or quantization that is not known, and
    `BadCheckpoint` naming a key whose value makes no sense.
    """
    architecture = _architecture(config)
    family = FAMILIES[architecture]
    quantization_method(config)  # refuses what nobody here reads
    eos_ids = token_ids(config.get("eos_token_id"), "config.json: eos_token_id")
    if isinstance(config.get("text_config"), dict):
        config = config["text_config"]
        eos_ids += token_ids(config.get("eos_token_id"), "config.json: text_config.eos_token_id")
    if config.get("use_bidirectional_attention"):
        raise UnsupportedModel("config.json: use_bidirectional_attention: seeing what follows is not supported yet")
    keys = _Keys(config, family.defaults)
    heads = keys.size("num_attention_heads")
    kv_heads = keys.size("num_key_value_heads", heads)
    if heads % kv_heads:
        raise BadCheckpoint(f"config.json: {heads} attention heads can't share {kv_heads} key-value heads evenly")
    hidden_size = keys.size("hidden_size")
    head_dim = keys.size("head_dim", hidden_size // heads or None)
    facts = dict(family.facts)
    if facts.get("embedding_scale") == "sqrt(hidden_size)":
        facts["embedding_scale"] = math.sqrt(hidden_size)
    return ModelConfig(
        **{
            "architecture": architecture,
            "vocab_size": keys.size("vocab_size"),
            "hidden_size": hidden_size,
            "intermediate_size": keys.size("intermediate_size"),
            "num_heads": heads,
            "num_kv_heads": kv_heads,
            "head_dim": head_dim,
            "max_positions": keys.size("max_position_embeddings", 32_768),
            "norm_eps": keys.number("rms_norm_eps", 1e-6),
            "activation": _activation(keys),
            "attention_scale": keys.number("query_pre_attn_scalar", head_dim) ** -0.5,
            "tied": keys.flag("tie_word_embeddings"),
            "layers": _layers(keys, family, head_dim),
            "qkv_bias": keys.flag("attention_bias"),
            "output_bias": keys.flag("attention_bias"),
            "mlp_bias": keys.flag("mlp_bias"),
            "attention_softcap": keys.optional_number("attn_logit_softcapping"),
            "logit_softcap": keys.optional_number("final_logit_softcapping"),
            "eos_ids": eos_ids,
            **facts,
        }
    )


def token_ids(value: Any, where: str) -> tuple[int, ...]:
    """End-of-sequence ids as files give them: absent, one id, or a list of ids."""
    values = [] if value is None else value if isinstance(value, list) else [value]
    if not all(type(n) is int and n >= 0 for n in values):
        raise BadCheckpoint(f"{where}: expected a token id or a list of them, found {_shown(value)}")
    return tuple(values)


def _shown(value: Any) -> str:
    """A value as messages show it: short, whatever a file holds."""
    text = "nothing" if value is None else repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


class _Keys:
    """Reads config.json's values: an absent key takes the family's default, a null one the fallback."""

    def __init__(self, config: Mapping[str, Any], defaults: Mapping[str, Any], where: str = "config.json"):
        self.config, self.defaults, self.where = config, defaults, where

    def get(self, key: str, fallback: Any = None) -> Any:
        """The value; a null means the fallback, an absent key the family's default or else the fallback."""
        value = self.config.get(key, self.defaults.get(key))
        return fallback if value is None else value

    def size(self, key: str, fallback: int | None = None, least: int = 1) -> int:
        """A whole number from `least`."""
        value = self.get(key, fallback)
        if type(value) is not int or not least <= value < 2**31:
            expected = f"a whole number from {least} and below 2^31"
            raise BadCheckpoint(f"{self.where}: {key} should be {expected}, found {_shown(value)}")
        return value

    def number(self, key: str, fallback: float | None = None) -> float:
        """A positive number."""
        value = self.get(key, fallback)
        if not _is_number(value):
            expected = f"a number from {SMALLEST:g} to {LARGEST:g}"
            raise BadCheckpoint(f"{self.where}: {key} should be {expected}, found {_shown(value)}")
        return float(value)

    def optional_number(self, key: str) -> float | None:
        """A positive number, or None where there is none or it is 0."""
        return None if self.get(key) in (None, 0) else self.number(key)

    def flag(self, key: str, fallback: bool = False) -> bool:
        """True or false."""
        value = self.get(key, fallback)
        if type(value) is not bool:
            raise BadCheckpoint(f"{self.where}: {key} should be true or false, found {_shown(value)}")
        return value


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and SMALLEST <= value <= LARGEST


def _architecture(config: Mapping[str, Any]) -> str:
    named = config.get("architectures")
    if isinstance(named, list) and len(named) == 1 and isinstance(named[0], str):
        architecture = named[0]
    elif named:
        raise BadCheckpoint(f"config.json: architectures should be a list of one name, found {_shown(named)}")
    else:
        model_type = config.get("model_type")
        architecture = next((name for name, family in FAMILIES.items() if family.model_type == model_type), None)
        architecture = architecture or str(model_type)
    if architecture not in FAMILIES:
        near = difflib.get_close_matches(architecture, FAMILIES, 1, cutoff=0.0)[0]
        known = f"the nearest known is {near!r}, of {', '.join(FAMILIES)}"
        raise UnsupportedModel(f"config.json: unknown architecture {_shown(architecture)}; {known}")
    return architecture


def _activation(keys: _Keys) -> str:
    name = keys.get("hidden_activation") or keys.get("hidden_act", "silu")
    if not isinstance(name, str) or name not in ACTIVATIONS:
        raise UnsupportedModel(f"config.json: unknown activation {_shown(name)}; known are {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]


def _layers(keys: _Keys, family: Family, head_dim: int) -> tuple[LayerConfig, ...]:
    count = keys.size("num_hidden_layers")
    if count > MAX_LAYERS:
        raise BadCheckpoint(f"config.json: num_hidden_layers is {count:,}; the limit is {MAX_LAYERS:,}")
    kinds = _layer_kinds(keys, family, count)
    window = keys.size("sliding_window") if "sliding_attention" in kinds else None
    full = LayerConfig(_rope(keys, family, head_dim, "full_attention"))
    sliding = LayerConfig(_rope(keys, family, head_dim, "sliding_attention"), window)
    return tuple(sliding if kind == "sliding_attention" else full for kind in kinds)


def _layer_kinds(keys: _Keys, family: Family, count: int) -> list[str]:
    """Which layers see a window and which all: said by layer, by a pattern, or for the whole model."""
    if not family.windows or (family.window_key and not keys.flag(family.window_key)):
        return ["full_attention"] * count
    kinds = keys.get("layer_types")
    if kinds is not None:
        if not isinstance(kinds, list) or len(kinds) != count:
            raise BadCheckpoint(f"config.json: layer_types should list {count} layers, found {_shown(kinds)}")
        if unknown := set(map(str, kinds)) - {"full_attention", "sliding_attention"}:
            raise UnsupportedModel(f"config.json: unknown layer type {_shown(min(unknown))}")
        return kinds
    if keys.get("sliding_window") is None:
        return ["full_attention"] * count
    if keys.get("sliding_window_pattern") is not None:  # every n-th layer sees all
        pattern = keys.size("sliding_window_pattern")
        return ["sliding_attention" if (i + 1) % pattern else "full_attention" for i in range(count)]
    first = keys.size("max_window_layers", 0, least=0)  # the layers before this one see all
    return ["sliding_attention" if i >= first else "full_attention" for i in range(count)]


def _rope(keys: _Keys, family: Family, head_dim: int, layer_kind: str) -> Rope:
    parameters = _rope_parameters(keys, family, layer_kind)
    keys = _Keys(parameters, {}, "config.json: rope_parameters")
    kind = keys.get("rope_type") or keys.get("type", "default")
    kind = family.rope_names.get(str(kind), kind)
    if kind not in ROPE_KINDS:
        raise UnsupportedModel(f"config.json: unknown rotary type {_shown(kind)}; known are {', '.join(ROPE_KINDS)}")
    theta, dims = keys.number("rope_theta"), _rotary_dims(keys, head_dim)
    if theta <= 1:
        raise BadCheckpoint(f"{keys.where}: rope_theta should be above 1, found {theta:g}")
    rope = {"theta": theta, "dims": dims, "kind": kind}
    if kind == "default":
        return Rope(**rope)
    if kind == "dynamic" and dims < 4:
        raise BadCheckpoint(f"{keys.where}: dynamic scaling needs at least 4 dimensions a head to rotate, found {dims}")
    longest = keys.size("max_position_embeddings")
    original = longest if kind == "dynamic" else keys.size("original_max_position_embeddings", longest)
    ratio = max(longest / original, 1.0)
    factor = keys.number("factor", ratio if kind in ("yarn", "longrope") else None)
    rope |= {"factor": factor, "original_length": original}
    if kind == "llama3":
        rope |= {name: keys.number(name) for name in ("low_freq_factor", "high_freq_factor")}
        if rope["low_freq_factor"] >= rope["high_freq_factor"]:
            raise BadCheckpoint(f"{keys.where}: low_freq_factor should be below high_freq_factor")
    if kind == "yarn":
        rope |= {"beta_fast": keys.number("beta_fast", 32.0), "beta_slow": keys.number("beta_slow", 1.0)}
        rope |= {"truncate": keys.flag("truncate", True), "magnitude": _yarn_magnitude(keys, factor)}
    if kind == "longrope":
        rope |= {name: _pair_factors(keys, name, dims // 2) for name in ("short_factor", "long_factor")}
        grown = 1.0 if factor <= 1 or original == 1 else math.sqrt(1 + math.log(factor) / math.log(original))
        rope["magnitude"] = keys.number("attention_factor", grown)
    return Rope(**rope)


def _rotary_dims(keys: _Keys, head_dim: int) -> int:
    """How many of a head's dimensions turn."""
    share = keys.number("partial_rotary_factor", 1.0)
    dims = int(head_dim * min(share, 1.0))
    if share > 1 or dims % 2 or not dims:
        found = f"{share:g} of {head_dim} dimensions"
        raise BadCheckpoint(f"{keys.where}: the part of a head that turns should be an even number, found {found}")
    return dims


def _rope_parameters(keys: _Keys, family: Family, layer_kind: str) -> dict[str, Any]:
    """The rotary settings of one kind of layer as one flat dict, whichever form config.json has."""
    found = keys.get("rope_parameters") or keys.get("rope_scaling") or {}
    nested = isinstance(found, dict) and any(kind in found for kind in ("full_attention", "sliding_attention"))
    local = layer_kind == "sliding_attention" and family.local_theta is not None
    if nested:
        found = found.get(layer_kind) or {}
    elif local:
        found = {}
    if not isinstance(found, dict):
        raise BadCheckpoint(f"config.json: rope_parameters should be a JSON object, found {_shown(found)}")
    theta_key, default = ("rope_local_base_freq", family.local_theta) if local else ("rope_theta", family.default_theta)
    theta = keys.get(theta_key, default)
    above = {"rope_theta": theta, "partial_rotary_factor": keys.get("partial_rotary_factor")}
    above["max_position_embeddings"] = keys.get("max_position_embeddings", 32_768)
    merged = above | {key: value for key, value in found.items() if value is not None}
    if keys.get("original_max_position_embeddings") is not None:  # beside the block, it wins
        merged["original_max_position_embeddings"] = keys.get("original_max_position_embeddings")
    return merged


def _yarn_magnitude(keys: _Keys, factor: float) -> float:
    def grown(mscale: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0

    mscale, all_dims = keys.optional_number("mscale"), keys.optional_number("mscale_all_dim")
    inferred = grown(mscale) / grown(all_dims) if mscale and all_dims else grown(1.0)
    return keys.number("attention_factor", inferred)


def _pair_factors(keys: _Keys, name: str, pairs: int) -> tuple[float, ...]:
    values = keys.get(name)
    if not isinstance(values, list) or len(values) != pairs:
        raise BadCheckpoint(f"{keys.where}: {name} should list {pairs} numbers, found {_shown(values)}")
    if not all(map(_is_number, values)):
        raise BadCheckpoint(f"{keys.where}: {name} should hold numbers above 0, found {_shown(values)}")
    return tuple(map(float, values))
