"""What a constraint accepts, and answers drawn from logits that are random, as those of an untrained model are."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

import numpy as np

from tinyinfer import LLM, Completion
from tinyinfer.errors import BadRequest

CLOSING = {ord(char): 3.0 for char in '"}],:0123456789'}  # or few answers would come to their end


def accepts(llm: LLM, text: str, **form: Any) -> bool:
    """Whether an answer of that form may be this text, and end there."""
    ids = [*llm.tokenizer.encode(text), min(llm.stop_ids)]
    return llm.constraint(llm.resolved_params(**form)).allows(ids) == len(ids)


def refusal(llm: LLM, **form: Any) -> BadRequest | None:
    """What is said where that form of an answer is refused."""
    try:
        llm.constraint(llm.resolved_params(**form))
    except BadRequest as error:
        return error
    return None


def random_answer(llm: LLM, seed: int, **params: Any) -> Completion:
    """An answer to random logits."""
    given = {"temperature": 1.0, "max_tokens": 150, "logit_bias": CLOSING, **params}
    answer = llm.new_answer([65], llm.resolved_params(seed=seed, **given))
    logits = np.random.default_rng(seed).standard_normal((answer.sampler.params.max_tokens, llm.config.vocab_size))
    for row in logits.astype(np.float32):
        if answer.going:
            answer.take(row)
    return answer.finish().completion


def spellings(value: Any) -> Iterator[str]:
    """A value as JSON in the ways in which a model may write it."""
    for ordered in _orders(value):
        yield json.dumps(ordered, ensure_ascii=False)
        yield json.dumps(ordered, ensure_ascii=False, separators=(",", ":"))
        yield json.dumps(ordered, ensure_ascii=False, indent=2)


def _orders(value: Any) -> Iterator[Any]:
    """The value with whole numbers written so, and the names of its outermost object in every order."""
    value = _whole(value)
    if isinstance(value, dict) and len(value) <= 4:
        yield from map(dict, itertools.permutations(value.items()))
    else:
        yield value


def _whole(value: Any) -> Any:
    if isinstance(value, list):
        return [_whole(one) for one in value]
    if isinstance(value, dict):
        return {name: _whole(one) for name, one in value.items()}
    return int(value) if isinstance(value, float) and value.is_integer() else value
