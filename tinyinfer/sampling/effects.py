"""What each parameter does to one distribution, and what it means: the page that `tinyinfer sampling` prints."""

from __future__ import annotations

import re
from dataclasses import MISSING, fields
from typing import Any

import numpy as np

from .candidates import probabilities
from .params import SamplingParams
from .sampler import Sampler

NAMES = "ABCDEFGH"
LOGITS = np.array([3.0, 2.4, 2.0, 1.5, 1.0, 0.5, -0.5, -1.0], np.float32)
PROMPT, OUTPUT = "BACD", "BAAC"
END = "H"

EXAMPLES: list[dict[str, Any]] = [
    {}, {"temperature": 0.0}, {"temperature": 0.5}, {"temperature": 2.0}, {"top_k": 3}, {"top_p": 0.8}, {"min_p": 0.1},
    {"typical_p": 0.3}, {"top_n_sigma": 1.0}, {"xtc_probability": 1.0, "xtc_threshold": 0.1},
    {"mirostat": 2, "mirostat_tau": 1.5}, {"repetition_penalty": 1.3},
    {"repetition_penalty": 1.3, "repetition_window": 2}, {"frequency_penalty": 0.5}, {"presence_penalty": 0.5},
    {"dry_multiplier": 0.8}, {"logit_bias": {3: 2.0}}, {"banned_ids": (0,)}, {"allowed_ids": (1, 2)}, {"min_tokens": 5},
    {"temperature": 0.5, "top_p": 0.8}, {"temperature": 0.5, "top_p": 0.8, "order": ("top_p", "temperature")},
]  # fmt: skip
COLUMNS = ["", *NAMES]


def effects() -> list[list[str]]:
    """For each example its settings, and the probabilities of the eight tokens in percent."""
    return [[_shown(example), *_percent(example)] for example in EXAMPLES]


def meanings() -> list[tuple[str, str, str]]:
    """Name, default and meaning of every parameter; the meaning is what the docstring of SamplingParams says."""
    said = dict(re.findall(r"^    (\w+) {2,}(.+)$", SamplingParams.__doc__ or "", re.MULTILINE))
    found = []
    for field in fields(SamplingParams):
        default = field.default_factory() if field.default is MISSING else field.default
        shown = "as listed" if field.name == "order" else repr(list(default) if isinstance(default, tuple) else default)
        found.append((field.name, shown, said[field.name]))
    return found


def _shown(example: dict[str, Any]) -> str:
    named = {name: list(value) if isinstance(value, tuple) else value for name, value in example.items()}
    return ", ".join(f"{name}={value}" for name, value in named.items()) or "temperature=1.0"


def _percent(example: dict[str, Any]) -> list[str]:
    params = SamplingParams(**{"temperature": 1.0, "seed": 0, **example})
    sampler = Sampler(params, len(LOGITS), [NAMES.index(name) for name in PROMPT], [NAMES.index(END)])
    for name in OUTPUT:
        sampler.state.accept(NAMES.index(name))
    tokens = sampler.distribution(LOGITS)
    shares = dict(zip(tokens.ids.tolist(), probabilities(tokens), strict=True))
    return [f"{100 * shares[id]:.1f}" if id in shares else "–" for id in range(len(LOGITS))]
