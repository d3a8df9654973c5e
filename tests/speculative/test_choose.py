"""What a caller may say, and what is refused in one sentence."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.speculative.test_speculation import checkpoint, model
from tests.text.tiny_tokenizers import added_token, byte_level_tokenizer_json
from tests.tiny_models import random_model
from tinyinfer import LLM, ModelDrafter, NgramDrafter
from tinyinfer.errors import BadRequest, ModelNotFound
from tinyinfer.speculative.choose import drafter_for


def tokenized(vocab: int, *added: str) -> LLM:
    tokens = tuple(added_token(0, text) for text in added)
    made = replace(checkpoint(vocab_size=vocab), tokenizer_json=byte_level_tokenizer_json(tokens), tokenizer_config={})
    return LLM(made, kv_dtype="float32")


def test_words_for_drafters(tmp_path: Path):
    llm = model()
    assert isinstance(drafter_for(llm, "ngram"), NgramDrafter)
    assert drafter_for(llm, "off") is None
    own = drafter_for(llm, "int8")
    assert isinstance(own, ModelDrafter)
    assert own.llm is not llm
    assert (own.llm.model.kv_dtype, own.llm.model.threads) == (llm.model.kv_dtype, llm.model.threads)
    assert drafter_for(llm, own) is own
    assert drafter_for(llm, model("random")).llm is model("random")
    random_model(tmp_path / "small", 5)
    for wish in (tmp_path / "small", str(tmp_path / "small"), {"model": tmp_path / "small"}):
        assert drafter_for(llm, wish).llm.path == tmp_path / "small"


def test_mappings_as_vllm_has_them():
    llm = model()
    found = drafter_for(llm, {"method": "ngram", "num_speculative_tokens": 7, "prompt_lookup_max": 4,
                              "prompt_lookup_min": 3, "branches": 2, "adaptive": False})  # fmt: skip
    assert (found.longest, found.longest_match, found.shortest_match, found.branches) == (7, 4, 3, 2)
    assert not found.adaptive
    found = drafter_for(llm, {"model": model("random"), "num_speculative_tokens": 3})
    assert (found.longest, found.llm) == (3, model("random"))
    assert isinstance(drafter_for(llm, {"method": "draft_model", "model": "int4"}), ModelDrafter)


@pytest.mark.parametrize(
    ("wish", "message"),
    [
        (3, "speculate should be 'ngram', 'off', a form"),
        (True, "found True"),
        ({"method": "eagle"}, "method should be 'ngram' or 'draft_model', found 'eagle'"),
        ({"method": "draft_model"}, "the method 'draft_model' without a model"),
        ({"method": "ngram", "model": "int4"}, "a model with the method 'ngram'"),
        ({"tokens": 3}, "'tokens' is none of method, model, num_speculative_tokens"),
        ({"model": "int4", "prompt_lookup_max": 3}, "'prompt_lookup_max' goes with the method 'ngram' alone"),
        ({"num_speculative_tokens": 99}, "num_speculative_tokens should be a whole number from 1 to 63, found 99"),
        ({"prompt_lookup_max": "4"}, "prompt_lookup_max should be a whole number from 1 to 64, found '4'"),
    ],
)
def test_what_means_nothing(wish, message: str):
    with pytest.raises(BadRequest, match=message) as error:
        model().generate([1, 2], max_tokens=1, speculate=wish)
    assert error.value.parameter == "speculate"


def test_a_model_that_is_not_there():
    with pytest.raises(ModelNotFound):
        model().stream([1, 2], speculate="no-such-model")


def test_another_vocabulary_is_refused():
    ours = tokenized(280)
    assert drafter_for(ours, tokenized(288)).llm.config.vocab_size == 288  # rows that no token has are of no account
    for other in (tokenized(280, "<more>"), LLM(checkpoint(vocab_size=280))):
        with pytest.raises(BadRequest, match=r"different vocabularies: 1 ids differ|only one of them has a tokenizer"):
            ours.generate([1, 2], speculate=other)
    with pytest.raises(BadRequest, match="98 and 97 ids"):
        model().generate([1, 2], speculate=LLM(checkpoint(vocab_size=98)))


def test_a_draft_model_with_more_or_fewer_rows_never_drafts_or_reads_what_the_other_lacks():
    """Rows of the embedding beyond the vocabulary can be drawn by either, if by nobody trained."""
    small, large = tokenized(280), tokenized(400)
    for llm, draft in ((small, large), (large, small)):
        for branches in (1, 3):
            for params in ({"temperature": 0}, {"temperature": 3.0, "seed": 1}):
                params |= {"max_tokens": 30, "ignore_eos": True}
                expected = llm.generate([1, 2, 3], **params)
                found = llm.generate([1, 2, 3], speculate=ModelDrafter(draft, 4, branches, adaptive=False), **params)
                assert found.ids == expected.ids


def test_a_draft_model_with_a_shorter_context_stops_drafting_there():
    draft = LLM(checkpoint(1), context=12, kv_dtype="float32")
    expected = model().generate([1, 2, 3], max_tokens=40, temperature=0)
    found = model().generate([1, 2, 3], max_tokens=40, temperature=0, speculate=ModelDrafter(draft, 4, adaptive=False))
    assert found.ids == expected.ids
    assert 0 < found.speculation.drafts < 12
