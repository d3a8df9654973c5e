"""How long the next draft should be, so that tokens come as fast as they can: from what was measured in this very run.

A step that verifies n drafted ids costs F(n + 1), a forward pass of so many rows, and D(n), drafting them; and the
drawing of each token, t, as it does without. It gives 1 + a1 + a1 a2 + ... tokens, a_i being how often the i-th id of
such a draft is right if those before it were; with one a for all that is (1 - a^(n + 1)) / (1 - a). The n with the most
tokens a second is chosen, and none where a plain step is faster. So a machine where more rows cost little drafts far,
and one where they cost as much as steps does not draft.

A draft model has to read the text first. That is paid once, and pays off with the tokens that come sooner afterwards:
nobody knows how many, and a text is taken to go on for as long as it has been, see `AHEAD`.

Nothing is known for certain: so what drafts may lose is limited, see `ALLOWED`, and plain steps are measured on.
"""

from __future__ import annotations

from .acceptance import Acceptance
from .costs import Costs
from .drafter import Drafter

ALLOWED = 0.01  # of the time of plain steps, and half a plain step: what drafts may have lost at any time
MOST_GAIN = 16  # plain steps: gains beyond that give no leave to lose
AHEAD = 64  # tokens that a text is taken to go on for at least, if it may
WORTHWHILE = 1.05  # times as many tokens a second: less may be an error of measurement
FIRST = 3  # plain steps to be measured before the first draft
STALE = 64  # drafts in a row, after which a plain step is measured again; fewer while few were measured


class Pace:
    """Chooses the lengths of the drafts of one text, and learns from what becomes of them."""

    def __init__(self, drafter: Drafter):
        """Costs are the drafter's: what earlier texts have measured is known. Seconds all."""
        self.drafter, self.passes, self.drafts = drafter, drafter.passes, drafter.drafts
        self.draws = Costs()  # of a token; there is but size 1
        shared = drafter.acceptances
        self._kinds: dict[int, Acceptance] = {} if shared is None else shared
        self._said = 0  # tokens
        self._plain_seconds = 0.0  # what all tokens so far would have taken without drafts
        self._gain = self._tries = 0.0  # against that, of all drafts; and lost by those tried though they don't pay
        self._since_plain = 0
        self._trying = False

    def length(self, kind: int, room: int, depth, owed: float = 0.0) -> int:
        """How many ids to draft, up to `room`; 0 is a plain step.

        depth: see `Drafting.depth`; owed: seconds that the drafter would need first, once.
        """
        longest = min(self.drafter.longest, room)
        if not self.drafter.adaptive or longest < 1:
            return max(longest, 0)
        self._trying = False
        plain = self.passes.count(1)
        if plain < FIRST or self._since_plain >= min(STALE, plain):
            return 0
        tokens = self._acceptance(kind).tokens(depth(longest))
        best, saved = self._fastest(longest, tokens, depth)
        if owed > saved * min(room, max(self._said, AHEAD)):
            best = 0
        allowed = ALLOWED * self._plain_seconds + self._plain / 2
        while best and self._gain - self._price(best) < -allowed:
            best -= 1
        if best == 0 and self._tries + self._price(1) + owed < ALLOWED * self._plain_seconds:
            self._trying = True
            return 1
        return best

    def note_plain(self, seconds: float, draw_seconds: float) -> None:
        """A step without a draft: its forward pass, and its draw."""
        self.passes.note(1, seconds)
        self.draws.note(1, draw_seconds)
        self._since_plain = 0
        self._said += 1
        self._plain_seconds += self._plain + self.draws.of(1)

    def note_draft(
        self, kind: int, count: int, accepted: int, rejected: bool, tokens: int, draft_seconds: float,
        pass_seconds: float, draw_seconds: float,
    ) -> None:  # fmt: skip
        """A step with a draft of `count` ids, that gave `tokens`."""
        self._acceptance(kind).note(accepted, rejected)
        self.drafts.note(count, draft_seconds)
        self.passes.note(count + 1, pass_seconds)
        if tokens:
            self.draws.note(1, draw_seconds / tokens)
        self._since_plain += 1
        self._said += tokens
        gain = (tokens - 1) * self._plain - self._price(count)
        self._plain_seconds += tokens * (self._plain + self.draws.of(1))
        self._gain = min(self._gain + gain, MOST_GAIN * self._plain)
        if self._trying:
            self._tries += max(-gain, 0.0)

    @property
    def _plain(self) -> float:
        return self.passes.of(1)

    def _acceptance(self, kind: int) -> Acceptance:
        return self._kinds.setdefault(kind, Acceptance())

    def _price(self, count: int) -> float:
        """What a draft costs beyond a plain step."""
        return self.passes.of(count + 1) + self.drafts.of(count) - self._plain

    def _fastest(self, longest: int, tokens: list[float], depth) -> tuple[int, float]:
        """How many ids to draft for the most tokens a second, and the seconds that this saves for each token."""
        draw, best = self.draws.of(1), 0
        plain = self._plain + draw
        least = plain / WORTHWHILE
        for count in range(1, longest + 1):
            expected = tokens[depth(count)]
            seconds = (self.passes.of(count + 1) + self.drafts.of(count)) / expected + draw
            if seconds < least:
                best, least = count, seconds
        return best, plain - least if best else 0.0
