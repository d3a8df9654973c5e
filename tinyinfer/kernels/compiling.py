"""Word that kernels are being compiled: it takes seconds, once on a machine, and who waits should know what for."""

from __future__ import annotations

import logging
from collections.abc import Callable

MESSAGE = "compiling kernels for this processor: some twenty seconds, once"

listeners: list[Callable[[str], None]] = []  # are told at most once in a process, beside the log
_told = False


def tell() -> None:
    """Say so, the first time this is called."""
    global _told
    if not _told:
        _told = True
        logging.getLogger("tinyinfer").info(MESSAGE)
        for listener in listeners:
            listener(MESSAGE)
