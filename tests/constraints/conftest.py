"""One tiny model for all tests here, whose tokens are the 256 bytes and a few more."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.text.tiny_tokenizers import byte_level_tokenizer_json
from tests.tiny_models import random_model
from tinyinfer import LLM
from tinyinfer.checkpoint.source import Checkpoint

pytest.importorskip("llguidance")


@pytest.fixture(scope="package")
def llm() -> LLM:
    config, tensors = random_model(
        vocab_size=280, num_hidden_layers=1, max_position_embeddings=1024, eos_token_id=[271, 273]
    )
    return LLM(Checkpoint(Path("random"), config, tensors, {}, byte_level_tokenizer_json()), kv_dtype="float32")
