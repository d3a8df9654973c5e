"""An error in the middle of a forward pass, as Ctrl-C is."""

from __future__ import annotations

from typing import Any

import pytest

from tinyinfer.model.forward import Model


def interrupt(patch: pytest.MonkeyPatch, model: Model, error: type[BaseException], done: float, call: int = 0) -> None:
    """Raise in the model's `call`-th forward pass from now, when a part of its operations is done."""
    calls = iter(range(call + 1))
    tape = model._tape
    unbroken, table, numbers = tape.run, tape._table, tape._table_numbers

    def run(step: Any) -> None:
        if next(calls) < call:
            return unbroken(step)
        part = int(done * len(table))
        patch.setattr(tape, "_table", table[:part])
        patch.setattr(tape, "_table_numbers", numbers[:part])
        unbroken(step)
        raise error

    patch.setattr(tape, "run", run)
