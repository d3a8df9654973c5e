"""Drafts from a smaller model with the same vocabulary, or from the same model quantized lower.

Where tokens are sampled, the draft model draws with the very random numbers that the target model's draws will use: the
two then give the same id wherever their distributions are alike, and a draft is right more often than by chance. That
changes nothing about what the target draws.

A model that is the target itself in fewer bits has no cache of its own: it goes on from the target's keys and values
in a fork of its sequence. So it reads nothing but what it drafts, and sees the text as the target does.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..cached_sequence import CachedSequence
from ..errors import BadRequest
from ..model.forward import Chunk
from ..sampling import SamplingParams
from ..sampling.candidates import likeliest
from ..sampling.sampler import Sampler, draw
from .costs import Costs
from .draft import ROOT, Draft
from .drafter import Drafter, Drafting, whole_number

if TYPE_CHECKING:
    from ..llm import LLM

# what a draft is drawn by too; the rest of the parameters needs more than logits, or is rarely worth its time
COPIED = ("temperature", "top_k", "top_p", "min_p", "typical_p", "top_n_sigma", "repetition_penalty")


class ModelDrafter(Drafter):
    """Drafts of a loaded model."""

    def __init__(
        self, llm: LLM, longest: int = 5, branches: int = 1, adaptive: bool = True, *, reads_targets_keys: bool = False
    ):
        """With several `branches`, drafts are trees: the likeliest first ids, and what follows each. See `Drafter`.

        reads_targets_keys   `llm` is the target model in other bits, with the same `kv_dtype`: it shares its cache
        """
        super().__init__(longest, adaptive)
        self.llm, self.branches = llm, whole_number(branches, "branches", most=8)
        self.reads_targets_keys = reads_targets_keys
        self.catching_up = Costs()  # an id of the text that it has not seen; there is but size 1
        self.acceptances = {}  # how alike two models are is much the same for all texts

    def begin(self, sampler: Sampler, stop_ids: frozenset[int] = frozenset()) -> ModelDrafting:
        """Drafts for one text."""
        return ModelDrafting(self, sampler, stop_ids)


class ModelDrafting(Drafting):
    """The drafts of one text, and the draft model's own keys and values."""

    def __init__(self, drafter: ModelDrafter, sampler: Sampler, stop_ids: frozenset[int]):
        """Begin with no text. `sampler` is the target's."""
        self.drafter, self.sampler, self.stop_ids = drafter, sampler, stop_ids
        self.held = CachedSequence(drafter.llm.model)
        self.ids: list[int] = []
        self._vocab_size = min(sampler.vocab_size, drafter.llm.config.vocab_size)
        params = {name: getattr(sampler.params, name) for name in COPIED}
        self._own = Sampler(SamplingParams(seed=0, **params), drafter.llm.config.vocab_size)
        self._readable = True

    @property
    def owed(self) -> float:
        """Seconds to read what came since the last draft; nothing for what it reads with every draft."""
        if self.drafter.reads_targets_keys:
            return 0.0
        lag = len(self.ids) - len(self.held.ids)
        return lag * self.drafter.catching_up.of(1) if lag > self.drafter.longest else 0.0

    def look(self, ids: Sequence[int]) -> int | None:
        """See `Drafting`: always a draft, as long as the text is one that the draft model can read."""
        self._readable = self._readable and max(ids, default=0) < self._vocab_size
        self.ids += ids
        for id in ids:
            self._own.state.accept(id)
        return 0 if self._readable and len(self.ids) < self.drafter.llm.context else None

    def depth(self, count: int) -> int:
        """See `Drafting`."""
        return -(-count // self.drafter.branches)

    def draft(self, count: int, held: CachedSequence) -> Draft | None:
        """See `Drafting`."""
        if not self.drafter.reads_targets_keys:
            return self._drafted(count)
        self.held = held.fork(self.drafter.llm.model)
        try:
            return self._drafted(count)
        finally:
            self.held.sequence.release()

    def _drafted(self, count: int) -> Draft:
        depth = min(self.depth(count), self.drafter.llm.context - len(self.ids))
        logits, uniforms = self._read(), self.sampler.peek(depth)
        draft = Draft()
        firsts = self._firsts(logits, uniforms[0])[:count]
        ends = [draft.add(id, ROOT) for id in firsts]
        if self.drafter.branches == 1:
            self._chain(draft, depth, uniforms)
        else:
            self._branch(draft, ends, min(count, depth * len(ends)), uniforms)
        return draft

    def _read(self) -> np.ndarray:
        """The logits after the text."""
        if self.drafter.reads_targets_keys:
            return self.held.step(self.ids[-1])
        start, lag = time.perf_counter(), len(self.ids) - len(self.held.ids)
        logits, _ = self.held.prefill(self.ids)
        self.read_seconds = 0.0
        if lag > self.drafter.longest:
            self.read_seconds = time.perf_counter() - start
            self.drafter.catching_up.note(1, self.read_seconds / lag)
        return logits

    def _chain(self, draft: Draft, depth: int, uniforms: np.ndarray) -> None:
        while 0 < len(draft) < depth and draft.ids[-1] not in self.stop_ids:
            logits = self.held.step(draft.ids[-1])
            ids = self._firsts(logits, uniforms[len(draft)])
            if not ids:
                return
            draft.add(ids[0], len(draft) - 1)

    def _branch(self, draft: Draft, ends: list[int], count: int, uniforms: np.ndarray) -> None:
        """Go on from each end, all of them in one step, in forks of the text."""
        twins = [self.held.fork() for _ in ends]
        try:
            self._grow(draft, ends, twins, count, uniforms)
        finally:
            for twin in twins:
                twin.sequence.release()

    def _grow(
        self, draft: Draft, ends: list[int], twins: list[CachedSequence], count: int, uniforms: np.ndarray
    ) -> None:
        for place in range(1, len(uniforms)):
            going = [i for i, end in enumerate(ends) if draft.ids[end] not in self.stop_ids][: count - len(draft)]
            if not going:
                break
            fed = [(twins[i], [draft.ids[ends[i]]]) for i in going]
            chunks: list[Chunk] = [twin.chunk(ids, len(twin.ids) + 1) for twin, ids in fed]
            logits = self.held.model.forward(chunks)
            for twin, ids in fed:
                twin.fed(ids, len(twin.ids) + 1)
            for i, row in zip(going, logits, strict=True):
                if ids := self._firsts(row, uniforms[place])[:1]:
                    ends[i] = draft.add(ids[0], ends[i])

    def _firsts(self, logits: np.ndarray, uniform: float) -> list[int]:
        """The id to draft after some logits, and for trees the next likeliest ones."""
        logits = logits[: self._vocab_size]
        own = self._own
        if own.params.greedy and own.params.repetition_penalty == 1:
            first = likeliest(logits)
        else:
            wide = np.full(own.vocab_size, -np.inf, np.float32)
            wide[: self._vocab_size] = logits
            first = draw(own.distribution(wide), uniform)
        if self.drafter.branches == 1:
            return [first]
        most = np.argpartition(logits, -self.drafter.branches)[-self.drafter.branches :]
        others = [int(id) for id in most[np.argsort(-logits[most])] if id != first]
        return [first, *others[: self.drafter.branches - 1]]


def check_vocabulary(target: LLM, draft: LLM) -> None:
    """Raise `BadRequest` unless ids mean the same to both models: every token has the same id in both.

    Rows of the embedding that no token has may be of any number. Models without a tokenizer need as many ids.
    """
    if target.checkpoint is draft.checkpoint:
        return
    ours, theirs = (_tokens(llm) for llm in (target, draft))
    sizes = target.config.vocab_size, draft.config.vocab_size
    names = f"the draft model {draft.path} and {target.path}"
    if ours is None or theirs is None:
        if ours is not theirs:
            raise BadRequest(f"{names}: only one of them has a tokenizer, so ids can't be compared", "speculate")
        if sizes[0] != sizes[1]:
            raise BadRequest(f"{names} have different vocabularies: {sizes[1]:,} and {sizes[0]:,} ids", "speculate")
    elif ours != theirs:
        differing = sorted({id for _, id in ours.items() ^ theirs.items()})
        raise BadRequest(
            f"{names} have different vocabularies: {len(differing):,} ids differ, the first is {differing[0]:,}",
            "speculate",
        )


def _tokens(llm: LLM) -> dict[str, int] | None:
    return None if llm.checkpoint.tokenizer_json is None else llm.tokenizer.ids_of_tokens
