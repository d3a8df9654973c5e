"""Word that kernels are being compiled: it takes seconds, mostly once on a machine, and who waits should know why."""

from __future__ import annotations

import logging
from collections.abc import Callable

listeners: list[Callable[[str], None]] = []  # are told at most once in a process, beside the log
_told = False


def tell(how_often: str) -> None:
    """Say so, the first time this is called; `how_often` is "once", or "at each start" where nothing can be kept."""
    global _told
    if not _told:
        _told = True
        message = f"compiling kernels for this processor: some twenty seconds, {how_often}"
        logging.getLogger("tinyinfer").info(message)
        for listener in listeners:
            listener(message)
