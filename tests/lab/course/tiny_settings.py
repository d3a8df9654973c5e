"""Small random models with a tokenizer and a chat template, as experiments take them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.text.tiny_tokenizers import byte_level_tokenizer_json
from tests.tiny_models import random_model
from tinyinfer.lab.course.setting import Setting

TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"


def tiny_setting(folder: Path, full: bool = False, text: str | None = None, **changes: Any) -> Setting:
    """A random model written to a folder; `changes` are keys of its config.json."""
    random_model(folder, **{"vocab_size": 275, "hidden_size": 64, "intermediate_size": 96, **changes})
    (folder / "tokenizer.json").write_text(byte_level_tokenizer_json(), encoding="utf-8")
    facts = {"eos_token": "<|im_end|>", "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(facts))
    return Setting(str(folder), full, text)
