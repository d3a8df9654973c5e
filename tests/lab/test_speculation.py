"""Comparing answers: the same prompts in turns, and an error where the tokens differ."""

from __future__ import annotations

import pytest

from tests.chain_models import chain_checkpoint, say
from tinyinfer import LLM, NgramDrafter
from tinyinfer.errors import BadRequest
from tinyinfer.lab.speculation import compare


@pytest.fixture
def llm() -> LLM:
    return LLM(chain_checkpoint(say("abc", after="x", end=None)))


def test_prompts_are_answered_in_turns(llm: LLM):
    drafter = NgramDrafter(4, adaptive=False)
    report = compare(llm, drafter, [("one", [97, 98]), ("two", [120])], tokens=20, repeats=2)
    assert [(one.name, one.tokens, len(one.ratios.values)) for one in report.comparisons] == [
        ("one", 20, 2), ("two", 20, 2),
    ]  # fmt: skip
    for one in report.comparisons:
        assert one.speculated.accepted > 10
        assert one.ratios.values[0] == one.drafted.values[0] / one.plain.values[0]


def test_other_tokens_are_an_error(llm: LLM, monkeypatch: pytest.MonkeyPatch):
    generate = llm.generate
    changed = iter([False, True])

    def differs(ids, **params):
        return generate([98] if next(changed) else ids, **params)

    monkeypatch.setattr(llm, "generate", differs)
    with pytest.raises(RuntimeError, match="ids differ"):
        compare(llm, NgramDrafter(4), [("one", [97])], tokens=5, repeats=1)


@pytest.mark.parametrize(("tokens", "repeats"), [(1, 1), (5, 0)])
def test_nothing_to_measure(llm: LLM, tokens: int, repeats: int):
    with pytest.raises(BadRequest, match="at least 2 tokens"):
        compare(llm, NgramDrafter(4), [("one", [97])], tokens, repeats)
