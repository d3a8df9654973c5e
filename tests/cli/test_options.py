"""Flags and where texts come from, without a model."""

import io

import pytest

from tinyinfer.cli.chat import chat_command
from tinyinfer.cli.options import Parser, checked_text, settle_model, text_argument
from tinyinfer.cli.run import run_command
from tinyinfer.cli.sampling import sampling_params
from tinyinfer.errors import BadRequest
from tinyinfer.sampling import SamplingParams


def parse(*argv, command=run_command):
    parser = Parser("run MODEL [PROMPT]", "answer")
    command(parser)
    args = parser.parse(list(argv))
    settle_model(args)
    return args


@pytest.mark.parametrize(
    "argv",
    [
        ("m", "hi"),
        ("m", "-n", "5", "hi"),
        ("-n", "5", "m", "--temp", "0.5", "hi"),
        ("-m", "m", "hi"),
        ("hi", "--model", "m"),
        ("m", "--", "hi"),
    ],
)
def test_model_and_prompt_in_any_order(argv):
    args = parse(*argv)
    assert (args.model, args.prompt) == ("m", "hi")


def test_a_prompt_may_begin_with_a_dash():
    assert parse("m", "--", "-5").prompt == "-5"
    assert parse("m", "-p", "- 5 apples").prompt_flag == "- 5 apples"
    assert parse("m", "-").prompt == "-"


def test_flags_have_the_names_that_other_engines_gave_them():
    ours = "m -n 5 --temp 1 --top-k 2 --top-p 0.5 --min-p 0.1 -s 9 --ignore-eos"
    theirs = "m --n-predict 5 --temperature 1 --top-k 2 --top-p .5 --min-p .1 --seed=9 --ignore-eos"
    first, other = parse(*ours.split()), parse(*theirs.split())
    assert sampling_params(first) == sampling_params(other) == SamplingParams(5, 1, 2, 0.5, 0.1, 9, (), True)
    assert sampling_params(parse("m", "--max-tokens", "5", "--stop", "a", "--stop", "b")) == SamplingParams(
        5, stop=("a", "b")
    )


def test_the_kind_of_activations_is_left_to_load_unless_asked_for():
    assert [parse("m", *argv).activations for argv in ([], ["--activations", "int8"])] == [None, "int8"]


def test_minus_one_is_no_limit_and_no_seed():
    assert sampling_params(parse("m", "-n", "-1", "-s", "-1")) == SamplingParams()


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ((), "a model is needed"),
        (("m", "hi", "there"), "unrecognized arguments: there"),
        (("-m", "m", "hi", "there"), "two models were given, 'hi' and 'm'"),
        (("m", "--top-k", "x"), "--top-k: invalid integer value: 'x'"),
        (("m", "--top-k", "1.5"), "--top-k: invalid integer value: '1.5'"),
        (("m", "--threads", "２"), "--threads: invalid integer value: '２'"),
        (("m", "-c", "1_024"), "--context: invalid integer value: '1_024'"),
        (("m", "-n", " 5"), "invalid integer value: ' 5'"),
        (("m", "--temp", "１.5"), "invalid number value: '１.5'"),
        (("m", "--top-p", "0_1"), "--top-p: invalid number value: '0_1'"),
        (("m", "--min-p", "x"), "--min-p: invalid number value: 'x'"),
        (("m", "--tempe", "1"), "unrecognized arguments: --tempe"),
        (("m", "-n"), "expected one argument"),
    ],
)
def test_wrong_usage_is_one_sentence(argv, message):
    with pytest.raises(BadRequest, match=message):
        parse(*argv)


def test_chat_takes_no_prompt():
    assert parse("m", command=chat_command).model == "m"
    with pytest.raises(BadRequest, match="two models"):
        parse("m", "-m", "n", command=chat_command)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--temp", "nan"], "temperature.*found nan"),
        (["--temp", "-1"], "temperature.*found -1.0"),
        (["--top-p", "1.5"], "top_p.*found 1.5"),
        (["--min-p", "-0.5"], "min_p.*found -0.5"),
        (["--top-k", "-3"], "top_k.*found -3"),
        (["-n", "-2"], "max_tokens.*found -2"),
        (["-s", "-2"], "seed.*found -2"),
        (["--stop", ""], "stop.*none of them empty"),
    ],
)
def test_bad_sampling_values_are_refused(flags, message):
    with pytest.raises(BadRequest, match=message):
        sampling_params(parse("m", *flags))


class Piped:
    """A standard input that is a pipe."""

    def __init__(self, raw):
        self.buffer = io.BytesIO(raw)

    def isatty(self):
        return False


@pytest.mark.parametrize(
    ("raw", "text"),
    [(b"hi\n", "hi"), (b"hi", "hi"), (b"hi\r\n", "hi"), (b"hi\n\n", "hi\n"), (b"", ""), ("é\n".encode(), "é")],
)
def test_piped_text_loses_one_newline(monkeypatch, raw, text):
    for given in ("-", None):
        monkeypatch.setattr("sys.stdin", Piped(raw))
        assert text_argument(given, None, "the prompt") == text


def test_a_file_is_read_as_a_pipe_is(tmp_path):
    (tmp_path / "prompt.txt").write_bytes(b"two\nlines\n")
    assert text_argument(None, str(tmp_path / "prompt.txt"), "the prompt") == "two\nlines"


def test_a_given_text_is_left_alone():
    assert text_argument("hi\n", None, "the prompt") == "hi\n"


def test_texts_that_are_not_utf8_are_refused(monkeypatch):
    monkeypatch.setattr("sys.stdin", Piped(b"ab\xff"))
    with pytest.raises(BadRequest, match="standard input: not UTF-8 text: byte 0xff at 2"):
        text_argument("-", None, "the prompt")
    with pytest.raises(BadRequest, match="the prompt is not UTF-8 text"):
        checked_text("a\udcff", "the prompt")


def test_two_texts_or_none_are_refused(monkeypatch):
    with pytest.raises(BadRequest, match="given twice"):
        text_argument("a", "b.txt", "the prompt")
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(BadRequest, match="the prompt is needed"):
        text_argument(None, None, "the prompt")


def test_a_message_names_the_flag_that_was_typed_and_no_other():
    parser = Parser("run MODEL", "answer")
    parser.add_argument("-n", "--max-tokens", dest="max_tokens")
    parser.add_argument("--repeat-last-n", dest="repeat_last_n")
    parser.add_argument("--samples")
    said = "max_tokens should be a whole number from 0, found -5"
    assert parser.in_flags(said, ["-n", "-5"]) == said.replace("max_tokens", "-n")
    assert parser.in_flags(said, ["--max-tokens=-5"]) == said.replace("max_tokens", "--max-tokens")
    for argv in ([], ["--max-tokens-more", "5"]):
        assert parser.in_flags(said, argv) == said
    assert parser.in_flags("repetition_window is wrong", ["--repeat-last-n", "-7"]) == "--repeat-last-n is wrong"
    assert parser.in_flags("n should be 1", ["--samples", "0"]) == "--samples should be 1"
    assert parser.in_flags("/tmp/n: no file", ["--samples", "0"]) == "/tmp/n: no file"
