"""Hugging Face folders: which files count, what of them is believed, and folders written whole or not at all."""

from __future__ import annotations

import errno
import json
import pickle
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from tests.tiny_models import ARCHITECTURES, GOLDEN, random_model, write_model
from tinyinfer.checkpoint.safetensors import BFLOAT16, open_safetensors, to_float32
from tinyinfer.checkpoint.source import Checkpoint, LazyTensors, open_checkpoint, tensor_layout, write_folder
from tinyinfer.errors import BadCheckpoint, BadRequest, ModelNotFound

INDEX = "model.safetensors.index.json"
SHARDS = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]


def save(path: Path, **tensors: float) -> None:
    safetensors.numpy.save_file({name: np.float32([value]) for name, value in tensors.items()}, path)


def folder_of(tmp_path: Path, index: Any = None, **files: dict[str, float]) -> Path:
    """A folder with config.json and these weight files ("_" for "-", without the suffix)."""
    (tmp_path / "config.json").write_text("{}")
    for name, tensors in files.items():
        save(tmp_path / f"{name.replace('_', '-')}.safetensors", **tensors)
    if index is not None:
        (tmp_path / INDEX).write_text(json.dumps(index))
    return tmp_path


def values(folder: Path) -> dict[str, float]:
    return {name: float(array[0]) for name, array in open_checkpoint(folder).tensors.items()}


# ---- which weight files count


def test_one_file_whatever_its_name(tmp_path: Path):
    assert values(folder_of(tmp_path, weights={"a": 1})) == {"a": 1}


def test_model_safetensors_wins_over_strays(tmp_path: Path):
    folder = folder_of(tmp_path, model={"a": 1}, consolidated={"a": 2, "b": 2}, adapter_model={"c": 3})
    assert values(folder) == {"a": 1}


def test_shards_without_an_index(tmp_path: Path):
    folder = folder_of(
        tmp_path, model_00001_of_00002={"a": 1}, model_00002_of_00002={"b": 2}, consolidated={"a": 9, "c": 9}
    )
    assert values(folder) == {"a": 1, "b": 2}


@pytest.mark.parametrize(
    "files",
    [
        {"model_00001_of_00002": {"a": 1}},
        {"model_00002_of_00002": {"a": 1}},
        {"model_00001_of_00003": {"a": 1}, "model_00003_of_00003": {"b": 1}},
        {"model_00000_of_00002": {"a": 1}, "model_00001_of_00002": {"b": 1}},
        {"model_00001_of_00002": {"a": 1}, "model_00002_of_00003": {"b": 1}},
        {"model_00001_of_00002": {"a": 1}, "other_00002_of_00002": {"b": 1}},
        {"model_00000_of_00000": {"a": 1}},
    ],
)
def test_a_shard_too_few_or_of_another_model(tmp_path: Path, files: dict):
    with pytest.raises(BadCheckpoint, match="expected shards 1 to"):
        open_checkpoint(folder_of(tmp_path, **files))


def test_a_tensor_in_two_shards_without_an_index(tmp_path: Path):
    folder = folder_of(tmp_path, model_00001_of_00002={"a": 1}, model_00002_of_00002={"a": 2})
    with pytest.raises(BadCheckpoint, match="'a' stands in another file too"):
        open_checkpoint(folder)


def test_several_files_and_nothing_to_choose_by(tmp_path: Path):
    with pytest.raises(
        BadCheckpoint, match=r"no model\.safetensors\.index\.json .* one\.safetensors, two\.safetensors"
    ):
        open_checkpoint(folder_of(tmp_path, one={"a": 1}, two={"b": 2}))


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "consolidated.00.pth"])
def test_pickles_are_not_opened(tmp_path: Path, name: str):
    class Trap:
        def __reduce__(self):
            return Path.touch, (tmp_path / "ran",)

    folder = folder_of(tmp_path)
    (folder / name).write_bytes(pickle.dumps(Trap()))
    with pytest.raises(BadCheckpoint, match=f"{name} is a pickle"):
        open_checkpoint(folder)
    assert not (tmp_path / "ran").exists()


def test_no_weights_at_all(tmp_path: Path):
    with pytest.raises(BadCheckpoint, match="no safetensors file"):
        open_checkpoint(folder_of(tmp_path))


def test_hidden_files_are_no_weights(tmp_path: Path):
    """A file half written lies beside its place under a name with a dot."""
    folder = folder_of(tmp_path)
    save(folder / ".model.safetensors", a=1.0)
    with pytest.raises(BadCheckpoint, match="no safetensors file"):
        open_checkpoint(folder)


def test_a_folder_in_the_place_of_the_weights(tmp_path: Path):
    folder = folder_of(tmp_path)
    (folder / "model.safetensors").mkdir()
    with pytest.raises(BadCheckpoint, match=r"model\.safetensors: can't be read"):
        open_checkpoint(folder)


@pytest.mark.parametrize("name", ["nothing", "a-file.txt"])
def test_not_a_model(tmp_path: Path, name: str):
    (tmp_path / "a-file.txt").write_text("hello")
    with pytest.raises(ModelNotFound, match=name):
        open_checkpoint(tmp_path / name)
    with pytest.raises(ModelNotFound, match=r"no config\.json"):
        open_checkpoint(tmp_path)


# ---- the index


def test_the_index_is_the_only_list(tmp_path: Path):
    index = {"metadata": {"total_size": 8}, "weight_map": {"a": SHARDS[0], "b": SHARDS[1]}}
    folder = folder_of(
        tmp_path, index,
        model_00001_of_00002={"a": 1, "unlisted": 7}, model_00002_of_00002={"b": 2, "a": 8},
        consolidated={"a": 9, "c": 9}, model={"a": 9},
    )  # fmt: skip
    assert values(folder) == {"a": 1, "b": 2}


def test_the_index_names_a_shard_that_is_not_there(tmp_path: Path):
    folder = folder_of(tmp_path, {"weight_map": {"a": SHARDS[0], "b": SHARDS[1]}}, model_00001_of_00002={"a": 1})
    with pytest.raises(BadCheckpoint, match=f"{SHARDS[1]}: missing"):
        open_checkpoint(folder)


def test_the_index_names_a_tensor_that_is_not_there(tmp_path: Path):
    folder = folder_of(tmp_path, {"weight_map": {"a": SHARDS[0], "b": SHARDS[0]}}, model_00001_of_00002={"a": 1})
    with pytest.raises(BadCheckpoint, match=f"{SHARDS[0]}: tensor 'b' is missing"):
        open_checkpoint(folder)


@pytest.mark.parametrize(
    "name",
    [
        "../secret.safetensors", "/secret.safetensors", "sub/secret.safetensors", "..\\secret.safetensors", "..", ".",
        "", "C:\\secret.safetensors", "a\0.safetensors", "a\n.safetensors", "\ud800.safetensors", "config.json",
        "pytorch_model.bin", None, 1, True, ["model.safetensors"], {"a": 1},
    ],
)  # fmt: skip
def test_the_index_may_name_files_of_its_own_folder_only(tmp_path: Path, name: Any):
    inner = tmp_path / "inner"
    (inner / "sub").mkdir(parents=True)
    for path in (tmp_path, inner / "sub"):
        save(path / "secret.safetensors", a=1.0)
    folder = folder_of(inner, {"weight_map": {"a": name}}, model={"a": 1})
    with pytest.raises(BadCheckpoint, match="expected the name of a safetensors file in this folder"):
        open_checkpoint(folder)


def test_a_name_too_long_for_the_file_system(tmp_path: Path):
    with pytest.raises(BadCheckpoint, match="missing"):
        open_checkpoint(folder_of(tmp_path, {"weight_map": {"a": "x" * 5000 + ".safetensors"}}, model={"a": 1}))


def test_a_link_to_a_file_elsewhere_is_followed(tmp_path: Path):
    """Hugging Face's own cache is made of links; who can place one in the folder can place a file there too."""
    save(tmp_path / "blob", a=5.0)
    folder = tmp_path / "snapshot"
    folder.mkdir()
    folder_of(folder, {"weight_map": {"a": SHARDS[0]}})
    (folder / SHARDS[0]).symlink_to(tmp_path / "blob")
    assert values(folder) == {"a": 5}
    (tmp_path / "blob").unlink()
    with pytest.raises(BadCheckpoint, match="missing"):
        open_checkpoint(folder)


@pytest.mark.parametrize("index", [{}, [], {"weight_map": {}}, {"weight_map": []}, {"weight_map": None}, 3, "x"])
def test_an_index_that_lists_nothing(tmp_path: Path, index: Any):
    with pytest.raises(BadCheckpoint, match=INDEX):
        open_checkpoint(folder_of(tmp_path, index, model={"a": 1}))


# ---- the JSON files


BAD_JSON = {
    "empty": b"", "cut": b'{"a": ', "a list": b"[]", "null": b"null", "a number": b"7", "not UTF-8": b'{"a": "\xff"}',
    "deep": b"[" * 100_000, "many digits": b'{"a": ' + b"9" * 10_000 + b"}", "UTF-16": '{"a": 1}'.encode("utf-16"),
    "with a mark": b'\xef\xbb\xbf{"a": 1}', "two": b"{}{}",
}  # fmt: skip


@pytest.mark.parametrize("fault", BAD_JSON)
@pytest.mark.parametrize("name", ["config.json", "generation_config.json", "tokenizer_config.json", INDEX])
def test_broken_json_is_named(tmp_path: Path, name: str, fault: str):
    folder = folder_of(tmp_path, model={"a": 1})
    (folder / name).write_bytes(BAD_JSON[fault])
    with pytest.raises(BadCheckpoint, match=name) as error:
        open_checkpoint(folder)
    assert len(str(error.value)) < 1000 + len(str(folder))


@pytest.mark.parametrize("name", ["generation_config.json", "tokenizer_config.json", "chat_template.jinja"])
def test_files_that_may_be_absent(tmp_path: Path, name: str):
    random_model(tmp_path)
    found = open_checkpoint(tmp_path)
    assert (found.generation_config, found.tokenizer_config, found.chat_template) == ({}, {}, None)
    assert found.tokenizer_json is None
    (tmp_path / name).mkdir()  # there, but no file: config files say so, a template is looked for as a file
    if name.endswith("json"):
        with pytest.raises(BadCheckpoint, match=name):
            open_checkpoint(tmp_path)


# ---- the chat template


def template_of(tmp_path: Path, config: Any = None, jinja: str | None = None, other: Any = None) -> str | None:
    folder = folder_of(tmp_path, model={"a": 1})
    (folder / "tokenizer_config.json").write_text(json.dumps({} if config is None else {"chat_template": config}))
    if jinja is not None:
        (folder / "chat_template.jinja").write_text(jinja, encoding="utf-8")
    if other is not None:
        (folder / "chat_template.json").write_text(json.dumps({"chat_template": other}))
    return open_checkpoint(folder).chat_template


def test_which_chat_template_wins(tmp_path: Path):
    assert template_of(tmp_path) is None
    assert template_of(tmp_path, "config") == "config"
    assert template_of(tmp_path, "config", other="json") == "json"
    assert template_of(tmp_path, "config", "jinja ü\n", "json") == "jinja ü\n"


def test_named_chat_templates(tmp_path: Path):
    named = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]
    assert template_of(tmp_path, named) == "d"
    assert template_of(tmp_path, named[:1]) is None
    assert template_of(tmp_path, []) is None
    assert template_of(tmp_path, [1, None, {"name": ["unhashable"]}, {}, {"name": {}}, named[1]]) == "d"


def test_a_template_for_tools(tmp_path: Path):
    folder = folder_of(tmp_path, model={"a": 1})
    named = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    assert (open_checkpoint(folder).chat_template, open_checkpoint(folder).tool_template) == ("d", "t")
    (folder / "chat_template.jinja").write_text("j")
    assert (open_checkpoint(folder).chat_template, open_checkpoint(folder).tool_template) == ("j", None)
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text("ü", encoding="utf-8")
    assert open_checkpoint(folder).tool_template == "ü"


@pytest.mark.parametrize(
    "template",
    [1, True, {"a": "b"}, [{"name": "default", "template": 3}], [{"name": "tool_use", "template": ["t"]}]],
)
def test_chat_templates_that_are_no_text(tmp_path: Path, template: Any):
    with pytest.raises(BadCheckpoint, match="chat_template should be a string"):
        template_of(tmp_path, template)


def test_a_chat_template_that_is_not_utf8(tmp_path: Path):
    folder = folder_of(tmp_path, model={"a": 1})
    (folder / "chat_template.jinja").write_bytes(b"\xff\xfe")
    with pytest.raises(BadCheckpoint, match=r"chat_template\.jinja"):
        open_checkpoint(folder)


# ---- writing


def checkpoint_of(tensors: Any, **fields: Any) -> Checkpoint:
    return Checkpoint(Path("nowhere"), {"model_type": "llama", "dtype": "float32"}, tensors, **fields)


def test_all_of_a_checkpoint_comes_back(tmp_path: Path):
    tensors = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "scalar": np.array(1.5, np.float16)}
    before = checkpoint_of(
        tensors,
        generation_config={"eos_token_id": [1, 2]},
        tokenizer_json='{"version": "1.0", "ü": 1}',
        tokenizer_config={"eos_token": "</s>", "chat_template": "old", "odd": "é\ud800"},
        chat_template="{{ 'ü' }}\n\n",
        tool_template="{{ 'ö' }}\n\n",
    )
    write_folder(before, tmp_path / "deep" / "out")
    after = open_checkpoint(tmp_path / "deep" / "out")
    assert after.config == {"model_type": "llama", "torch_dtype": "float32"}
    assert after.generation_config == before.generation_config
    assert after.tokenizer_json == before.tokenizer_json
    assert (after.chat_template, after.tool_template) == (before.chat_template, before.tool_template)
    assert after.tokenizer_config == {"eos_token": "</s>", "odd": "é\ud800"}
    for name, array in tensors.items():
        assert after.tensors[name].dtype == array.dtype
        assert np.array_equal(after.tensors[name], array)
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["out"]


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_golden_folders_are_written_as_they_were(tmp_path: Path, name: str):
    before = open_checkpoint(GOLDEN / name)
    write_folder(before, tmp_path / "out")
    after = open_checkpoint(tmp_path / "out")
    assert tensor_layout(after.tensors) == tensor_layout(before.tensors)
    assert all(after.tensors[name].tobytes() == array.tobytes() for name, array in before.tensors.items())
    kept = {key: value for key, value in after.config.items() if key != "torch_dtype"}
    assert kept == {key: value for key, value in before.config.items() if key != "dtype"}
    assert after.config["torch_dtype"] == "bfloat16"


@pytest.mark.parametrize("stored", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", None])
def test_conversions_are_to_the_nearest(tmp_path: Path, stored: str, dtype: str | None):
    """The oracle goes by spacing: rounding may move a value by half a unit in its last place, and keeps what it can."""
    _, tensors = random_model(tmp_path / "in", dtype=stored)
    write_folder(open_checkpoint(tmp_path / "in"), tmp_path / "out", dtype)
    found = open_safetensors(tmp_path / "out" / "model.safetensors")
    kind = dtype or stored
    expected_dtype = BFLOAT16 if kind == "bfloat16" else np.dtype(kind)
    digits, least = {"float32": (24, -149), "float16": (11, -24), "bfloat16": (8, -133)}[kind]
    assert set(found) == set(tensors)
    for name, array in tensors.items():
        assert found[name].dtype == expected_dtype
        exact = array.astype(np.float64)
        unit = 2.0 ** np.maximum(np.frexp(exact)[1] - digits, least)
        assert np.array_equal(to_float32(found[name]), np.round(exact / unit) * unit), name
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["torch_dtype"] == kind
    assert "dtype" not in config


def test_tensors_that_are_no_floats_stay_as_they_are(tmp_path: Path):
    tensors = {"ids": np.arange(3), "mask": np.array([True]), "w": np.ones(2, np.float32), "d": np.ones(1)}
    write_folder(checkpoint_of(tensors), tmp_path / "out", "bfloat16")
    found = open_safetensors(tmp_path / "out" / "model.safetensors")
    assert {name: array.dtype for name, array in found.items()} == {
        "ids": np.dtype("<i8"), "mask": np.dtype("bool"), "w": BFLOAT16, "d": BFLOAT16,
    }  # fmt: skip


@pytest.mark.parametrize("value", [65520.0, -1e6, 3e38])
def test_weights_too_large_for_float16_are_refused(tmp_path: Path, value: float):
    checkpoint = checkpoint_of({"a": np.float32([1, value]), "b": np.float32([np.inf])})
    with pytest.raises(BadRequest, match="65,504"):
        write_folder(checkpoint, tmp_path / "out", "float16")
    assert list(tmp_path.iterdir()) == []
    write_folder(checkpoint, tmp_path / "out", "bfloat16")


def test_the_largest_float16_and_infinity_are_not_too_large(tmp_path: Path):
    write_folder(checkpoint_of({"a": np.float32([65519, -65504, np.inf])}), tmp_path / "out", "float16")
    found = open_safetensors(tmp_path / "out" / "model.safetensors")["a"]
    assert found.tolist() == [65504, -65504, np.inf]


def test_what_is_there_already_is_not_touched(tmp_path: Path):
    checkpoint = checkpoint_of({"a": np.ones(1, np.float32)})
    (tmp_path / "file").write_text("mine")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("mine")
    for name in ("file", "full"):
        with pytest.raises(BadRequest, match="already there"):
            write_folder(checkpoint, tmp_path / name)
    assert (tmp_path / "file").read_text() == (tmp_path / "full" / "mine").read_text() == "mine"
    (tmp_path / "empty").mkdir()
    write_folder(checkpoint, tmp_path / "empty")
    assert open_safetensors(tmp_path / "empty" / "model.safetensors")["a"] == 1


@pytest.mark.parametrize("name", [".", "..", "/"])
def test_a_folder_without_a_name_of_its_own(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadRequest, match="name of a folder"):
        write_folder(checkpoint_of({"a": np.ones(1, np.float32)}), name)


@pytest.mark.parametrize("dtype", ["int8", "f32", "", "BF16", 32])
def test_unknown_types_are_refused(tmp_path: Path, dtype: Any):
    with pytest.raises(BadRequest, match="float32, bfloat16, float16"):
        write_folder(checkpoint_of({}), tmp_path / "out", dtype)


@pytest.mark.parametrize("fault", [KeyboardInterrupt, OSError, MemoryError])
@pytest.mark.parametrize("before", ["absent", "empty"])
def test_a_failure_half_way_leaves_nothing_that_looks_complete(tmp_path: Path, fault: type, before: str):
    def make(name: str) -> np.ndarray:
        if name == "b":
            raise fault
        return np.ones(2, np.float32)

    if before == "empty":
        (tmp_path / "out").mkdir()
    lazy = LazyTensors({name: (np.dtype("<f4"), (2,)) for name in "abc"}, make)
    with pytest.raises(fault):
        write_folder(checkpoint_of(lazy), tmp_path / "out")
    assert [path.name for path in tmp_path.rglob("*")] == ([] if before == "absent" else ["out"])


def test_a_link_to_an_empty_folder_is_followed(tmp_path: Path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "out").symlink_to(tmp_path / "elsewhere")
    write_folder(checkpoint_of({"a": np.ones(2, np.float32)}), tmp_path / "out")
    assert (tmp_path / "out").is_symlink()
    assert (tmp_path / "elsewhere" / "model.safetensors").is_file()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["elsewhere", "out"]


def test_a_link_that_leads_nowhere_is_refused(tmp_path: Path):
    (tmp_path / "out").symlink_to("nowhere")
    with pytest.raises(BadRequest, match="out: a link to nowhere, which is not there"):
        write_folder(checkpoint_of({"a": np.ones(2, np.float32)}), tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_whether_a_tensor_is_there_is_told_without_making_it():
    lazy = LazyTensors({"a": (np.dtype("<f4"), (3,))}, lambda name: pytest.fail("made"))
    assert "a" in lazy
    assert "b" not in lazy


def test_too_little_space_is_told_before_anything_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    lazy = LazyTensors({"a": (np.dtype("<f4"), (3,))}, lambda name: pytest.fail("made"))
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=11))
    with pytest.raises(OSError, match="only 11 bytes are free there; it takes 12 bytes") as caught:
        write_folder(checkpoint_of(lazy), tmp_path / "out")
    assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, str(tmp_path / "out"))
    assert list(tmp_path.iterdir()) == []


def test_what_can_not_be_written_is_named(tmp_path: Path):
    def fail(name: str) -> np.ndarray:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space left on device; it takes 12 bytes") as caught:
        write_folder(checkpoint_of(LazyTensors({"a": (np.dtype("<f4"), (3,))}, fail)), tmp_path / "out")
    assert caught.value.filename == str(tmp_path / "out")
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="a directory") as caught:
        write_folder(checkpoint_of({}), tmp_path / "file" / "deep" / "out")
    assert caught.value.filename == str(tmp_path / "file" / "deep" / "out")


def test_lazy_tensors_are_made_once_and_one_at_a_time(tmp_path: Path):
    made: list[str] = []

    def make(name: str) -> np.ndarray:
        made.append(name)
        return np.full(2, len(made), np.float32)

    lazy = LazyTensors({name: (np.dtype("<f4"), (2,)) for name in "abc"}, make)
    assert (len(lazy), list(lazy), "z" in lazy) == (3, ["a", "b", "c"], False)
    with pytest.raises(KeyError):
        lazy["z"]
    write_folder(checkpoint_of(lazy), tmp_path / "out", "float16")
    assert made == ["a", "b", "c"]


def test_progress_counts_the_bytes_written(tmp_path: Path):
    calls: list[Any] = []

    class Bar:
        def __enter__(self):
            return self

        def __exit__(self, *error: object) -> None:
            calls.append("end")

        def update(self, n: int) -> None:
            calls.append(n)

    def progress(description: str, total: int, unit: str) -> Bar:
        calls.append((description, total, unit))
        return Bar()

    tensors = {"a": np.ones((2, 3), np.float32), "b": np.ones(5, np.float32)}
    write_folder(checkpoint_of(tensors), tmp_path / "out", "bfloat16", progress)
    assert calls == [("writing out", 22, "B"), 12, 10, "end"]


def test_a_model_moved_elsewhere_is_the_same(tmp_path: Path):
    config, tensors = random_model()
    write_model(tmp_path / "here", config, tensors)
    shutil.move(tmp_path / "here", tmp_path / "there")
    assert open_checkpoint(tmp_path / "there").config == config
