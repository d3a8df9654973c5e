from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.chain_models import chain_checkpoint
from tinyinfer import LLM
from tinyinfer.errors import MissingExtra
from tinyinfer.text.graphemes import GraphemeHolder
from tinyinfer.text.stream import StreamDecoder
from tinyinfer.text.tokenizer import Tokenizer

from .test_stream import BYTE_LEVEL, FEW_BYTES, SENTENCEPIECE, STOPS, ids_of
from .tiny_tokenizers import byte_level_tokenizer_json

GOLDEN = Path(__file__).parents[1] / "golden" / "graphemes" / "clusters.json"
CLUSTERS = json.loads(GOLDEN.read_text())["clusters"]
WHOLE = {
    "an accent": "e\u0301",
    "many marks": "e" + "\u0301\u0308\u0323" * 4,
    "a family": "👨\u200d👩\u200d👧\u200d👦",
    "a tone of skin": "👋🏿",
    "a flag": "🇩🇪",
    "a flag of tags": "🏴\U000e0067\U000e0062\U000e0073\U000e0063\U000e0074\U000e007f",
    "a keycap": "1\ufe0f\u20e3",
    "Hangul of three parts": "\u1112\u1161\u11ab",
    "Hangul of two": "하\u11ab",
    "an Indic conjunct": "क्षि",
    "a vowel sign": "கி",
    "Thai": "กำ",
    "a prefix": "\u0600\u0661",
    "the end of a line": "\r\n",
}  # fmt: skip


def held_and_let_go(pieces: list[str]) -> list[str]:
    holder = GraphemeHolder()
    return [*(holder.push(piece) for piece in pieces), holder.finish()]


def bounds(parts: list[str]) -> set[int]:
    """Where parts end in what they make up; empty ones end nowhere new."""
    ends, at = set(), 0
    for part in parts:
        at += len(part)
        ends.add(at)
    return ends - {0}


def test_cuts_are_those_of_other_programs():
    for clusters in CLUSTERS:
        text = "".join(clusters)
        chunks = held_and_let_go(list(text))  # one character after another: as many pieces as there can be
        assert "".join(chunks) == text
        before_newline = {at for at, char in enumerate(text) if char == "\n"}  # lets go of what stands before it too
        assert bounds(chunks) <= bounds(clusters), ascii(clusters)
        assert bounds(clusters) - before_newline <= bounds(chunks), ascii(clusters)


@pytest.mark.parametrize("cluster", WHOLE.values(), ids=WHOLE)
def test_what_is_seen_as_one_character_comes_as_one(cluster: str):
    for before, behind in (("", ""), ("a", "b"), (cluster, cluster)):
        text = before + cluster + behind
        for chunks in (held_and_let_go(list(text)), held_and_let_go([text])):
            assert "".join(chunks) == text
            assert bounds(chunks) <= bounds([before, cluster, behind])
    ids = list(f"a{cluster}b".encode())
    stream = StreamDecoder(BYTE_LEVEL, graphemes=True)
    chunks = [stream.push(id) for id in ids] + [stream.finish()]
    assert [chunk for chunk in chunks if chunk] == ["a", cluster, "b"]


def test_a_character_is_held_until_the_next_begins_and_a_line_is_not():
    assert held_and_let_go(["a", "b", "", "c"]) == ["", "a", "", "b", "c"]
    assert held_and_let_go(["ab", "c\n", "d"]) == ["a", "bc\n", "", "d"]
    assert held_and_let_go(["a\r", "\n"]) == ["a", "\r\n", ""]
    assert held_and_let_go([]) == [""]


def test_a_cluster_that_is_cut_short_comes_in_the_end():
    assert held_and_let_go(["👨", "\u200d"]) == ["", "", "👨\u200d"]
    stream = StreamDecoder(BYTE_LEVEL, graphemes=True)
    assert [stream.push(id) for id in "e\u0301".encode()] + [stream.finish()] == ["", "", "", "e\u0301"]


def test_a_stop_string_lets_go_what_stands_before_it():
    stream = StreamDecoder(BYTE_LEVEL, ["stop"], graphemes=True)
    chunks = [stream.push(id) for id in b"abstop"]
    assert ("".join(chunks), stream.stop, stream.finish()) == ("ab", "stop", "")
    stream = StreamDecoder(BYTE_LEVEL, ["\u0301"], graphemes=True)  # the rule for stop strings stays as it is
    assert "".join(stream.push(id) for id in "ae\u0301".encode()) == "ae"


def chunks_of(tokenizer: Tokenizer, ids: list[int], stop: list[str], graphemes: bool) -> list[str]:
    stream = StreamDecoder(tokenizer, stop, graphemes=graphemes)
    return [stream.push(id) for id in ids if not stream.stopped] + [stream.finish()]


CHARACTERS = sorted({char for clusters in CLUSTERS for cluster in clusters for char in cluster})
TEXTS = st.lists(st.sampled_from(CHARACTERS), max_size=8).map("".join)


@settings(max_examples=300, deadline=None)
@given(ids=st.one_of(TEXTS.map(lambda text: list(text.encode())), ids_of(BYTE_LEVEL, FEW_BYTES)), stop=STOPS)
def test_the_whole_is_the_same_and_no_chunk_ends_inside_of_a_cluster(ids: list[int], stop: list[str]):
    plain, safe = (chunks_of(BYTE_LEVEL, ids, stop, graphemes) for graphemes in (False, True))
    assert "".join(safe) == "".join(plain)
    holder = GraphemeHolder()
    clusters = [holder.push(char) for char in "".join(plain)] + [holder.finish()]
    assert bounds(safe) <= bounds(clusters)


@settings(max_examples=100, deadline=None)
@given(text=TEXTS)
def test_sentencepiece_too(text: str):
    ids = SENTENCEPIECE.encode(text)
    assert "".join(chunks_of(SENTENCEPIECE, ids, [], True)) == "".join(chunks_of(SENTENCEPIECE, ids, [], False))


def test_through_the_model():
    flag = "🇩🇪"
    texts = [*flag]
    vocabulary = byte_level_tokenizer_json()
    tokenizer = Tokenizer(tokenizers.Tokenizer.from_str(vocabulary), {})
    ids = [ord("a"), *tokenizer.encode(texts[0])]
    chain = dict(zip(ids, [*ids[1:], 273], strict=True))  # says half a flag, and ends
    llm = LLM(chain_checkpoint(chain))
    pieces = [piece.text for piece in llm.stream("a", graphemes=True)]
    assert pieces == ["", "", "", "", texts[0]]
    assert [piece.text for piece in llm.stream("a")] == ["", "", "", texts[0], ""]
    assert llm.generate("a", graphemes=True).text == llm.generate("a").text


def test_regex_is_imported_when_it_is_needed_and_not_before(monkeypatch: pytest.MonkeyPatch):
    code = "import sys; from tinyinfer.text.stream import StreamDecoder; sys.exit('regex' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    monkeypatch.setitem(sys.modules, "regex", None)
    with pytest.raises(MissingExtra, match=r"tinyinfer\[graphemes\]"):
        StreamDecoder(BYTE_LEVEL, graphemes=True)
    assert StreamDecoder(BYTE_LEVEL).push(97) == "a"
