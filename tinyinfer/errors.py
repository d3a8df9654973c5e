"""The errors tinyinfer raises on purpose.

Every message is one sentence that says what was wrong, where, what was expected and what was found. The command line
prints that sentence and leaves with exit code 2; a server answers 4xx with it. Anything else that escapes is a bug.

    TinyinferError
    ├── ModelNotFound      there is no model of that name, folder or file
    ├── BadCheckpoint      the files of a model are damaged, incomplete or contradict each other
    ├── UnsupportedModel   the files are sound, but describe something this version does not run
    ├── DownloadError      fetching a model failed, or what came was not what was expected
    ├── BadRequest         the caller asked for something impossible: a sampling value, an id, an empty prompt
    │   ├── ContextOverflow    more tokens than the model's context holds
    │   └── TemplateError      the chat template refused the conversation, or could not be rendered
    ├── QueueFull          too many requests wait already
    ├── OutOfBlocks        the key-value cache has reached its limit
    ├── SamplingError      the logits could not be sampled from: NaN, or every token masked
    └── MissingExtra       an optional dependency is not installed
"""

from __future__ import annotations


class TinyinferError(Exception):
    """Base of every error that tinyinfer raises on purpose."""


class ModelNotFound(TinyinferError):
    """There is no model of that name, folder or file."""


class BadCheckpoint(TinyinferError):
    """The files of a model are damaged, incomplete or contradict each other."""


class UnsupportedModel(TinyinferError):
    """The files are sound, but describe something this version does not run."""


class DownloadError(TinyinferError):
    """Fetching a model failed, or what came was not what was expected."""


class BadRequest(TinyinferError, ValueError):
    """The caller asked for something impossible.

    `parameter` names the argument at fault where there is one, for servers that report it.
    """

    def __init__(self, message: str, parameter: str | None = None):
        super().__init__(message)
        self.parameter = parameter


class ContextOverflow(BadRequest):
    """More tokens than the model's context holds; the message gives both numbers."""


class TemplateError(BadRequest):
    """The chat template refused the conversation, or could not be rendered."""


class QueueFull(TinyinferError):
    """Too many requests wait already; the same one may be sent again later."""


class OutOfBlocks(TinyinferError):
    """The key-value cache has reached its limit, and all of it is in use."""


class SamplingError(TinyinferError):
    """The logits could not be sampled from: NaN, or every token masked."""


class MissingExtra(TinyinferError, ImportError):
    """An optional dependency is not installed; the message says what to type."""

    def __init__(self, feature: str, extra: str):
        super().__init__(f'{feature} needs an optional dependency: pip install "tinyinfer[{extra}]"')
        self.extra = extra
