"""How byte-level BPE tokenizers cut text into words before they merge, by the name that a GGUF file gives.

A GGUF file holds the vocabulary and the merges, but of the cutting only a name (`tokenizer.ggml.pre`). The patterns are
those of llama.cpp (src/llama-vocab.cpp of https://github.com/ggml-org/llama.cpp), written for Oniguruma, which the
tokenizers library uses. Several patterns are applied one after another, each to the pieces that the one before left;
what a pattern does not match stays a piece of its own. Names that llama.cpp handles by special code, and names that are
not here, are refused: a wrong guess gives a model words that it never saw.
"""

from __future__ import annotations

from ..errors import UnsupportedModel

_CONTRACTIONS = "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_SPACES = r"\s+(?!\S)|\s+"
_LINES = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|" + _SPACES
_CASED_HEAD = r"[^\r\n\p{L}\p{N}]?((?=[\p{L}])([^a-z]))*((?=[\p{L}])([^A-Z]))+"
_CASED_TAIL = r"[^\r\n\p{L}\p{N}]?((?=[\p{L}])([^a-z]))+((?=[\p{L}])([^A-Z]))*"
_CASED_REST = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|" + _SPACES
_ASCII_MARKS = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"""

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|" + _SPACES
_LLAMA3 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|" + _LINES
_QWEN2 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|" + _LINES
_QWEN35 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|" + _SPACES
_JAIS2 = (
    _CONTRACTIONS
    + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
    + "|".join(rf"\s{{{count}}}(?!\S)" for count in ("512", "256", "128", "64", "32", "16", "8", "4", "1,2"))
    + r"|\s{1}"
)
_BAILING = (
    r"'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|" + _SPACES
)
_SEED_CODER = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|" + _SPACES
_TEKKEN = f"{_CASED_HEAD}|{_CASED_TAIL}|" + r"\p{N}|" + _CASED_REST
_GPT4O = f"{_CASED_HEAD}{_CONTRACTIONS}?|{_CASED_TAIL}{_CONTRACTIONS}?|" + r"\p{N}{1,3}|" + _CASED_REST
_DEEPSEEK3 = (
    _ASCII_MARKS + r"[A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|" + _SPACES
)
_EXAONE_MOE = (
    _CONTRACTIONS
    + r"|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|"
    + _SPACES
)
_MINICPM5 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+|" + _LINES


def _class(spans: str) -> str:
    """One or more characters of hexadecimal ranges, but no white space, which llama.cpp does not match by number."""
    ranges = ("-".join(rf"\x{{{end}}}" for end in span.split("-")) for span in spans.split())
    return f"[[{''.join(ranges)}]&&[^\\s]]+"


# cased letters as deepseek-llm lists them; some scripts are missing, so no property stands for them
_CASED = """
    41-5a 61-7a b5 c0-d6 d8-f6 f8-1ba 1bc-1bf 1c4-293 295-2af 370-373 376 377 37b-37d 37f 386 388-38a 38c
    38e-3a1 3a3-3f5 3f7-481 48a-52f 531-556 10a0-10c5 13a0-13f5 13f8-13fd 1c90-1cba 1cbd-1cbf 1d00-1d2b
    1d6b-1d77 1d79-1d9a 1e00-1f15 1f18-1f1d 1f20-1f45 1f48-1f4d 1f50-1f57 1f59 1f5b 1f5d 1f5f-1f7d 1f80-1fb4
    1fb6-1fbc 1fbe 1fc2-1fc4 1fc6-1fcc 1fd0-1fd3 1fd6-1fdb 1fe0-1fec 1ff2-1ff4 1ff6-1ffc 2102 2107 210a-2113
    2115 2119-211d 2124 2126 2128 212a-212d 212f-2134 2139 213c-213f 2145-2149 214e 2183 2184 2c00-2c7b
    2c7e-2ce4 2ceb-2cee 2cf2 2cf3 a640-a66d a680-a69b a722-a76f a771-a787 a78b-a78e ab70-abbf fb00-fb06
    fb13-fb17 ff21-ff3a ff41-ff5a 10400-1044f 104b0-104d3 104d8-104fb 10c80-10cb2 10cc0-10cf2 118a0-118df
    1e900-1e943
"""
_CJK = _class("4e00-9fa5 800-4e00 ac00-d7ff")
_MARKS = _class("21-2f 3a-7e ff01-ff0f ff1a-ff5e 2018-201f 3000-3002")
_BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"

_WORDS: dict[tuple[str, ...], str] = {
    (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]"): "default",
    (_GPT2,): "gpt-2 phi-2 mpt olmo jais trillion gigachat a.x-4.0 mellum granite-docling exaone4",
    (r"\p{N}", _GPT2): "smollm starcoder refact command-r codeshell exaone minerva-7b mellum2",
    (_LLAMA3,): "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 dbrx smaug-bpe chatglm-bpe glm4",
    (_QWEN2,): "qwen2 deepseek-r1-qwen kormo stablelm2 megrez hunyuan grok-2 solar-open",
    (_QWEN35,): "qwen35",
    (_JAIS2,): "jais-2",
    (_BAILING,): "bailingmoe bailingmoe2 llada-moe",
    (_SEED_CODER,): "seed-coder",
    (_TEKKEN,): "tekken",
    (_GPT4O,): "gpt-4o llama4 kanana2 minimax-m2",
    (_BLOOM,): "poro-chat bloom gpt3-finnish",
    (_BLOOM, r"\p{N}"): "viking",
    (r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]"): "falcon",
    (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK, r"\p{N}"): "deepseek-coder",
    (r"[\r\n]", r"\s?" + _class(_CASED), r"\s?" + _MARKS, r"\s+$", _CJK, r"\p{N}+"): "deepseek-llm",
    (_EXAONE_MOE,): "exaone-moe",
    (r"\p{N}{1,3}", _MINICPM5): "minicpm5",
    (r"\p{N}{1,3}", _class("4e00-9fa5 3040-309f 30a0-30ff"), _DEEPSEEK3):
        "deepseek-v3 hunyuan-dense joyai-llm",
}  # fmt: skip
PATTERNS: dict[str, tuple[str, ...]] = {name: patterns for patterns, names in _WORDS.items() for name in names.split()}

# A word that stands whole in the vocabulary is taken whole, whatever the merges say.
IGNORES_MERGES = frozenset(
    ["llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "tekken", "minicpm5"]
)
# These put the beginning-of-sequence token first unless the file says otherwise.
ADDS_BOS = IGNORES_MERGES - {"minicpm5"}


def patterns_for(name: str) -> tuple[str, ...]:
    """The patterns of a pre-tokenizer, in the order in which they are applied; raises `UnsupportedModel` by name."""
    if name not in PATTERNS:
        raise UnsupportedModel(f"pre-tokenizer {name!r} is not known; known are {', '.join(sorted(PATTERNS))}")
    return PATTERNS[name]
