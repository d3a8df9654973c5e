"""What a family is: the form of the table's entries in `families.py`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .keys import Keys, Names


@dataclass(frozen=True)
class Family:
    """One family. A default, a fact or `rotary` may be a function of the keys that stand in config.json."""

    model_type: str
    names: Names = field(default_factory=dict)  # what it calls keys otherwise, see `Keys`
    defaults: Mapping[str, Any] = field(default_factory=dict)  # the value where the key is absent
    facts: Mapping[str, Any] = field(default_factory=dict)  # fields of ModelConfig that no key says
    norm: Mapping[str, Any] = field(default_factory=dict)  # fields of its Norm that are not those of RMSNorm
    experts: Mapping[str, Any] | None = None  # fields of its Experts that no key says; None: it has none
    latent: bool = False  # whether its attention is latent
    activations: Mapping[str, str] = field(default_factory=dict)  # activations that it means otherwise
    refused: Mapping[str, Any] = field(default_factory=dict)  # keys, and their values that are no reason to refuse

    # rotation: "all" layers, "none", those that see a "window", or those that are "listed"
    rotary: str | Callable[[Keys], str] = "all"
    default_theta: float = 10_000.0
    local_theta: float | None = None  # sliding layers turn at this base, unstretched
    rope_names: Mapping[str, str] = field(default_factory=dict)  # its own names for rotary kinds
    default_rope: Mapping[str, Any] = field(default_factory=dict)  # where there is no block of rotary settings

    windows: bool = False  # whether the family looks at sliding windows at all
    window_key: str | None = None  # a boolean key that switches sliding windows on
