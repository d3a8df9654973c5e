"""The ids of one sequence together with their keys and values."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence

import numpy as np

from . import cache as kv
from .model.adapters import Adapter
from .model.forward import MOST_ROWS, Chunk, Model
from .model.rope import GROWING, keys_fit, length_that_counts

PREFILL_CHUNK = MOST_ROWS  # tokens of a prompt run at once
LOGITS_AT_ONCE = 2**24  # 64 MB, where the logits after every token of a prompt are wanted
LAST = slice(-1, None)
Adapters = Sequence[tuple[Adapter, float]]


class CachedSequence:
    """The ids of one sequence and their keys and values, kept in step. It serves one answer at a time.

    `prefill` and `step` run the model for this sequence alone. Whoever runs many at once calls `begin`, makes a step of
    what `chunk` gives of each, and says `fed` of those that were run.
    """

    def __init__(self, model: Model, sequence: kv.Sequence | None = None):
        """`sequence` is what it holds, by default nothing, in a cache of its own."""
        self.model = model
        self.ids: list[int] = []  # those whose keys and values are held
        self.adapters: Adapters = ()  # that they went through
        self.sequence = sequence or model.new_cache().sequence()
        self._ropes = list(dict.fromkeys(layer.rope for layer in model.config.layers if layer.rope))
        # lengths of the text for which the held keys were rotated: at the last prefill, and now
        self._prefill_length = self._text_length = 0
        self.answer: object = None  # whoever feeds it: an answer that finds another here has lost its place

    def fork(self) -> CachedSequence:
        """A second sequence that holds the same; the memory is shared until either goes on.

        Sequences that share memory take their steps one at a time, in one thread.
        """
        twin = CachedSequence(self.model, self.sequence.fork())
        twin.ids, twin.adapters = list(self.ids), self.adapters
        twin._prefill_length, twin._text_length = self._prefill_length, self._text_length
        return twin

    def begin(self, ids: Sequence[int], adapters: Adapters = ()) -> int:
        """Make ready for a text that begins with `ids` (at least one); gives how many of them need not be run.

        What is held already of their beginning is kept, except the last token, whose logits are wanted, and except
        where it would differ from a cold run, as with other adapters. The rest is to be fed, with `len(ids)` as the
        length of the text.
        """
        kept = self._reusable(ids) if adapters == self.adapters else 0
        if kept:
            self.sequence.rewind(kept)
        else:
            self.sequence.release()
        del self.ids[kept:]
        self.adapters = adapters
        self._prefill_length = len(ids)
        return kept

    def begin_with(self, ids: Sequence[int], adapters: Adapters, text_length: int) -> None:
        """`sequence` was given the keys and values of these ids, as they are in a text of that length."""
        self.ids, self.adapters = list(ids), adapters
        self._prefill_length = self._text_length = text_length

    def kind(self, adapters: Adapters, text_length: int) -> Hashable:
        """What keys and values go by beside the ids: adapters, and lengths for rotary scalings that ask."""
        return tuple(adapters), tuple(length_that_counts(rope, text_length) for rope in self._ropes)

    @property
    def is_as_cold(self) -> bool:
        """Whether a cold run of the same ids would leave the same: some rotary scalings go by how a text has grown."""
        return keys_fit(self._ropes, self._prefill_length, self._text_length)

    @property
    def grows(self) -> bool:
        """Whether rotations may go by the length of the text."""
        return any(rope.kind in GROWING for rope in self._ropes)

    def chunk(self, ids: Sequence[int], text_length: int, wanted: slice = LAST) -> Chunk:
        """The next ids as part of a step, in a text of that length as far as it is known; `fed` says that it was run.

        `wanted` says after which of them logits are wanted.
        """
        return Chunk(self.sequence, np.asarray(ids), text_length, wanted, self.adapters)

    def fed(self, ids: Sequence[int], text_length: int) -> None:
        """A chunk of these ids went through the model."""
        self.ids += ids
        self._text_length = text_length

    def outgrown(self, length: int) -> bool:
        """Whether a text of that length needs all keys computed anew: LongRoPE's, past the original context.

        Dynamically scaled keys stay as they were rotated: both as transformers does.
        """
        switching = [rope for rope in self._ropes if rope.kind == "longrope"]
        return not keys_fit(switching, self._text_length, length)

    def prefill(
        self, ids: Sequence[int], adapters: Adapters = (), read: Callable[[np.ndarray], None] | None = None
    ) -> tuple[np.ndarray, int]:
        """Hold exactly `ids` (at least one) by way of some adapters; give the logits float32 [vocab] after the last.

        What is held already is kept as `begin` does; the second value says how many tokens that saved.
        With `read` nothing is kept, and it is called with the logits after every token, float32 [n, vocab], some rows
        at a time.
        """
        if read:
            for rows in self.rows(ids, adapters):
                read(rows)
            return rows[-1], 0
        kept = self.begin(ids, adapters)
        for first in range(kept, len(ids), PREFILL_CHUNK):
            logits = self._feed(ids[first : first + PREFILL_CHUNK], len(ids))
        return logits[0], kept

    def rows(self, ids: Sequence[int], adapters: Adapters = ()) -> Iterator[np.ndarray]:
        """Hold exactly `ids`, run anew; yields the logits after every one, float32 [n, vocab], some rows at a time."""
        self.sequence.release()
        del self.ids[:]
        self.adapters = adapters
        self._prefill_length = len(ids)
        count = min(max(LOGITS_AT_ONCE // self.model.config.vocab_size, 1), PREFILL_CHUNK)
        for first in range(0, len(ids), count):
            yield self._feed(ids[first : first + count], len(ids), slice(None))

    def step(self, id: int) -> np.ndarray:
        """One more id; logits float32 [vocab] after it."""
        length = len(self.ids) + 1
        if self.outgrown(length):
            return self.prefill([*self.ids, id], self.adapters)[0]
        return self._feed([id], length)[0]

    def _feed(self, ids: Sequence[int], text_length: int, wanted: slice = LAST) -> np.ndarray:
        logits = self.model.forward([self.chunk(ids, text_length, wanted)])
        self.fed(ids, text_length)
        return logits

    def _reusable(self, ids: Sequence[int]) -> int:
        common = 0
        for held, wanted in zip(self.ids, ids[:-1], strict=False):
            if held != wanted:
                break
            common += 1
        lengths = self._prefill_length, self._text_length
        fits = all(keys_fit(self._ropes, length, len(ids)) for length in lengths)
        return common if fits and self.sequence.can_rewind(common) else 0
