"""What drafts come from: a `Drafter` serves a model, and begins a `Drafting` for each text."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from ..cached_sequence import CachedSequence
from ..errors import BadRequest
from ..sampling.sampler import Sampler
from .acceptance import Acceptance
from .costs import Costs
from .draft import Draft

MOST = 63  # ids drafted at once: where more would be right, a step is long enough to cost no less a token


class Drafting(ABC):
    """The drafts of one text: `look`, and if there is anything to be drafted, `draft`."""

    owed = 0.0  # seconds that it would need to catch up with the text first
    read_seconds = 0.0  # that the last draft spent so

    @abstractmethod
    def look(self, ids: Sequence[int]) -> int | None:
        """The text has grown by `ids`: at first the prompt, then whatever was chosen.

        Gives what kind of draft there could be, a number that those have in common which are about as often right;
        None where there is none.
        """

    @abstractmethod
    def draft(self, count: int, held: CachedSequence) -> Draft | None:
        """A draft of up to `count` ids after the text last looked at, of which the target model has `held` all but one.

        What `held` holds may be read, and is left as it is.
        """

    def depth(self, count: int) -> int:
        """How many ids stand on one way through a draft of `count`."""
        return count


class Drafter(ABC):
    """A source of drafts for one model.

    longest    the most ids that it drafts at once, 1 to MOST
    adaptive   whether the length follows what drafts have cost and gained so far, down to none; else always `longest`
    passes, drafts   what forward passes of the model took by rows, and drafts by length, in seconds: see `Costs`
    acceptances   how often drafts were right, by kind, where that goes by the drafter rather than by the text; None
               where each text has to show it anew
    """

    acceptances: dict[int, Acceptance] | None = None

    def __init__(self, longest: int, adaptive: bool = True):
        """Raises `BadRequest` for what is out of range."""
        self.longest = whole_number(longest, "num_speculative_tokens")
        if not isinstance(adaptive, bool):
            raise BadRequest(f"adaptive should be true or false, found {adaptive!r}", "speculate")
        self.adaptive = adaptive
        self.passes, self.drafts = Costs(), Costs()

    @abstractmethod
    def begin(self, sampler: Sampler, stop_ids: frozenset[int] = frozenset()) -> Drafting:
        """Drafts for a text that `sampler` draws the ids of, and that `stop_ids` end."""


def whole_number(value: object, name: str, least: int = 1, most: int = MOST) -> int:
    """`value`; raises `BadRequest` where it is no whole number in that range."""
    if type(value) is not int or not least <= value <= most:
        raise BadRequest(f"{name} should be a whole number from {least} to {most}, found {value!r}", "speculate")
    return value
