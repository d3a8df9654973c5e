"""config.json's rotary settings -> a `Rope`, whichever of their forms they have."""

from __future__ import annotations

import math
from typing import Any

from ..errors import BadCheckpoint, UnsupportedModel
from .facts import Rope
from .family import Family
from .keys import Keys, is_number, shown

ROPE_KINDS = ("default", "linear", "dynamic", "llama3", "yarn", "longrope")


def read_rope(keys: Keys, family: Family, head_dim: int, layer_kind: str) -> Rope:
    """The rotation of one kind of layer, of heads with `head_dim` dimensions that may turn."""
    keys = Keys(_rope_parameters(keys, family, layer_kind), {}, where="config.json: rope_parameters")
    kind = keys.get("rope_type") or keys.get("type", "default")
    kind = family.rope_names.get(str(kind), kind)
    if kind not in ROPE_KINDS:
        raise UnsupportedModel(f"config.json: unknown rotary type {shown(kind)}; known are {', '.join(ROPE_KINDS)}")
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


def score_growth(keys: Keys, family: Family) -> float:
    """What stretched rotation multiplies the scores by, in the families that say so with "mscale_all_dim"."""
    keys = Keys(_rope_parameters(keys, family, "full_attention"), {}, where="config.json: rope_parameters")
    all_dims = keys.optional_number("mscale_all_dim")
    if all_dims is None or (keys.get("rope_type") or keys.get("type", "default")) == "default":
        return 1.0
    return _grown(keys.number("factor"), all_dims) ** 2


def _rotary_dims(keys: Keys, head_dim: int) -> int:
    """How many of a head's dimensions turn."""
    share = keys.number("partial_rotary_factor", 1.0)
    dims = int(head_dim * min(share, 1.0))
    if share > 1 or dims % 2 or not dims:
        found = f"{share:g} of {head_dim} dimensions"
        raise BadCheckpoint(f"{keys.where}: the part of a head that turns should be an even number, found {found}")
    return dims


def _rope_parameters(keys: Keys, family: Family, layer_kind: str) -> dict[str, Any]:
    """The rotary settings of one kind of layer as one flat dict, whichever form config.json has."""
    new, old = keys.get("rope_parameters"), keys.get("rope_scaling")
    if new and old and new != old:
        both = f"rope_scaling {shown(old)} beside rope_parameters {shown(new)}"
        raise BadCheckpoint(f"config.json: expected one of two blocks of rotary settings, found {both}")
    found = new or old or family.default_rope
    nested = isinstance(found, dict) and any(kind in found for kind in ("full_attention", "sliding_attention"))
    local = layer_kind == "sliding_attention" and family.local_theta is not None
    if nested:
        found = found.get(layer_kind) or {}
    elif local:
        found = {}
    if not isinstance(found, dict):
        raise BadCheckpoint(f"config.json: rope_parameters should be a JSON object, found {shown(found)}")
    theta_key, default = ("local_rope_theta", family.local_theta) if local else ("rope_theta", family.default_theta)
    theta = keys.get(theta_key, default)
    above = {"rope_theta": theta, "partial_rotary_factor": keys.get("partial_rotary_factor")}
    above["max_position_embeddings"] = keys.get("max_position_embeddings", 32_768)
    merged = above | {key: value for key, value in found.items() if value is not None}
    if keys.get("original_max_position_embeddings") is not None:  # beside the block, it wins
        merged["original_max_position_embeddings"] = keys.get("original_max_position_embeddings")
    return merged


def _yarn_magnitude(keys: Keys, factor: float) -> float:
    mscale, all_dims = keys.optional_number("mscale"), keys.optional_number("mscale_all_dim")
    inferred = _grown(factor, mscale) / _grown(factor, all_dims) if mscale and all_dims else _grown(factor, 1.0)
    return keys.number("attention_factor", inferred)


def _grown(factor: float, mscale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


def _pair_factors(keys: Keys, name: str, pairs: int) -> tuple[float, ...]:
    values = keys.get(name)
    if not isinstance(values, list) or len(values) != pairs:
        raise BadCheckpoint(f"{keys.where}: {name} should list {pairs} numbers, found {shown(values)}")
    if not all(map(is_number, values)):
        raise BadCheckpoint(f"{keys.where}: {name} should hold numbers above 0, found {shown(values)}")
    return tuple(map(float, values))
