"""Beam search: of the texts that a search of fixed width comes across, the likeliest.

    prompt ─ a ─ c ─ ...        each step all running texts grow by one token in one forward pass, every way of going
         │    └─ d ─ ...        on is rated, and the best `num_beams` go on; those that end are set aside
         └─ b ─ d ─ ...

The rules are those of transformers 5.24, `generate(num_beams=..., do_sample=False)`:

- What rates a text is the sum of its tokens' log-probabilities. Masks, bias, penalties, DRY and processors change these
  and not the logits, and nothing is normalized after them.
- A step looks at the best `num_beams` continuations of all texts together, and as many again for every end-of-sequence
  id, so that `num_beams` go on whatever ends. One that ends counts only where it is among the first `num_beams`.
- The score of a text that has ended is its sum by length ** length_penalty; the length counts generated tokens, the
  end-of-sequence token among them. The best `num_beams` are kept.
- The search is over when `max_tokens` are reached, where every text of the first `num_beams` ends, and, as soon as
  `num_beams` texts have ended: with early_stopping True at once; with False when the best running text, scored as it
  stands, is no better than the worst that has ended; with "never" likewise, but for a length_penalty above 0 it is
  scored as if no token up to `max_tokens` cost anything.

One beam ends where its text does, and is greedy decoding (transformers does not search then). Where continuations are
equal, the text that was better comes first, then the lower id.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

import numpy as np

from .answer import Completion, TextDecoder, Timings
from .cached_sequence import Adapters, CachedSequence
from .errors import BadRequest, SamplingError
from .model.forward import MOST_ROWS
from .sampling import SamplingParams, checks
from .sampling.candidates import Candidates, largest
from .sampling.logprobs import Scores, TokenLogprob, log_sum, model_logprob
from .sampling.params import GREEDY_STEPS, STEPS
from .sampling.plan import Step, Vocabulary, steps_for
from .sampling.state import State
from .text.markup import joined

HIGHEST_PENALTY = 10.0  # of lengths: a million tokens to that power are a float


@dataclass(frozen=True)
class BeamSearch:
    """How wide to search, and which of the texts found to prefer.

    num_beams              texts that are followed side by side, from 1
    length_penalty         texts are scored by their sum of log-probabilities / length ** this; above 0 favours long
                           ones, since the sum is negative, 0 the likeliest, below 0 short ones
    early_stopping         when to stop once `num_beams` texts have ended: True, False or "never", see above
    num_return_sequences   how many of the best to give, from 1 to `num_beams`

    Raises `BadRequest` for a value of the wrong kind or out of range.
    """

    num_beams: int
    length_penalty: float = 1.0
    early_stopping: bool | str = False
    num_return_sequences: int = 1

    def __post_init__(self) -> None:
        """Check every field."""
        for name, most in (("num_beams", MOST_ROWS), ("num_return_sequences", self.num_beams)):
            value = getattr(self, name)
            if type(value) is not int or not 1 <= value <= most:
                what = f"{most}, the number of beams" if name == "num_return_sequences" else most
                raise BadRequest(f"{name} should be a whole number from 1 to {what}, found {value!r}", name)
        penalty = checks.number("length_penalty", self.length_penalty, -HIGHEST_PENALTY, HIGHEST_PENALTY)
        if penalty is None:
            raise BadRequest("length_penalty should not be None; its default is 1.0", "length_penalty")
        object.__setattr__(self, "length_penalty", penalty)
        checks.one_of("early_stopping", self.early_stopping, (False, True, "never"))

    def score(self, total: float, length: int) -> float:
        """Of a text of `length` generated tokens whose log-probabilities sum to `total`."""
        return total / length**self.length_penalty


@dataclass(frozen=True)
class Beam(Completion):
    """A finished text of a beam search: its score, and the search that found it.

    `score` is 0 where no token was allowed. All beams of a search have its seconds in their timings; nothing can be
    shown before it is over.
    """

    score: float = 0.0
    search: BeamSearch = field(default_factory=lambda: BeamSearch(1))


@dataclass
class Text:
    """A text under way, or one that has ended and has a score."""

    state: State
    total: float = 0.0  # of the log-probabilities of its generated tokens
    parent: int = 0  # which of the texts that ran before it goes on from
    ended: bool = False  # by an end-of-sequence id
    score: float = 0.0
    logprobs: list[TokenLogprob] = field(default_factory=list)

    @property
    def ids(self) -> list[int]:
        """The ids generated."""
        return self.state.ids[self.state.prompt_length :]


class Progress:
    """The rules, apart from any model: `running` texts, best first, those `finished`, best first, and when it is over.

    Each call of `extend` takes what may follow each running text.
    """

    def __init__(self, search: BeamSearch, prompt: State, stop_ids: Collection[int], max_tokens: int):
        """`max_tokens` is from 1."""
        self.search, self.stop_ids, self.max_tokens = search, stop_ids, max_tokens
        self.length = 0  # tokens that each running text has
        self.running = [Text(prompt)]
        self.finished: list[Text] = []

    def extend(self, following: Sequence[Candidates]) -> list[Text]:
        """One token more, from log-probabilities float64 of the tokens that may follow each running text.

        Gives all new texts. Raises `SamplingError` where nothing may follow and nothing has ended.
        """
        self.length += 1
        beams, at_limit = self.search.num_beams, self.length == self.max_tokens
        going_on, ending = [], []
        for rank, text in enumerate(self._best(following)):
            text.ended = text.state.ids[-1] in self.stop_ids
            if not (text.ended or at_limit):
                going_on.append(text)
            elif rank < beams:
                text.score = self.search.score(text.total, self.length)
                ending.append(text)
        if not (going_on or ending or self.finished):
            raise SamplingError("all tokens are masked, of every beam")
        self.running = going_on[:beams]
        self.finished = sorted(self.finished + ending, key=lambda text: -text.score)[:beams]
        return self.running + ending

    @property
    def over(self) -> bool:
        """Whether nothing better is looked for any more."""
        search, full = self.search, len(self.finished) == self.search.num_beams
        if not self.running or (full and (search.early_stopping is True or search.num_beams == 1)):
            return True
        hopeful = search.early_stopping == "never" and search.length_penalty > 0
        length = self.max_tokens if hopeful else self.length
        return full and search.score(self.running[0].total, length) <= self.finished[-1].score

    def _best(self, following: Sequence[Candidates]) -> list[Text]:
        """The best continuations of all texts, in their order: as many as are looked at."""
        count = self.search.num_beams * max(2, 1 + len(self.stop_ids))
        parents, ids, totals = [], [], []
        for parent, (text, tokens) in enumerate(zip(self.running, following, strict=True)):
            places = largest(tokens.logits, count)
            parents.append(np.full(len(places), parent))
            ids.append(tokens.ids[places])
            totals.append(text.total + tokens.logits[places])
        parents, ids, totals = (np.concatenate(parts) for parts in (parents, ids, totals))
        order = np.argsort(-totals, kind="stable")[:count]
        found = []
        for place in order[totals[order] > -np.inf]:
            state = self.running[parents[place]].state.fork()
            state.accept(int(ids[place]))
            found.append(Text(state, float(totals[place]), int(parents[place])))
        return found


def greedy_params(params: SamplingParams) -> SamplingParams:
    """`params` for a search: without temperature, whatever the model advises.

    Raises `BadRequest` for what a search can't go by: steps that only a draw goes by, stop strings, log-probabilities
    of what was drawn from, and a form of the answer.
    """
    if params.constrained_by is not None:
        name = params.constrained_by
        raise BadRequest(f"{name} has no place in a beam search, whose texts are not held to a form", name)
    neutral = {name: off for step in STEPS if step not in GREEDY_STEPS for name, off in STEPS[step].items()}
    others = {"temperature": 0.0, "stop": (), "logprobs_of": "model", "context_full": "stop"}
    limits = {"stop": "ends at end-of-sequence ids and max_tokens alone", "context_full": "stays within the context"}
    for name, off in (neutral | others).items():
        value = getattr(params, name)
        if value is not None and value != off:
            shown = list(value) if isinstance(value, tuple) else value
            why = limits.get(name, "draws nothing")
            raise BadRequest(f"{name} has no place in a beam search, which {why}; found {shown!r}", name)
    return params.with_overrides(
        temperature=0.0, **{name: off for name, off in neutral.items() if name != "temperature"}
    )


def beams(
    held: CachedSequence,
    prompt_ids: list[int],
    params: SamplingParams,
    search: BeamSearch,
    vocabulary: Vocabulary,
    new_decoder: Callable[[], TextDecoder],
    context: int,
    adapters: Adapters = (),
) -> list[Beam]:
    """The best texts that a search finds, best first; fewer than asked for where masks leave no more.

    `held` is empty, and so it is left: the prompt is held once, and what texts have in common. `params` are those of
    `greedy_params`, resolved; `vocabulary` has the end-of-sequence ids, which end texts unless `params.ignore_eos`.
    Otherwise as `generate`.
    """
    start = time.perf_counter()
    room = context - len(prompt_ids)
    budget = room if params.max_tokens is None else min(params.max_tokens, room)
    _, steps = steps_for(params, vocabulary)
    scores = Scores(params, prompt_ids)
    stop_ids = frozenset() if params.ignore_eos else frozenset(vocabulary.stop_ids)
    progress = Progress(search, State(params, prompt_ids), stop_ids, budget)
    texts = progress.running
    prefill_seconds = 0.0
    if budget or scores.read_prompt:
        logits = held.prefill(prompt_ids, adapters, scores.read_prompt)[0][None]
        prefill_seconds = time.perf_counter() - start
    if budget:
        _find(progress, [held], logits, steps, params.logprobs)
        texts = progress.finished[: search.num_return_sequences]
    held.sequence.release()
    seconds = time.perf_counter() - start
    return [_beam(text, new_decoder(), prompt_ids, params, search, scores, prefill_seconds, seconds) for text in texts]


def _find(
    progress: Progress, held: list[CachedSequence], logits: np.ndarray, steps: Sequence[Step], top: int | None
) -> None:
    """Search until all is found; `held` and `logits` are those of the prompt. Everything held is given back."""
    while True:
        before = progress.running
        following = [_rated(row, text.state, steps) for row, text in zip(logits, before, strict=True)]
        for text in progress.extend(following):
            if top is not None:
                scored = model_logprob(logits[text.parent], text.ids[-1], top)
                text.logprobs = [*before[text.parent].logprobs, scored]
        if progress.over:
            break
        held = _branches(held, [text.parent for text in progress.running])
        logits = _step(held, [text.ids[-1] for text in progress.running])
    for one in held:
        one.sequence.release()


def _rated(logits: np.ndarray, state: State, steps: Sequence[Step]) -> Candidates:
    """Log-probabilities of what may follow a text, float64, from logits float32 [vocab]."""
    tokens = Candidates(np.arange(len(logits)), logits.astype(np.float64) - log_sum(logits))
    for step in steps:
        tokens = step(tokens, state)
    return tokens


def _branches(held: list[CachedSequence], parents: list[int]) -> list[CachedSequence]:
    """For each parent's number, one that holds what the parent does; what has no child is given back."""
    for number, one in enumerate(held):
        if number not in parents:
            one.sequence.release()
    last = {parent: child for child, parent in enumerate(parents)}
    return [held[parent] if last[parent] == child else held[parent].fork() for child, parent in enumerate(parents)]


def _step(held: Sequence[CachedSequence], ids: Sequence[int]) -> np.ndarray:
    """One more id for each of several sequences of one length, in one pass: logits after them, float32 [n, vocab]."""
    length = len(held[0].ids) + 1
    if held[0].outgrown(length):
        return np.stack([one.step(id) for one, id in zip(held, ids, strict=True)])
    logits = held[0].model.forward([one.chunk([id], length) for one, id in zip(held, ids, strict=True)])
    for one, id in zip(held, ids, strict=True):
        one.fed([id], length)
    return logits


def _beam(
    text: Text,
    decoder: TextDecoder,
    prompt_ids: list[int],
    params: SamplingParams,
    search: BeamSearch,
    scores: Scores,
    prefill_seconds: float,
    seconds: float,
) -> Beam:
    """A text as it is given: only now is it decoded."""
    ids = text.ids
    said = [decoder.push(id) for id in (ids[:-1] if text.ended else ids)]
    said = joined([*said, decoder.finish(not text.ended)])
    firsts = seconds if ids else None, seconds if (said.text + said.reasoning).strip() else None
    return Beam(
        text=said.text,
        ids=ids,
        prompt_ids=prompt_ids,
        finish_reason="length" if not text.ended else "tool_calls" if said.tool_calls else "stop",
        stop_reason=ids[-1] if text.ended else None,
        params=params,
        timings=Timings(len(prompt_ids), 0, len(ids), prefill_seconds, seconds - prefill_seconds, *firsts),
        logprobs=None if params.logprobs is None else text.logprobs,
        prompt_logprobs=scores.prompt,
        reasoning=said.reasoning,
        tool_calls=said.tool_calls,
        score=text.score,
        search=search,
    )
