from __future__ import annotations

import pytest

from tinyinfer.server.errors import Refusal
from tinyinfer.server.store import Store


def test_the_store_is_bounded():
    store = Store(most_bytes=1000)
    for number in range(20):
        store.keep({"id": f"r{number}", "text": "x" * 80}, [{"type": "message"}])
        store.get("r0")  # whoever is looked at stays
    assert 5 < len(store) < 12
    store.get("r0"), store.get("r19")
    with pytest.raises(Refusal):
        store.get("r10")
    for id in list(store._kept):
        store.delete(id)
    assert (len(store), store._nbytes) == (0, 0)
    store.keep({"id": "large", "text": "x" * 1000}, [])
    assert (len(store), store._nbytes) == (0, 0)
