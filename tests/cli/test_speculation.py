"""Speculation on the command line: what is said of it, the same text, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.chain_models import say, write_chain_model
from tests.cli.commands import tinyinfer
from tinyinfer.cli import main
from tinyinfer.cli.bench_speculation import HEADINGS, record, rows
from tinyinfer.cli.options import Parser
from tinyinfer.cli.output import speculation_line
from tinyinfer.cli.speculation import add_speculation, speculation_wish
from tinyinfer.errors import BadRequest
from tinyinfer.lab.speculation import Comparison, SpeculationReport
from tinyinfer.lab.timing import Samples
from tinyinfer.speculative.speculation import Speculated

DONE = Speculated(steps=10, drafts=8, tokens=30, proposed=40, accepted=20, tried=25, seconds=2.0, plain_seconds=3.0)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_chain_model(tmp_path_factory.mktemp("models") / "abc", say("abc", after="x", end=None), context=4000)


def wish(*argv: str):
    parser = Parser("run MODEL", "test")
    add_speculation(parser)
    return speculation_wish(parser.parse(list(argv)))


def test_flags_under_the_names_of_other_programs():
    assert wish() is None
    assert wish("--speculate", "ngram") == {"method": "ngram"}
    assert wish("--speculate", "int4", "--draft-max", "3") == {"model": "int4", "num_speculative_tokens": 3}
    for flag in ("-md", "--model-draft", "--draft-model"):
        assert wish(flag, "small") == {"model": "small"}
    for flag in ("--draft-max", "--draft", "--draft-n", "--num-draft-tokens"):
        assert wish("--speculate", "ngram", flag, "7") == {"method": "ngram", "num_speculative_tokens": 7}
    assert wish("-md", "ngram", "--draft-branches", "2") == {"model": "ngram", "branches": 2}


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--draft-max", "3"], "--draft-max says nothing by itself"),
        (["--draft-branches", "3"], "--draft-branches says nothing by itself"),
        (["--speculate", "ngram", "-md", "small"], "were both given"),
        (["--speculate", "off"], "should be ngram, a form like int4 or a model, found 'off'"),
        (["--speculate", ""], "found ''"),
    ],
)
def test_flags_that_contradict(argv: list[str], message: str):
    with pytest.raises(BadRequest, match=message):
        wish(*argv)


def test_a_run_says_the_same_and_how_its_drafts_went(model: Path):
    argv = "run", model, "x", "--raw", "-n", "40"
    plain, drafted = tinyinfer(*argv), tinyinfer(*argv, "--speculate", "ngram")
    assert drafted.stdout == plain.stdout
    assert "drafts " not in plain.stderr
    assert "drafts " in drafted.stderr


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]):
    """What the command says, run in this very process: on standard output, else its error."""

    def run(*argv: object) -> str:
        code = main(list(map(str, argv)))
        out, err = capsys.readouterr()
        assert code == (2 if "tinyinfer: error" in err else 0)
        return out or err

    return run


def test_json_has_the_counts(model: Path, said):
    argv = "run", model, "x", "--raw", "-n", "40", "--json", "-q"
    plain, drafted = json.loads(said(*argv)), json.loads(said(*argv, "-md", model, "--draft-max", "2"))
    assert drafted["ids"] == plain["ids"]
    assert drafted["speculation"]["tokens"] == 39
    assert "speculation" not in plain


def test_what_cannot_draft_is_refused(model: Path, tmp_path: Path, said):
    argv = "run", model, "x", "--raw", "-n", "3", "-q"
    assert "no-such-model" in said(*argv, "-md", "no-such-model")
    assert "from 1 to 63" in said(*argv, "--speculate", "ngram", "--draft-max", "99")
    plain = write_chain_model(tmp_path / "plain", {}, tokenizer_json=None, template=None)
    assert "only one of them has a tokenizer" in said(*argv, "-md", plain)
    other = write_chain_model(tmp_path / "other", {}, vocab=300)
    assert said(*argv, "-md", other) == "abc\n"  # it has more rows, but no more tokens


def test_bench_compares_answers(model: Path, tmp_path: Path, said):
    (tmp_path / "prompt").write_text("xabcabc")
    argv = "bench", model, "--speculate", "ngram", "-n", "20", "-r", "1", "-q"
    (one,) = json.loads(said(*argv, "-f", tmp_path / "prompt", "--json"))["comparisons"]
    assert (one["name"], one["tokens"], len(one["ratios"])) == (str(tmp_path / "prompt"), 20, 1)
    assert one["speculation"]["tokens"] == 19
    table = said(*argv, "--md")
    assert all(name in table for name in ("code to continue", "code to change", "prose"))
    assert "--prefill does not go with" in said(*argv, "--prefill", "3")
    assert "--file goes with" in said("bench", model, "-f", tmp_path / "prompt")


def test_a_line_for_people():
    assert speculation_line(DONE) == (
        "drafts      20 of 40 tokens right (of those looked at 80 %), 3.00 tokens a pass, "
        "about 1.50 times as fast as without"
    )
    assert "none in 7 passes" in speculation_line(Speculated(7, 0, 7, 0, 0, 0, 1.0, 1.0))
    assert "fast" not in speculation_line(Speculated(7, 7, 7, 9, 0, 7, 1.0, None))


def test_rows_of_a_comparison():
    samples = Samples((10.0, 20.0)), Samples((30.0, 30.0)), Samples((3.0, 1.5))
    report = SpeculationReport("m", (Comparison("prose", 200, *samples, DONE),), (0.5, None))
    assert rows(report) == [["prose", "200", "15.0", "30.0", "2.25", "1.50 to 3.00", "80 %", "3.00"]]
    assert len(rows(report)[0]) == len(HEADINGS)
    assert record(report)["comparisons"][0]["ratio"] == 2.25
