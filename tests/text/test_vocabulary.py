"""Tokenizers built from foreign vocabularies give the ids that the engines they come from give."""

from __future__ import annotations

import json
import shutil
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, pre_tokenizers

from tests.text.tiny_tokenizers import byte_alphabet
from tinyinfer.errors import BadCheckpoint, TinyinferError, UnsupportedModel
from tinyinfer.text.pretokenizers import PATTERNS
from tinyinfer.text.sentencepiece import read_sentencepiece_model
from tinyinfer.text.vocabulary import (
    BYTE,
    CONTROL,
    NORMAL,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    bpe_tokenizer_json,
    sentencepiece_tokenizer_json,
    tokenizer_json_from_folder,
)

GOLDEN = Path(__file__).parent.parent / "golden" / "tokenizers" / "sentencepiece"
LLAMA_CPP = json.loads((GOLDEN.parent / "llama_cpp" / "ids.json").read_text(encoding="utf-8"))
IDS = json.loads((GOLDEN / "ids.json").read_text(encoding="utf-8"))
MERGES = ["Ġ t", "h e", "Ġt he", "i n", "e r", "1 2", "12 3", "Ġ Ġ", "Ã ©"]
WORDS = ["".join(merge.split(" ")) for merge in MERGES]
SPECIAL = ["<s>", "<|im_end|>", "<tool>", "<tool><x>"]
TOKENS = [*byte_alphabet(), *WORDS, *SPECIAL]
TYPES = [NORMAL] * (256 + len(WORDS)) + [CONTROL, CONTROL, USER_DEFINED, USER_DEFINED]
BOS = TOKENS.index("<s>")


@cache
def bpe_by_name(pre: str) -> Tokenizer:
    return bpe(pre)


def bpe(pre: str = "gpt-2", tokens: list[str] = TOKENS, types: list[int] = TYPES, **options: object) -> Tokenizer:
    return Tokenizer.from_str(bpe_tokenizer_json(tokens, MERGES, types, pre, **options))


def ids(tokenizer: Tokenizer, text: str, special: bool = False) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=special).ids


def words(pre: str, text: str) -> list[str]:
    """The pieces into which text is cut, as plain text."""
    return [text[begin:end] for _, (begin, end) in bpe(pre).pre_tokenizer.pre_tokenize_str(text)]


# ---- byte-level BPE


@pytest.mark.parametrize(
    ("pre", "text", "expected"),
    [
        ("gpt-2", "it's  12345 é!?\n\n x", ["it", "'s", " ", " 12345", " é", "!?", "\n\n", " x"]),
        ("smollm", "it's  12345 é½!?", ["it", "'s", "  ", "1", "2", "3", "4", "5", " é", "½", "!?"]),
        ("qwen2", "IT'S 1234 a.\n\nb", ["IT", "'S", " ", "1", "2", "3", "4", " a", ".\n\n", "b"]),
        ("llama-bpe", "IT'S 12345\n\n  x", ["IT", "'S", " ", "123", "45", "\n\n", " ", " x"]),
        ("falcon", "a+b 12345", ["a", "+", "b", " ", "123", "45"]),
        ("default", "a+b 12345", ["a", "+", "b", " ", "123", "45"]),
        ("deepseek-coder", "ab 12\n世界x", ["ab", " ", "1", "2", "\n", "世界", "x"]),
        ("deepseek-v3", "ab 12345 世界.x", ["ab", " ", "123", "45", " ", "世界", ".x"]),
        ("tekken", "HelloWorld 12", ["Hello", "World", " ", "1", "2"]),
        ("gpt-4o", "HelloWorld's 1234", ["Hello", "World's", " ", "123", "4"]),
        ("poro-chat", "one, two", ["one", ",", " two"]),
        ("viking", "a 12", ["a", " ", "1", "2"]),
        ("qwen35", "e\u0301t 12", ["e\u0301t", " ", "1", "2"]),
        ("seed-coder", "a;\nb", ["a", ";", "\n", "b"]),
        ("bailingmoe", "I'd 12\n\n b", ["I", "'d", " ", "1", "2", "\n\n", " b"]),
        ("jais-2", "a" + " " * 7 + "b", ["a", " " * 4, " " * 2, " b"]),
    ],
)
def test_words_of_each_pre_tokenizer(pre: str, text: str, expected: list[str]):
    assert words(pre, text) == expected


LLAMA_CPP_NAMES = [(pre, names) for names in LLAMA_CPP["byte_level"]["ids"] for pre in names.split()]


@pytest.mark.parametrize(("pre", "names"), LLAMA_CPP_NAMES)
def test_ids_are_those_of_llama_cpp(pre: str, names: str):
    golden = LLAMA_CPP["byte_level"]
    text = bpe_tokenizer_json(golden["tokens"], golden["merges"], golden["types"], pre)
    tokenizer = Tokenizer.from_str(text)
    assert {text: ids(tokenizer, text) for text in golden["texts"]} == dict(
        zip(golden["texts"], golden["ids"][names], strict=True)
    )


def test_every_pre_tokenizer_was_compared_with_llama_cpp():
    assert {pre for pre, _ in LLAMA_CPP_NAMES} == set(PATTERNS)


@settings(max_examples=300, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_gpt2_cuts_as_the_tokenizers_library_does(text: str):
    theirs = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    assert bpe_by_name("gpt-2").pre_tokenizer.pre_tokenize_str(text) == theirs.pre_tokenize_str(text)


@pytest.mark.parametrize("pre", {patterns: pre for pre, patterns in PATTERNS.items()}.values())
@settings(max_examples=25, deadline=None)
@given(text=st.text(st.one_of(st.characters(exclude_categories=["Cs"]), st.sampled_from(" \n\r\t'sa1Z9.,é世"))))
def test_byte_level_text_comes_back(pre: str, text: str):
    tokenizer = bpe_by_name(pre)
    assert tokenizer.decode(ids(tokenizer, text), skip_special_tokens=False) == text


def test_unknown_pre_tokenizers_are_refused_by_name():
    with pytest.raises(UnsupportedModel, match=r"'kimi-k2'.*llama-bpe"):
        bpe("kimi-k2")


def test_merges_best_first():
    assert [TOKENS[i] for i in ids(bpe(), "the the123in")] == ["t", "he", "Ġthe", "123", "in"]


def test_special_and_user_defined_tokens_in_the_text():
    tokenizer = bpe()
    found = ids(tokenizer, "the<s> <tool><x><tool>\n<|im_end|>")
    assert [TOKENS[i] for i in found] == ["t", "he", "<s>", "Ġ", "<tool><x>", "<tool>", "Ċ", "<|im_end|>"]
    assert tokenizer.decode(found, skip_special_tokens=True) == "the <tool><x><tool>\n"


def test_beginning_and_end_are_added_once():
    tokenizer = bpe(first=BOS, last=BOS + 1)
    assert ids(tokenizer, "in", special=True) == [BOS, TOKENS.index("in"), BOS + 1]
    assert ids(tokenizer, "in") == [TOKENS.index("in")]
    assert ids(tokenizer, "", special=True) == [BOS, BOS + 1]


def test_whole_words_before_merges_only_where_the_name_says_so():
    tokens = [*TOKENS, "Ġtin"]
    types = [*TYPES, NORMAL]
    assert ids(bpe("llama-bpe", tokens, types), " tin") == [len(TOKENS)]
    assert [tokens[i] for i in ids(bpe("qwen2", tokens, types), " tin")] == ["Ġt", "in"]


def test_white_space_after_a_stripping_token():
    tokenizer = bpe(right_stripped={BOS})
    assert ids(tokenizer, "<s> \n in") == [BOS, TOKENS.index("in")]
    assert len(ids(tokenizer, "<|im_end|> in")) == 3


def test_unused_tokens_are_never_made():
    tokens, types = [*TOKENS, "[PAD7]"], [*TYPES, UNUSED]
    assert len(tokens) - 1 not in ids(bpe(tokens=tokens, types=types), "[PAD7]")


@pytest.mark.parametrize(
    ("tokens", "types", "words"),
    [(["a", "b", "a"], [1, 1, 1], "'a' stands twice"), (["a", "b"], [1], "2 tokens, but 1")],
)
def test_contradicting_vocabularies(tokens: list[str], types: list[int], words: str):
    with pytest.raises(BadCheckpoint, match=words):
        bpe_tokenizer_json(tokens, [], types, "gpt-2")


# ---- SentencePiece


def golden_tokenizer(name: str, **options: object) -> Tokenizer:
    model = read_sentencepiece_model(GOLDEN / f"{name}.model")
    return Tokenizer.from_str(
        sentencepiece_tokenizer_json(
            model.pieces, model.scores, model.types,
            model_type=model.model_type, unknown=model.unknown, add_dummy_prefix=model.add_dummy_prefix,
            remove_extra_whitespaces=model.remove_extra_whitespaces, precompiled_charsmap=model.precompiled_charsmap,
            **options,
        )
    )  # fmt: skip


TOKENIZERS = {name: golden_tokenizer(name) for name in IDS}


@pytest.mark.parametrize("name", IDS)
def test_ids_are_those_of_the_sentencepiece_library(name: str):
    tokenizer = TOKENIZERS[name]
    control = "<s> </s> <unk> in text"  # the library takes these for text
    plain = [case for case in IDS[name] if case["text"] != control]
    assert len(plain) == len(IDS[name]) - 1
    assert {case["text"]: ids(tokenizer, case["text"]) for case in plain} == {
        case["text"]: case["ids"] for case in plain
    }


def test_the_order_of_pieces_does_not_matter():
    """Merges follow the scores; published models happen to have their pieces in that order."""
    model = read_sentencepiece_model(GOLDEN / "bpe_bytes.model")
    columns = (model.pieces, model.scores, model.types)
    pieces, scores, types = (column[:259] + column[259:][::-1] for column in columns)
    tokenizer = Tokenizer.from_str(sentencepiece_tokenizer_json(pieces, scores, types))
    for case in IDS["bpe_bytes"][:20]:
        assert [pieces[i] for i in ids(tokenizer, case["text"])] == [model.pieces[i] for i in case["ids"]]


@pytest.mark.parametrize("name", LLAMA_CPP["sentencepiece"])
def test_special_tokens_in_the_text_as_in_llama_cpp(name: str):
    tokenizer = golden_tokenizer(name, first=1)
    for case in LLAMA_CPP["sentencepiece"][name]:
        assert ids(tokenizer, case["text"], special=True) == case["ids"], case["text"]


def test_each_stretch_between_special_tokens_has_its_own_prefix():
    """llama.cpp's rule: the text after a special token is tokenized as if it began there."""
    tokenizer = golden_tokenizer("bpe_bytes", first=1)
    river, stone = (ids(tokenizer, text) for text in (" the river", "stone"))
    assert ids(tokenizer, "</s> the river<unk>stone", special=True) == [1, 2, *river, 0, *stone]


@pytest.mark.parametrize("name", ["bpe_bytes", "bpe_no_prefix", "unigram_bytes"])
@given(text=st.text(st.characters(exclude_characters="▁<", exclude_categories=["Cs"])))
@settings(max_examples=100, deadline=None)
def test_text_comes_back_with_byte_fallback(name: str, text: str):
    tokenizer = TOKENIZERS[name]
    assert tokenizer.decode(ids(tokenizer, text), skip_special_tokens=False) == text


def test_gguf_style_user_defined_runs_of_spaces():
    """Gemma's GGUF files spell user-defined runs with spaces; they are found before all else, without a prefix."""
    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "▁a", "  "]
    types = [UNKNOWN, *[BYTE] * 256, NORMAL, NORMAL, NORMAL, USER_DEFINED]
    text = sentencepiece_tokenizer_json(pieces, [0.0] * 260 + [-1.0], types, add_dummy_prefix=False)
    assert [pieces[i] for i in ids(Tokenizer.from_str(text), "a   a")] == ["a", "  ", "▁a"]


def test_other_model_types_are_refused():
    with pytest.raises(UnsupportedModel, match="found type 3"):
        sentencepiece_tokenizer_json(["<unk>", "a"], [0, 0], [2, 1], model_type=3)
    with pytest.raises(BadCheckpoint, match="2 pieces, but 1 scores"):
        sentencepiece_tokenizer_json(["<unk>", "a"], [0], [2, 1])


# ---- folders


def write(folder: Path, **files: object) -> Path:
    for name, content in files.items():
        text = content if isinstance(content, str) else json.dumps(content)
        (folder / name.replace("__", ".")).write_text(text, encoding="utf-8")
    return folder


def test_tokenizer_json_is_taken_as_it_is(tmp_path: Path):
    shutil.copy(GOLDEN / "unigram.model", tmp_path / "tokenizer.model")
    assert tokenizer_json_from_folder(write(tmp_path, tokenizer__json='{"any": "thing"}')) == '{"any": "thing"}'


def test_folder_with_tokenizer_model_only(tmp_path: Path):
    shutil.copy(GOLDEN / "bpe_bytes.model", tmp_path / "tokenizer.model")
    tokenizer = Tokenizer.from_str(tokenizer_json_from_folder(tmp_path))
    for case in IDS["bpe_bytes"][:10]:
        assert ids(tokenizer, case["text"]) == case["ids"]
        assert ids(tokenizer, case["text"], special=True) == [1, *case["ids"]]


def test_tokenizer_model_with_what_the_configuration_adds(tmp_path: Path):
    shutil.copy(GOLDEN / "bpe_bytes.model", tmp_path / "tokenizer.model")
    added = {"520": {"content": "<|Ö|>", "special": True}, "521": {"content": "<x>", "special": False, "rstrip": True}}
    config = {
        "add_bos_token": False,
        "add_eos_token": True,
        "eos_token": {"content": "<|Ö|>"},
        "added_tokens_decoder": added,
    }
    tokenizer = Tokenizer.from_str(tokenizer_json_from_folder(write(tmp_path, tokenizer_config__json=config)))
    the = ids(tokenizer, "the")
    assert ids(tokenizer, "<x>  the<|Ö|>", special=True) == [521, *the, 520, 520]
    assert tokenizer.decode([520, 521, *the], skip_special_tokens=False) == "<|Ö|><x> the"


def test_folder_with_vocab_and_merges(tmp_path: Path):
    vocab = {token: index for index, token in enumerate(TOKENS[:-4])}
    merges = "#version: 0.2\n" + "\n".join(MERGES) + "\n"
    write(tmp_path, vocab__json=vocab, merges__txt=merges, added_tokens__json={"<|im_end|>": len(vocab)})
    tokenizer = write(tmp_path, tokenizer_config__json={"tokenizer_class": "Qwen2Tokenizer"})
    found = ids(Tokenizer.from_str(tokenizer_json_from_folder(tokenizer)), " the12<|im_end|>")
    assert [[*vocab, "<|im_end|>"][i] for i in found] == ["Ġthe", "1", "2", "<|im_end|>"]


def test_folder_with_nothing_to_tokenize_with(tmp_path: Path):
    assert tokenizer_json_from_folder(write(tmp_path, vocab__json={}, tokenizer_config__json={})) is None


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"vocab__json": {"a": 0}, "merges__txt": ""}, "tokenizer_class ''"),
        (
            {
                "vocab__json": {"a": 1},
                "merges__txt": "",
                "tokenizer_config__json": {"tokenizer_class": "GPT2Tokenizer"},
            },
            "ids 0 to 0",
        ),
        (
            {"vocab__json": "[", "merges__txt": "", "tokenizer_config__json": {"tokenizer_class": "GPT2Tokenizer"}},
            "valid JSON",
        ),
        ({"tokenizer__model": "IQ== 0\nIg== 1\n"}, "tiktoken"),
        ({"tokenizer__model": "what is this"}, "not a SentencePiece model"),
    ],
)
def test_folders_that_can_not_be_read(tmp_path: Path, files: dict[str, object], words: str):
    with pytest.raises(TinyinferError, match=words):
        tokenizer_json_from_folder(write(tmp_path, **files))


@pytest.mark.parametrize("added", [{"999": {"content": "<x>"}}, {"x": {"content": "<x>"}}, {"520": {}}, {"520": 7}])
def test_added_tokens_with_impossible_ids(tmp_path: Path, added: dict[str, object]):
    shutil.copy(GOLDEN / "bpe_bytes.model", tmp_path / "tokenizer.model")
    write(tmp_path, tokenizer_config__json={"added_tokens_decoder": added})
    with pytest.raises(BadCheckpoint, match="added token"):
        tokenizer_json_from_folder(tmp_path)
