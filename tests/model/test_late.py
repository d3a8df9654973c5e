"""A thread that comes late: another has done all operations up to any one of them, and it does the rest.

What the threads of a small step each work out for themselves, the late one works out from what there is by then.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.tiny_models import ARCHITECTURES, golden_folder
from tinyinfer.checkpoint.source import open_checkpoint
from tinyinfer.config import read_config
from tinyinfer.kernels import table as t
from tinyinfer.kernels.tape import use_compiled
from tinyinfer.model.forward import Chunk, Model
from tinyinfer.model.tensors import collect_tensors

pytestmark = pytest.mark.skipif(not use_compiled(), reason="NumPy runs operations one by one")


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_late_thread_goes_on_from_any_operation(name: str, monkeypatch: pytest.MonkeyPatch):
    checkpoint = open_checkpoint(golden_folder(name))
    config = read_config(checkpoint.config)
    model = Model(config, collect_tensors(config, checkpoint.tensors), threads=2)
    table, ids = model._tape._table, np.arange(3) + 5
    heads, begin = _heads(table), len(table)

    def one_after_the_other(work: Callable[[int], None], size: int) -> None:
        assert size == 2
        pieces = table[:, t.PIECES].copy()
        table[[head for head in heads if head >= begin], t.PIECES] = 0  # these the first leaves
        work(0)
        table[:, t.PIECES] = pieces
        work(1)

    monkeypatch.setattr(model._tape._team, "run", one_after_the_other)
    monkeypatch.setattr(model._tape._team, "size_for", lambda rows: 2)
    expected = None
    for begin in [len(table), *heads]:
        sequence = model.new_cache().sequence()
        logits = model.forward([Chunk(sequence, ids, None, slice(None))])
        expected = logits if expected is None else expected
        assert np.array_equal(logits, expected), begin


def _heads(table: np.ndarray) -> list[int]:
    """The first of each of the operations that are done together, piece by piece."""
    found, index = [], 0
    while index < len(table):
        found.append(index)
        index += table[index, t.PARTS]
    return found
