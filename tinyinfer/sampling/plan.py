"""From parameters to the list of steps: which there are, in which order, without those that are off."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from ..errors import BadRequest
from . import penalties, steps
from .candidates import Candidates, unmasked
from .dry import Dry
from .mirostat import within_surprise
from .params import GREEDY_STEPS, SamplingParams
from .reading import Reading
from .state import State
from .xtc import exclude_top

Step = Callable[[Candidates, State], Candidates]


class Vocabulary(NamedTuple):
    """What the steps need to know of a model's vocabulary."""

    size: int
    stop_ids: Collection[int] = ()  # the end-of-sequence ids, which min_tokens masks
    breakers: Sequence[tuple[int, ...]] = ()  # ids of the texts that DRY does not reach across


def steps_for(params: SamplingParams, vocabulary: Vocabulary) -> tuple[Reading, list[Step]]:
    """The steps that resolved `params` ask for, in order, and how the logits are read before them.

    What reading has done already is no step any more: top-p, and top-k where nothing can change in between.
    Raises `BadRequest` where an id of `params` is outside the vocabulary.
    """
    fixed = _masks(params, vocabulary)
    wanted = [name for name in params.order if not params.greedy or name in GREEDY_STEPS]
    found = {name: made for name in wanted if (made := _made(name, params, vocabulary))}
    reading = Reading.before(list(found), params, _changed(params, vocabulary))
    if reading.truncation == "top_p" or (reading.truncation == "top_k" and not fixed and "penalties" not in found):
        del found[reading.truncation]
    return reading, fixed + [step for made in found.values() for step in made]


def _made(name: str, params: SamplingParams, vocabulary: Vocabulary) -> list[Step]:
    """The functions of one step; none where it is off."""
    p = params
    if name == "penalties":
        return _penalties(p)
    if name == "dry" and p.dry_multiplier and p.dry_window:
        dry = Dry.of(p, vocabulary.breakers)
        return [lambda tokens, state: dry(tokens, state.ids)]
    if name == "processors" and p.processors:
        return [lambda tokens, state: penalties.processed(tokens, state, p.processors, vocabulary.size)]
    if name == "xtc" and p.xtc_probability:
        return [lambda tokens, state: _by_chance(tokens, state, p)]
    if name == "mirostat" and p.mirostat:
        return [lambda tokens, state: within_surprise(tokens, state.surprise_limit)]
    plain: Mapping[str, tuple[bool, Callable[[Candidates], Candidates]]] = {
        "temperature": (p.temperature != 1, partial(steps.temperature, value=p.temperature)),
        "top_n_sigma": (p.top_n_sigma > 0, partial(steps.top_n_sigma, n=p.top_n_sigma)),
        "top_k": (p.top_k > 0, partial(steps.top_k, k=p.top_k)),
        "typical": (p.typical_p < 1, partial(steps.typical, p=p.typical_p)),
        "top_p": (p.top_p < 1, partial(steps.top_p, p=p.top_p)),
        "min_p": (p.min_p > 0, partial(steps.min_p, fraction=p.min_p)),
    }
    on, function = plain.get(name, (False, None))
    return [lambda tokens, state: function(tokens)] if on else []


def _by_chance(tokens: Candidates, state: State, params: SamplingParams) -> Candidates:
    return exclude_top(tokens, params.xtc_threshold) if state.coin() < params.xtc_probability else tokens


def _penalties(p: SamplingParams) -> list[Step]:
    found: list[Step] = []
    if p.repetition_penalty != 1 and p.repetition_window:
        found.append(lambda tokens, state: penalties.repetition(tokens, state.repeated, p.repetition_penalty))
    if p.frequency_penalty and p.frequency_window:
        found.append(lambda tokens, state: penalties.frequency(tokens, state.frequent, p.frequency_penalty))
    if p.presence_penalty and p.presence_window:
        found.append(lambda tokens, state: penalties.presence(tokens, state.present, p.presence_penalty))
    return found


def _masks(params: SamplingParams, vocabulary: Vocabulary) -> list[Step]:
    """What comes first, whatever the order: masks, and the bias. Before them the sampler asks the constraint."""
    found: list[Step] = []
    if params.allowed_ids is not None:
        only = _checked("allowed_ids", params.allowed_ids, vocabulary.size)
        found.append(lambda tokens, state: penalties.allowed(tokens, only))
    if params.banned_ids:
        never = _checked("banned_ids", params.banned_ids, vocabulary.size)
        found.append(lambda tokens, state: penalties.banned(tokens, never))
    if params.min_tokens and vocabulary.stop_ids:
        ends, least = np.array(sorted(vocabulary.stop_ids), np.int64), params.min_tokens
        found.append(lambda tokens, state: penalties.banned(tokens, ends) if state.output_length < least else tokens)
    if found and not params.greedy:  # greedy needs no list of what is left, only what is highest
        found.append(lambda tokens, state: unmasked(tokens))
    if params.logit_bias:
        ids = _checked("logit_bias", tuple(params.logit_bias), vocabulary.size)
        amounts = np.array(list(params.logit_bias.values()))
        found.append(lambda tokens, state: penalties.bias(tokens, ids, amounts))
    return found


def _changed(params: SamplingParams, vocabulary: Vocabulary) -> Collection[int] | None:
    """The ids whose logits masks and the bias change, `()` for none; None where that is most of them."""
    if params.allowed_ids is not None:
        return None
    ends = vocabulary.stop_ids if params.min_tokens else ()
    return {*(params.banned_ids or ()), *ends, *(params.logit_bias or ())} or ()


def _checked(name: str, ids: tuple[int, ...], vocab_size: int) -> np.ndarray:
    if ids and max(ids) >= vocab_size:
        raise BadRequest(f"{name}: id {max(ids)} is outside the vocabulary of {vocab_size:,}", name)
    return np.array(ids, np.int64)
