"""What a person sees as one character, a grapheme cluster, is shown whole: é of two code points, a flag, a family.

The rules are Unicode's (UAX #29, extended grapheme clusters); the tables come with the `regex` library, an extra, since
Python's `unicodedata` lacks the properties that emoji and Indic conjuncts need.
"""

from __future__ import annotations

from ..errors import MissingExtra


class GraphemeHolder:
    """Passes text through up to the last cluster, which the next character may still extend.

    Where a cluster begins depends on nothing before the cluster before it, so what was let go is never looked at again.
    """

    def __init__(self):
        """Raises `MissingExtra` where `regex` is not installed."""
        try:
            import regex
        except ModuleNotFoundError as error:
            raise MissingExtra("showing only whole grapheme clusters", "graphemes") from error
        self._clusters = regex.compile(r"\X")
        self._held = ""

    def push(self, text: str) -> str:
        """Take more text; give the clusters that are certain to be whole. Nothing ever extends a line break."""
        self._held += text
        if self._held.endswith("\n"):
            return self.finish()
        last = 0
        for cluster in self._clusters.finditer(self._held):
            last = cluster.start()
        whole, self._held = self._held[:last], self._held[last:]
        return whole

    def finish(self) -> str:
        """What was held back, when no more text comes."""
        text, self._held = self._held, ""
        return text
