"""A random model that speaks: seeded weights and the byte-level tokenizer, so that every answer is another."""

from __future__ import annotations

import json
import random
from pathlib import Path

from tests.batch.test_requests import line
from tests.chain_models import TEMPLATE, VOCAB
from tests.text.tiny_tokenizers import byte_level_tokenizer_json
from tests.tiny_models import random_model


def write_speaker(folder: Path) -> Path:
    random_model(folder, vocab_size=VOCAB, eos_token_id=273, max_position_embeddings=256)
    (folder / "tokenizer.json").write_text(byte_level_tokenizer_json())
    config = {"eos_token": "<|im_end|>", "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def lines(count: int, seed: int = 0, most: int = 12) -> list[bytes]:
    """Requests of both kinds, greedy and not, with and without a seed."""
    rng, found = random.Random(seed), []
    for i in range(count):
        text = "".join(rng.choice("abcdefgh ") for _ in range(rng.randint(1, 30)))
        body = {"max_tokens": rng.randint(1, most), "temperature": rng.choice([0, 1])}
        if rng.random() < 0.5:
            body["seed"] = rng.randrange(1000)
        if rng.random() < 0.5:
            body["messages"] = [{"role": "user", "content": text}]
            found.append(line(f"id-{i}", url="/v1/chat/completions", body=body))
        else:
            found.append(line(f"id-{i}", body=body | {"prompt": text}))
    return found


def told(out: Path) -> dict[str, dict]:
    """The answers of a file by custom_id, each there once, without what every run makes anew."""
    found = {}
    for raw in out.read_bytes().splitlines():
        record = json.loads(raw)
        assert record["error"] is None
        assert record["custom_id"] not in found
        body = record["response"]["body"]
        body.pop("id", None), body.pop("created", None)
        body.get("usage", {}).pop("prompt_tokens_details", None)  # what was cached goes by what ran before
        found[record["custom_id"]] = record["response"]
    return found
