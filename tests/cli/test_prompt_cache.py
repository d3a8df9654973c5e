"""`--prompt-cache`, as processes that follow one another."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.chain_models import say, write_chain_model
from tests.cli.commands import refused, tinyinfer

SYSTEM = ("--system", "Be brief, and answer in one word where that is enough.")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    write_chain_model(folder / "hi", say("Hi!"))
    write_chain_model(folder / "other", say("Ho!"))
    return folder


def run(model: Path, file: Path, prompt: str, *more: str) -> dict:
    done = tinyinfer("run", model, prompt, *SYSTEM, "--prompt-cache", file, "--json", *more)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["text"].startswith("Hi!"[:2])
    return json.loads(done.stdout)["timings"]


def test_what_prompts_have_in_common_is_run_once(models: Path, tmp_path: Path):
    file = tmp_path / "cache"
    first = run(models / "hi", file, "Hello")
    assert first["cached_tokens"] == 0
    again = run(models / "hi", file, "Hello")
    assert again["cached_tokens"] == again["prompt_tokens"] - 1
    other = run(models / "hi", file, "How do you do?")
    assert 60 < other["cached_tokens"] < other["prompt_tokens"] - 10
    kept = file.read_bytes()
    read_only = run(models / "hi", file, "Goodbye", "--prompt-cache-ro")
    assert read_only["cached_tokens"] > 60
    assert file.read_bytes() == kept
    assert [path.name for path in tmp_path.iterdir()] == ["cache"]


def test_chat_begins_from_it_and_keeps_it(models: Path, tmp_path: Path):
    file = tmp_path / "cache"
    run(models / "hi", file, "Hello")
    before = file.read_bytes()
    done = tinyinfer("chat", models / "hi", *SYSTEM, "-v", "--prompt-cache", file, input="Hello\nGood morning\n")
    assert (done.returncode, done.stdout) == (0, "Hi!\nHi!\n")
    assert done.stderr.count("more were cached") == 2
    assert file.read_bytes() != before
    after = file.read_bytes()
    assert tinyinfer("chat", models / "hi", "--prompt-cache", file, input="/reset\n").returncode == 0
    assert file.read_bytes() == after  # nothing was said, and so nothing is kept in its place


def test_a_file_of_another_model_is_refused_and_left_alone(models: Path, tmp_path: Path):
    file = tmp_path / "cache"
    run(models / "hi", file, "Hello")
    before = file.read_bytes()
    for command, given in (("run", "Hello"), ("chat", None)):
        argv = [command, models / "other", *filter(None, [given]), "--prompt-cache", file]
        said = refused(tinyinfer(*argv, input="Hello\n"))
        assert f"{file}: saved with another model ('hi')" in said
    said = refused(tinyinfer("run", models / "hi", "Hello", "--prompt-cache", file, "--kv-dtype", "float32"))
    assert "another dtype of keys and values: expected float32, found float16" in said
    file.write_bytes(before[:-1])
    assert "truncated?" in refused(tinyinfer("run", models / "hi", "Hello", "--prompt-cache", file))
    assert file.read_bytes() == before[:-1]
    file.write_text("my letter to the editor, not to be overwritten")
    assert str(file) in refused(tinyinfer("run", models / "hi", "Hello", "--prompt-cache", file))
    assert file.read_text().startswith("my letter")


def test_flags_that_make_no_sense(models: Path, tmp_path: Path):
    file = tmp_path / "cache"
    assert "needs a file" in refused(tinyinfer("run", models / "hi", "Hello", "--prompt-cache-ro"))
    argv = ["--prompt-cache", file, "--prompt-cache-ro"]
    assert "there is no such file" in refused(tinyinfer("run", models / "hi", "Hello", *argv))
    argv = ["--prompt-cache", file, "--samples", "2"]
    assert "--samples makes several" in refused(tinyinfer("run", models / "hi", "Hello", *argv))
    assert "can't be read" in refused(tinyinfer("run", models / "hi", "Hello", "--prompt-cache", tmp_path))
    assert not file.exists()
