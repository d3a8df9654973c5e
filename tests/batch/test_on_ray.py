"""A batch on a real Ray cluster of two nodes; only where Ray is installed, as it takes a minute."""

import os
import signal
from pathlib import Path

import pytest

from tests.batch.speaker import lines, told, write_speaker
from tests.cli.commands import ROOT, refused, tinyinfer
from tinyinfer.batch import Answers, read_requests, run_batch

pytest.importorskip("ray")
pytest.importorskip("pyarrow")

from tinyinfer.batch.on_ray import Recipe, run_on_ray


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_speaker(tmp_path_factory.mktemp("models") / "speaker")


@pytest.fixture(scope="module")
def cluster():
    from ray.cluster_utils import Cluster

    patch = pytest.MonkeyPatch()
    patch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    patch.setenv("TINYINFER_KERNELS", "numpy")  # what is computed with is tested elsewhere
    patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2})
    cluster.add_node(num_cpus=2)
    cluster.wait_for_nodes()
    yield cluster
    cluster.shutdown()
    patch.undo()


def here(model, path, out):
    """The same job in this process."""
    from tinyinfer import Engine, load

    with Answers(out) as answers:
        list(run_batch(read_requests(path), answers, Engine(load(model), slots=4), "speaker"))
    return told(out)


def workers():
    """The processes of actors that this one's nodes have started, with the nodes they belong to."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            command, parent = (
                (stat.parent / "cmdline").read_bytes(),
                int(stat.read_text().rpartition(")")[2].split()[1]),
            )
            ours = int((Path("/proc") / str(parent) / "stat").read_text().rpartition(")")[2].split()[1]) == os.getpid()
        except OSError:  # it has just ended
            continue
        if command.startswith(b"ray::MapWorker") and ours:
            found[int(stat.parent.name)] = parent
    return found


def test_every_line_is_answered_once_though_a_worker_is_killed(model, cluster, tmp_path):
    path, out = tmp_path / "in", tmp_path / "out"
    path.write_bytes(b"\n".join([*lines(400, most=40), b"{"]) + b"\n")
    seen, killed = {}, []
    with Answers(out) as answers:
        recipe = Recipe(str(model), "speaker", engine={"slots": 4})
        for counts in run_on_ray(path, answers, recipe, cluster.address):
            if counts.answered:
                seen |= workers()
            if counts.answered > 50 and not killed:
                killed.append(next(iter(workers())))
                os.kill(killed[0], signal.SIGKILL)
    assert killed
    assert len(set(seen.values())) == 2, "both nodes had a worker"
    assert (counts.answered, counts.refused) == (400, 1)
    assert told(out) == here(model, path, tmp_path / "here")


def test_the_command_goes_on_where_it_stopped(model, cluster, tmp_path):
    path, out = tmp_path / "in", tmp_path / "out"
    path.write_bytes(b"\n".join(lines(30)) + b"\n")
    here(model, path, out)
    whole = out.read_bytes()
    out.write_bytes(b"".join(whole.splitlines(keepends=True)[:20]))
    done = tinyinfer("batch", model, path, out, "--ray", cluster.address)
    assert "10 answered, 0 refused, 20 were there before" in done.stderr, done.stderr
    assert told(out) == here(model, path, tmp_path / "here")


def test_a_cluster_that_is_not_there_is_one_sentence(model, tmp_path):
    path = tmp_path / "in"
    path.write_bytes(b"\n".join(lines(1)))
    assert "no Ray cluster at" in refused(tinyinfer("batch", model, path, tmp_path / "out", "--ray", "127.0.0.1:9"))
