"""From what a caller says about speculation to the drafter that is meant."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..checkpoint.quantized import quantize_checkpoint
from ..errors import BadRequest
from ..quant import FORMS, SCHEMES
from .drafter import Drafter
from .model import ModelDrafter, check_vocabulary
from .ngram import NgramDrafter

if TYPE_CHECKING:
    from ..llm import LLM

METHODS = ("ngram", "draft_model")
NGRAM_KEYS = {"prompt_lookup_min": "shortest_match", "prompt_lookup_max": "longest_match"}
KEYS = {"num_speculative_tokens": "longest", "branches": "branches", "adaptive": "adaptive"}
EXPECTED = "'ngram', 'off', a form like 'int4', a model, a mapping or a Drafter"


def drafter_for(llm: LLM, wish: Any) -> Drafter | None:
    """The drafter that `wish` means; None for "off". See `LLM.stream` for what it may be.

    Raises `BadRequest` for what means nothing and for a draft model with another vocabulary, and what `load` raises.
    """
    if isinstance(wish, Drafter):
        return wish
    if isinstance(wish, Mapping):
        return _from_mapping(llm, dict(wish))
    if wish == "off":
        return None
    if wish == "ngram":
        return NgramDrafter()
    return _model_drafter(llm, wish)


def draft_model(llm: LLM, wish: Any) -> LLM:
    """A model that drafts for `llm`: a loaded one, a form to quantize `llm` itself to, or what `load` takes."""
    from ..llm import LLM, load

    how = {"kv_dtype": llm.model.kv_dtype, "threads": llm.model.threads}
    if isinstance(wish, LLM):
        draft = wish
    elif _is_form(wish):
        return LLM(quantize_checkpoint(llm.checkpoint, scheme=wish), llm.context, **how)
    elif isinstance(wish, str | os.PathLike):
        draft = load(wish, **how)
    else:
        raise BadRequest(f"speculate should be {EXPECTED}, found {wish!r}", "speculate")
    check_vocabulary(llm, draft)
    return draft


def _from_mapping(llm: LLM, wish: dict[str, Any]) -> Drafter | None:
    model = wish.pop("model", None)
    method = wish.pop("method", "ngram" if model is None else "draft_model")
    if method not in METHODS:
        raise BadRequest(
            f"speculate: method should be {' or '.join(map(repr, METHODS))}, found {method!r}", "speculate"
        )
    if (method == "ngram") != (model is None):
        found = "a model with the method 'ngram'" if model is not None else "the method 'draft_model' without a model"
        raise BadRequest(f"speculate: a draft model goes with the method 'draft_model', found {found}", "speculate")
    names = KEYS | NGRAM_KEYS if method == "ngram" else KEYS
    for key in wish:
        if key not in names:
            expected = ", ".join(["method", "model", *KEYS, *NGRAM_KEYS])
            where = "" if key not in NGRAM_KEYS else " goes with the method 'ngram' alone"
            raise BadRequest(f"speculate: {key!r}{where or f' is none of {expected}'}", "speculate")
    settings = {names[key]: value for key, value in wish.items()}
    if method == "ngram":
        return NgramDrafter(**settings)
    return _model_drafter(llm, model, **settings)


def _model_drafter(llm: LLM, wish: Any, **settings: Any) -> Drafter:
    return ModelDrafter(draft_model(llm, wish), reads_targets_keys=_is_form(wish), **settings)


def _is_form(wish: Any) -> bool:
    return isinstance(wish, str) and wish in (*SCHEMES, *FORMS)
