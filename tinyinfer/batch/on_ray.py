"""A batch job on a Ray cluster: Ray Data hands the requests out, and each machine has an engine in an actor.

This process reads IN and writes OUT as it does alone, so a job goes on where it stopped, here as there. What a worker
had not given back when it died is done again by another; an answer is written once in any case.
Needs the extra `ray`. Ray Data: https://docs.ray.io/en/latest/data/data.html
"""

from __future__ import annotations

import json
import logging
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import BadRequest, MissingExtra, TinyinferError
from .answers import Answers
from .bodies import Bodies, error_body
from .job import Counts, Result, answer
from .requests import BatchRequest, read_requests, request_at

BLOCK = 16  # requests for each slot that an engine takes at once: slots stand empty only at their end
RESULT = "line", "id", "custom_id", "status", "body"


@dataclass(frozen=True)
class Recipe:
    """How each machine makes its engine: the model and the keywords of `load` and of `Engine`."""

    model: str
    name: str  # that requests give
    load: dict[str, Any] = field(default_factory=dict)
    engine: dict[str, Any] = field(default_factory=dict)


class Worker:
    """An engine in an actor."""

    def __init__(self, recipe: Recipe):
        from ..engine import Engine
        from ..llm import load

        self._engine = Engine(load(recipe.model, **recipe.load), **recipe.engine)
        self._bodies = Bodies(self._engine, recipe.name)

    def __call__(self, block: dict[str, Any]) -> dict[str, list]:
        """Answer a block of requests: columns "line" and "raw" to those in RESULT, the body as JSON."""
        requests = (request_at(int(line), raw) for line, raw in zip(block["line"], block["raw"], strict=True))
        rows = [
            (request.line, request.id, request.custom_id, status, json.dumps(body))
            for request, status, body in answer(requests, self._engine, self._bodies)
        ]
        return {name: list(column) for name, column in zip(RESULT, zip(*rows, strict=True), strict=True)}


def run_on_ray(path: Path, answers: Answers, recipe: Recipe, address: str) -> Iterator[Counts]:
    """`run_batch` by all machines of a cluster; yields counts, which grow.

    Only where lines are and their ids stay in memory. Raises as `run_batch` does, `BadRequest` where there is no such
    cluster, and `TinyinferError` where it brings no answers.
    """
    counts, left = Counts(), []
    with _connected(address):
        yield counts
        for request in read_requests(path):
            if answers.has(request):
                counts.before += 1
            elif request.error is not None:
                _write(answers, counts, (request, *error_body(request.error)))
            else:
                left.append((request.id, request.line, request.offset))
        yield counts
        while left:
            before = counts.done
            for result in _results(path, [where for _, *where in left], recipe):
                if not answers.has(result[0]):
                    _write(answers, counts, result)
                    yield counts
            left = [where for where in left if where[0] not in answers]
            if left and counts.done == before:
                raise TinyinferError(f"Ray brought no answer to {len(left):,} requests")


def _write(answers: Answers, counts: Counts, result: Result) -> None:
    answers.write(*result)
    counts.note(result[1])


def _results(path: Path, places: list[tuple[int, int]], recipe: Recipe) -> Iterator[Result]:
    import ray

    nodes = [node["Resources"]["CPU"] for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]
    if not nodes:
        raise TinyinferError("no machine of the Ray cluster has a processor to give")
    here = {f"node:{ray.util.get_node_ip_address()}": 0.001}  # every node has one of its own
    most = BLOCK * recipe.engine.get("slots", 8)
    size = min(most, -(-len(places) // (4 * len(nodes))))
    rows = [{"line": line, "offset": offset} for line, offset in places]
    data = ray.data.from_items(rows, override_num_blocks=-(-len(rows) // size))
    data = data.map_batches(_read_lines, fn_args=(str(path.resolve()),), batch_size=None, num_cpus=0, resources=here)
    data = data.map_batches(
        Worker, fn_constructor_args=(recipe,), batch_size=None, num_cpus=min(nodes) / 2,
        compute=ray.data.ActorPoolStrategy(size=len(nodes)),
    )  # fmt: skip
    for row in data.iter_rows():
        request = BatchRequest(row["line"], row["id"], row["custom_id"], "", {})
        yield request, row["status"], json.loads(row["body"])


def _read_lines(block: dict[str, Any], path: str) -> dict[str, list]:
    """The lines that begin at "offset"; run on the machine that has the file."""
    raw = []
    with open(path, "rb") as file:
        for offset in block["offset"]:
            file.seek(int(offset))
            raw.append(file.readline())
    return {"line": list(block["line"]), "raw": raw}


def _check_reached(address: str) -> None:
    """Raises `BadRequest` where nothing listens at host:port: Ray itself would try for minutes."""
    host, colon, port = address.rpartition(":")
    if not colon or "/" in address:
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
    except (OSError, ValueError, OverflowError) as error:
        raise BadRequest(f"no Ray cluster at {address!r}: {error}", "ray") from None


@contextmanager
def _connected(address: str) -> Iterator[None]:
    """In a cluster, the one that this process is in already, where it is."""
    try:
        import ray
        import ray.data
    except ModuleNotFoundError as error:
        raise MissingExtra("a batch on several machines", "ray") from error
    ours = not ray.is_initialized()
    if ours:
        _check_reached(address)
        try:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        except (ConnectionError, ValueError) as error:
            raise BadRequest(f"no Ray cluster at {address!r}: {error}", "ray") from None
    ray.data.DataContext.get_current().enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    try:
        yield
    finally:
        if ours:
            ray.shutdown()
