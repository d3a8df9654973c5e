"""Files and folders that are either whole or not there."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tinyinfer.files import held, remove, remove_stale, replaced_when_done


def make_file(path: Path, content: str) -> None:
    path.write_text(content)


def make_folder(path: Path, content: str) -> None:
    path.mkdir()
    (path / "file").write_text(content)


def content(path: Path) -> str:
    return (path / "file" if path.is_dir() else path).read_text()


KINDS = pytest.mark.parametrize("make", [make_file, make_folder])


@KINDS
def test_it_appears_when_done_and_replaces_what_was_there(tmp_path: Path, make: Callable[[Path, str], None]):
    target = tmp_path / "deep" / "target"
    for text in ("one", "two"):
        with replaced_when_done(target) as temporary:
            make(temporary, text)
            assert temporary.parent == target.parent  # on one disk, so that renaming is all it takes
            assert temporary.name.startswith(".")
            assert text == "one" or content(target) == "one"
            assert text == "two" or not target.exists()
        assert content(target) == text
        assert list(target.parent.iterdir()) == [target]


@KINDS
@pytest.mark.parametrize("fault", [RuntimeError, KeyboardInterrupt, OSError])
def test_a_failure_leaves_what_was_there(tmp_path: Path, make: Callable[[Path, str], None], fault: type):
    def fail(temporary: Path) -> None:
        make(temporary, "half")
        raise fault

    target = tmp_path / "target"
    for before in ([], ["old"]):
        for text in before:
            make(target, text)
        with pytest.raises(fault), replaced_when_done(target) as temporary:
            fail(temporary)
        assert [content(path) for path in tmp_path.iterdir()] == before


@KINDS
def test_nothing_was_made(tmp_path: Path, make: Callable[[Path, str], None]):
    target = tmp_path / "target"
    make(target, "old")
    with pytest.raises(FileNotFoundError), replaced_when_done(target):
        pass
    assert content(target) == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_a_file_does_not_take_the_place_of_a_folder(tmp_path: Path):
    make_folder(tmp_path / "target", "mine")
    with pytest.raises(OSError, match="directory"), replaced_when_done(tmp_path / "target") as temporary:
        make_file(temporary, "new")
    assert content(tmp_path / "target") == "mine"
    assert [path.name for path in tmp_path.iterdir()] == ["target"]


def test_a_link_to_a_folder_is_replaced_and_what_it_led_to_stays(tmp_path: Path):
    make_folder(tmp_path / "elsewhere", "old")
    (tmp_path / "target").symlink_to(tmp_path / "elsewhere")
    with replaced_when_done(tmp_path / "target") as temporary:
        make_folder(temporary, "new")
    assert content(tmp_path / "target") == "new"
    assert content(tmp_path / "elsewhere") == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["elsewhere", "target"]


def test_a_folder_moved_aside_comes_back_where_the_new_one_can_not_be_put(tmp_path: Path, monkeypatch):
    make_folder(tmp_path / "target", "old")
    rename = Path.rename

    def fails_for_the_new_one(self: Path, target: Path) -> Path:
        if self.name.endswith(".partial"):
            raise KeyboardInterrupt
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fails_for_the_new_one)
    with pytest.raises(KeyboardInterrupt), replaced_when_done(tmp_path / "target") as temporary:
        make_folder(temporary, "new")
    assert content(tmp_path / "target") == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["target"]


@pytest.mark.skipif(os.name == "nt", reason="folders can't be locked")
def test_stale_is_what_has_something_in_it_and_is_held_by_none(tmp_path: Path):
    names = [".[x].01234567.partial", ".[x].89abcdef.partial", ".x.01234567.partial", ".[x].01234567.old", "[x]"]
    for name in names:
        make_folder(tmp_path / name, "half")
    (tmp_path / ".[x].00000000.partial").mkdir()
    make_file(tmp_path / ".[x].11111111.partial", "a file")
    with held(tmp_path / names[0]) as free:
        assert free
        with held(tmp_path / names[0]) as twice:
            assert not twice
        remove_stale(tmp_path / "[x]")
    kept = sorted(path.name for path in tmp_path.iterdir())
    assert kept == sorted([names[0], *names[2:], ".[x].00000000.partial", ".[x].11111111.partial"])
    remove_stale(tmp_path / "[x]")  # the one that was held is free now
    assert names[0] not in [path.name for path in tmp_path.iterdir()]


def test_removing(tmp_path: Path):
    make_folder(tmp_path / "folder", "x")
    (tmp_path / "link").symlink_to(tmp_path / "folder")
    remove(tmp_path / "link")
    remove(tmp_path / "nothing")
    assert content(tmp_path / "folder") == "x"
    remove(tmp_path / "folder")
    assert list(tmp_path.iterdir()) == []


def test_what_can_not_be_made_is_named_as_it_was_asked_for(tmp_path: Path):
    target = tmp_path / "target"
    with pytest.raises(FileNotFoundError) as caught, replaced_when_done(target) as temporary:
        temporary.open()
    assert caught.value.filename == str(target)


def test_other_errors_keep_their_names(tmp_path: Path):
    with pytest.raises(FileNotFoundError) as caught, replaced_when_done(tmp_path / "target"):
        (tmp_path / "other").read_text()
    assert Path(caught.value.filename) == tmp_path / "other"
