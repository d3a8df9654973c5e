"""What a caller may ask of sampling, checked where it is made."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from numbers import Integral, Real
from typing import Any

from ..errors import BadCheckpoint, BadRequest

GREEDY = {"temperature": 0.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}


@dataclass(frozen=True)
class SamplingParams:
    """How to choose the next token, and when to stop.

    None means "not said": `resolved` fills such a value from the model's generation_config, and where that is silent
    too, from the neutral value given below. The steps that these values drive, and their order, are in `steps.py`.

    max_tokens     most tokens to generate; 0 generates none; None goes on to the end of the context
    temperature    divides the logits; 0 always takes the likeliest token (greedy), which is also the neutral value
    top_k          keep the k likeliest tokens; 0 is off, and so is any k beyond the vocabulary
    top_p          keep the fewest likeliest tokens that reach this probability together; 1 is off, 0 keeps one token
    min_p          keep tokens at least this fraction as likely as the likeliest; 0 is off, 1 keeps only its equals
    seed           whole number from 0; the same seed and logits give the same ids; None draws a fresh one
    stop           a string or strings that end the text, which is cut just before them
    ignore_eos     go on past end-of-sequence tokens

    Raises `BadRequest`, whose `parameter` names the field, for a value of the wrong kind or out of range.
    """

    max_tokens: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: str | Sequence[str] | None = ()
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        """Check every field, and bring it to its plain Python type."""
        checked = {
            "max_tokens": _whole("max_tokens", self.max_tokens),
            "temperature": _number("temperature", self.temperature, sys.float_info.max),
            "top_k": _whole("top_k", self.top_k),
            "top_p": _number("top_p", self.top_p, 1.0),
            "min_p": _number("min_p", self.min_p, 1.0),
            "seed": _whole("seed", self.seed),
            "stop": _strings("stop", self.stop),
            "ignore_eos": _flag("ignore_eos", self.ignore_eos),
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    def with_overrides(self, **overrides: Any) -> SamplingParams:
        """A copy with some fields replaced; raises `BadRequest` for a name that is no field."""
        known = [field.name for field in fields(self)]
        for name in overrides:
            if name not in known:
                raise BadRequest(f"unknown sampling parameter {name!r}; known are {', '.join(known)}", name)
        return replace(self, **overrides)

    def resolved(self, generation_config: Mapping[str, Any] | None = None) -> SamplingParams:
        """A copy in which only max_tokens may be None: what the caller said, else the model's advice, else neutral.

        generation_config is the content of generation_config.json. As in transformers, whose file it is, it asks for
        sampling only by `"do_sample": true`, with temperature 1 unless it gives another; without that it means greedy.
        Its top_k, top_p and min_p hold whenever the caller samples. A missing seed is drawn here, so that it can be
        reported and the run repeated. Raises `BadCheckpoint` where generation_config holds an impossible value.
        """
        advice = _advice(generation_config or {})
        chosen = {name: advice[name] if getattr(self, name) is None else getattr(self, name) for name in GREEDY}
        seed = fresh_seed() if self.seed is None else self.seed
        return replace(self, **chosen, seed=seed)

    @property
    def greedy(self) -> bool:
        """Whether every token is simply the likeliest one; random numbers play no part then."""
        return not self.temperature


def fresh_seed() -> int:
    """A seed from the system's entropy: 32 bits, short enough to type again."""
    return int.from_bytes(os.urandom(4), "little")


def _advice(generation_config: Mapping[str, Any]) -> dict[str, Any]:
    advice = dict(GREEDY)
    if generation_config.get("do_sample"):
        advice["temperature"] = 1.0
    for name in advice:
        value = generation_config.get(name)
        if value is not None and (name != "temperature" or generation_config.get("do_sample")):
            advice[name] = value
    try:
        SamplingParams(**advice)
    except BadRequest as error:
        raise BadCheckpoint(f"generation_config.json: {error}") from None
    return advice


def _whole(name: str, value: Any) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 0:
        raise BadRequest(f"{name} should be a whole number from 0, found {value!r}", name)
    return int(value)


def _number(name: str, value: Any, highest: float) -> float | None:
    if value is None:
        return None
    if isinstance(value, Real) and not isinstance(value, bool):
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if 0 <= number <= highest:  # which NaN fails
            return number
    expected = "a finite number from 0" if highest > 1 else f"a number from 0 to {highest:g}"
    raise BadRequest(f"{name} should be {expected}, found {value!r}", name)


def _strings(name: str, value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    strings = (value,) if isinstance(value, str) else value
    if not isinstance(strings, Sequence) or not all(isinstance(text, str) and text for text in strings):
        raise BadRequest(f"{name} should be a string or a list of strings, none of them empty, found {value!r}", name)
    return tuple(strings)


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise BadRequest(f"{name} should be true or false, found {value!r}", name)
    return value
