"""Write added_tokens.json: what transformers makes of tiny tokenizers with awkward added tokens.

Run from the root of the repository, where `transformers` is installed (5.24.0 with tokenizers 0.23.3 made the file):

    python -m tests.golden.tokenizers.make
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import tokenizers
import transformers

from tests.text import tiny_tokenizers as tiny

BUILD = {"byte_level": tiny.byte_level_tokenizer_json, "sentencepiece": tiny.sentencepiece_tokenizer_json}
FLAGS = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False}

AWKWARD = [
    {"content": "<Ö>"},
    {"content": "<日本>", "special": True},
    {"content": "<l>", "lstrip": True},
    {"content": "<r>", "rstrip": True},
    {"content": "<x>", "lstrip": True, "rstrip": True},
    {"content": "<think"},
    {"content": "<think>"},
    {"content": "<w>", "single_word": True},
    {"content": "New", "normalized": True},
    {"content": "   "},
]
TEXTS = [
    "",
    "a",
    " the quick",
    "a<Ö>b <Ö> c",
    "Ö ö <日本>日",
    "a <x> b",
    "a  <l>  b",
    "a  <r>  b",
    "<x>",
    " <x> <x> ",
    "<think>\nthe quick</think>",
    "<think <think>> <thin",
    "a<w>b <w> c",
    "New New. aNewb",
    "a    b",
    "<s>\nthe",
    "<|im_start|>\nuser\n",
    "</s>\n",
    "<s> <s></s>x",
    "🔥 日本 é\n\n\tend ",
]

CASES = [
    {"name": "in tokenizer.json", "added": AWKWARD},
    {"name": "in tokenizer_config.json", "config": {"added_tokens_decoder": AWKWARD}},
    {
        "name": "flags of tokenizer_config.json win",
        "added": [{"content": "<x>"}, {"content": "<l>", "special": True}],
        "config": {
            "added_tokens_decoder": [
                {"content": "<x>", "lstrip": True, "rstrip": True},
                {"content": "<l>", "rstrip": True},
            ]
        },
    },
    {"name": "post-processor adds BOS", "bos": True, "config": {"bos_token": "<s>", "eos_token": "</s>"}},
    {
        "name": "both add BOS",
        "bos": True,
        "config": {"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": True, "add_eos_token": False},
    },
    {
        "name": "config forbids BOS",
        "bos": True,
        "config": {"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": False, "add_eos_token": False},
    },
    {
        "name": "named tokens become special",
        "added": [{"content": "<x>", "lstrip": True}, {"content": "<end>"}],
        "config": {"bos_token": {"__type": "AddedToken", "content": "<x>", **FLAGS}, "eos_token": "<end>"},
    },
    {"name": "a named token of the plain vocabulary", "config": {"unk_token": "the", "pad_token": None}},
]


def first_free_id(kind: str) -> int:
    return tokenizers.Tokenizer.from_str(BUILD[kind]()).get_vocab_size()


def written(case: dict, kind: str) -> dict:
    """The case with what the test needs: arguments of the tiny tokenizer, and tokenizer_config.json."""
    added = [tiny.added_token(0, **token) for token in case.get("added", [])]
    config = {"tokenizer_class": "PreTrainedTokenizerFast", **case.get("config", {})}
    if "added_tokens_decoder" in config:
        tokens = enumerate(config["added_tokens_decoder"], first_free_id(kind))
        config["added_tokens_decoder"] = {str(id): {**FLAGS, **token} for id, token in tokens}
    return {"name": case["name"], "kind": kind, "added": added, "bos": case.get("bos", False), "config": config}


def rendered(case: dict) -> dict:
    """The case with the ids and texts that transformers gives."""
    with tempfile.TemporaryDirectory() as folder:
        tokenizer_json = BUILD[case["kind"]](added=tuple(case["added"]), bos=case["bos"])
        Path(folder, "tokenizer.json").write_text(tokenizer_json, encoding="utf-8")
        Path(folder, "tokenizer_config.json").write_text(json.dumps(case["config"]), encoding="utf-8")
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    texts = []
    for text in TEXTS:
        ids = tokenizer.encode(text)
        plain = tokenizer.encode(text, add_special_tokens=False)
        decoded = [tokenizer.decode(plain), tokenizer.decode(plain, skip_special_tokens=True)]
        texts.append(
            {"text": text, "ids": ids, "plain_ids": plain, "decoded": decoded[0], "without_special": decoded[1]}
        )
    return {**case, "special_tokens": tokenizer.special_tokens_map, "texts": texts}


def main() -> None:
    made_by = (
        f"transformers {transformers.__version__}, tokenizers {tokenizers.__version__}, tests/golden/tokenizers/make.py"
    )
    cases = [rendered(written(case, kind)) for kind in BUILD for case in CASES]
    path = Path(__file__).with_name("added_tokens.json")
    path.write_text(json.dumps({"made_by": made_by, "cases": cases}, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
