"""`tinyinfer run`, as a process with pipes and signals."""

import json
import os
import signal
import subprocess
import sys

import numpy as np
import pytest

from tests.chain_models import TEMPLATE, say, write_chain_model
from tests.cli.commands import COMMAND, environment, refused, tinyinfer
from tests.text.tiny_tokenizers import byte_level_tokenizer_json
from tinyinfer.cli import main
from tinyinfer.cli.output import sampling_line
from tinyinfer.sampling import SamplingParams

# After a rendered chat, which ends in a newline, the model says "Hi!"; after a bare "a" it says "bcd".
CHAIN = say("Hi!") | say("bcd", after="a")
BOS = 270  # <s>


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    write_chain_model(folder / "hi", CHAIN)
    write_chain_model(folder / "plain", CHAIN, template=None)
    write_chain_model(folder / "endless", say("talk ", end=None), context=100_000)
    return folder


def test_the_answer_is_on_standard_output_and_the_timings_are_not(models):
    done = tinyinfer("run", models / "hi", "Hello")
    assert (done.returncode, done.stdout) == (0, "Hi!\n")
    for word in ("prefill", "decode", "tokens/s", "first text"):
        assert word in done.stderr
    assert tinyinfer("run", models / "hi", "Hello", "-q").stderr == ""


@pytest.mark.parametrize("argv", [["-"], []])
def test_the_prompt_can_be_piped_in(models, argv):
    assert tinyinfer("run", models / "hi", *argv, input="Hello\n").stdout == "Hi!\n"


def test_the_prompt_can_come_from_a_file(models, tmp_path):
    (tmp_path / "prompt").write_text("a\n")
    assert tinyinfer("run", models / "hi", "--raw", "-f", tmp_path / "prompt").stdout == "bcd\n"


def test_raw_or_without_a_template_the_prompt_is_continued(models):
    assert tinyinfer("run", models / "hi", "a", "--raw").stdout == "bcd\n"
    assert tinyinfer("run", models / "plain", "a").stdout == "bcd\n"


def test_json_holds_everything(models):
    done = tinyinfer("run", models / "hi", "a", "--raw", "--json", "--temp", "1e-9", "--seed", "7", "--top-k", "5")
    record = json.loads(done.stdout)
    assert (record["text"], record["ids"][:3], record["prompt_ids"]) == ("bcd", [98, 99, 100], [97])
    assert (record["finish_reason"], record["stop_reason"]) == ("stop", record["ids"][-1])
    assert (record["sampling"]["seed"], record["sampling"]["top_k"], record["sampling"]["top_p"]) == (7, 5, 1.0)
    assert record["timings"]["prompt_tokens"] == 1
    assert done.stderr == ""


def test_json_reports_the_seed_that_was_drawn(models):
    runs = [json.loads(tinyinfer("run", models / "hi", "a", "--raw", "--json", "--temp", "1").stdout) for _ in range(2)]
    assert all(isinstance(run["sampling"]["seed"], int) for run in runs)
    assert runs[0]["sampling"]["seed"] != runs[1]["sampling"]["seed"]  # equal once in 2**32


def test_max_tokens_and_stop(models):
    done = tinyinfer("run", models / "hi", "a", "--raw", "--json", "-n", "2")
    assert (json.loads(done.stdout)["text"], json.loads(done.stdout)["finish_reason"]) == ("bc", "length")
    done = tinyinfer("run", models / "hi", "a", "--raw", "--json", "--stop", "cd")
    assert (json.loads(done.stdout)["text"], json.loads(done.stdout)["finish_reason"]) == ("b", "stop")
    assert json.loads(done.stdout)["stop_reason"] == "cd"


def test_the_best_of_a_beam_search(models):
    argv = ["run", models / "hi", "a", "--raw", "-n", "9", "--num-beams", "3"]
    done = tinyinfer(*argv)
    assert (done.returncode, done.stdout) == (0, "bcd\n")
    assert "decode" in done.stderr
    record = json.loads(tinyinfer(*argv, "--json", "--length-penalty", "0", "--early-stopping", "true").stdout)
    assert (record["text"], record["finish_reason"]) == ("bcd", "stop")
    expected = {"num_beams": 3, "length_penalty": 0.0, "early_stopping": True, "num_return_sequences": 1}
    assert record["beam_search"] == expected
    assert record["score"] < 0
    several = tinyinfer(*argv, "--num-return-sequences", "2", "-q")
    assert several.stdout.startswith("bcd\n")
    assert several.stdout.count("\n") == 2
    assert [line.split(", ")[0] for line in several.stderr.splitlines()] == ["beam 1 of 2", "beam 2 of 2"]
    records = json.loads(tinyinfer(*argv, "--num-return-sequences", "2", "--json").stdout)
    assert records[0]["score"] >= records[1]["score"]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--length-penalty", "2"], "--length-penalty is about a beam search: give --num-beams as well"),
        (["--num-beams", "2", "--samples", "2"], "--samples draws and --num-beams does not"),
        (["--num-beams", "2", "--speculate", "ngram"], "a beam search is not drafted"),
        (["--num-beams", "0"], "--num-beams should be a whole number from 1"),
        (["--num-beams", "2", "--temp", "1"], "--temp has no place in a beam search"),
        (["--num-beams", "2", "--early-stopping", "sometimes"], "--early-stopping"),
    ],
    ids=str,
)
def test_beam_searches_that_are_refused(models, flags, words, capsys):
    assert main(["run", str(models / "hi"), "a", "--raw", *flags]) == 2
    assert words in capsys.readouterr().err


def test_one_token_allowed_is_a_length(models):
    for argv in (["a", "--raw"], ["Hello"]):
        record = json.loads(tinyinfer("run", models / "hi", *argv, "--json", "-n", "1").stdout)
        assert (record["finish_reason"], len(record["ids"])) == ("length", 1)


def test_a_chat_has_the_bos_that_its_template_writes_and_raw_text_one(tmp_path):
    tokenizer = {"bos_token": "<s>", "eos_token": "<|im_end|>", "add_bos_token": True}
    parts = {"tokenizer_json": byte_level_tokenizer_json(bos=True), "tokenizer_config": tokenizer}
    write_chain_model(tmp_path / "bos", CHAIN, template="{{ bos_token }}" + TEMPLATE, **parts)
    write_chain_model(tmp_path / "none", CHAIN, template=TEMPLATE, **parts)
    for name, argv, count in (("bos", ["x"], 1), ("none", ["x"], 0), ("bos", ["Hi", "--raw"], 1)):
        record = json.loads(tinyinfer("run", tmp_path / name, *argv, "--json").stdout)
        assert record["prompt_ids"].count(BOS) == count
        assert record["prompt_ids"][:count] == [BOS] * count
        assert record["timings"]["prompt_tokens"] == len(record["prompt_ids"])


def test_verbose_shows_the_prompt_as_the_model_read_it(models):
    done = tinyinfer("run", models / "hi", "Hello", "--system", "Be kind", "-v")
    assert r"<|im_start|>system\nBe kind<|im_end|>\n<|im_start|>user\nHello<|im_end|>" in done.stderr
    assert "greedy" in done.stderr


def test_an_empty_prompt_is_refused(models):
    assert "the prompt is empty" in refused(tinyinfer("run", models / "hi", ""))
    assert "empty" in refused(tinyinfer("run", models / "plain", ""))
    assert "the prompt is empty" in refused(tinyinfer("run", models / "hi", input=""))


def test_a_system_message_needs_a_template(models):
    assert "this model has none" in refused(tinyinfer("run", models / "plain", "a", "--system", "x"))
    assert "--raw switches it off" in refused(tinyinfer("run", models / "hi", "a", "--raw", "--system", "x"))


def test_a_template_that_refuses_is_quoted(models):
    assert "System role refused" in refused(tinyinfer("run", models / "hi", "a", "--system", "forbidden"))


def test_a_prompt_that_is_too_long_is_refused_with_both_numbers(models):
    message = refused(tinyinfer("run", models / "hi", "--raw", "x" * 600))
    assert "600" in message
    assert "512" in message


def test_a_closed_standard_error_puts_nothing_among_the_text(models):
    argv = [*COMMAND, "run", models / "hi", "a", "--raw"]
    done = subprocess.run(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, preexec_fn=lambda: os.close(2), env=environment()
    )
    assert (done.returncode, done.stdout) == (0, b"bcd\n")


def test_the_context_can_be_made_smaller_and_not_larger(models):
    message = refused(tinyinfer("run", models / "hi", "--raw", "-c", "3", "abcd"))
    assert "4 tokens" in message
    assert "context of 3" in message
    assert "found 1000" in refused(tinyinfer("run", models / "hi", "-c", "1000", "a"))
    assert tinyinfer("run", models / "hi", "--raw", "-c", "0", "a").stdout == "bcd\n"


def test_threads_are_set_before_the_libraries_that_read_them_are_loaded(models):
    program = (
        "import os, sys; from tinyinfer.cli import main; main(sys.argv[1:]);"
        "print(os.environ['OMP_NUM_THREADS'], os.environ['OPENBLAS_NUM_THREADS'])"
    )
    argv = [sys.executable, "-c", program, "run", models / "hi", "a", "--raw", "-t", "1"]
    done = subprocess.run(argv, capture_output=True, text=True, stdin=subprocess.DEVNULL, env=environment())
    assert done.stdout == "bcd\n1 1\n"
    assert "-t should be a whole number from 1 to 1024, found 0" in refused(
        tinyinfer("run", models / "hi", "a", "-t", "0")
    )


def test_a_warning_is_a_sentence_too(models, tmp_path):
    write_chain_model(tmp_path / "odd", CHAIN, tensors={"model.extra.weight": np.zeros(1, np.float32)})
    done = tinyinfer("run", tmp_path / "odd", "a", "--raw", "-q")
    assert (done.returncode, done.stdout) == (0, "bcd\n")
    assert done.stderr.startswith("tinyinfer: warning: ")
    assert done.stderr.count("\n") == 1
    assert "model.extra.weight" in done.stderr


def start(*argv):
    return subprocess.Popen(
        [*COMMAND, *map(str, argv)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    )


def test_text_is_streamed_and_ctrl_c_ends_it_without_a_traceback(models):
    process = start("run", models / "endless", "Hello")
    assert os.read(process.stdout.fileno(), 4)  # what is there before the end was streamed
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert b"Traceback" not in errors


INTERRUPTED_IMPORT = """
import sys
from tinyinfer.cli import main

class Interrupt:
    def find_spec(self, name, path, target=None):
        if name == sys.argv[1]:
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupt())
sys.exit(main(sys.argv[2:]))
"""


@pytest.mark.parametrize("module", ["argparse", "tinyinfer.cli.run", "tinyinfer.llm", "numpy", "tokenizers", "jinja2"])
def test_ctrl_c_during_an_import_leaves_no_traceback(models, module):
    argv = [sys.executable, "-c", INTERRUPTED_IMPORT, module, "run", str(models / "hi"), "Hello"]
    done = subprocess.run(argv, capture_output=True, text=True, stdin=subprocess.DEVNULL, env=environment())
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_a_reader_that_goes_away_ends_it_quietly(models):
    process = start("run", models / "endless", "Hello")
    assert os.read(process.stdout.fileno(), 4)
    process.stdout.close()
    errors = process.stderr.read()
    assert process.wait(timeout=30) == 141
    assert errors == b""


def test_a_full_disk_is_one_sentence(models):
    if not os.path.exists("/dev/full"):
        pytest.skip("this system has no /dev/full")
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [*COMMAND, "run", models / "hi", "Hello"],
            stdin=subprocess.DEVNULL,
            stdout=full,
            stderr=subprocess.PIPE,
            env=environment(),
        )
    assert done.returncode == 2
    assert done.stderr == b"tinyinfer: error: No space left on device\n"


def test_an_answer_of_a_given_form(models, tmp_path):
    pytest.importorskip("llguidance")
    schema = tmp_path / "schema.json"
    schema.write_text(
        '{"type": "object", "properties": {"a": {"enum": [1, 22]}}, "required": ["a"], "additionalProperties": false}'
    )
    done = tinyinfer("run", models / "hi", "Hello", "--json-schema", schema, "-n", 200, "--temp", 1)
    assert json.loads(done.stdout)["a"] in (1, 22)
    done = tinyinfer("run", models / "hi", "Hello", "--choice", "Ha", "--choice", "Hi!", "--json")
    record = json.loads(done.stdout)
    assert (record["text"], record["finish_reason"]) == ("Hi!", "stop")
    assert record["sampling"]["choice"] == ["Ha", "Hi!"]
    schema.write_text('{"items": {"uniqueItems": true}}')
    expected = "tinyinfer: error: --json-schema: #/items/uniqueItems is not supported: it could not be enforced\n"
    assert refused(tinyinfer("run", models / "hi", "Hello", "--json-schema", schema)) == expected
    assert "No such file" in refused(tinyinfer("run", models / "hi", "Hello", "--json-schema", tmp_path / "none"))


def test_verbose_says_what_form_the_answer_is_held_to():
    assert sampling_line(SamplingParams(regex="a+").resolved({})) == "sampling    greedy, regex a+"
