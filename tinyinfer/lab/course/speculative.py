"""What drafting gains: how often drafts are right, how many tokens that makes of a pass, and where it loses.

Leviathan et al., https://arxiv.org/abs/2211.17192: with k drafted tokens, each right with probability a, a pass gives
(1 - a^(k+1)) / (1 - a) tokens.
"""

from __future__ import annotations

from ...lab.speculation import PROMPTS
from ...speculative.speculation import Speculated
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
    return Finding(
        [_formula(), counted],
        _says(counted),
        [_drawing()],
    )


def _says(counted: Table) -> str:
    drafted = [row for row in counted.rows if row[4] is not None]
    texts = {"n-grams": "N-grams, which cost nothing", "itself in int4": "The model itself in int4"}
    told = []
    for what, name in texts.items():
        rows = [row for row in drafted if row[0] == what]
        if rows:
            right, speed = ([row[at] for row in rows if row[at] is not None] for at in (4, 7))
            gains = f" and made it {_span(speed, '.2f')} times as fast" if speed else ""
            told.append(f"{name}, was right {_span(right, '.0%')} of the time{gains}")
    measured = "; ".join(told) or "Nothing was drafted"
    apart = max((abs(row[5] - row[6]) for row in drafted), default=0.0)
    return (
        "A pass over drafted tokens costs little more than a step while memory is what bounds it, so right drafts are "
        "nearly free and wrong ones are not: by the formula 8 tokens that are right 90 % of the time gain "
        f"{expected_speedup(0.9, 8):.2f} times, and 30 % lose. {measured}; a model that costs nearly a step for each "
        "token can't gain, which is why a draft should be a much smaller one. The formula takes every draft for "
        f"equally likely to be right, and what is counted here is up to {apart:.2g} tokens a pass from it."
    )


def _span(values: list[float], form: str) -> str:
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


def _drafted(setting: Setting):
    """Who drafted what, how far, and what came of it."""
    llm, tokens = setting.llm, 128 if setting.full else 48
    texts = PROMPTS if setting.text is None else {"the text given": setting.text}
    for what, wish in DRAFTERS.items():
        for drafted in LENGTHS[1:] if setting.full else LENGTHS[2:3]:
            whole = {**wish, "num_speculative_tokens": drafted, "adaptive": False}
            for name, prompt in texts.items():
                setting.say(f"{what}, {name}, {drafted} at once")
                done = llm.generate(prompt, max_tokens=tokens, ignore_eos=True, temperature=0, speculate=whole)
                yield what, name, drafted, done.speculation


def _counted(found: list[tuple[str, str, int, Speculated]]) -> Table:
    rows = []
    for what, name, drafted, done in found:
        per_draft = done.proposed / done.drafts if done.drafts else 0
        expected = None if done.alpha is None else expected_tokens(done.alpha, per_draft)
        passes = done.tokens - (done.steps - done.drafts)  # of passes that verified something
        counted = passes / done.drafts if done.drafts else None
        rows.append((what, name, drafted, per_draft, done.alpha, expected, counted, done.speedup))
    columns = ("draft", "text", "at most", "drafted", "right", "tokens a pass, expected", "counted", "speed-up")
    return Table("greedy, drafts of one length whatever they gain", columns, rows, 2)


def _drawing() -> Drawing:
    lengths = range(9)
    lines = {f"{right:.0%} right": [(k, expected_speedup(right, k)) for k in lengths] for right in SHARES}
    return Drawing("Longer drafts gain only where most are right", "drafted tokens", "expected speed-up", lines)
