"""What a caller may ask of sampling, checked where it is made."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from typing import Any

from ..errors import BadCheckpoint, BadRequest
from . import checks

# The steps that can be put in another order, and which fields each goes by, with the values that leave it out.
STEPS: dict[str, dict[str, Any]] = {
    "penalties": {"repetition_penalty": 1.0, "frequency_penalty": 0.0, "presence_penalty": 0.0},
    "dry": {"dry_multiplier": 0.0},
    "processors": {"processors": ()},
    "temperature": {"temperature": 1.0},
    "top_n_sigma": {"top_n_sigma": 0.0},
    "top_k": {"top_k": 0},
    "typical": {"typical_p": 1.0},
    "top_p": {"top_p": 1.0},
    "min_p": {"min_p": 0.0},
    "xtc": {"xtc_probability": 0.0},
    "mirostat": {"mirostat": 0},
}
ORDER = tuple(STEPS)
GREEDY_STEPS = ("penalties", "dry", "processors")  # those that change what is likeliest
TRUNCATIONS = ("top_n_sigma", "top_k", "typical", "top_p", "min_p", "xtc")  # which mirostat stands in for

CONSTRAINTS = ("json", "json_schema", "regex", "grammar", "choice")  # what form an answer has, one at most

# what generation_config.json may advise, and what holds where neither it nor the caller says anything
ADVISED = {
    "temperature": 0.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "typical_p": 1.0, "repetition_penalty": 1.0,
}  # fmt: skip


@dataclass(frozen=True)
class SamplingParams:
    """How to choose the next token, and when to stop.

    None means "not said": `resolved` fills such a value from the model's generation_config, and where that is silent
    too, from the neutral value given below. What each step does, and their order, is in `steps.py`.

    max_tokens            most tokens to generate; 0 generates none; None goes on to the end of the context
    temperature           divides the logits; 0 always takes the likeliest token (greedy), which is also neutral
    top_k                 keep the k likeliest tokens; 0 is off, and so is any k beyond the vocabulary
    top_p                 keep the fewest likeliest tokens that reach this probability together; 1 is off, 0 keeps one
    min_p                 keep tokens at least this fraction as likely as the likeliest; 0 is off, 1 keeps its equals
    seed                  whole number from 0; the same seed and logits give the same ids; None draws a fresh one
    stop                  a string or strings that end the text, which is cut just before them
    ignore_eos            go on past end-of-sequence tokens

    By name only:

    min_tokens            end-of-sequence tokens are masked until there are this many; stop strings still end the text
    typical_p             keep the tokens nearest to the typical surprise that reach this probability; 1 is off
    top_n_sigma           keep logits within so many standard deviations of the highest; 0 is off
    xtc_probability       how often all tokens that reach `xtc_threshold` but the least likely are removed; 0 is off
    xtc_threshold         the probability that makes a token one of XTC's top choices; above 0.5 nothing happens
    repetition_penalty    divides the logits above 0 of tokens in prompt and output, multiplies those below; 1 is off
    repetition_window     how many of the last tokens that penalty looks at; -1 is all, 0 none
    frequency_penalty     taken from a token's logit for each time it is in the output; 0 is off
    frequency_window      how many of the last tokens of the output that penalty looks at; -1 is all, 0 none
    presence_penalty      taken from a token's logit once where it is in the output at all; 0 is off
    presence_window       how many of the last tokens of the output that penalty looks at; -1 is all, 0 none
    dry_multiplier        strength of DRY, against repeating what was said before; 0 is off
    dry_base              growth of DRY's penalty for each token that the repeat is longer, from 1
    dry_allowed_length    tokens that may be repeated before DRY counts
    dry_window            how many of the last tokens DRY looks at; -1 is all, 0 none
    dry_breakers          texts that no repeat reaches across
    mirostat              2 holds the surprise of the text at `mirostat_tau` bits instead of truncating; 0 is off
    mirostat_tau          the surprise aimed at, in bits
    mirostat_eta          how fast it is aimed at
    logit_bias            numbers added to the logits of ids
    banned_ids            ids that never come
    allowed_ids           the only ids that may come; None allows all
    json                  the answer is one JSON object
    json_schema           a JSON schema that the answer keeps to; what can't be enforced of it is refused by its path
    regex                 a regular expression that the whole answer matches
    grammar               a grammar of the answer, in llguidance's form of Lark
    choice                the answer is one of these texts
    processors            functions f(ids, logits) -> logits of one's own: prompt and output int64 [n], logits [vocab]
    order                 the steps in the order in which they are taken; see `steps.py` for their names
    logprobs              report log-probabilities of what was chosen and of so many likeliest tokens; None: of nothing
    prompt_logprobs       the same of the prompt's tokens
    logprobs_of           "model": of its logits as they are; "sampled": of what was drawn from, after all steps
    context_full          "stop" ends the answer there; "roll" drops the older half of the text, and goes on
    context_keep          so many first tokens of a text that rolls always stay

    Raises `BadRequest`, whose `parameter` names the field, for a value of the wrong kind or out of range, for an order
    that leaves out a step that is asked for, for mirostat together with another truncation, and for more than one of
    json, json_schema, regex, grammar and choice, or one of them with ignore_eos: no text goes on past their end.
    """

    max_tokens: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: str | Sequence[str] | None = ()
    ignore_eos: bool = False
    _: KW_ONLY
    min_tokens: int = 0
    typical_p: float | None = None
    top_n_sigma: float = 0.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    repetition_penalty: float | None = None
    repetition_window: int = -1
    frequency_penalty: float = 0.0
    frequency_window: int = -1
    presence_penalty: float = 0.0
    presence_window: int = -1
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_window: int = -1
    dry_breakers: Sequence[str] = ("\n", ":", '"', "*")
    mirostat: int = 0
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    logit_bias: Mapping[int, float] | None = field(default_factory=dict)
    banned_ids: Sequence[int] = ()
    allowed_ids: Sequence[int] | None = None
    json: bool = False
    json_schema: Mapping[str, Any] | str | bool | None = None
    regex: str | None = None
    grammar: str | None = None
    choice: Sequence[str] | None = ()
    processors: Sequence[Callable[..., Any]] = ()
    order: Sequence[str] = ORDER
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logprobs_of: str = "model"
    context_full: str = "stop"
    context_keep: int = 4

    def __post_init__(self) -> None:
        """Check every field, and bring it to its plain Python type."""
        for name, (check, *limits) in CHECKS.items():
            value = getattr(self, name)
            if value is None and name in REQUIRED:
                raise BadRequest(f"{name} should not be None; its default is {REQUIRED[name]!r}", name)
            object.__setattr__(self, name, check(name, value, *limits))
        if self.allowed_ids is not None:
            object.__setattr__(self, "allowed_ids", checks.ids("allowed_ids", self.allowed_ids))
        self._check_order()
        self._check_mirostat()
        self._check_constraints()

    def with_overrides(self, **overrides: Any) -> SamplingParams:
        """A copy with some fields replaced; raises `BadRequest` for a name that is no field."""
        known = [field.name for field in fields(self)]
        for name in overrides:
            if name not in known:
                raise BadRequest(f"unknown sampling parameter {name!r}; known are {', '.join(known)}", name)
        return replace(self, **overrides)

    def resolved(self, generation_config: Mapping[str, Any] | None = None) -> SamplingParams:
        """A copy in which only limits may be None: what the caller said, else the model's advice, else neutral.

        generation_config is the content of generation_config.json. As in transformers, whose file it is, it asks for
        sampling only by `"do_sample": true`, with temperature 1 unless it gives another; without that it means greedy.
        Its repetition_penalty always holds, and its top_k, top_p, min_p and typical_p whenever the caller samples;
        but no advice on a step that `order` leaves out or mirostat stands in for. A missing seed is drawn here, so that
        it can be reported and the run repeated. Raises `BadCheckpoint` where generation_config holds an impossible
        value.
        """
        advice = self._advice(generation_config or {})
        chosen = {name: advice[name] if getattr(self, name) is None else getattr(self, name) for name in ADVISED}
        seed = fresh_seed() if self.seed is None else self.seed
        return replace(self, **chosen, seed=seed)

    @property
    def greedy(self) -> bool:
        """Whether every token is simply the likeliest one; random numbers play no part then."""
        return not self.temperature

    @property
    def constrained_by(self) -> str | None:
        """The field that says what form the answer has, None where it is free."""
        return next(iter(self._constraints()), None)

    def to_dict(self) -> dict[str, Any]:
        """All fields as JSON can hold them, and under "engine" the program and version whose numbers they drive.

        Of `processors` only their names are kept.
        """
        from .. import __version__

        record = {field.name: getattr(self, field.name) for field in fields(self)}
        record = {name: list(value) if isinstance(value, tuple) else value for name, value in record.items()}
        record["processors"] = [getattr(f, "__qualname__", type(f).__qualname__) for f in self.processors]
        record["logit_bias"] = {str(id): bias for id, bias in self.logit_bias.items()}
        return record | {"engine": f"tinyinfer {__version__}"}

    @classmethod
    def from_dict(cls, record: Mapping[str, Any], processors: Sequence[Callable[..., Any]] = ()) -> SamplingParams:
        """What `to_dict` gave: with the same model and prompt it gives the same ids.

        `processors` are given anew, as a record has only their names. Warns where another version of the engine made
        the record. Raises `BadRequest` as `with_overrides`, and where the number of processors is another.
        """
        from .. import __version__

        found = dict(record)
        engine, named = found.pop("engine", None), found.pop("processors", [])
        if len(named) != len(checks.callables("processors", processors)):
            expected = ", ".join(map(str, named)) or "none"
            raise BadRequest(f"the record was made with these processors, to be given again: {expected}", "processors")
        if engine not in (None, f"tinyinfer {__version__}"):
            warnings.warn(f"sampled by {engine}; tinyinfer {__version__} may choose other tokens", stacklevel=2)
        return cls().with_overrides(**found, processors=processors)

    def _says(self, step: str) -> str | None:
        """The first field that asks for a step, None where it is off."""
        fields = ((name, getattr(self, name), neutral) for name, neutral in STEPS[step].items())
        return next((name for name, value, neutral in fields if value is not None and value != neutral), None)

    def _check_order(self) -> None:
        for step in self.order:
            if step not in STEPS:
                raise BadRequest(f"order should name steps of {', '.join(ORDER)}, found {step!r}", "order")
            if self.order.count(step) > 1:
                raise BadRequest(f"order should name each step once, found {step!r} twice", "order")
        for step in STEPS:
            name = self._says(step)
            if step not in self.order and name is not None and not (name == "temperature" and self.greedy):
                raise BadRequest(f"order leaves out {step!r}, which {name}={getattr(self, name)!r} asks for", "order")

    def _check_mirostat(self) -> None:
        if self.mirostat:
            for step in TRUNCATIONS:
                name = self._says(step)
                if name is not None:
                    raise BadRequest(f"mirostat takes the place of {name}, found {getattr(self, name)!r} as well", name)

    def _constraints(self) -> list[str]:
        asked = {"json": self.json, "json_schema": self.json_schema is not None, "choice": bool(self.choice)}
        return [name for name in CONSTRAINTS if asked.get(name, getattr(self, name) is not None)]

    def _check_constraints(self) -> None:
        names = self._constraints()
        if len(names) > 1:
            raise BadRequest(f"an answer has one form, found both {names[0]} and {names[1]}", names[1])
        if names and self.ignore_eos:
            raise BadRequest(f"ignore_eos goes on past the end, beyond which {names[0]} allows nothing", "ignore_eos")

    def _advice(self, generation_config: Mapping[str, Any]) -> dict[str, Any]:
        advice = dict(ADVISED)
        sampling = bool(generation_config.get("do_sample"))
        for name in advice:
            value = generation_config.get(name)
            if value is not None and (name != "temperature" or sampling):
                advice[name] = value
            elif name == "temperature" and sampling:
                advice[name] = 1.0
        try:
            SamplingParams(**advice)
        except BadRequest as error:
            raise BadCheckpoint(f"generation_config.json: {error}") from None
        silent = [step for step in STEPS if step not in self.order or (self.mirostat and step in TRUNCATIONS)]
        neutral = {name: value for step in silent for name, value in STEPS[step].items() if name in advice}
        if not advice["temperature"]:
            neutral.pop("temperature", None)  # greedy needs no step
        return advice | neutral


def fresh_seed() -> int:
    """A seed from the system's entropy: 32 bits, short enough to type again."""
    return int.from_bytes(os.urandom(4), "little")


_SHARE = (checks.number, 0.0, 1.0)
_ANY = (checks.number, -checks.ANY_SIZE)
_WINDOW = (checks.whole, -1)
CHECKS: dict[str, tuple[Any, ...]] = {
    "max_tokens": (checks.whole,), "min_tokens": (checks.whole,),
    "temperature": (checks.number,), "top_k": (checks.whole,), "top_p": _SHARE, "min_p": _SHARE, "typical_p": _SHARE,
    "top_n_sigma": (checks.number,), "xtc_probability": _SHARE, "xtc_threshold": _SHARE,
    "repetition_penalty": (checks.positive,), "repetition_window": _WINDOW,
    "frequency_penalty": _ANY, "frequency_window": _WINDOW, "presence_penalty": _ANY, "presence_window": _WINDOW,
    "dry_multiplier": (checks.number,), "dry_base": (checks.number, 1.0), "dry_allowed_length": (checks.whole, 1),
    "dry_window": _WINDOW, "dry_breakers": (checks.strings,),
    "mirostat": (checks.one_of, (0, 2)), "mirostat_tau": (checks.number,), "mirostat_eta": (checks.number,),
    "logit_bias": (checks.biases,), "banned_ids": (checks.ids,), "processors": (checks.callables,),
    "order": (checks.strings,), "seed": (checks.whole,), "stop": (checks.strings,), "ignore_eos": (checks.flag,),
    "logprobs": (checks.whole,), "prompt_logprobs": (checks.whole,),
    "logprobs_of": (checks.one_of, ("model", "sampled")),
    "json": (checks.flag,), "json_schema": (checks.schema,), "regex": (checks.expression,),
    "grammar": (checks.grammar,), "choice": (checks.choices,),
    "context_full": (checks.one_of, ("stop", "roll")), "context_keep": (checks.whole,),
}  # fmt: skip

# the fields that None would not stand for
REQUIRED = {"order": ORDER} | {
    field.name: field.default
    for field in fields(SamplingParams)
    if field.default is not None and CHECKS.get(field.name, (None,))[0] in (checks.number, checks.whole)
}
