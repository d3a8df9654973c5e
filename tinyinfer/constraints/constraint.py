"""One answer's place in its grammar: which ids may come next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..errors import SamplingError

if TYPE_CHECKING:
    from llguidance import LLMatcher

# what llguidance says, and what that means
TOO_LARGE = "lexer error: too many expressions constructed"
REASONS = {"NoExtensionBias": "no token goes on as it asks", TOO_LARGE: "an expression in it is too large"}


class Constraint:
    """Which ids may come next, given those that were accepted.

    The mask is computed once for each place, when it is first asked for. Ids that end the text are allowed only where
    it is complete; special tokens only where a grammar names them.
    """

    def __init__(self, matcher: LLMatcher, vocab_size: int, matched_size: int):
        """Begin where `matcher` stands; it is this constraint's own from now on.

        `vocab_size` is how many ids the model has, `matched_size` how many the matcher knows, no fewer.
        """
        self._matcher, self._vocab_size, self._matched_size = matcher, vocab_size, matched_size
        self._words = np.zeros((matched_size + 31) // 32, np.int32)
        self._known = False

    def fork(self) -> Constraint:
        """Another one at the same place."""
        return Constraint(self._matcher.deep_copy(), self._vocab_size, self._matched_size)

    @property
    def done(self) -> bool:
        """Whether the text is complete, and nothing but its end can come."""
        return self._matcher.is_stopped() and self._matcher.is_accepting()

    @property
    def complete(self) -> bool:
        """Whether the text may end here."""
        return self._matcher.is_accepting()

    def ids(self) -> np.ndarray:
        """The ids that may come next, int64 [n], ascending. Raises `SamplingError` where the matcher gave up."""
        return np.flatnonzero(np.unpackbits(self._bits(), count=self._vocab_size, bitorder="little").view(bool))

    def permits(self, id: int) -> bool:
        """Whether an id may come next. Raises as `ids` does."""
        return bool(self._bits()[id >> 3] >> (id & 7) & 1)

    def allows(self, ids: Sequence[int]) -> int:
        """How many of `ids`, from the first, could come next one after another, so that a draft can be cut there.

        Nothing is accepted. It looks at what ids say; where only one text can come, `ids` may ask for it in certain
        tokens, and this counts others as well.
        """
        return self._matcher.validate_tokens(list(ids))

    def accept(self, id: int) -> None:
        """An id was chosen. Raises `SamplingError` for one that may not come, and where the matcher gave up."""
        if not self._matcher.consume_token(id):
            said = first_lines(self._matcher.get_error())
            reason = said if said in REASONS.values() else f"it does not allow id {id} here"
            raise SamplingError(f"the constraint can't be followed: {reason}")
        self._known = False

    def _bits(self) -> np.ndarray:
        """A bit for each id, uint8 [at least vocab / 8], the lowest id in the lowest bit."""
        if not self._known:
            self._matcher.unsafe_compute_mask_ptr(self._words.ctypes.data, self._words.nbytes)
            if self._matcher.is_stopped() and not self._matcher.is_accepting():
                raise SamplingError(f"the constraint can't be followed: {first_lines(self._matcher.get_error())}")
            self._known = True
        return self._words.view(np.uint8)


def first_lines(error: str) -> str:
    """What llguidance says is wrong, in one line, without the state of its parser."""
    said = error.split("\n<")[0].split("Enable 'coerce_one_of'")[0]
    said = " ".join(said.split("while processing")[0].split())
    return REASONS.get(said, said[:300].rstrip(". "))
