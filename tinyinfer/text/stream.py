"""Ids to text while they come: no half characters, nothing that may yet turn out to be a stop string.

Whatever the ids, the chunks joined are `tokenizer.decode(ids, skip_special_tokens=True)`, cut just before the stop
string that begins first in it. Tokens play no part in that rule, so a text is the same streamed or not.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import BadRequest
from .decoder import IncrementalDecoder
from .graphemes import GraphemeHolder
from .tokenizer import Tokenizer


class StreamDecoder:
    """Decodes one reply, id by id, at a cost per id that does not grow with the text.

    `stopped` is True once a stop string was seen; `stop` is that string, and nothing more comes out.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        stop: Sequence[str] = (),
        shown: frozenset[int] = frozenset(),
        graphemes: bool = False,
    ):
        """`stop` are the strings to end at, one or many, `shown` special tokens that give their text nevertheless.

        With `graphemes` no chunk ends inside of what is seen as one character, which makes each wait for the next.
        Raises `BadRequest` for an empty stop string, and `MissingExtra` for graphemes without the `regex` library.
        """
        self.tokenizer, self.shown = tokenizer, shown
        self._holder = GraphemeHolder() if graphemes else None
        self._decoder = IncrementalDecoder(tokenizer.decoder)
        self._matcher = StopMatcher(stop)

    @property
    def stop(self) -> str | None:
        """The stop string that ended the text, None as long as there is none."""
        return self._matcher.found

    @property
    def stopped(self) -> bool:
        """Whether a stop string has ended the text."""
        return self._matcher.found is not None

    def push(self, id: int) -> str:
        """Take the next id; give the text that is now certain to be shown, often "".

        Special tokens give no text, but for those `shown`. Raises `BadRequest` for an id outside the vocabulary.
        """
        piece = self.tokenizer.piece(id, skip_special_tokens=id not in self.shown)
        if piece is None or self.stopped:
            return ""
        return self._held_back(self._matcher.push(self._decoder.push(piece)), self.stopped)

    def finish(self) -> str:
        """The text that was held back, when no more ids come: U+FFFD for a character that was never completed."""
        if self.stopped:
            return ""
        return self._held_back(self._matcher.push(self._decoder.finish()) + self._matcher.finish(), True)

    def _held_back(self, text: str, last: bool) -> str:
        """`text` with what was held back for it, and without what is now; with the `last` of a text, nothing is."""
        if self._holder is None:
            return text
        text = self._holder.push(text)
        return text + self._holder.finish() if last else text


class StopMatcher:
    """Passes text through up to the stop string that begins first, holding back only what may begin one.

    Of two that begin at the same place the text is cut there either way, and the shorter, complete first, is `found`.
    One that is complete waits while another, begun before it, may still be completed.
    """

    def __init__(self, stop: Sequence[str] = ()):
        """Raises `BadRequest` where a stop string is empty or no text."""
        self.stops = [stop] if isinstance(stop, str) else list(stop)
        for text in self.stops:
            if not isinstance(text, str) or not text:
                raise BadRequest(f"a stop string should be text of at least one character, found {text!r}", "stop")
        self.found: str | None = None
        self._held = ""

    def push(self, text: str) -> str:
        """Take more text; give what is certain to come before any stop string."""
        if self.found is not None or not text:
            return ""
        self._held += text
        cut, stop = self._first_complete()
        begun = self._first_begun(cut)
        if begun < cut or stop is None:
            return self._release(begun)
        self.found = stop
        return self._release(cut)

    def finish(self) -> str:
        """Give what was held back; no stop string that was only begun can be completed any more."""
        if self.found is not None:
            return ""
        cut, self.found = self._first_complete()
        return self._release(cut)

    def _release(self, end: int) -> str:
        text, self._held = self._held[:end], self._held[end:]
        return text

    def _first_complete(self) -> tuple[int, str | None]:
        places = [(at, len(stop), stop) for stop in self.stops if (at := self._held.find(stop)) >= 0]
        at, _, stop = min(places, default=(len(self._held), 0, None))
        return at, stop

    def _first_begun(self, limit: int) -> int:
        """Where the held text, from there to its end, begins a stop string; `limit` where nothing before it does."""
        longest = max(map(len, self.stops), default=1)
        for at in range(max(0, len(self._held) - longest + 1), limit):
            rest = self._held[at:]
            if any(len(stop) > len(rest) and stop.startswith(rest) for stop in self.stops):
                return at
        return limit
