"""Where models live, what a name finds, and what is said when it finds nothing."""

import json
import os
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinyinfer.checkpoint import places
from tinyinfer.checkpoint.places import Repository, find_model, home, installed, nearest_name, parse_repository
from tinyinfer.errors import ModelNotFound

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(autouse=True)
def own_home(tmp_path, monkeypatch):
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("TINYINFER_HOME", str(tmp_path / "home"))
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    return tmp_path / "home"


def make_model(folder, size=10):
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"x" * size)
    return folder


def snapshot(hub, owner_name, commit=COMMIT, files=("config.json", "model.safetensors", "tokenizer.json"), ref="main"):
    stored = hub / f"models--{owner_name.replace('/', '--')}"
    (stored / "refs").mkdir(parents=True)
    (stored / "refs" / ref).write_text(commit)
    folder = stored / "snapshots" / commit
    folder.mkdir(parents=True)
    for file in files:
        (folder / file).write_text("{}")
    return folder


# ---- home


def test_home_is_what_the_environment_says(own_home):
    assert home() == own_home


def test_home_expands_the_tilde_and_is_absolute(monkeypatch):
    monkeypatch.setenv("TINYINFER_HOME", "~/models")
    assert home() == Path.home() / "models"
    monkeypatch.setenv("TINYINFER_HOME", "models")
    assert home() == Path.cwd() / "models"


@pytest.fixture
def package_in(tmp_path, monkeypatch):
    """Make the package believe that it lies in a folder with this pyproject.toml."""

    def install(project):
        folder = tmp_path / "somewhere"
        (folder / "tinyinfer").mkdir(parents=True)
        if project is not None:
            (folder / "pyproject.toml").write_text(project)
        monkeypatch.setattr(places, "PACKAGE", folder / "tinyinfer")
        monkeypatch.setenv("TINYINFER_HOME", "")
        return folder

    return install


def test_home_in_a_clone(package_in):
    folder = package_in('[project]\nname = "tinyinfer"\n')
    assert home() == folder / "weights"


@pytest.mark.parametrize("project", [None, '[project]\nname = "other"\n', '[project]\nname = "tinyinfer-extra"\n'])
def test_home_outside_a_clone_is_the_users(package_in, monkeypatch, tmp_path, project):
    package_in(project)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert home() == tmp_path / "data" / "tinyinfer"
    monkeypatch.delenv("XDG_DATA_HOME")
    assert home() == Path.home() / ".local" / "share" / "tinyinfer"


@pytest.mark.parametrize(
    ("platform", "expected"),
    [("darwin", Path.home() / "Library/Application Support/tinyinfer"), ("win32", Path("local") / "tinyinfer")],
)
def test_home_on_other_systems(package_in, monkeypatch, platform, expected):
    package_in(None)
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setenv("LOCALAPPDATA", "local")
    assert home() == expected


# ---- repository names


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Qwen/Qwen2.5-0.5B", Repository("Qwen/Qwen2.5-0.5B")),
        ("a/b@main", Repository("a/b", "main")),
        ("a/b@refs/pr/1", Repository("a/b", "refs/pr/1")),
        ("a/b@" + COMMIT, Repository("a/b", COMMIT)),
    ],
)
def test_repository_ids_are_taken_apart(text, expected):
    assert parse_repository(text) == expected
    assert str(expected) == text


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "a",
            "a/",
            "/b",
            "a/b/c",
            "../b",
            "a/..",
            "a/../b",
            "/etc/passwd",
            "a--b/c",
            "a/b--c",
            ".a/b",
            "a/b.",
            "-a/b",
        ),
        *("a/b@", "a/b@../x", "a/b@/x", "a/b@x/../../y", "a\\b/c", "C:/b", "a/b\n", "a /b", "a/b@x@y", "a/b\0"),
    ],
)
def test_what_is_no_repository_id(text):
    assert parse_repository(text) is None


@given(st.text(alphabet="ab.-_/@\\~:\0 %", max_size=20))
def test_a_name_never_leaves_home(text):
    repository = parse_repository(text)
    if repository:
        folder = Path(os.path.normpath(places.home() / repository.folder_name))
        assert folder.parent == places.home()
    found = places.find_pulled(text)
    assert found is None


def test_folder_names_of_different_repositories_differ():
    texts = ["a/b", "a/b@c", "a/b@c/d", "a/b@c-d", "a-b/c", "a/b-c", "a/b@c--d"]
    assert len({parse_repository(text).folder_name for text in texts}) == len(texts)


# ---- finding


def test_a_folder_or_a_gguf_file_as_given(tmp_path):
    (tmp_path / "x.gguf").write_bytes(b"")
    assert find_model(tmp_path) == tmp_path
    assert find_model(str(tmp_path / "x.gguf")) == tmp_path / "x.gguf"


def test_another_file_is_refused(tmp_path):
    (tmp_path / "x.bin").write_bytes(b"")
    with pytest.raises(ModelNotFound, match=r"x\.bin: .* another kind of file"):
        find_model(tmp_path / "x.bin")


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("smollm2-135m-instruct", "smollm2-135m-instruct"),
        ("owner/name", "owner--name"),
        ("owner/name@v1", "owner--name@v1"),
        ("owner/name@refs/pr/1", "owner--name@refs%2Fpr%2F1"),
        ("mine", "mine"),
    ],
)
def test_names_of_what_is_there(own_home, name, folder):
    make_model(own_home / folder)
    assert find_model(name) == own_home / folder


def test_a_gguf_file_in_home(own_home):
    own_home.mkdir()
    (own_home / "x.gguf").write_bytes(b"")
    assert find_model("x.gguf") == own_home / "x.gguf"


def test_a_folder_without_config_is_not_a_model(own_home):
    (own_home / "smollm2-135m-instruct").mkdir(parents=True)
    with pytest.raises(ModelNotFound):
        find_model("smollm2-135m-instruct")


@pytest.mark.parametrize("name", [".downloads", ".secret", "../outside", "a/../../outside", "..", ""])
def test_names_do_not_reach_hidden_or_outside_folders(own_home, name):
    make_model(own_home / ".downloads")
    make_model(own_home / ".secret")
    make_model(own_home.parent / "outside")
    assert places.find_pulled(name) is None


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("smollm2-135m-instruct", "has not been pulled yet; type: tinyinfer pull smollm2-135m-instruct"),
        ("smollm2", "did you mean smollm2-135m-instruct[?] type: tinyinfer pull smollm2-135m-instruct"),
        ("SmolLM2-135M-Instrct", "did you mean smollm2-135m-instruct"),
        ("owner/name", "type: tinyinfer pull owner/name$"),
        ("Qwen/Qwen2.5-Coder-0.5B-Instruct", "or the catalogue's own: tinyinfer pull qwen2.5-coder-0.5b-instruct"),
        ("zzz", "no model, folder or .gguf file 'zzz'; .*smollm2-135m-instruct"),
        ("./nowhere/at all", "no model, folder or .gguf file"),
        ("~nobody/x", "type: tinyinfer pull|no model, folder or .gguf file"),
        ("a\0b", "no model, folder or .gguf file"),
        ("why is the sky blue? " * 500, "no model, folder or .gguf file 'why is"),
        ("x" * 5000, "no model, folder or .gguf file 'xxx"),
    ],
)
def test_what_is_said_when_nothing_is_found(name, said):
    with pytest.raises(ModelNotFound, match=said) as caught:
        find_model(name)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


def test_a_near_miss_of_a_pulled_model_says_run(own_home):
    make_model(own_home / "smollm2-135m-instruct")
    with pytest.raises(ModelNotFound, match="type: tinyinfer run smollm2-135m-instruct"):
        find_model("smollm2")


def test_nothing_is_near_to_noise():
    assert nearest_name("zz") is None


# ---- the Hugging Face cache


def test_a_whole_snapshot_in_the_hub_cache_is_found(tmp_path):
    folder = snapshot(tmp_path / "hf" / "hub", "owner/name")
    assert find_model("owner/name") == folder
    assert find_model(f"owner/name@{COMMIT}") == folder


def test_own_home_comes_before_the_hub_cache(tmp_path, own_home):
    snapshot(tmp_path / "hf" / "hub", "owner/name")
    make_model(own_home / "owner--name")
    assert find_model("owner/name") == own_home / "owner--name"


def test_the_hub_cache_can_be_elsewhere(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "other"))
    folder = snapshot(tmp_path / "other", "owner/name", ref="v2")
    assert find_model("owner/name@v2") == folder


@pytest.mark.parametrize(
    "files",
    [
        (),
        ("config.json", "model.safetensors"),
        ("config.json", "tokenizer.json"),
        ("model.safetensors", "tokenizer.json"),
        ("config.json", "tokenizer.json", "model.safetensors.index.json"),
    ],
)
def test_a_part_of_a_snapshot_is_not_a_model(tmp_path, files):
    snapshot(tmp_path / "hf" / "hub", "owner/name", files=files)
    with pytest.raises(ModelNotFound):
        find_model("owner/name")


@pytest.mark.parametrize(("there", "found"), [(["a", "b"], True), (["a"], False)])
def test_every_shard_of_a_snapshot_must_be_there(tmp_path, there, found):
    folder = snapshot(tmp_path / "hf" / "hub", "owner/name", files=("config.json", "tokenizer.json", *there))
    index = {"weight_map": {"x": "a", "y": "b", "z": "a"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert (places.find_pulled("owner/name") == folder) is found


def test_a_ref_cannot_lead_out_of_the_cache(tmp_path):
    snapshot(tmp_path / "hf" / "hub", "owner/name", commit="../../../home/x")
    assert places.find_pulled("owner/name") is None


# ---- the list


def test_the_list(own_home):
    make_model(own_home / "owner--name@v1", size=100)
    make_model(own_home / "smollm2-135m-instruct")
    make_model(own_home / "mine")
    make_model(own_home / ".hidden.partial")
    (own_home / "junk").mkdir()
    (own_home / "README.md").write_text("")
    (own_home / "x.gguf").write_bytes(b"1234")
    listed = {place.name: place for place in installed()}
    assert {name: place.kind for name, place in listed.items()} == {
        "mine": "folder",
        "owner/name@v1": "hub",
        "smollm2-135m-instruct": "catalogue",
        "x.gguf": "gguf",
        "qwen2.5-coder-0.5b-instruct": "catalogue",
    }
    assert listed["owner/name@v1"].bytes == 102
    assert listed["x.gguf"].bytes == 4
    assert listed["qwen2.5-coder-0.5b-instruct"].path is None
    for place in listed.values():
        assert place.path is None or find_model(place.name) == place.path


def test_the_list_without_a_home(own_home):
    assert [place.path for place in installed()] == [None, None]
    assert not own_home.exists()
