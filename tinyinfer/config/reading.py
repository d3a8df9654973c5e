"""config.json -> a frozen `ModelConfig`, by way of what its family leaves unsaid."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from ..checkpoint.foreign import quantization_method
from ..errors import BadCheckpoint, UnsupportedModel
from .facts import Experts, Latent, LayerConfig, ModelConfig, Norm
from .families import FAMILIES
from .family import Family
from .keys import Keys, shown, token_ids
from .rotary import read_rope, score_growth

ACTIVATIONS = {
    "silu": "silu", "swish": "silu", "gelu": "gelu", "gelu_python": "gelu", "relu": "relu", "relu2": "relu2",
    "gelu_pytorch_tanh": "gelu_tanh", "gelu_new": "gelu_tanh", "gelu_fast": "gelu_tanh",
}  # fmt: skip
MAX_LAYERS, MAX_HEADS = 1_000, 10_000
LATENT_EPS = 1e-6  # of the norms of latent attention, whatever that of the others is

# Facts whose keys have names of their own in Hugging Face's files; a family may have others.
NAMES = {
    "norm_eps": "rms_norm_eps", "qkv_bias": "attention_bias", "output_bias": "attention_bias", "qkv_clip": "clip_qkv",
    "num_experts": ("num_experts", "num_local_experts"), "expert_size": "moe_intermediate_size",
    "local_rope_theta": "rope_local_base_freq",
}  # fmt: skip

# Keys that change what a model computes, and that only some families have. Of others, whose files may hold them all the
# same, they say nothing: a family has those that its entry names.
SELDOM = (
    "attention_scale", "attn_logit_softcapping", "decoder_sparse_step", "embedding_scale", "final_logit_softcapping",
    "first_k_dense_replace", "gate_slope", "logit_scale", "max_window_layers", "mlp_only_layers", "n_group",
    "n_shared_experts", "norm_topk_prob", "parallel", "partial_rotary_factor", "qkv_clip", "query_pre_attn_scalar",
    "residual_scale", "routed_scaling_factor", "sliding_window_pattern",
)  # fmt: skip


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
    _refuse_unsupported(config, family)
    keys = Keys(config, family.defaults, names_of(family))
    heads, kv_heads = _heads(keys)
    hidden_size = keys.size("hidden_size")
    latent = _latent(keys) if family.latent else None
    head_dim = latent.plain + latent.rotary if latent else keys.size("head_dim", hidden_size // heads or None)
    scale = keys.optional_number("attention_scale") or keys.number("query_pre_attn_scalar", head_dim) ** -0.5
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
            "norm": Norm(keys.number("norm_eps", 1e-6), **family.norm),
            "activation": _activation(keys, family),
            "attention_scale": scale * score_growth(keys, family) if latent else scale,
            "tied": keys.flag("tie_word_embeddings"),
            "layers": _layers(keys, family, latent.rotary if latent else head_dim),
            "eos_ids": eos_ids,
            "embedding_scale": keys.number("embedding_scale", 1.0),
            "logit_scale": keys.number("logit_scale", 1.0),
            "logit_softcap": keys.optional_number("final_logit_softcapping"),
            "parallel": keys.flag("parallel"),
            "residual_scale": keys.number("residual_scale", 1.0),
            "qkv_bias": keys.flag("qkv_bias"),
            "output_bias": keys.flag("output_bias"),
            "qkv_clip": keys.optional_number("qkv_clip"),
            "attention_softcap": keys.optional_number("attn_logit_softcapping"),
            "latent": latent,
            "mlp_bias": keys.flag("mlp_bias"),
            "gate_slope": keys.number("gate_slope", 1.0),
            "experts": None if family.experts is None else _experts(keys, family),
            **_values(family.facts, keys),
        }
    )


def names_of(family: Family) -> dict[str, Any]:
    """What a family calls the keys that are read, see `Keys`."""
    return NAMES | {key: None for key in SELDOM if key not in family.defaults} | family.names


def _values(facts: Mapping[str, Any], keys: Keys) -> dict[str, Any]:
    return {name: fact(keys) if callable(fact) else fact for name, fact in facts.items()}


def _architecture(config: Mapping[str, Any]) -> str:
    named = config.get("architectures")
    if isinstance(named, list) and len(named) == 1 and isinstance(named[0], str):
        architecture = named[0]
    elif named:
        raise BadCheckpoint(f"config.json: architectures should be a list of one name, found {shown(named)}")
    elif (model_type := config.get("model_type")) is None:
        raise BadCheckpoint("config.json: neither architectures nor model_type says what kind of model this is")
    else:
        of_type = (name for name, family in FAMILIES.items() if family.model_type == model_type)
        architecture = next(of_type, str(model_type))
    if architecture not in FAMILIES:
        near = difflib.get_close_matches(architecture, FAMILIES, 1, cutoff=0.0)[0]
        known = f"the nearest of {len(FAMILIES)} that are known is {near!r}"
        raise UnsupportedModel(f"config.json: unknown architecture {shown(architecture)}; {known}")
    return architecture


def _refuse_unsupported(config: Mapping[str, Any], family: Family) -> None:
    if config.get("use_bidirectional_attention"):
        raise UnsupportedModel("config.json: use_bidirectional_attention: seeing what follows is not supported yet")
    keys = Keys(config, {})
    for key, fine in family.refused.items():
        if (value := keys.get(key)) not in (fine(keys) if callable(fine) else fine):
            raise UnsupportedModel(f"config.json: {key}: {shown(value)} is not supported yet")


def _heads(keys: Keys) -> tuple[int, int]:
    """How many heads of queries there are, and of keys and values."""
    heads = keys.size("num_attention_heads")
    if heads > MAX_HEADS:
        raise BadCheckpoint(f"config.json: {keys.name('num_attention_heads')} is {heads:,}; the limit is {MAX_HEADS:,}")
    kv_heads = keys.size("num_key_value_heads", heads)
    if heads % kv_heads:
        raise BadCheckpoint(f"config.json: {heads} attention heads can't share {kv_heads} key-value heads evenly")
    return heads, kv_heads


def _activation(keys: Keys, family: Family) -> str:
    name = keys.get("hidden_act", "silu")
    if not isinstance(name, str) or name not in ACTIVATIONS:
        raise UnsupportedModel(f"config.json: unknown activation {shown(name)}; known are {', '.join(ACTIVATIONS)}")
    return family.activations.get(name, ACTIVATIONS[name])


def _latent(keys: Keys) -> Latent:
    return Latent(
        rank=keys.size("kv_lora_rank", 512),
        query_rank=keys.optional_size("q_lora_rank"),
        plain=keys.size("qk_nope_head_dim", 128),
        rotary=keys.size("qk_rope_head_dim", 64),
        value_dim=keys.size("v_head_dim", 128),
        norm=Norm(LATENT_EPS),
    )


def _experts(keys: Keys, family: Family) -> Experts:
    size = keys.size("expert_size")
    facts = {
        "count": keys.size("num_experts"),
        "used": keys.size("num_experts_per_tok"),
        "size": size,
        "shared_size": size * keys.size("n_shared_experts", 0, least=0),
        "normalized": keys.flag("norm_topk_prob"),
        "scale": keys.number("routed_scaling_factor", 1.0),
        "groups": keys.size("n_group", 1),
    } | _values(family.experts, keys)
    if facts["groups"] > 1:
        facts["used_groups"] = keys.size("topk_group")
    found = Experts(**facts)
    reachable = found.count // found.groups * found.used_groups
    if found.count % found.groups or found.used_groups > found.groups or found.used > reachable:
        groups = f" from {found.used_groups} of {found.groups} groups" if found.groups > 1 else ""
        raise BadCheckpoint(f"config.json: {found.count} experts can't be used {found.used} at a time{groups}")
    return found


def _layers(keys: Keys, family: Family, rotary_dim: int) -> tuple[LayerConfig, ...]:
    count = keys.size("num_hidden_layers")
    if count > MAX_LAYERS:
        raise BadCheckpoint(f"config.json: {keys.name('num_hidden_layers')} is {count:,}; the limit is {MAX_LAYERS:,}")
    kinds = _layer_kinds(keys, family, count)
    window = keys.size("sliding_window") if "sliding_attention" in kinds else None
    turning = _turning(keys, family, kinds)
    sparse = _sparse(keys, count) if family.experts is not None else [False] * count
    ropes = {kind: read_rope(keys, family, rotary_dim, kind) for kind in dict.fromkeys(kinds)} if any(turning) else {}
    return tuple(
        LayerConfig(
            rope=ropes[kind] if turning[i] else None,
            window=window if kind == "sliding_attention" else None,
            sparse=sparse[i],
        )
        for i, kind in enumerate(kinds)
    )


def _layer_kinds(keys: Keys, family: Family, count: int) -> list[str]:
    """Which layers see a window and which all: said by layer, by a pattern, or for the whole model."""
    if not family.windows or (family.window_key and not keys.flag(family.window_key)):
        return ["full_attention"] * count
    kinds = keys.get("layer_types")
    if kinds is not None:
        if not isinstance(kinds, list) or len(kinds) != count:
            raise BadCheckpoint(f"config.json: layer_types should list {count} layers, found {shown(kinds)}")
        if unknown := set(map(str, kinds)) - {"full_attention", "sliding_attention"}:
            raise UnsupportedModel(f"config.json: unknown layer type {shown(min(unknown))}")
        return kinds
    if keys.get("sliding_window") is None:
        return ["full_attention"] * count
    if family.rotary == "listed":
        return ["full_attention" if turns else "sliding_attention" for turns in _listed(keys, count)]
    if keys.get("sliding_window_pattern") is not None:  # every n-th layer sees all
        pattern = keys.size("sliding_window_pattern")
        return ["sliding_attention" if (i + 1) % pattern else "full_attention" for i in range(count)]
    first = keys.size("max_window_layers", 0, least=0)  # the layers before this one see all
    return ["sliding_attention" if i >= first else "full_attention" for i in range(count)]


def _turning(keys: Keys, family: Family, kinds: list[str]) -> list[bool]:
    """Which layers rotate queries and keys."""
    rotary = family.rotary(keys) if callable(family.rotary) else family.rotary
    if rotary == "window" and "sliding_attention" in kinds:
        return [kind == "sliding_attention" for kind in kinds]
    return _listed(keys, len(kinds)) if rotary == "listed" else [rotary != "none"] * len(kinds)


def _listed(keys: Keys, count: int) -> list[bool]:
    """Which layers rotate, where config.json lists them or says that every n-th does not."""
    listed = keys.get("no_rope_layers")
    if listed is None:
        interval = keys.size("no_rope_layer_interval", 4)
        return [(i + 1) % interval != 0 for i in range(count)]
    if not isinstance(listed, list) or len(listed) < count or not all(turns in (0, 1) for turns in listed):
        expected = f"0 or 1 for each of {count} layers"
        raise BadCheckpoint(f"config.json: no_rope_layers should list {expected}, found {shown(listed)}")
    return list(map(bool, listed[:count]))


def _sparse(keys: Keys, count: int) -> list[bool]:
    """Which layers have experts."""
    first, step = keys.size("first_k_dense_replace", 0, least=0), keys.size("decoder_sparse_step", 1)
    dense = keys.get("mlp_only_layers", [])
    if not isinstance(dense, list):
        raise BadCheckpoint(f"config.json: mlp_only_layers should list layers, found {shown(dense)}")
    return [i >= first and (i + 1) % step == 0 and i not in dense for i in range(count)]
