"""`tinyinfer batch`, as a process; killed at any moment it loses nothing and does nothing twice."""

import json
import os
import random
import subprocess
import time

import pytest

from tests.batch.speaker import lines, told, write_speaker
from tests.batch.test_requests import line
from tests.cli.commands import COMMAND, environment, refused, tinyinfer


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_speaker(tmp_path_factory.mktemp("models") / "speaker")


@pytest.fixture(autouse=True)
def quick_start(monkeypatch):
    """What is computed with is tested elsewhere; without Numba a process is there at once."""
    monkeypatch.setenv("TINYINFER_KERNELS", "numpy")


def write(path, *lines):
    path.write_bytes(b"\n".join(lines) + b"\n")
    return path


def test_a_file_of_requests_becomes_a_file_of_answers(model, tmp_path):
    asked = write(tmp_path / "in", *lines(5), b"{")
    done = tinyinfer("batch", model, asked, tmp_path / "out", "--slots", 3)
    assert (done.returncode, done.stdout) == (0, f"{tmp_path / 'out'}\n")
    assert "5 answered, 1 refused" in done.stderr
    assert set(told(tmp_path / "out")) == {None, *(f"id-{i}" for i in range(5))}
    done = tinyinfer("batch", asked, tmp_path / "out", "-m", model)
    assert "0 answered, 0 refused, 6 were there before" in done.stderr
    assert tinyinfer("batch", asked, tmp_path / "out", "-m", model, "-q").stderr == ""


def test_the_model_is_the_one_that_the_first_request_names(model, tmp_path):
    body = {"model": str(model), "prompt": "a", "max_tokens": 1}
    asked = write(tmp_path / "in", b"{", line("a", body=body), line("b", body=body | {"model": "other"}))
    done = tinyinfer("batch", asked, tmp_path / "out", "--alias", model)
    assert "1 answered, 2 refused" in done.stderr
    told_of_none = refused(tinyinfer("batch", write(tmp_path / "none", *lines(1)), tmp_path / "out2"))
    assert "the first request names none" in told_of_none


def test_wrong_usage_is_one_sentence(model, tmp_path):
    asked, out = write(tmp_path / "in", *lines(1)), tmp_path / "out"
    for argv, message in [
        ([model, asked, out, out], "expected [MODEL] IN OUT"),
        ([model], "expected [MODEL] IN OUT"),
        ([model, asked, out, "-m", model], "two models were given"),
        ([model, asked, asked], "can't be written into the file of requests"),
        ([model, tmp_path / "absent", out], "absent: No such file"),
        (["nothing", asked, out], "nothing"),
        ([model, asked, out, "--slots", "0"], "--slots should be"),
    ]:
        assert message in refused(tinyinfer("batch", *argv))
    out.write_text("notes\n")
    assert "line 1 is no answer" in refused(tinyinfer("batch", model, asked, out))
    assert out.read_text() == "notes\n"


def test_a_job_killed_at_random_moments_loses_nothing_and_does_nothing_twice(model, tmp_path):
    kill_and_compare(model, tmp_path, kills=int(os.environ.get("TINYINFER_KILLS", 3)), seed=int(time.time()))


def kill_and_compare(model, tmp_path, kills, seed):
    """Kill a job so many times, each at a random moment of its work; then let it end."""
    print("seed", seed)
    rng = random.Random(seed)
    asked = write(tmp_path / "in", *lines(40 * kills), b"{", line("bad", url="/"))
    assert tinyinfer("batch", model, asked, tmp_path / "whole", "--slots", 4, "-q").returncode == 0
    out, command = tmp_path / "out", [*COMMAND, "batch", model, asked, tmp_path / "out", "--slots", "4", "-q"]
    survived, kept = 0, b""
    for _ in range(kills):
        with subprocess.Popen([*map(str, command)], stdout=subprocess.DEVNULL, env=environment()) as job:
            while answered(out) <= kept.count(b"\n") and job.poll() is None:  # killed at work, not while it loads
                time.sleep(0.002)
            time.sleep(rng.uniform(0, 0.1))
            job.kill()
        survived += job.returncode == 0
        assert out.read_bytes().startswith(kept)
        if rng.random() < 0.5:  # as if the system had not had the whole line yet
            last = out.read_bytes().splitlines(keepends=True)[-1]
            os.truncate(out, out.stat().st_size - rng.randrange(1, len(last)))
        kept = out.read_bytes()
        kept = kept[: kept.rfind(b"\n") + 1]
    assert survived < kills, "every job was done before it was killed: the test kills nothing"
    assert tinyinfer("batch", model, asked, out, "--slots", 4).returncode == 0
    assert out.read_bytes().startswith(kept)
    assert told(out) == told(tmp_path / "whole")


def answered(path):
    return path.read_bytes().count(b"\n") if path.exists() else 0


def test_json_lines_hold_one_answer_each_in_openais_form(model, tmp_path):
    asked = write(
        tmp_path / "in",
        line("é", url="/v1/chat/completions", body={"messages": [{"role": "user", "content": "a"}], "max_tokens": 2}),
    )
    assert tinyinfer("batch", model, asked, tmp_path / "out", "-q").returncode == 0
    (raw,) = (tmp_path / "out").read_bytes().splitlines()
    record = json.loads(raw)
    assert list(record) == ["id", "custom_id", "response", "error"]
    assert (record["custom_id"], record["response"]["body"]["object"]) == ("é", "chat.completion")
    assert record["response"]["body"]["model"] == "speaker"
