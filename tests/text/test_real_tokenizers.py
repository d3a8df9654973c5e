"""The tokenizers of two published models, rebuilt from their GGUF files: every id as llama.cpp gives it.

`smollm2_folder` and `qwen_folder` are folders converted from the GGUF files.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from tinyinfer.checkpoint.source import open_checkpoint

GOLDEN = Path(__file__).parent.parent / "golden" / "real"
MODELS = {
    "smollm2_folder": "smollm2-135m-instruct.q4_1.json",
    "qwen_folder": "qwen2.5-coder-0.5b-instruct.q4_k_m.json",
}


@pytest.fixture(params=MODELS)
def tokenizer_and_golden(request: pytest.FixtureRequest) -> tuple[Tokenizer, dict[str, Any]]:
    checkpoint = open_checkpoint(request.getfixturevalue(request.param))
    golden = json.loads((GOLDEN / MODELS[request.param]).read_text(encoding="utf-8"))
    return Tokenizer.from_str(checkpoint.tokenizer_json), golden


def test_ids_equal_those_of_llama_cpp(tokenizer_and_golden: tuple[Tokenizer, dict[str, Any]]):
    tokenizer, golden = tokenizer_and_golden
    entries = golden["tokenize"] + golden["prompts"]
    assert len(entries) == 32
    for entry in entries:
        found = tokenizer.encode(entry["text"], add_special_tokens=False).ids
        assert found == entry["ids"], entry["text"]
        assert tokenizer.decode(found, skip_special_tokens=False) == entry["text"]


def test_nothing_is_added_where_the_file_says_so(tokenizer_and_golden: tuple[Tokenizer, dict[str, Any]]):
    tokenizer, golden = tokenizer_and_golden
    entry = golden["prompts"][0]
    assert tokenizer.encode(entry["text"], add_special_tokens=True).ids == entry["ids"]


def test_the_greedy_text_is_what_the_ids_say(tokenizer_and_golden: tuple[Tokenizer, dict[str, Any]]):
    tokenizer, golden = tokenizer_and_golden
    for prompt in golden["prompts"]:
        assert tokenizer.decode(prompt["greedy"], skip_special_tokens=False) == prompt["greedy_text"]
