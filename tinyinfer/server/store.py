"""Responses that were given, in memory, for those who ask for them or go on from them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, NamedTuple

from .errors import Refusal, json_bytes
from .items import Item

MOST_BYTES = 64 * 2**20  # as JSON


class Stored(NamedTuple):
    """A response, and all items of its conversation, its own among them."""

    response: dict[str, Any]
    items: Sequence[Item]
    nbytes: int


class Store:
    """Responses by id, up to a number of bytes: those that were made or looked at the longest time ago go first."""

    def __init__(self, most_bytes: int = MOST_BYTES):
        self._most_bytes, self._nbytes = most_bytes, 0
        self._kept: OrderedDict[str, Stored] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, response: dict[str, Any], items: Sequence[Item]) -> None:
        """Have it for later; one that is larger than all may be is gone at once."""
        nbytes = len(json_bytes(response)) + len(json_bytes(items))
        self._kept[response["id"]] = Stored(response, items, nbytes)
        self._nbytes += nbytes
        while self._nbytes > self._most_bytes:
            self._nbytes -= self._kept.popitem(last=False)[1].nbytes

    def get(self, id: str) -> Stored:
        """One of them. Raises `Refusal` with status 404 where there is none of that id (any more)."""
        if id not in self._kept:
            why = "it was not stored, was deleted, or made room for others"
            raise Refusal(404, f"there is no response {id[:80]!r}: {why}", "response_id", "response_not_found")
        self._kept.move_to_end(id)
        return self._kept[id]

    def delete(self, id: str) -> None:
        """Forget one. Raises as `get`."""
        self._nbytes -= self.get(id).nbytes
        del self._kept[id]
