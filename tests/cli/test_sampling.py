"""The sampling flags, and what `tinyinfer sampling` prints, which is also what the README shows."""

from __future__ import annotations

import dataclasses
import json
import re
import warnings
from pathlib import Path

import pytest

from tests.chain_models import say, write_chain_model
from tests.cli.commands import ROOT, tinyinfer
from tinyinfer.cli import main
from tinyinfer.cli.options import Parser
from tinyinfer.cli.run import run_command
from tinyinfer.cli.sampling import sampling_params
from tinyinfer.errors import BadRequest
from tinyinfer.sampling import SamplingParams


def params(*flags: str) -> SamplingParams:
    parser = Parser("run", "test")
    run_command(parser)
    return sampling_params(parser.parse(["m", *flags]))


FLAGS = {
    "--typical 0.5": {"typical_p": 0.5},
    "--top-nsigma 1.5": {"top_n_sigma": 1.5},
    "--top-nsigma -1": {},
    "--xtc-probability 0.5 --xtc-threshold 0.2": {"xtc_probability": 0.5, "xtc_threshold": 0.2},
    "--repeat-penalty 1.1 --repetition-window 9": {"repetition_penalty": 1.1, "repetition_window": 9},
    "--repeat-last-n 64": {"repetition_window": 64, "frequency_window": 64, "presence_window": 64},
    "--frequency-penalty -0.5 --presence-penalty 0.5": {"frequency_penalty": -0.5, "presence_penalty": 0.5},
    "--dry-multiplier 0.8 --dry-base 2 --dry-allowed-length 3 --dry-penalty-last-n 64": {
        "dry_multiplier": 0.8, "dry_base": 2, "dry_allowed_length": 3, "dry_window": 64},
    r"--dry-sequence-breaker \n --dry-sequence-breaker ;": {"dry_breakers": ["\n", ";"]},
    "--dry-sequence-breaker none": {"dry_breakers": []},
    "--mirostat 2 --mirostat-ent 3 --mirostat-lr 0.2": {"mirostat": 2, "mirostat_tau": 3, "mirostat_eta": 0.2},
    "--min-tokens 5": {"min_tokens": 5},
    "-l 5+1 --logit-bias 7-2.5": {"logit_bias": {5: 1, 7: -2.5}},
    "--banned-ids 5,7 --allowed-ids 1": {"banned_ids": [5, 7], "allowed_ids": [1]},
    "--samplers top_k;typ_p;temperature": {"order": ["top_k", "typical", "temperature"]},
    "--json-object": {"json": True},
    '-j {"type":"null"}': {"json_schema": {"type": "null"}},
    "--regex [a-z]+": {"regex": "[a-z]+"},
    "--choice yes --choice no": {"choice": ["yes", "no"]},
    "--logprobs 3 --prompt-logprobs 0 --logprobs-of sampled": {
        "logprobs": 3, "prompt_logprobs": 0, "logprobs_of": "sampled"},
}  # fmt: skip


@pytest.mark.parametrize(("flags", "values"), FLAGS.items(), ids=FLAGS)
def test_flags(flags, values):
    assert params(*flags.split()) == SamplingParams(**values)


def test_forms_from_files(tmp_path):
    schema, grammar = tmp_path / "schema.json", tmp_path / "grammar.lark"
    schema.write_text(' {"type": "null"}\n')
    grammar.write_text('start: "é"\n')
    for flag in ("-j", "--json-schema", "--json-schema-file"):
        assert params(flag, str(schema)) == SamplingParams(json_schema={"type": "null"})
    assert (
        params("--grammar-file", str(grammar))
        == params("--grammar", 'start: "é"')
        == SamplingParams(grammar='start: "é"')
    )
    grammar.write_bytes(b"\xff")
    with pytest.raises(BadRequest, match=r"grammar\.lark: not UTF-8 text"):
        params("--grammar-file", str(grammar))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--logit-bias 5", "like 15043.1 or 15043-1.5, found '5'"),
        ("--logit-bias 5+x", "found '5.x'"),
        ("--banned-ids 5,", "--banned-ids should be ids with commas"),
        ("--allowed-ids a", "--allowed-ids should be ids"),
        ("--samplers top_k;nothing", "order should name steps of .*found 'nothing'"),
        ("--samplers top_k --top-p 0.5", "order leaves out 'top_p'"),
        ("--repeat-last-n 5 --presence-window 3", "--repeat-last-n sets presence_window as well"),
        ("--mirostat 1", "mirostat should be 0 or 2, found 1"),
        ("--mirostat 2 --top-k 5", "mirostat takes the place of top_k"),
        ("--json-object --choice a", "an answer has one form, found both json and choice"),
        ("--choice a --ignore-eos", "ignore_eos goes on past the end"),
        ('-j {"a":1}', "json_schema: #/a is not supported"),
        ("--grammar a --grammar-file b", "the grammar was given twice"),
        ("--xtc-threshold 2", "xtc_threshold.*found 2.0"),
    ],
)
def test_bad_flags_are_refused(flags, message):
    with pytest.raises(BadRequest, match=message):
        params(*flags.split())


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return write_chain_model(tmp_path_factory.mktemp("model") / "chain", say("bé", after="a"))


@pytest.fixture
def call(capsys, monkeypatch):
    """Run a command in this process, which has the kernels already: exit code, standard output, standard error."""
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)  # which the command sets

    def run(*argv: object) -> tuple[int, str, str]:
        code = main([*map(str, argv), "-q"])
        return code, *capsys.readouterr()

    return run


def test_log_probabilities_as_json_have_the_bytes_of_half_characters(model, call):
    flags = ("run", model, "a", "--raw")
    record = json.loads(call(*flags, "--json", "--logprobs", "1", "--prompt-logprobs", "0", "-l", "98+1")[1])
    assert record["text"] == "bé"
    assert [token["bytes"] for token in record["logprobs"][:3]] == [[98], [0xC3], [0xA9]]
    assert [token["text"] for token in record["logprobs"][:3]] == ["b", "\ufffd", "\ufffd"]
    assert [token["top"][0]["id"] for token in record["logprobs"]] == record["ids"]
    assert record["prompt_logprobs"] == [None]
    assert record["sampling"]["logit_bias"] == {"98": 1.0}
    assert re.fullmatch(r"tinyinfer \d+\.\d+\.\d+", record["sampling"]["engine"])
    code, out, err = call(*flags, "--logprobs", "1")
    assert (code, out) == (2, "")
    assert "with --json only" in err


def test_samples(model, call):
    flags = ("run", model, "a", "--raw", "--samples", "3", "--temp", "1e-9", "-s", "5")
    code, out, err = call(*flags)
    assert (code, out) == (0, "bé\n" * 3)
    assert [f"sample {i} of 3, seed {i + 4}" in err for i in (1, 2, 3)] == [True] * 3
    assert [run["sampling"]["seed"] for run in json.loads(call(*flags, "--json")[1])] == [5, 6, 7]
    assert "--samples should be a whole number from 1" in call("run", model, "a", "--samples", "0")[2]


def test_verbose_shows_what_is_not_neutral(model, call):
    flags = ("run", model, "a", "--raw", "-v")
    err = call(*flags, "--temp", "0.5", "-s", "3", "--min-p", "0.2", "--banned-ids", "1")[2]
    assert "sampling    temperature 0.5, min_p 0.2, banned_ids (1,), seed 3\n" in err
    err = call(*flags, "--top-k", "5", "--frequency-penalty", "0.5")[2]
    assert "sampling    greedy, frequency_penalty 0.5\n" in err


def test_perplexity(model, call, tmp_path):
    text = tmp_path / "text"
    text.write_text("ab")
    record = json.loads(call("perplexity", model, "--text", text, "--json", "--against", model)[1])
    assert (record["tokens"], record["window"], record["stride"]) == (1, 512, 256)
    assert record["perplexity"] == pytest.approx(1, abs=0.01)  # a chain is sure of what follows
    assert record["perplexity_error"] is None
    assert (record["divergence"]["mean"], record["divergence"]["same_likeliest"]) == (pytest.approx(0, abs=1e-5), 1)
    text.write_text("abababab")
    out = call("perplexity", model, "-c", "64", "--stride", "16", "-f", text)[1]
    assert out.startswith("perplexity ")
    assert "scored         7 tokens in 1 windows of 64, stride 16" in out
    assert "\nsame likeliest 100.00 %" in call("perplexity", model, "-f", text, "--against", model)[1]


@pytest.mark.parametrize(
    ("flags", "text", "message"),
    [
        (["--stride", "0"], "abc", "--stride should be from 1"),
        (["-c", "1"], "abc", "at least 2 tokens"),
        (["-c", "9999"], "abc", "found 9999"),
        ([], "", "the text is empty"),
        ([], "a", "too few"),
    ],
)
def test_what_perplexity_refuses(model, call, tmp_path, flags, text, message):
    (tmp_path / "text").write_text(text)
    code, out, err = call("perplexity", model, "--text", tmp_path / "text", *flags)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err


def test_a_text_can_be_piped_in(model):
    done = tinyinfer("perplexity", model, input="ab\n")
    assert (done.returncode, done.stdout.split()[:2]) == (0, ["perplexity", "1.0000"])


def test_the_readme_shows_what_the_command_prints():
    printed = tinyinfer("sampling", "--md").stdout.strip()
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert printed in readme


def test_every_parameter_has_a_meaning_and_a_flag():
    shown = tinyinfer("sampling").stdout
    for field in dataclasses.fields(SamplingParams):
        (line,) = re.findall(rf"^{field.name} .*$", shown, re.MULTILINE)
        assert len(line) > 80
        assert bool(re.search(r" --?[a-z]", line)) == (field.name != "processors")
