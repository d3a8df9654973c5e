"""tinyinfer: language models on an ordinary CPU, in NumPy and Numba, from scratch.

    >>> import tinyinfer
    >>> llm = tinyinfer.load("smollm2-135m-instruct")
    >>> print(llm.chat([{"role": "user", "content": "Hi"}]).text)

Importing this loads neither a model nor Numba: the public names come when they are first asked for.
"""

from __future__ import annotations

import importlib

TYPE_CHECKING = False  # as in typing, which takes longer to import than all that is here
if TYPE_CHECKING:
    from typing import Any

    from .answer import Completion, Piece, Timings
    from .beams import Beam
    from .engine import Engine
    from .errors import TinyinferError
    from .llm import LLM, load
    from .sampling import SamplingParams
    from .sampling.logprobs import Score, TokenLogprob
    from .session import Session
    from .speculative.drafter import Drafter
    from .speculative.model import ModelDrafter
    from .speculative.ngram import NgramDrafter
    from .text.tool_call import ToolCall

__version__ = "0.1.0"

_HOMES = {
    "load": "llm", "LLM": "llm", "Session": "session", "SamplingParams": "sampling", "TinyinferError": "errors",
    "Beam": "beams", "Completion": "answer", "Piece": "answer", "Timings": "answer",
    "Drafter": "speculative.drafter", "ModelDrafter": "speculative.model", "NgramDrafter": "speculative.ngram",
    "Engine": "engine", "Score": "sampling.logprobs", "TokenLogprob": "sampling.logprobs",
    "ToolCall": "text.tool_call",
}  # fmt: skip

__all__ = [
    "LLM",
    "Beam",
    "Completion",
    "Drafter",
    "Engine",
    "ModelDrafter",
    "NgramDrafter",
    "Piece",
    "SamplingParams",
    "Score",
    "Session",
    "Timings",
    "TinyinferError",
    "TokenLogprob",
    "ToolCall",
    "load",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
