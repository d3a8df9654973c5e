"""The command line: the only part of tinyinfer that prints or exits.

    __init__.py     main: which command, and what becomes of its errors
    options.py      flags that several commands share
    run.py          run: one prompt, one streamed answer
    chat.py         chat: the interactive session; conversation.py what was said, terminal.py how a turn is read
    serve.py        serve: models behind OpenAI's HTTP API
    models.py       pull, list, convert
    quantize.py     quantize
    merge.py        merge: a model and adapters to one model
    info.py         info: a model's facts, and what fits into this machine's memory
    bench.py        bench: speed, beside what the machine could do
    lab.py          lab: the course's measurements, each a command
    perplexity.py   perplexity: of a text, and how far one model is from another
    sampling.py     sampling: what each parameter does; and the flags of sampling
    batch.py        batch: a file of requests to a file of answers
    loadtest.py     loadtest: how a server answers when many ask
    tokenize.py     tokenize: text to ids
    output.py       timings, JSON, sizes, progress bars
    tables.py       tables, for people and in Markdown

Text goes to standard output, everything else to standard error. The exit code is 0 when all went well, 2 for an error
(one sentence on standard error) or wrong usage, 130 after Ctrl-C, 141 when the reader of a pipe went away, 143 when the
system asked the process to end (SIGTERM).

A command's module is imported only when it is called, and what is slow to import only when it is needed.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Sequence

COMMANDS = {  # name: (module, usage, what it does)
    "run": ("run", "run MODEL [PROMPT]", "answer or continue a prompt, streaming the text"),
    "chat": ("chat", "chat MODEL", "talk with a model"),
    "serve": ("serve", "serve MODEL [MODEL ...]", "answer over HTTP as OpenAI's API does, and a chat page"),
    "pull": ("models", "pull NAME", "fetch a model of the catalogue or of the Hugging Face Hub"),
    "list": ("models", "list", "show the models that are here and those of the catalogue"),
    "info": ("info", "info MODEL", "show a model's shape, its size, and what fits into memory"),
    "convert": (
        "models",
        "convert MODEL OUT",
        "turn a GGUF file, or a folder of any kind, into a plain one or one of ours",
    ),
    "quantize": ("quantize", "quantize MODEL OUT", "store a model's weights in fewer bits"),
    "merge": ("merge", "merge MODEL OUT --lora PATH", "add LoRA adapters to a model's weights"),
    "bench": ("bench", "bench MODEL", "measure a model's speed, and this machine's limits beside it"),
    "perplexity": ("perplexity", "perplexity MODEL --text FILE", "measure how surprised a model is by a text"),
    "batch": ("batch", "batch [MODEL] IN OUT", "answer a file of requests, in OpenAI's batch form"),
    "loadtest": ("loadtest", "loadtest URL", "measure how a server answers when many ask"),
    "lab": ("lab", "lab [NAME]", "run a measurement of the course on this machine"),
    "sampling": ("sampling", "sampling", "show what each sampling parameter does"),
    "tokenize": ("tokenize", "tokenize MODEL TEXT", "show the ids of a text"),
}

OK, ERROR, INTERRUPTED, BROKEN_PIPE, TERMINATED = 0, 2, 130, 141, 143


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command, `argv` or the process's own arguments; returns the exit code.

    Raises only what is a bug of ours: its traceback is then wanted.
    """
    try:
        _end_in_order()
        code = _run(sys.argv[1:] if argv is None else list(argv))
        _flush()
        return code
    except KeyboardInterrupt:
        return _leave(INTERRUPTED)
    except BrokenPipeError:
        return _leave(BROKEN_PIPE)
    except SystemExit as leaving:  # argparse, after --help; SIGTERM
        return _leave(leaving.code or OK)
    except MemoryError as error:
        return _leave(ERROR, f"not enough memory: {error}" if str(error) else "not enough memory")
    except OSError as error:
        reason = error.strerror or str(error)
        return _leave(ERROR, f"{error.filename}: {reason}" if error.filename else reason)
    except Exception as error:
        from ..errors import TinyinferError

        if (code := _interruption(error)) is not None:
            return _leave(code)
        if not isinstance(error, TinyinferError):
            raise
        return _leave(ERROR, str(error))


def _run(argv: list[str]) -> int:
    _never_fail_on_a_character()
    warnings.showwarning = _warn
    name = argv[0] if argv else None
    if name in COMMANDS:
        import importlib

        from ..errors import BadRequest
        from .options import Parser

        module, usage, summary = COMMANDS[name]
        command = getattr(importlib.import_module(f".{module}", __name__), f"{name}_command")
        parser = Parser(usage, summary)
        action = command(parser)
        try:
            return action(parser.parse(argv[1:]))
        except BadRequest as error:
            error.args = (parser.in_flags(str(error), argv[1:]),)
            raise
    if name in ("--version", "-V"):
        from .. import __version__

        print(f"tinyinfer {__version__}")
        return OK
    if name in ("--help", "-h", "help"):
        print(_help())
        return OK
    if name is None:
        print(_help(), file=sys.stderr)
        return ERROR
    return _leave(ERROR, f"there is no command {name!r}; known are {', '.join(COMMANDS)} (see tinyinfer --help)")


def _help() -> str:
    lines = [f"  {usage:31}{summary}" for _, usage, summary in COMMANDS.values()]
    return "\n".join(
        [
            "usage: tinyinfer COMMAND ...",
            "",
            "Run language models on this machine's CPU.",
            "",
            "commands:",
            *lines,
            "",
            "  tinyinfer COMMAND --help   shows what a command takes",
            "  tinyinfer --version        shows the version",
            "",
            "MODEL is a name from `tinyinfer list`, a repository already pulled, a folder, or a .gguf file.",
            "To begin:  tinyinfer pull smollm2-135m-instruct && tinyinfer chat smollm2-135m-instruct",
        ]
    )


def _end_in_order() -> None:
    """Have SIGTERM end the process as Ctrl-C does, so that nothing half done is left."""
    import signal
    from contextlib import suppress

    def leave(*_: object) -> None:
        raise SystemExit(TERMINATED)

    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        with suppress(ValueError):  # only the main thread may
            signal.signal(signal.SIGTERM, leave)


def _interruption(error: BaseException | None) -> int | None:
    """The exit code where Ctrl-C or SIGTERM is behind an error: NumPy, stopped while it is imported, says that it is
    not installed."""
    while error is not None:
        if isinstance(error, KeyboardInterrupt):
            return INTERRUPTED
        if isinstance(error, SystemExit):
            return error.code
        error = error.__cause__ or error.__context__
    return None


def _never_fail_on_a_character() -> None:
    """Print a replacement for what the terminal's encoding can't say, rather than stop in the middle of an answer."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")


def _warn(message: Warning | str, *where: object) -> None:
    if sys.stderr is not None:
        print("tinyinfer: warning:", message, file=sys.stderr)


def _leave(code: int, message: str | None = None) -> int:
    """Say why, and see to it that Python's own last flush has nothing left to fail on."""
    try:
        if message and sys.stderr is not None:
            # one sentence, whatever a message that quotes a file may hold
            print("tinyinfer: error:", " ".join(message.split()), file=sys.stderr, flush=True)
        _flush()
    except (OSError, KeyboardInterrupt):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
    return code


def _flush() -> None:
    if sys.stdout is not None:
        sys.stdout.flush()
