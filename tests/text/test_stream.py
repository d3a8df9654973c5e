from __future__ import annotations

import json
import time

import pytest
import tokenizers
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tinyinfer.errors import BadRequest
from tinyinfer.text.decoder import IncrementalDecoder
from tinyinfer.text.stream import StopMatcher, StreamDecoder
from tinyinfer.text.tokenizer import Tokenizer

from .tiny_tokenizers import added_token, byte_level_tokenizer_json, sentencepiece_tokenizer_json

ADDED = tuple(added_token(0, content) for content in ["<Ö>", " <x>", "<0x41>", "▁y", "\n"])
REPLACE = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
STRIP = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
BYTES, FUSE = {"type": "ByteFallback"}, {"type": "Fuse"}


def sequence(*steps: dict) -> dict:
    return {"type": "Sequence", "decoders": list(steps)}


# Every decoder that a tokenizer.json can name, and the chains in which models use them
DECODERS = {
    "llama": sequence(REPLACE, BYTES, FUSE, STRIP),
    "gemma": sequence(REPLACE, BYTES, FUSE),
    "strip two": sequence(REPLACE, BYTES, FUSE, {**STRIP, "start": 2}),
    "replace last": sequence(BYTES, FUSE, REPLACE, STRIP),
    "strip each": sequence({"type": "Strip", "content": "▁", "start": 1, "stop": 0}, BYTES),
    "metaspace": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True},
    "metaspace never": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "never", "split": True},
    "bytes and metaspace": sequence(
        BYTES, {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": True}
    ),
    "wordpiece": {"type": "WordPiece", "prefix": "le", "cleanup": False},
    "wordpiece cleanup": {"type": "WordPiece", "prefix": "##", "cleanup": True},
    "regex": {"type": "Replace", "pattern": {"Regex": "▁+"}, "content": "_"},
    "none": None,
    # these need the whole: nothing is shown before the end
    "bpe": {"type": "BPEDecoder", "suffix": "e"},
    "ctc": {"type": "CTC", "pad_token": "▁", "word_delimiter_token": "x", "cleanup": True},
    "replace across": sequence(FUSE, {"type": "Replace", "pattern": {"String": "ea"}, "content": "-"}),
    "bytes and bpe": sequence(BYTES, {"type": "BPEDecoder", "suffix": "e"}),
}


def make(tokenizer_json: str, model_vocab_size: int = 0) -> Tokenizer:
    return Tokenizer(tokenizers.Tokenizer.from_str(tokenizer_json), {}, model_vocab_size)


BYTE_LEVEL = make(byte_level_tokenizer_json(ADDED), 290)
SENTENCEPIECE = make(sentencepiece_tokenizer_json(ADDED), 310)


def streamed(tokenizer: Tokenizer, ids: list[int], stop=()) -> tuple[list[str], StreamDecoder]:
    """The chunks, as a generation loop asks for them."""
    stream = StreamDecoder(tokenizer, stop)
    chunks = []
    for id in ids:
        chunks.append(stream.push(id))
        if stream.stopped:
            break
    return [*chunks, stream.finish()], stream


def cut(text: str, stop: list[str]) -> str:
    """The rule, on the whole text: up to the stop string that begins first."""
    return text[: min((at for s in stop if (at := text.find(s)) >= 0), default=len(text))]


def pieces(tokenizer: Tokenizer, *contents: str) -> list[int]:
    return [tokenizer.id_of(content) for content in contents]


# --- characters cut across tokens ---


def test_emoji_over_four_tokens():
    chunks, _ = streamed(BYTE_LEVEL, [*"🔥".encode(), 97])
    assert chunks == ["", "", "", "🔥", "a", ""]


def test_emoji_cut_short_gives_one_replacement_at_the_end():
    chunks, _ = streamed(BYTE_LEVEL, list("a🔥".encode()[:3]))
    assert chunks == ["a", "", "", "\ufffd"]


def test_invalid_byte_does_not_stall():
    assert streamed(BYTE_LEVEL, [0xFF, *b"abc"])[0] == ["\ufffd", "a", "b", "c", ""]
    assert streamed(BYTE_LEVEL, [0xF0, 0x9F, *b"abc"])[0] == ["", "", "\ufffda", "b", "c", ""]


def test_byte_fallback_run_waits_for_its_end():
    fire = pieces(SENTENCEPIECE, *[f"<0x{byte:02X}>" for byte in "🔥".encode()])
    invalid, x = pieces(SENTENCEPIECE, "<0xFF>", "x")
    assert streamed(SENTENCEPIECE, [*fire, x])[0] == ["", "", "", "", "🔥x", ""]
    assert streamed(SENTENCEPIECE, fire)[0] == ["", "", "", "", "🔥"]
    assert streamed(SENTENCEPIECE, fire[:2])[0] == ["", "", "\ufffd\ufffd"]
    assert streamed(SENTENCEPIECE, [invalid, x, x])[0] == ["", "\ufffdx", "x", ""]
    # the library takes a run with one bad byte as bad altogether, and so do we
    assert "".join(streamed(SENTENCEPIECE, [*fire, invalid, x])[0]) == "\ufffd" * 5 + "x"


def test_one_space_is_taken_from_the_front():
    ids = pieces(SENTENCEPIECE, "▁", "▁leading", "▁x")
    assert streamed(SENTENCEPIECE, ids)[0] == ["", " leading", " x", ""]
    assert streamed(SENTENCEPIECE, ids[1:])[0] == ["leading", " x", ""]
    assert streamed(SENTENCEPIECE, [1, *ids[1:], 2])[0] == ["", "leading", " x", "", ""]


def test_byte_level_keeps_a_leading_space():
    assert "".join(streamed(BYTE_LEVEL, pieces(BYTE_LEVEL, "Ġthe", "Ġthe"))[0]) == " the the"


def test_special_and_padded_ids_give_no_text():
    assert streamed(BYTE_LEVEL, [270, 97, 289, 273, 98])[0] == ["", "a", "", "", "b", ""]
    # nothing comes between the bytes of a character, even if a special token does
    assert streamed(BYTE_LEVEL, [0xC3, 273, 0xA9])[0] == ["", "", "é", ""]


def test_added_token_with_a_letter_outside_ascii():
    assert "".join(streamed(BYTE_LEVEL, BYTE_LEVEL.encode("a<Ö>b"))[0]) == "a<Ö>b"


def test_id_outside_the_vocabulary():
    with pytest.raises(BadRequest, match="token id 290 is outside the vocabulary of 290 tokens"):
        StreamDecoder(BYTE_LEVEL).push(290)


# --- stop strings ---


@pytest.mark.parametrize(
    ("chunks", "stop", "expected", "found"),
    [
        (["quick br", "own fo", "x!"], ["own fox"], ["quick br", "", ""], "own fox"),
        (["ABC", "DE", "FG", "HI", "JK"], ["DEFGHIJ"], ["ABC", "", "", "", ""], "DEFGHIJ"),
        (["ABC", "DE", "FG", "HI", "K"], ["DEFGHIJ"], ["ABC", "", "", "", "DEFGHIK"], None),
        (["a stop b"], ["stop"], ["a "], "stop"),
        (["ab", "c"], ["abc", "ab"], [""], "ab"),  # the same place: the shorter is complete first
        (["xab", "c"], ["b", "abc"], ["x", ""], "abc"),  # "b" waits for "abc", which began before it
        (["xab", "d"], ["b", "abc"], ["x", "a"], "b"),
        (["xab"], ["b", "abc"], ["x", "a"], "b"),
        (["aab", "aac"], ["aabaac"], ["", ""], "aabaac"),
        (["aabaab", "aac"], ["aabaac"], ["", "aab"], "aabaac"),
        (["abc", "def"], "cd", ["ab", ""], "cd"),
        (["a", "b"], [], ["a", "b"], None),
        (["ends with st"], ["stop"], ["ends with ", "st"], None),
        (["né", "e"], ["ée"], ["n", ""], "ée"),
    ],
)
def test_stop_strings(chunks, stop, expected, found):
    matcher = StopMatcher(stop)
    shown = []
    for chunk in chunks:
        shown.append(matcher.push(chunk))
        if matcher.found:
            break
    else:
        shown.append(matcher.finish())
    assert [text for text in shown if text] == [text for text in expected if text]
    assert matcher.found == found


def test_stop_inside_a_token_drops_the_rest_of_it():
    quick = pieces(BYTE_LEVEL, "Ġthe", "Ġ", "quick", "Ġf", "ox")
    chunks, stream = streamed(BYTE_LEVEL, quick, ["ui"])
    assert chunks == [" the", " ", "q", ""]
    assert stream.stopped
    assert stream.stop == "ui"
    assert (stream.push(97), stream.finish()) == ("", "")


def test_stop_string_of_bytes_that_are_waiting_is_found_at_the_end():
    ids = pieces(SENTENCEPIECE, "▁x", *[f"<0x{byte:02X}>" for byte in "🔥".encode()])
    chunks, stream = streamed(SENTENCEPIECE, ids, ["🔥"])
    assert "".join(chunks) == "x"
    assert stream.stopped


@pytest.mark.parametrize("stop", ["", [""], ["a", ""], [None], [b"a"]])
def test_stop_must_be_text(stop):
    if stop == "":
        stop = [stop]
    with pytest.raises(BadRequest, match="stop string should be text") as caught:
        StreamDecoder(BYTE_LEVEL, stop)
    assert caught.value.parameter == "stop"


# --- rules that hold for all inputs ---

STOPS = st.lists(st.text("abx \ufffdé🔥ht", min_size=1, max_size=4), max_size=3)


def ids_of(tokenizer: Tokenizer, common: list[int]) -> st.SearchStrategy[list[int]]:
    """Random ids; often of a few, so that characters and stop strings do come together."""
    anything = st.lists(st.integers(0, tokenizer.vocab_size - 1))
    few = st.lists(st.sampled_from(common), max_size=30)
    return st.one_of(anything, few)


FEW_BYTES = [*"é🔥a b".encode(), 0xFF, 0xF0, 270, 275, 276, 289, *pieces(BYTE_LEVEL, "Ġa", "the", "ox")]
FEW_PIECES = pieces(SENTENCEPIECE, *[f"<0x{byte:02X}>" for byte in "é🔥 a".encode()], "▁", "▁▁", "▁x", "a", "b", "th")
FEW_PIECES += [1, 309, *pieces(SENTENCEPIECE, "<0x41>", "▁y", "<Ö>")]


@settings(max_examples=400, deadline=None)
@given(ids_of(BYTE_LEVEL, FEW_BYTES), STOPS)
def test_byte_level_stream_equals_whole(ids, stop):
    chunks, stream = streamed(BYTE_LEVEL, ids, stop)
    whole = BYTE_LEVEL.decode(ids, skip_special_tokens=True)
    assert "".join(chunks) == cut(whole, stop)
    assert stream.stopped == any(s in whole for s in stop)


@settings(max_examples=400, deadline=None)
@given(ids_of(SENTENCEPIECE, FEW_PIECES), STOPS)
def test_sentencepiece_stream_equals_whole(ids, stop):
    chunks, stream = streamed(SENTENCEPIECE, ids, stop)
    whole = SENTENCEPIECE.decode(ids, skip_special_tokens=True)
    assert "".join(chunks) == cut(whole, stop)
    assert stream.stopped == any(s in whole for s in stop)


@pytest.mark.parametrize("decoder", DECODERS.values(), ids=DECODERS)
@settings(max_examples=100, deadline=None)
@given(ids=st.lists(st.sampled_from(FEW_PIECES + pieces(SENTENCEPIECE, "le", "lead", ".", "e", "▁leading"))))
def test_every_decoder_piece_by_piece_equals_whole(decoder, ids):
    tokenizer = make(sentencepiece_tokenizer_json(ADDED, decoder=decoder), 310)
    chunks, _ = streamed(tokenizer, ids)
    assert "".join(chunks) == tokenizer.decode(ids, skip_special_tokens=True)


@given(ids=st.lists(st.sampled_from(FEW_PIECES)))
def test_strip_at_the_end_waits_for_it(ids):
    # with a letter first, as the library itself fails on a text of nothing but spaces
    ids = [*pieces(SENTENCEPIECE, "a"), *ids]
    tokenizer = make(sentencepiece_tokenizer_json(ADDED, decoder=sequence(REPLACE, FUSE, {**STRIP, "stop": 1})), 310)
    chunks, _ = streamed(tokenizer, ids)
    assert "".join(chunks) == tokenizer.decode(ids, skip_special_tokens=True)


@pytest.mark.parametrize("name", ["llama", "gemma", "metaspace", "wordpiece", "none", "replace last"])
def test_text_comes_as_soon_as_it_is_certain(name):
    tokenizer = make(sentencepiece_tokenizer_json(decoder=DECODERS[name]))
    chunks, _ = streamed(tokenizer, pieces(tokenizer, "▁x", "a", "▁leading"))
    assert all(chunks[:3])
    assert chunks[3] == ""


@settings(max_examples=300, deadline=None)
@given(st.lists(st.text("ab", max_size=4)), st.lists(st.text("ab", min_size=1, max_size=5), max_size=4))
@example(["ab", "ab", "aa"], ["abaa", "b"])
def test_stop_rule_does_not_depend_on_chunks(chunks, stop):
    def run(parts):
        matcher = StopMatcher(stop)
        return "".join([matcher.push(part) for part in parts] + [matcher.finish()]), matcher.found

    assert run(chunks) == run(["".join(chunks)]) == run("".join(chunks))
    assert run(chunks)[0] == cut("".join(chunks), stop)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.text("ab", min_size=1, max_size=3)), st.lists(st.text("ab", min_size=1, max_size=5), max_size=3))
def test_no_more_is_held_back_than_may_begin_a_stop_string(chunks, stop):
    matcher, shown, seen = StopMatcher(stop), "", ""
    for chunk in chunks:
        shown, seen = shown + matcher.push(chunk), seen + chunk
        if matcher.found:
            return
        held = seen[len(shown) :]
        assert held == "" or any(s.startswith(held[: len(s)]) for s in stop)
        assert len(held) < max(map(len, stop), default=1)


def test_cost_per_token_does_not_grow():
    # Quadratic work would make the last tenth nine times as slow as the first; noise is far below a factor of four.
    stream = StreamDecoder(BYTE_LEVEL, ["</answer>", "never"])
    ids = BYTE_LEVEL.encode("the quick brown fox </ans é🔥 ") * 400
    tenth = len(ids) // 10

    def seconds(part):
        start = time.perf_counter()
        for id in part:
            stream.push(id)
        return time.perf_counter() - start

    times = [seconds(ids[at : at + tenth]) for at in range(0, tenth * 10, tenth)]
    assert min(times[-3:]) < 4 * max(times[:3])


def test_a_long_run_of_bytes_is_not_decoded_again_and_again():
    decoder = IncrementalDecoder(SENTENCEPIECE.decoder)
    start = time.perf_counter()
    assert all(decoder.push(f"<0x{byte:02X}>") == "" for byte in "🔥".encode() * 25_000)
    assert decoder.finish() == "🔥" * 25_000
    assert time.perf_counter() - start < 10  # takes a fraction of a second; quadratic work takes minutes


def test_decoders_are_those_of_the_files():
    assert json.loads(SENTENCEPIECE.decoder.__getstate__()) == DECODERS["llama"]
