"""`tinyinfer quantize`: what it writes and says, and what it refuses."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.checkpoint.gguf_files import write_types
from tests.cli.commands import environment, refused, tinyinfer
from tests.lab.course.tiny_settings import tiny_setting
from tests.tiny_models import GOLDEN, random_model
from tinyinfer.checkpoint.source import open_checkpoint, tensor_forms
from tinyinfer.quant import FORMS

UP = "model.layers.0.mlp.up_proj.weight"
KINDS = {"blk.0.attn_q": "Q4_K", "blk.0.ffn_down": "Q6_K", "output": "Q8_0", "blk.0.ffn_up": "Q5_0"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "plain"
    random_model(folder, tie_word_embeddings=True)
    return folder


def forms(folder: Path) -> dict[str, str]:
    return {name: form.name for name, form in tensor_forms(open_checkpoint(folder).tensors).items()}


def test_it_writes_a_folder_and_says_how_exact_it_is(model: Path, tmp_path: Path):
    done = tinyinfer("quantize", model, tmp_path / "small")
    assert (done.returncode, done.stdout) == (0, f"{tmp_path / 'small'}\n")
    started, summary = done.stderr.splitlines()
    assert started.startswith("quantizing to small (")
    assert " became " in summary
    assert "bits a weight; relative error int8-g32 0.00" in summary
    found = forms(tmp_path / "small")
    assert found.pop("model.embed_tokens.weight") == "int8-g32"
    assert set(found.values()) == {"int4-g32"}
    assert len(found) == 3 * 7


@pytest.mark.parametrize(
    ("flags", "form"),
    [
        (["--scheme", "nf4", "--double"], "nf4-g64-double"),
        (["--scheme", "int8", "--group-size", "0"], "int8-row"),
        (["--scheme", "int5", "--group-size", "64"], "int5-g64"),
        (["--group-size", "128", "--symmetric"], "int4-g128-symmetric"),
    ],
)
def test_flags(model: Path, tmp_path: Path, flags: list[str], form: str):
    done = tinyinfer("quantize", model, tmp_path / "out", "-q", *flags, "--head", "bfloat16", "--keep", r"layers\.[12]")
    assert (done.returncode, done.stderr) == (0, "")
    found = forms(tmp_path / "out")
    assert found[UP] == form
    assert all(name.startswith("model.layers.0.") for name in found)
    facts = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    assert facts["form"] == form
    assert facts["others"]["model.embed_tokens.weight"] == "bfloat16"


def test_what_is_quantized_already_is_kept_or_made_anew(tmp_path: Path):
    write_types(tmp_path / "mixed.gguf", KINDS)
    done = tinyinfer("quantize", tmp_path / "mixed.gguf", tmp_path / "small", "--scheme", "int8")
    # int4 and int5 become int8; the other two are int8, among them the head
    assert "quantized before, in another form: 2;" in done.stderr
    assert set(forms(tmp_path / "small").values()) == {"int8-g32"}
    done = tinyinfer("quantize", tmp_path / "small", tmp_path / "same", "--scheme", "int8")
    assert "quantized before" not in done.stderr
    assert (tmp_path / "small" / "model.safetensors").read_bytes() == (
        tmp_path / "same" / "model.safetensors"
    ).read_bytes()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--scheme", "int3"], "invalid choice: 'int3'"),
        (["--group-size", "33"], "groups of 33 does not exist"),
        (["--head", "int3"], "--head should be one of"),
        (["--embedding", "int4"], "embedding: this model has no head beside it"),
        (["--scheme", "int8", "--symmetric"], "32, symmetric does not exist; int8-g32, int8-row do"),
        (["--keep", "["], "regular expression"),
        (["--keep", "absent"], "no tensor has a name"),
    ],
)
def test_impossible_flags_are_one_sentence(model: Path, tmp_path: Path, flags: list[str], message: str):
    assert message in refused(tinyinfer("quantize", model, tmp_path / "out", "-q", *flags))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("method", ["gptq", "awq"])
def test_codes_chosen_by_what_matrices_meet(tmp_path: Path, method: str):
    tiny_setting(tmp_path / "model", num_hidden_layers=2, tie_word_embeddings=True)
    text = "A text of letters and spaces, which says nothing of importance. " * 8
    (tmp_path / "text.txt").write_text(text)
    flags = ["--group-size", "64", "--method", method, "--calibration", tmp_path / "text.txt"]
    done = tinyinfer("quantize", tmp_path / "model", tmp_path / "small", *flags)
    assert (done.returncode, done.stdout) == (0, f"{tmp_path / 'small'}\n")
    assert f"bits a weight, by {method}; relative error int8-g32 0.00" in done.stderr
    facts = json.loads((tmp_path / "small" / "config.json").read_text())["quantization_config"]
    assert (facts["form"], facts["method"]) == ("int4-g64", method)
    assert facts["calibration"]["sha256"] == hashlib.sha256(text.encode()).hexdigest()
    assert tinyinfer("run", tmp_path / "small", "--prompt", "a", "--max-tokens", "3", "-q").returncode == 0


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--method", "best"], "invalid choice: 'best'"),
        (["--calibration", "x.txt"], "--calibration is for --method gptq and awq"),
        (["--method", "gptq", "--scheme", "nf4"], "gptq is for int4 and int5, found nf4"),
        (["--method", "awq", "--calibration", "absent.txt"], "absent.txt"),
        (["--method", "gptq", "--calibration", os.devnull], "from 128 to 32,768 tokens, found 0"),
    ],
)
def test_methods_that_can_not_be_had(tmp_path: Path, flags: list[str], message: str):
    tiny_setting(tmp_path / "model")
    assert message in refused(tinyinfer("quantize", tmp_path / "model", tmp_path / "out", "-q", *flags))
    assert not (tmp_path / "out").exists()


def test_info_shows_what_was_done_and_what_could_be(model: Path, tmp_path: Path):
    assert tinyinfer("quantize", model, tmp_path / "out", "-q").returncode == 0
    shown = tinyinfer("info", tmp_path / "out").stdout
    assert "quantization" in shown
    assert "int8-g32 0.00" in shown
    facts = json.loads(tinyinfer("info", tmp_path / "out", "--json").stdout)
    assert set(facts["weight_bytes_by_dtype"]) == {"int4-g32", "int8-g32", "float32"}
    assert "schemes" not in facts
    assert json.loads(tinyinfer("info", model, "--json").stdout)["quantization"] is None
    found = json.loads(tinyinfer("info", model, "--json", "--schemes").stdout)["schemes"]
    assert [one["form"] for one in found] == list(FORMS)
    shown = tinyinfer("info", model, "--schemes").stdout
    assert all(f" {name} " in shown for name in FORMS)


def test_info_says_what_becomes_of_a_gguf_files_types(tmp_path: Path):
    write_types(tmp_path / "mixed.gguf", KINDS)
    shown = tinyinfer("info", tmp_path / "mixed.gguf").stdout
    lines = {words[0]: line for line in shown.splitlines() if (words := line.removeprefix("in the file").split())}
    assert lines["Q8_0"].endswith(" as int8-g32: 8.5 bits a weight, 10.9 kB, exact")
    assert "1 tensor as int4-g32: 5 bits a weight, 41 kB, relative error 0.00" in lines["Q4_K"]
    assert "relative error 0.00" in lines["Q6_K"]
    assert lines["Q5_0"].endswith("exact")
    facts = json.loads(tinyinfer("info", tmp_path / "mixed.gguf", "--json", "--schemes").stdout)
    assert sum(one["bytes"] for one in facts["gguf_types"]) == facts["weight_bytes"]
    found = {one["type"]: one for one in facts["gguf_types"]}
    assert set(found) == {"Q4_K", "Q6_K", "Q8_0", "Q5_0", "F32"}
    assert found["Q8_0"]["relative_error"] == 0
    assert [one["form"] for one in facts["schemes"]] == list(FORMS)
    assert "gguf_types" not in json.loads(tinyinfer("info", GOLDEN / "llama", "--json").stdout)


def test_convert_keeps_what_is_quantized_unless_a_dtype_is_asked_for(tmp_path: Path):
    write_types(tmp_path / "mixed.gguf", KINDS)
    assert tinyinfer("convert", tmp_path / "mixed.gguf", tmp_path / "kept", "-q").returncode == 0
    assert tinyinfer("convert", tmp_path / "mixed.gguf", tmp_path / "wide", "-q", "--dtype", "float32").returncode == 0
    found = forms(tmp_path / "kept")
    assert (found.pop("model.layers.0.self_attn.q_proj.weight"), found.pop(UP)) == ("int4-g32", "int5-g32-symmetric")
    assert set(found.values()) == {"int8-g32"}
    assert forms(tmp_path / "wide") == {}
    assert "int8-g32 0.00" in tinyinfer("info", tmp_path / "kept").stdout


HALF_WAY = """
import sys, time
from tinyinfer.checkpoint import quantized
from tinyinfer.cli import main

def stop(*_):
    print("half way", flush=True)
    time.sleep(600)

quantized.write_texts = stop
sys.exit(main(["quantize", *sys.argv[1:], "-q"]))
"""


@pytest.mark.skipif(os.name == "nt", reason="signals of Unix")
def test_what_ends_half_way_leaves_nothing_for_good(model: Path, tmp_path: Path):
    def start() -> subprocess.Popen:
        argv = [sys.executable, "-c", HALF_WAY, model, tmp_path / "out"]
        process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment())
        assert process.stdout.readline() == "half way\n"
        return process

    def there() -> list[str]:
        return sorted(path.name for path in tmp_path.iterdir())

    with start() as process:
        partial = there()
        with start() as killed:
            assert len(there()) == 2
            killed.kill()
        assert len(there()) == 2
        assert tinyinfer("quantize", model, tmp_path / "out", "-q").returncode == 0
        assert there() == [*partial, "out"]  # what is under way stays, what was killed is gone
        process.terminate()
        assert process.communicate(timeout=30) == ("", "")
        assert process.returncode == 143
    assert there() == ["out"]


def test_a_folder_that_is_there_and_a_model_that_is_not(model: Path, tmp_path: Path):
    assert "already there" in refused(tinyinfer("quantize", model, model, "-q"))
    assert "no/such" in refused(tinyinfer("quantize", "/no/such.gguf", tmp_path / "out"))
    assert "required: OUT" in refused(tinyinfer("quantize", model))
