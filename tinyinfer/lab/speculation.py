"""What speculation gains on given prompts: the same answers with and without, in turns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import BadRequest
from ..progress import Progress, silent
from ..speculative.drafter import Drafter
from ..speculative.speculation import Speculated
from .machine import load_average
from .timing import Samples, in_turn

if TYPE_CHECKING:
    from ..llm import LLM

CODE = """\
class Point:
    def __init__(self, x, y):
        self.x = x
        self.y = y

    def added(self, other):
        return Point(self.x + other.x, self.y + other.y)

    def subtracted(self, other):
        return Point(self.x - other.x, self.y - other.y)

    def scaled(self, factor):
        return Point(self.x * factor, self.y * factor)


class Point3:
    def __init__(self, x, y, z):
        self.x = x
        self.y = y
        self.z = z

    def added(self, other):
"""
EDIT = f"Write this Python code again, with the class Point called Vector, and nothing else changed:\n\n{CODE}"
PROSE = "The lighthouse had stood empty for eleven years when a letter arrived that nobody could explain."
PROMPTS = {"code to continue": CODE, "code to change": EDIT, "prose": PROSE}


@dataclass(frozen=True)
class Comparison:
    """One prompt: tokens a second after the first, without speculation and with it, sample by sample.

    ratios    of the two of each round
    speculated   what the last round's drafts did
    """

    name: str
    tokens: int
    plain: Samples
    drafted: Samples
    ratios: Samples
    speculated: Speculated


@dataclass(frozen=True)
class SpeculationReport:
    """All prompts of a model, and the machine's load average before and after."""

    model: str
    comparisons: tuple[Comparison, ...]
    load: tuple[float | None, float | None]


def compare(
    llm: LLM, drafter: Drafter, prompts: Sequence[tuple[str, list[int]]], tokens: int, repeats: int,
    progress: Progress = silent,
) -> SpeculationReport:  # fmt: skip
    """Greedy answers of `tokens` to each prompt, a name and ids, after one round to warm up.

    Answers go on past their end, so that all are as long. Raises `BadRequest` where there is nothing to measure, and
    `RuntimeError` where the ids differ, which they must not.
    """
    if tokens < 2 or repeats < 1:
        raise BadRequest(f"expected at least 2 tokens and 1 repeat, found {tokens} and {repeats}", "repeats")
    before, found = load_average(), []
    with progress("measuring", len(prompts) * 2 * (1 + repeats), "answers") as bar:
        for name, ids in prompts:
            found.append(_compared(llm, drafter, name, ids, tokens, repeats, lambda: bar.update(1)))
    return SpeculationReport(str(llm.path), tuple(found), (before, load_average()))


def _compared(llm: LLM, drafter: Drafter, name: str, ids: list[int], tokens: int, repeats: int, tick) -> Comparison:
    done = {}

    def answer(speculate: Drafter | str) -> float:
        completion = llm.generate(ids, max_tokens=tokens, temperature=0, ignore_eos=True, speculate=speculate)
        if done.setdefault("ids", completion.ids) != completion.ids:
            raise RuntimeError(f"{name}: with speculation the ids differ: {completion.ids} and {done['ids']}")
        done[speculate] = completion
        return completion.timings.decode_tokens_per_second

    plain, drafted = in_turn([lambda: answer("off"), lambda: answer(drafter)], repeats, tick=tick)
    ratios = Samples(tuple(b / a for a, b in zip(plain.values, drafted.values, strict=True)))
    return Comparison(name, len(done["ids"]), plain, drafted, ratios, done[drafter].speculation)
