"""What drafting gains: how often drafts are right, how many tokens that makes of a pass, and where it loses.

Leviathan et al., https://arxiv.org/abs/2211.17192: with k drafted tokens, each right with probability a, a pass gives
(1 - a^(k+1)) / (1 - a) tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...speculative.speculation import Speculated
from ..cost import weight_forms
from ..speculation import PROMPTS
from .finding import Drawing, Finding, Table
from .setting import Setting

DRAFT_COST = 0.1  # of a step of the target, for a drafted token, as the course has it
LENGTHS = (1, 2, 4, 8)
SHARES = (0.9, 0.7, 0.5, 0.3)
COURSE = {(0.9, 8): 3.40, (0.3, 8): 0.79}
DRAFTERS = {"n-grams": {"method": "ngram"}, "itself in int4": {"model": "int4"}, "itself in nf4": {"model": "nf4"}}


def measure(setting: Setting) -> Finding:
    """The formula; and drafts of a fixed length on prose, code and a task that repeats its prompt."""
    counted = _counted(list(_drafted(setting)))
    stored = f"itself in {next(iter(weight_forms(setting.llm.model.tensors))).partition('-')[0]}"
    return Finding(
        [_formula(), counted],
        _says(counted, stored),
        [_drawing()],
    )


def _says(counted: Table, stored: str) -> str:
    """`stored` is the drafter that has the same weights, if any has."""
    told = []
    for what, name in (("n-grams", "N-grams were"), ("itself in int4", "the model itself in int4 was")):
        found = [row[3:] for row in counted.rows if row[0] == what and row[4] is not None]
        if found:
            _, right, _, _, cost, _, measured = zip(*found, strict=True)
            same = ", as it is stored so," if what == stored else ""
            told.append(
                f"{name} right {_span(right, '.0%')} of the time{same} at {_span(cost, '.2g')} plain steps a pass, "
                f"which is {_span(measured, '.2f')} times as fast"
            )
    own = [row[9] for row in counted.rows if row[0] != "n-grams" and row[9] is not None]
    lesson = "; a draft should cost nothing or be a much smaller model" if max(own, default=1) < 1 else ""
    apart = max((abs(row[5] - row[6]) for row in counted.rows if row[4] is not None), default=0.0)
    return (
        "A pass over drafted tokens costs little more than a step while memory is what bounds it, so right drafts are "
        "nearly free and wrong ones are not: by the formula 8 tokens that are right 90 % of the time gain "
        f"{expected_speedup(0.9, 8):.2f} times, and at 30 % they lose. {'; '.join(told) or 'Nothing was drafted'}"
        f"{lesson}. The formula takes every draft for equally likely to be "
        f"right, and what is counted here is up to {apart:.2g} tokens a pass from it."
    )


def _span(values: Sequence[float], form: str) -> str:
    low, high = format(min(values), form), format(max(values), form)
    return low if low == high else f"{low} to {high}"


def expected_tokens(right: float, drafted: int) -> float:
    """Tokens of a pass that verifies `drafted` ones, each right with probability `right` if those before it are."""
    return drafted + 1.0 if right == 1 else (1 - right ** (drafted + 1)) / (1 - right)


def expected_speedup(right: float, drafted: int, cost: float = DRAFT_COST) -> float:
    """Against plain steps, where a drafted token costs `cost` of one and verifying is as cheap as a step."""
    return expected_tokens(right, drafted) / (1 + cost * drafted)


def _formula() -> Table:
    rows = [
        (
            right,
            drafted,
            expected_tokens(right, drafted),
            expected_speedup(right, drafted),
            COURSE.get((right, drafted)),
        )
        for right in SHARES
        for drafted in LENGTHS
    ]
    columns = ("right", "drafted", "tokens a pass", "speed-up", "course")
    return Table(f"what to expect, where a drafted token costs {DRAFT_COST:g} of a step", columns, rows, 0)


def _drafted(setting: Setting) -> Iterator[tuple[str, str, int, Speculated, float]]:
    """Who drafted what, how far, what came of it, and the plain steps that a second had, for the same text."""
    llm, tokens = setting.llm, 128 if setting.full else 32
    texts = PROMPTS if setting.text is None else {"the text given": setting.text}
    greedy = {"max_tokens": tokens, "ignore_eos": True, "temperature": 0}
    plain = {}
    for name, prompt in texts.items():
        setting.say(f"{name}, without drafts")
        plain[name] = llm.generate(prompt, speculate="off", **greedy).timings.decode_tokens_per_second
    for what, wish in DRAFTERS.items():
        for drafted in LENGTHS[1:] if setting.full else LENGTHS[2:3]:
            drafter = llm.chosen_drafter({**wish, "num_speculative_tokens": drafted, "adaptive": False})
            for name, prompt in texts.items():
                setting.say(f"{what}, {name}, {drafted} at once")
                yield what, name, drafted, llm.generate(prompt, speculate=drafter, **greedy).speculation, plain[name]


def _counted(found: list[tuple[str, str, int, Speculated, float]]) -> Table:
    rows = []
    for what, name, drafted, done, plain in found:
        if not done.drafts:
            rows.append((what, name, drafted, 0, *[None] * 6))
            continue
        per_draft, passes = done.proposed / done.drafts, done.tokens - (done.steps - done.drafts)
        expected = None if done.alpha is None else expected_tokens(done.alpha, per_draft)
        cost, measured = done.seconds / done.steps * plain, done.tokens / done.seconds / plain
        predicted = None if expected is None else expected / cost
        counted = passes / done.drafts  # of passes that verified something
        rows.append((what, name, drafted, per_draft, done.alpha, expected, counted, cost, predicted, measured))
    columns = (
        "draft", "text", "at most", "drafted", "right", "tokens a pass, expected", "counted", "a pass, in plain steps",
        "speed-up, predicted", "measured",
    )  # fmt: skip
    return Table("greedy, drafts of one length whatever they gain", columns, rows, 2)


def _drawing() -> Drawing:
    lengths = range(9)
    lines = {f"{right:.0%} right": [(k, expected_speedup(right, k)) for k in lengths] for right in SHARES}
    return Drawing("Longer drafts gain only where most are right", "drafted tokens", "expected speed-up", lines)
