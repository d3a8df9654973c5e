"""Train five small SentencePiece models on a seeded toy corpus and write the ids that the library gives.

Run by hand in an environment that has sentencepiece 0.2.3: `python make.py`. Tests only read what it wrote.
"""

import json
import os
import random
from pathlib import Path

import sentencepiece

HERE = Path(__file__).parent
WORDS = """
    the a of and to in it is was that river stone bridge light window garden letter morning evening water mountain
    walked running sings opened carefully quickly never always 12 2024 3.14 naïve café Straße über déjà год дом река
    日本 日本語 こんにちは 世界 😀 🔥 don't we're (perhaps) [again] x = y + 1; print('hello') <b> </b> http://example.org/
"""
TEXTS = [
    "", " ", "  ", "Hello world", " Hello", "Hello ", "  two  spaces  ", "the river  and   the stone",
    "a\nb\n\nc", "\n", "tab\there", "\r\nwindows\r\n", "naïve café", "Straße über GRÖSSE", "cafe\u0301", "日本語の世界",
    "こんにちは、世界。", "😀🔥👩\u200d👩\u200d👧", "unknown: ☃ ∑ ꙮ", "☃☃☃", "ＡＢＣ full width", "ﬁ ligature ½ ²",
    "1234567890 3.14159", "don't we're",
    "print('hello')  # x", "the▁river", "▁", "▁▁x", "a" * 40, "\u00a0nbsp\u00a0", "\x00\x07", "<s> </s> <unk> in text",
    "river, stone; bridge.", "год дом река мир", "  ", "\t", " \n ", "x ", " x", "the the the the the the the the",
]  # fmt: skip
COMMON = {"hard_vocab_limit": False, "num_threads": 1, "minloglevel": 2, "train_extremely_large_corpus": False}
MODELS = {
    "bpe_bytes": {  # as Llama 2's
        "model_type": "bpe", "vocab_size": 520, "byte_fallback": True, "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False, "allow_whitespace_only_pieces": True, "split_digits": True,
    },
    "bpe_no_prefix": {  # as Gemma's
        "model_type": "bpe", "vocab_size": 520, "byte_fallback": True, "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False, "add_dummy_prefix": False, "split_digits": True, "pad_id": 3,
        "control_symbols": ["<start_of_turn>", "<end_of_turn>"], "user_defined_symbols": ["<b>", "</b>"],
    },
    "bpe_plain": {
        "model_type": "bpe", "vocab_size": 200, "character_coverage": 0.98, "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False,
    },
    "unigram": {  # as T5's, with a small map of characters in place of the large one
        "model_type": "unigram", "vocab_size": 220, "character_coverage": 0.98, "normalization_rule_tsv": "rules",
        "pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1,
    },
    "unigram_bytes": {
        "model_type": "unigram", "vocab_size": 480, "byte_fallback": True, "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False,
    },
}  # fmt: skip
RULES = {
    "\t": " ",
    "\n": " ",
    "\r": " ",
    "\u00a0": " ",
    "Ａ": "A",
    "Ｂ": "B",
    "Ｃ": "C",
    "ﬁ": "fi",
    "½": "1⁄2",
    "²": "2",
}
RULES |= {"e\u0301": "é", "\x07": ""}


def main() -> None:
    """Write <name>.model for each of MODELS, and ids.json."""
    random.seed(20)
    corpus = [
        " ".join(random.choices(WORDS.split(), k=random.randint(3, 12))) + random.choice([".", "!", ""])
        for _ in range(1500)
    ]
    (HERE / "corpus.txt").write_text("\n".join(corpus), encoding="utf-8")
    os.chdir(HERE)  # the models keep the names of their files
    lines = [f"{' '.join(f'{ord(c):X}' for c in a)}\t{' '.join(f'{ord(c):X}' for c in b)}" for a, b in RULES.items()]
    (HERE / "rules.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    found = {}
    for name, options in MODELS.items():
        options = COMMON | options
        if "normalization_rule_tsv" in options:
            options["normalization_rule_tsv"] = "rules.tsv"
        sentencepiece.SentencePieceTrainer.train(input="corpus.txt", model_prefix=name, **options)
        processor = sentencepiece.SentencePieceProcessor(model_file=str(HERE / f"{name}.model"))
        found[name] = [{"text": text, "ids": processor.encode(text)} for text in TEXTS]
        (HERE / f"{name}.vocab").unlink()
    (HERE / "corpus.txt").unlink()
    (HERE / "rules.tsv").unlink()
    (HERE / "ids.json").write_text(json.dumps(found, ensure_ascii=False, indent=0), encoding="utf-8")


if __name__ == "__main__":
    main()
