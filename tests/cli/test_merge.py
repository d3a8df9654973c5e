"""`tinyinfer merge`, and --lora of the commands that run a model."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.checkpoint.test_adapters import ADAPTERS
from tests.cli.commands import refused, tinyinfer
from tests.tiny_models import GOLDEN
from tinyinfer import LLM, load
from tinyinfer.checkpoint.source import open_checkpoint, stored_bytes
from tinyinfer.cli import main

ALL, PATTERNS = ADAPTERS / "llama-all", ADAPTERS / "llama-patterns"
IDS = list(range(3, 27))


def logits(folder: Path, **how: object) -> np.ndarray:
    return load(folder, kv_dtype="float32", **how).forward(IDS)


def test_merge_writes_a_plain_folder(tmp_path: Path):
    done = tinyinfer("merge", GOLDEN / "llama", tmp_path / "out", "--lora", ALL, "--lora", f"{PATTERNS}:0.5")
    assert (done.returncode, done.stdout) == (0, f"{tmp_path / 'out'}\n")
    assert done.stderr.startswith("writing out (")
    before, after = (open_checkpoint(folder) for folder in (GOLDEN / "llama", tmp_path / "out"))
    assert stored_bytes(after.tensors) == stored_bytes(before.tensors)  # bfloat16 stays bfloat16
    live = logits(GOLDEN / "llama", lora={ALL: 1.0, PATTERNS: 0.5})
    assert np.abs(logits(tmp_path / "out") - live).max() < 0.05  # weights rounded to 2^-9 of themselves
    assert np.abs(logits(GOLDEN / "llama") - live).max() > 1


@pytest.mark.parametrize(("dtype", "bound"), [("float32", 5e-5), ("float16", 0.01)])
def test_merge_to_another_dtype(tmp_path: Path, dtype: str, bound: float):
    out = tmp_path / "out"
    assert main(["merge", str(GOLDEN / "llama"), str(out), "--lora", str(ALL), "--dtype", dtype, "-q"]) == 0
    assert stored_bytes(open_checkpoint(out).tensors).keys() == {dtype}
    assert np.abs(logits(out) - logits(GOLDEN / "llama", lora=ALL)).max() < bound


def test_merge_into_a_quantized_model(tmp_path: Path):
    """It becomes what its codes say, plus the adapter, in float32."""
    small, out = tmp_path / "small", tmp_path / "out"
    assert main(["quantize", str(GOLDEN / "llama"), str(small), "--scheme", "int8", "-q"]) == 0
    assert main(["merge", str(small), str(out), "--lora", str(ALL), "-q"]) == 0
    assert "quantization_config" not in json.loads((out / "config.json").read_text())
    assert np.abs(logits(out) - logits(small, activations="f32", lora=ALL)).max() < 5e-5


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ([], "--lora"),
        (["--lora", "nowhere"], "nowhere: no such folder"),
        (["--lora", str(ADAPTERS / "gpt2-conv")], "is no module of LlamaForCausalLM"),
        (["--lora", str(ADAPTERS / "refused-dora")], "DoRA"),
        (["--lora", str(ALL), "--lora", f"{ALL}:2"], "was given twice"),
        (["--lora", f"{ALL}:inf"], "the scale should be a number, found inf"),
        (["--lora", str(ALL), "--dtype", "int8"], "--dtype"),
    ],
    ids=str,
)
def test_merges_that_are_refused_leave_nothing(
    tmp_path: Path, flags: list[str], words: str, capsys: pytest.CaptureFixture
):
    assert main(["merge", str(GOLDEN / "llama"), str(tmp_path / "out"), *flags]) == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_merge_does_not_write_over_what_is_there(tmp_path: Path):
    (tmp_path / "mine").write_text("")
    assert "not an empty folder" in refused(tinyinfer("merge", GOLDEN / "llama", tmp_path, "--lora", ALL))


def test_lora_of_a_command_that_loads(monkeypatch: pytest.MonkeyPatch):
    """The flag reaches `load` with paths and scales; a colon that no number follows is part of the path."""
    from tinyinfer.cli.options import Parser, add_lora, lora_scales

    parser = Parser("run MODEL", "run")
    add_lora(parser)
    given = ["--lora", "a", "--lora", "b/c:0.25", "--lora", "d:e", "--lora", "f:-1e-1", "--lora", r"C:\g:2"]
    expected = {"a": 1.0, "b/c": 0.25, "d:e": 1.0, "f": -0.1, r"C:\g": 2.0}
    assert lora_scales(parser.parse(given)) == expected
    assert lora_scales(parser.parse([])) == {}


def test_load_model_passes_adapters_on():
    from tinyinfer.cli.options import Parser, add_loading, add_model, load_model

    parser = Parser("run MODEL", "run")
    add_model(parser)
    add_loading(parser, "more")
    args = ["-q", "--kv-dtype", "float32", str(GOLDEN / "llama")]
    llm: LLM = load_model(parser.parse([*args, "--lora", f"{PATTERNS}:0.5"]))
    assert np.abs(llm.forward(IDS) - logits(GOLDEN / "llama", lora={PATTERNS: 0.5})).max() < 1e-5
