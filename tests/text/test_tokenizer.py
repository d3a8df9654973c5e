from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from tinyinfer.checkpoint.source import Checkpoint
from tinyinfer.errors import BadCheckpoint, BadRequest, ModelNotFound
from tinyinfer.text.tokenizer import Tokenizer

from .tiny_tokenizers import added_token, byte_level_tokenizer_json, first_token, sentencepiece_tokenizer_json

GOLDEN = json.loads(
    (Path(__file__).parents[1] / "golden" / "tokenizers" / "added_tokens.json").read_text(encoding="utf-8")
)["cases"]
BUILD = {"byte_level": byte_level_tokenizer_json, "sentencepiece": sentencepiece_tokenizer_json}


def make(tokenizer_json: str, config: dict | None = None, model_vocab_size: int = 0) -> Tokenizer:
    checkpoint = Checkpoint(
        source=Path("a-model"),
        config={"vocab_size": model_vocab_size},
        tensors={},
        tokenizer_json=tokenizer_json,
        tokenizer_config=config or {},
    )
    return Tokenizer.from_checkpoint(checkpoint)


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: f"{case['kind']}: {case['name']}")
def test_ids_equal_transformers(case):
    tokenizer = make(BUILD[case["kind"]](added=tuple(case["added"]), bos=case["bos"]), case["config"])
    assert tokenizer.special_tokens == case["special_tokens"]
    for row in case["texts"]:
        assert tokenizer.encode(row["text"], add_special_tokens=False) == row["plain_ids"], row["text"]
        # Our rule, unlike transformers': a text that begins with BOS is not given a second one.
        doubled = case["bos"] and row["text"].startswith("<s>")
        assert tokenizer.encode(row["text"]) == row["ids"][doubled:], row["text"]


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: f"{case['kind']}: {case['name']}")
def test_decoded_text_equals_transformers(case):
    tokenizer = make(BUILD[case["kind"]](added=tuple(case["added"]), bos=case["bos"]), case["config"])
    for row in case["texts"]:
        if "\ufffd" in row["decoded"]:  # transformers reads the Ö of the added token <Ö> as a byte; we give it back
            assert "<Ö>" in row["text"]
            assert tokenizer.decode(row["plain_ids"]) == row["text"]
            continue
        assert tokenizer.decode(row["plain_ids"]) == row["decoded"], row["text"]
        assert tokenizer.decode(row["plain_ids"], skip_special_tokens=True) == row["without_special"], row["text"]


def test_added_tokens_are_found_whole():
    added = tuple(added_token(0, content) for content in ["<think", "<think>", "<Ö>"])
    tokenizer = make(byte_level_tokenizer_json(added))
    ids = [tokenizer.id_of(content) for content in ["<think>", "<think", "<Ö>"]]
    assert ids == [276, 275, 277]
    assert tokenizer.encode("<think><think<Ö>") == ids
    assert tokenizer.decode(ids) == "<think><think<Ö>"


@given(st.text())
def test_byte_level_round_trip(text):
    tokenizer = make(byte_level_tokenizer_json(), {"clean_up_tokenization_spaces": True})
    assert tokenizer.decode(tokenizer.encode(text)) == text


@given(st.text().filter(lambda text: "▁" not in text))
def test_sentencepiece_round_trip(text):
    # "▁" is the mark of a space in such a vocabulary, so the character itself cannot come back
    tokenizer = make(sentencepiece_tokenizer_json(bos=False))
    assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize("build", BUILD.values(), ids=BUILD)
@given(ids=st.lists(st.integers(0, 280)), skip=st.booleans())
def test_decode_is_what_the_library_gives(build, ids, skip):
    library = tokenizers.Tokenizer.from_str(build())
    ids = [id for id in ids if id < library.get_vocab_size()]
    assert make(build()).decode(ids, skip_special_tokens=skip) == library.decode(ids, skip_special_tokens=skip)


@pytest.mark.parametrize(
    ("bos", "config", "expected"),
    [
        (False, {}, [97]),
        (True, {}, [270, 97]),
        (True, {"add_bos_token": True}, [270, 97]),
        (False, {"add_bos_token": True}, [270, 97]),
        (False, {"add_bos_token": True, "add_eos_token": True}, [270, 97, 271]),
        (False, {"add_bos_token": None, "add_eos_token": False}, [97]),
        (True, {"add_bos_token": False}, [270, 97]),
    ],
)
def test_one_bos_if_asked(bos, config, expected):
    names = {"bos_token": "<s>", "eos_token": "</s>"}
    tokenizer = make(byte_level_tokenizer_json(bos=bos), {**names, **config})
    assert tokenizer.encode("a") == expected
    assert tokenizer.encode("a", add_special_tokens=False) == [97]


def test_never_two_bos():
    tokenizer = make(byte_level_tokenizer_json(bos=True), {"bos_token": "<s>"})
    assert tokenizer.encode("<s>a") == [270, 97]
    assert tokenizer.encode("") == [270]
    assert tokenizer.encode("<s>a", add_special_tokens=False) == [270, 97]


def test_add_bos_token_without_a_bos_token_adds_nothing():
    assert make(byte_level_tokenizer_json(), {"add_bos_token": True, "bos_token": None}).encode("a") == [97]


def test_stored_truncation_and_padding_are_ignored():
    truncation = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    padding = {"strategy": {"Fixed": 16}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 274}
    padding |= {"pad_type_id": 0, "pad_token": "<pad>"}
    tokenizer = make(byte_level_tokenizer_json(truncation=truncation, padding=padding))
    assert tokenizer.encode("xyz") == [120, 121, 122]


@pytest.mark.parametrize(
    ("eos", "stop_ids", "text"),
    [
        ("</s>", {271}, "</s>"),
        ({"content": "<|im_end|>", "lstrip": False}, {273}, "<|im_end|>"),
        (["</s>", {"content": "<|im_end|>"}], {271, 273}, "</s>"),
        (None, set(), None),
        ("<absent>", set(), "<absent>"),
    ],
)
def test_eos_in_every_form(eos, stop_ids, text):
    tokenizer = make(byte_level_tokenizer_json(), {"eos_token": eos})
    assert tokenizer.stop_ids == stop_ids
    assert tokenizer.eos_token == text
    assert tokenizer.eos_token_id == (min(stop_ids) if stop_ids else None)


def test_names_and_sizes():
    config = {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "pad_token": "<pad>", "unk_token": None}
    tokenizer = make(byte_level_tokenizer_json(), config, model_vocab_size=300)
    assert tokenizer.special_tokens == {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (270, 271)
    assert tokenizer.special_ids == {270, 271, 272, 273, 274}
    assert tokenizer.vocab_size == 300
    assert make(byte_level_tokenizer_json()).vocab_size == 275


def test_padded_ids_give_no_text_and_others_are_refused():
    tokenizer = make(byte_level_tokenizer_json(), model_vocab_size=300)
    assert tokenizer.decode([97, 299, 98]) == "ab"
    assert tokenizer.decode(np.array([97, 98])) == "ab"
    for id in (300, -1):
        with pytest.raises(BadRequest, match=f"token id {id} is outside the vocabulary of 300 tokens"):
            tokenizer.decode([97, id])
    with pytest.raises(BadRequest, match=r"integer, found 1\.5"):
        tokenizer.decode([1.5])


def test_special_tokens_can_be_skipped():
    tokenizer = make(byte_level_tokenizer_json())
    ids = tokenizer.encode("<|im_start|>a<|im_end|>")
    assert ids == [272, 97, 273]
    assert tokenizer.decode(ids) == "<|im_start|>a<|im_end|>"
    assert tokenizer.decode(ids, skip_special_tokens=True) == "a"


@pytest.mark.parametrize(
    ("text", "message"),
    [(None, "found NoneType"), (b"a", "found bytes"), ("ab\ud83d", "half a surrogate pair at character 2")],
)
def test_what_is_not_text_is_refused(text, message):
    with pytest.raises(BadRequest, match=message):
        make(byte_level_tokenizer_json()).encode(text)


def test_no_tokenizer_names_the_files():
    with pytest.raises(ModelNotFound, match=r"a-model: .*tokenizer\.json.*tokenizer\.model"):
        make(None)


@pytest.mark.parametrize("damaged", ["", "{}", byte_level_tokenizer_json()[:-9], '{"model": 3}'])
def test_damaged_file(damaged):
    with pytest.raises(BadCheckpoint, match=r"tokenizer\.json cannot be read"):
        make(damaged)


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ({"x": {"content": "<x>"}}, "added_tokens_decoder cannot be read"),
        ({"275": "<x>"}, "added_tokens_decoder cannot be read"),
        ({"275": {"lstrip": True}}, "added_tokens_decoder cannot be read"),
        (["<x>"], "added_tokens_decoder cannot be read"),
        ({"280": {"content": "<x>"}}, "'<x>' should have id 280, but tokenizer.json leads to 275"),
    ],
)
def test_bad_added_tokens(declared, message):
    with pytest.raises(BadCheckpoint, match=message):
        make(byte_level_tokenizer_json(), {"added_tokens_decoder": declared})


def test_post_processor_may_surround_with_several():
    both = first_token("<s>", 270)
    both["single"].append({"SpecialToken": {"id": "<s>", "type_id": 0}})
    tokenizer = make(byte_level_tokenizer_json(post_processor=both))
    assert tokenizer.encode("ab") == [270, 97, 98, 270]


def test_import_does_not_load_the_library():
    code = "import sys, tinyinfer.text.tokenizer, tinyinfer.text.stream; sys.exit('tokenizers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# bytes of single tokens


def test_bytes_of_tokens_join_to_the_text_also_through_half_characters():
    for built in (byte_level_tokenizer_json(), sentencepiece_tokenizer_json(bos=False)):
        tokenizer = make(built)
        for text in ("the quick fox", "é 日 🔥 \n.", "lead  ing\x00x"):
            ids = tokenizer.encode(text, add_special_tokens=False)
            joined = b"".join(tokenizer.token_bytes(id) for id in ids)
            # SentencePiece puts a space before the text, which decoding takes away
            assert joined.decode().removeprefix(" ") == text
            assert tokenizer.decode(ids) == text


def test_bytes_of_special_and_missing_tokens():
    tokenizer = make(byte_level_tokenizer_json((added_token(0, "Ö"),)), model_vocab_size=300)
    assert tokenizer.token_bytes(tokenizer.id_of("<|im_end|>")) == b"<|im_end|>"
    assert tokenizer.token_bytes(tokenizer.id_of("Ö")) == "Ö".encode()
    assert tokenizer.token_bytes(299) == b""
    assert tokenizer.token_bytes(0xFF) == b"\xff"
    with pytest.raises(BadRequest, match="outside the vocabulary"):
        tokenizer.token_bytes(300)


def test_ids_of_the_tokens_that_hold_a_text():
    tokenizer = make(byte_level_tokenizer_json())
    held = [tokenizer.decode([id]) for id in tokenizer.ids_with("ow")]
    assert held == ["ow", "own"]
    assert tokenizer.ids_with("\n") == [10]
    assert tokenizer.ids_with("🔥") == []
    pieces = make(sentencepiece_tokenizer_json())
    assert {pieces.decode([id]) for id in pieces.ids_with("\n")} == {"\n"}  # the byte and the piece
    assert len(pieces.ids_with("\n")) == 2
    assert tokenizer.ids_of_tokens["quick"] == tokenizer.id_of("quick")
