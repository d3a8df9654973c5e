"""`tinyinfer info --supported`: the families that can be run, from the table that reads their config.json."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..config import ACTIVATIONS, AFTER, BEFORE, FAMILIES, ROPE_KINDS, Family

# What sets a family apart, or some of its models, and the entry of the table that says so.
TRAITS: list[tuple[str, Callable[[Family], Any]]] = [
    ("latent attention", lambda family: family.latent),
    ("experts", lambda family: family.experts is not None),
    ("sliding windows", lambda family: family.windows),
    ("attention sinks", lambda family: family.facts.get("sinks")),
    ("ALiBi", lambda family: family.facts.get("alibi")),
    ("learned positions", lambda family: "position_offset" in family.facts),
    ("layers without rotation", lambda family: family.rotary in ("listed", "window")),
    ("query and key norms", lambda family: family.facts.get("qk_norm")),
    ("LayerNorm", lambda family: family.norm.get("centered")),
    ("norms after", lambda family: family.facts.get("layer_norms") == AFTER),
    ("norms before and after", lambda family: family.facts.get("layer_norms") == BEFORE + AFTER),
    ("parallel blocks", lambda family: family.facts.get("parallel") or "parallel" in family.names),
    ("no gate", lambda family: family.facts.get("gated") is False),
]


def traits(family: Family) -> list[str]:
    """What sets a family, or some of its models, apart from Llama, in a few words each."""
    return [name for name, says in TRAITS if says(family)]


def supported() -> dict[str, Any]:
    """The families, kinds of rotation, activations, and who may have quantized a folder."""
    from ..checkpoint.foreign import METHODS

    families = [
        {"architecture": name, "model_type": family.model_type, "traits": traits(family)}
        for name, family in sorted(FAMILIES.items())
    ]
    return {
        "families": families,
        "rotary": list(ROPE_KINDS),
        "activations": list(ACTIVATIONS),
        "quantized_by": list(METHODS),
    }


def supported_text(facts: dict[str, Any]) -> str:
    """The same for people."""
    headings = ("architectures", "model_type", "what sets it apart from Llama, at least in some models")
    rows = [(one["architecture"], one["model_type"], ", ".join(one["traits"])) for one in facts["families"]]
    width = [max(len(row[i]) for row in [headings, *rows]) for i in range(2)]
    lines = [f"{name:{width[0]}}  {kind:{width[1]}}  {rest}".rstrip() for name, kind, rest in [headings, *rows]]
    others = (("rotary", "rotary"), ("activations", "activations"), ("quantized by", "quantized_by"))
    return "\n".join([*lines, "", *(f"{name:14}{', '.join(facts[key])}" for name, key in others)])
