"""The ids of one sequence together with their keys and values."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from . import cache as kv
from .model.adapters import Adapter
from .model.forward import MOST_ROWS, Chunk, Model
from .model.rope import GROWING, keys_fit, length_that_counts, turned_back
from .rolling import Rolling

PREFILL_CHUNK = MOST_ROWS  # tokens of a prompt run at once
LOGITS_AT_ONCE = 2**24  # 64 MB, where the logits after every token of a prompt are wanted
LAST = slice(-1, None)
Adapters = Sequence[tuple[Adapter, float]]


class State(NamedTuple):
    """What a sequence is like beside its ids, keys and values."""

    prefill_length: int  # of the text for which the held keys were rotated, at the last prefill
    text_length: int  # and now
    context: int = 0  # of a text that rolls; 0 for one that does not
    keep: int = 0  # the first tokens, which stay
    dropped: int = 0
    dropped_at: int = 0  # how long the text was when the last of them went


class CachedSequence:
    """The ids of one sequence and their keys and values, kept in step. It serves one answer at a time.

    `prefill` and `step` run the model for this sequence alone. Whoever runs many at once calls `begin`, makes a step of
    what `chunk` gives of each, and says `fed` of those that were run; before each, `make_room` says how many may come.

    Where a text rolls (see `rolling.py`), some of `ids` are no longer held: `dropped` of them, behind the first
    `rolling.keep`.
    """

    def __init__(self, model: Model, sequence: kv.Sequence | None = None):
        """`sequence` is what it holds, by default nothing, in a cache of its own."""
        self.model = model
        self.ids: list[int] = []  # the text so far, whose keys and values are held
        self.adapters: Adapters = ()  # that they went through
        self.sequence = sequence or model.new_cache().sequence()
        self._ropes = list(dict.fromkeys(layer.rope for layer in model.config.layers if layer.rope))
        # lengths of the text for which the held keys were rotated: at the last prefill, and now
        self._prefill_length = self._text_length = 0
        self.rolling: Rolling | None = None
        self.dropped = self._dropped_at = 0  # tokens, and how long the text was when the last of them went
        self.answer: object = None  # whoever feeds it: an answer that finds another here has lost its place

    @property
    def state(self) -> State:
        """What a sequence elsewhere must know beside ids, keys and values to go on as this one would."""
        rolling = self.rolling or Rolling(0, 0)
        rolled = rolling.context, rolling.keep, self.dropped, self._dropped_at
        return State(self._prefill_length, self._text_length, *rolled)

    @classmethod
    def holding(cls, model: Model, sequence: kv.Sequence, ids: list[int], state: State) -> CachedSequence:
        """One that holds `ids` already, in the state of the one that computed them."""
        held = cls(model, sequence)
        held.ids, held._prefill_length, held._text_length = ids, state.prefill_length, state.text_length
        held.rolling = Rolling(state.context, state.keep) if state.context else None
        held.dropped, held._dropped_at = state.dropped, state.dropped_at
        return held

    def settle(self) -> None:
        """Have in the cache what `ids` says, also where an interrupt came between the two; nothing if that is lost."""
        length = len(self.ids) - self.dropped
        if self.sequence.length != length:
            self._cut_to(len(self.ids) if self.sequence.can_rewind(length) else 0)

    def fork(self, model: Model | None = None) -> CachedSequence:
        """A second sequence that holds the same; the memory is shared until either goes on.

        With another `model`, of the same shape and dtype of keys and values, it goes on through that, without adapters.
        Sequences that share memory take their steps one at a time, in one thread.
        """
        twin = CachedSequence(model or self.model, self.sequence.fork())
        twin.ids, twin.adapters = list(self.ids), () if model else self.adapters
        twin._prefill_length, twin._text_length = self._prefill_length, self._text_length
        twin.rolling, twin.dropped, twin._dropped_at = self.rolling, self.dropped, self._dropped_at
        return twin

    def begin(self, ids: Sequence[int], adapters: Adapters = (), rolling: Rolling | None = None) -> int:
        """Make ready for a text that begins with `ids` (at least one); gives how many of them need not be run.

        What is held already of their beginning is kept, except the last token, whose logits are wanted, and except
        where it would differ from a cold run, as with other adapters. The rest is to be fed, with `len(ids)` as the
        length of the text. With `rolling` the text may become longer than the context.
        """
        kept = self._reusable(ids, rolling) if adapters == self.adapters else 0
        self._cut_to(kept)
        self.adapters, self.rolling = adapters, rolling
        self._prefill_length = self._within_context(len(ids))
        return kept

    def make_room(self) -> int:
        """How many tokens may be fed now, at least one; where the text rolls and its context is full, some go first."""
        if self.rolling is None:
            return PREFILL_CHUNK
        if self.sequence.length >= self.rolling.context:
            self._roll(self.rolling)
        return min(self.rolling.context - self.sequence.length, PREFILL_CHUNK)

    def begin_with(self, ids: Sequence[int], adapters: Adapters, text_length: int) -> None:
        """`sequence` was given the keys and values of these ids, as they are in a text of that length."""
        self.ids, self.adapters, self.rolling = list(ids), adapters, None
        self._prefill_length = self._text_length = text_length
        self.dropped = self._dropped_at = 0

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
        return Chunk(self.sequence, np.asarray(ids), self._within_context(text_length), wanted, self.adapters)

    def fed(self, ids: Sequence[int], text_length: int) -> None:
        """A chunk of these ids went through the model."""
        self.ids += ids
        self._text_length = self._within_context(text_length)

    def outgrown(self, length: int) -> bool:
        """Whether a text of that length needs all keys computed anew: LongRoPE's, past the original context.

        Dynamically scaled keys stay as they were rotated: both as transformers does.
        """
        switching = [rope for rope in self._ropes if rope.kind == "longrope"]
        return not keys_fit(switching, self._text_length, self._within_context(length))

    def room_at_same_angles(self, most: int) -> int:
        """How many ids, up to `most`, can be fed together with the next one and turn as they would one by one.

        Some rotary scalings go by the length of the text: LongRoPE's changes once, dynamic ones with every token.
        """
        length = len(self.ids) + 1
        if self.outgrown(length):
            return 0
        while most > 0 and not keys_fit(self._ropes, length, length + most):
            most -= 1
        return most

    def prefill(
        self,
        ids: Sequence[int],
        adapters: Adapters = (),
        read: Callable[[np.ndarray], None] | None = None,
        rolling: Rolling | None = None,
    ) -> tuple[np.ndarray, int]:
        """Hold exactly `ids` (at least one) by way of some adapters; give the logits float32 [vocab] after the last.

        What is held already is kept as `begin` does; the second value says how many tokens that saved.
        With `read` nothing is kept, and it is called with the logits after every token, float32 [n, vocab], some rows
        at a time.
        """
        if read:
            for rows in self.rows(ids, adapters, rolling):
                read(rows)
            return rows[-1], 0
        kept = self.begin(ids, adapters, rolling)
        while len(self.ids) < len(ids):
            first = len(self.ids)
            logits = self._feed(ids[first : first + self.make_room()], len(ids))
        return logits[0], kept

    def rows(self, ids: Sequence[int], adapters: Adapters = (), rolling: Rolling | None = None) -> Iterator[np.ndarray]:
        """Hold exactly `ids`, run anew; yields the logits after every one, float32 [n, vocab], some rows at a time."""
        self._cut_to(0)
        self.begin(ids, adapters, rolling)
        most = max(LOGITS_AT_ONCE // self.model.config.vocab_size, 1)
        while len(self.ids) < len(ids):
            first, count = len(self.ids), min(self.make_room(), most)
            yield self._feed(ids[first : first + count], len(ids), slice(None))

    def step(self, id: int) -> np.ndarray:
        """One more id; logits float32 [vocab] after it."""
        length = len(self.ids) + 1
        if self.outgrown(length):
            return self.prefill([*self.ids, id], self.adapters)[0]
        self.make_room()
        return self._feed([id], length)[0]

    def _feed(self, ids: Sequence[int], text_length: int, wanted: slice = LAST) -> np.ndarray:
        logits = self.model.forward([self.chunk(ids, text_length, wanted)])
        self.fed(ids, text_length)
        return logits

    def _reusable(self, ids: Sequence[int], rolling: Rolling | None) -> int:
        common = 0
        for held, wanted in zip(self.ids, ids[:-1], strict=False):
            if held != wanted:
                break
            common += 1
        if self.dropped and (rolling != self.rolling or common < self._dropped_at):
            common = min(common, self.rolling.keep)  # what stands behind them has been moved
        length = len(ids) if rolling is None else min(len(ids), rolling.context)
        fits = all(keys_fit(self._ropes, before, length) for before in (self._prefill_length, self._text_length))
        return common if fits and self.sequence.can_rewind(self._place(common)) else 0

    def _place(self, length: int) -> int:
        """Where in the cache the text's first `length` tokens end."""
        return length - (self.dropped if length >= self._dropped_at else 0)

    def _cut_to(self, length: int) -> None:
        """Hold no more than the text's first `length` tokens."""
        if length:
            self.sequence.rewind(self._place(length))
        else:
            self.sequence.release()
        del self.ids[length:]
        if length < self._dropped_at:
            self.dropped = self._dropped_at = 0

    def _within_context(self, length: int) -> int:
        """The length of a text as far as rotary scalings are concerned."""
        return length if self.rolling is None else min(length, self.rolling.context)

    def _roll(self, rolling: Rolling) -> None:
        keep, drop, layers = rolling.keep, rolling.drop, self.model.config.layers

        def turn(layer: int, keys: np.ndarray) -> np.ndarray | None:
            rope, start = layers[layer].rope, self.sequence.length - len(keys)
            return turned_back(rope, keys, start, drop, self._text_length) if rope else None

        ids, self.ids, dropped, self.dropped = self.ids, [], self.dropped, 0  # so that an interrupt leaves nothing
        self.sequence.close_gap(keep, drop, turn)
        self.ids, self.dropped, self._dropped_at = ids, dropped + drop, len(ids)
