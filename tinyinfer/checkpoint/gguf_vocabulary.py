"""The vocabulary of a GGUF file, and what it says about special tokens.

Where a file is silent, the rules are llama.cpp's (src/llama-vocab.cpp of https://github.com/ggml-org/llama.cpp): which
kinds of tokenizer begin a text with a token, and which tokens end an answer although no key names them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import BadCheckpoint, UnsupportedModel
from ..text.pretokenizers import ADDS_BOS
from ..text.sentencepiece import BPE, UNIGRAM
from ..text.vocabulary import CONTROL, NORMAL, UNKNOWN, bpe_tokenizer_json, sentencepiece_tokenizer_json
from .gguf_file import GgufFile
from .gguf_names import Keys

# tokens that end an answer whatever the file says of them
_ENDS = frozenset(
    ["<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|eom_id|>", "<EOT>", "_<EOT>",
     "<|end_of_text|>", "<end_of_utterance>", "<｜end▁of▁sentence｜>"]
)  # fmt: skip
# what each kind of tokenizer means where a file is silent
_DEFAULT_IDS = {"llama": {"bos": 1, "eos": 2, "unknown": 0}, "t5": {"eos": 1, "unknown": 2, "padding": 0}, "gpt2": {}}
# Phi-3's special tokens swallow the white space after them, but for these; a file does not say so
_PHI3_KEEP_SPACE = ("<unk>", "<s>", "<|endoftext|>")


class GgufVocabulary:
    """Tokens, ids and files that follow from a GGUF file's `tokenizer.*` keys."""

    def __init__(self, file: GgufFile):
        """Read the keys that every use needs; raises `UnsupportedModel` for a tokenizer of another kind."""
        self.file, self.keys = file, Keys(file, "tokenizer")
        self.model = self.keys.get(".ggml.model", (str,), "none")
        if self.model not in (*_DEFAULT_IDS, "none", "no_vocab"):
            raise UnsupportedModel(f"{file.path}: a tokenizer of kind {self.model!r} can't be imported")
        self.tokens = [token or f"[EMPTY_{i}]" for i, token in enumerate(self._strings(".ggml.tokens"))]
        self.types = self._types()
        self.ids = {name: self._id(name) for name in ("bos", "eos", "eot", "eom", "unknown", "padding")}

    def config_ids(self) -> dict[str, int | None]:
        """The ids that config.json holds; None is said, because transformers has defaults of its own."""
        names = {"bos": "bos_token_id", "eos": "eos_token_id", "padding": "pad_token_id"}
        return {key: self.ids[name] for name, key in names.items()}

    def generation_config(self) -> dict[str, Any]:
        """generation_config.json: every id that ends an answer, the file's own first."""
        ends = [self.ids[name] for name in ("eos", "eot", "eom") if self.ids[name] is not None]
        ends += [index for index, token in enumerate(self.tokens) if token in _ENDS]
        ends = list(dict.fromkeys(ends))
        ids = {key: value for key, value in self.config_ids().items() if value is not None}
        return ids | {"eos_token_id": ends if len(ends) > 1 else ends[0]} if ends else ids

    def tokenizer_config(self, context: int) -> dict[str, Any]:
        """tokenizer_config.json, without the chat template."""
        if not self.tokens:
            return {}
        names = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}
        named = {key: self.tokens[self.ids[name]] for name, key in names.items() if self.ids[name] is not None}
        return named | {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "add_bos_token": self.first is not None,
            "add_eos_token": self.last is not None,
            "clean_up_tokenization_spaces": False,
            "model_max_length": context,
        }

    def tokenizer_json(self) -> str | None:
        """tokenizer.json; None where the file has no vocabulary."""
        if not self.tokens:
            return None
        frame = {"first": self.first, "last": self.last, "right_stripped": self._right_stripped()}
        try:
            if self.model == "gpt2":
                merges, pre = self._strings(".ggml.merges"), self.keys.get(".ggml.pre", (str,), "default")
                return bpe_tokenizer_json(self.tokens, merges, self.types, pre, **frame)
            return sentencepiece_tokenizer_json(
                self.tokens, self._scores(), self.types,
                model_type=BPE if self.model == "llama" else UNIGRAM,
                unknown=self.ids["unknown"] or 0,
                add_dummy_prefix=self.keys.get(".ggml.add_space_prefix", (bool,), True),
                remove_extra_whitespaces=self.keys.get(".ggml.remove_extra_whitespaces", (bool,), False),
                precompiled_charsmap=self._charsmap(),
                **frame,
            )  # fmt: skip
        except (BadCheckpoint, UnsupportedModel) as error:
            raise type(error)(f"{self.file.path}: {error}") from None

    @property
    def first(self) -> int | None:
        """The id that begins every text, if any does."""
        adds = self.model == "llama" or (self.model == "gpt2" and self.keys.get(".ggml.pre", (str,), "") in ADDS_BOS)
        return self.ids["bos"] if self.keys.get(".ggml.add_bos_token", (bool,), adds) else None

    @property
    def last(self) -> int | None:
        """The id that ends every text, if any does."""
        return self.ids["eos"] if self.keys.get(".ggml.add_eos_token", (bool,), self.model == "t5") else None

    def _strings(self, key: str) -> list[str]:
        values = self.keys.get(key, (list,), [])
        if not all(isinstance(value, str) for value in values):
            raise BadCheckpoint(f"{self.file.path}: key {'tokenizer' + key!r} should be an array of strings")
        return values

    def _numbers(self, key: str, kinds: str) -> np.ndarray | None:
        values = self.keys.get(key, (np.ndarray,))
        if values is not None and (values.dtype.kind not in kinds or len(values) < len(self.tokens)):
            raise BadCheckpoint(f"{self.file.path}: key {'tokenizer' + key!r} should be {len(self.tokens)} numbers, "
                                f"found {len(values)} of {values.dtype}")  # fmt: skip
        return values

    def _types(self) -> list[int]:
        values = self._numbers(".ggml.token_type", "iu")
        types = [NORMAL] * len(self.tokens) if values is None else values[: len(self.tokens)].tolist()
        return [CONTROL if token in _ENDS else kind for token, kind in zip(self.tokens, types, strict=True)]

    def _scores(self) -> Sequence[float]:
        values = self._numbers(".ggml.scores", "fiu")
        if values is None or not np.all(np.isfinite(values)):
            raise BadCheckpoint(
                f"{self.file.path}: key 'tokenizer.ggml.scores' should hold a finite score for each token"
            )
        return values[: len(self.tokens)].astype(np.float64).tolist()

    def _charsmap(self) -> bytes:
        values = self.keys.get(".ggml.precompiled_charsmap", (np.ndarray,))
        return b"" if values is None else values.astype(np.uint8).tobytes()

    def _id(self, name: str) -> int | None:
        default = _DEFAULT_IDS.get(self.model, {}).get(name)
        value = self.keys.whole(f".ggml.{name}_token_id", default)
        return value if value is not None and value < len(self.tokens) else None

    def _right_stripped(self) -> set[int]:
        name = self.file.metadata.get("general.name")
        if not isinstance(name, str) or not any(mark in name.lower() for mark in ("phi-3", "phi3")):
            return set()
        special = (CONTROL, UNKNOWN)
        return {
            index
            for index, (token, kind) in enumerate(zip(self.tokens, self.types, strict=True))
            if (kind in special or token == "</s>") and token not in _PHI3_KEEP_SPACE
        }
