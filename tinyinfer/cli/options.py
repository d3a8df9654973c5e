"""Flags that several commands share, under the names that users of llama.cpp and mlx-lm know, and what they hold."""

from __future__ import annotations

import argparse
import math
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from ..errors import BadRequest
from .output import note

if TYPE_CHECKING:
    from ..llm import LLM

# where a flag sets what is called otherwise in Python: that name, and those of flags
FLAGS_OF = {
    "n": ("samples",), "num_speculative_tokens": ("draft_max",), "branches": ("draft_branches",),
    "scheme": ("quantize",), "order": ("samplers",), "dry_breakers": ("dry_sequence_breaker",),
    "json": ("json_object",), "context_full": ("context_shift",),
    "repetition_window": ("repetition_window", "repeat_last_n"),
    "frequency_window": ("frequency_window", "repeat_last_n"), "presence_window": ("presence_window", "repeat_last_n"),
    "grammar": ("grammar", "grammar_file"),
}  # fmt: skip
THREAD_VARIABLES = (
    "TINYINFER_THREADS",
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMBA_NUM_THREADS",
)


class Parser(argparse.ArgumentParser):
    """Argparse, but wrong usage is an error like any other: one sentence."""

    def __init__(self, usage: str, summary: str):
        """`usage` is the command with its arguments, `summary` what it does."""
        self.command = usage.split()[0]
        super().__init__(
            prog=f"tinyinfer {self.command}",
            usage=f"tinyinfer {usage} [options]",
            description=f"{summary[0].upper()}{summary[1:]}.",
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )

    def parse(self, argv: list[str]) -> argparse.Namespace:
        """Parse flags and positional arguments in any order."""
        return self.parse_intermixed_args(argv)

    def in_flags(self, message: str, argv: list[str]) -> str:
        """A message that begins with what Python calls a setting, with the flag that was typed for it, if one was."""
        name = re.match(r"\w*", message)[0]
        for action in self._actions:
            if action.dest in FLAGS_OF.get(name, (name,)):
                for flag in action.option_strings:
                    if any(arg == flag or arg.startswith(f"{flag}=") for arg in argv):
                        return flag + message[len(name) :]
        return message

    def error(self, message: str) -> NoReturn:
        """Raise `BadRequest` rather than exit."""
        raise BadRequest(f"{message} (see tinyinfer {self.command} --help)")


def integer(text: str) -> int:
    """A flag's whole number, in plain digits: `int` takes those of other scripts too, underscores and spaces."""
    if not re.fullmatch(r"[+-]?[0-9]+", text):
        raise ValueError
    return int(text)


def number(text: str) -> float:
    """A flag's number, likewise."""
    if not re.fullmatch(r"[+-.0-9A-Za-z]+", text):
        raise ValueError
    return float(text)


MODEL_HELP = "a name from `tinyinfer list`, a folder or a .gguf file"


def add_model(parser: Parser, following: str | None = None, help: str | None = None) -> None:
    """MODEL, by place or by flag, and the one positional argument that may follow it."""
    parser.add_argument("model", nargs="?", metavar="MODEL", help=MODEL_HELP)
    if following:
        parser.add_argument(following, nargs="?", metavar=following.upper(), help=help)
    parser.add_argument("-m", "--model", dest="model_flag", metavar="MODEL", help="the same, as a flag")
    parser.set_defaults(following=following)


def settle_model(args: argparse.Namespace) -> None:
    """Put into `args.model` what was said either way; with -m, what stands first is the argument after MODEL."""
    if args.model_flag is None:
        if args.model is None:
            raise no_model()
        return
    if args.following is None or getattr(args, args.following) is not None:
        if args.model is not None:
            raise BadRequest(f"two models were given, {args.model!r} and {args.model_flag!r}", "model")
    else:
        setattr(args, args.following, args.model)
    args.model = args.model_flag


def no_model() -> BadRequest:
    """What is raised where no model is named."""
    return BadRequest(f"a model is needed: {MODEL_HELP}", "model")


def add_loading(parser: Parser, verbose: str) -> None:
    """How the model is loaded, and how much is said about it."""
    context_help = "tokens that prompt and answer may have together (0, the default: what the model was made for)"
    add = parser.add_argument
    add("-c", "--ctx-size", "--context", dest="context", type=integer, metavar="N", help=context_help)
    add("-t", "--threads", type=integer, metavar="N", help="threads to compute with (default: all cores)")
    add_kv_dtype(parser)
    add("--quantize", metavar="FORM", help="round the weights at load: int4, int5, int8, nf4, int4-g128, ...")
    activations_help = "what quantized weights are multiplied with (default: int8; f32 with TINYINFER_KERNELS=numpy)"
    add("--activations", choices=("int8", "f32"), help=activations_help)
    add_lora(parser)
    add("-q", "--quiet", action="store_true", help="no timings and no progress")
    add("-v", "--verbose", action="store_true", help=verbose)


def add_writing(parser: Parser, model: str = "a name from `tinyinfer list`, a folder or a .gguf file") -> None:
    """A model, and the folder that another one made of it goes to."""
    parser.add_argument("model", metavar="MODEL", help=model)
    parser.add_argument("folder", metavar="OUT", help="the folder to write; must not be there yet, or be empty")
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress")


def add_dtype(parser: Parser, quantized: str, what: str = "store all weights so") -> None:
    """What plain weights are written as; `quantized` says what happens to the others by default."""
    dtype_help = f"{what} (default: as they are; {quantized})"
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), help=dtype_help)


def add_showing(parser: Parser) -> None:
    """How answers are shown while they come."""
    reasoning_help = "don't show what the model thinks before it answers (shown on standard error)"
    parser.add_argument("--hide-reasoning", "--hidethinking", action="store_true", help=reasoning_help)
    graphemes_help = "show only whole characters as people see them: flags, families, letters with their accents"
    parser.add_argument("--graphemes", action="store_true", help=graphemes_help)


def add_lora(parser: Parser, required: bool = False) -> None:
    """Adapters, each with a scale of its own."""
    lora_help = "a LoRA adapter, a folder as PEFT saves it, at this scale (default: 1); may be given several times"
    parser.add_argument("--lora", action="append", metavar="PATH[:SCALE]", required=required, help=lora_help)


def lora_scales(args: argparse.Namespace) -> dict[str, float]:
    """What --lora asks for: a number after the last colon is a scale. Raises `BadRequest` for a folder given twice."""
    scales: dict[str, float] = {}
    for given in args.lora or []:
        path, colon, end = given.rpartition(":")
        scale = _number(end) if colon else None
        path, scale = (given, 1.0) if scale is None else (path, scale)
        if path in scales:
            raise BadRequest(f"--lora {path} was given twice", "lora")
        if not math.isfinite(scale):
            raise BadRequest(f"--lora {given}: the scale should be a number, found {end}", "lora")
        scales[path] = scale
    return scales


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def add_kv_dtype(parser: Parser) -> None:
    """What the cache is kept in."""
    kv_help = "what keys and values are kept in (default: float16); int8-int4: int8 keys, 4-bit values"
    kinds = "float16", "float32", "int8", "int8-int4"  # as in `cache.KV_DTYPES`, which would import NumPy too early
    parser.add_argument("--kv-dtype", choices=kinds, default="float16", help=kv_help)


def limit_threads(args: argparse.Namespace) -> None:
    """Have NumPy compute with as many threads as --threads says; it must not have been imported yet."""
    if args.threads is not None:
        if not 1 <= args.threads <= 1024:
            raise BadRequest(f"threads should be a whole number from 1 to 1024, found {args.threads}", "threads")
        # what NumPy computes with reads this when it is loaded
        os.environ |= dict.fromkeys(THREAD_VARIABLES, str(args.threads))


def load_model(args: argparse.Namespace) -> LLM:
    """The model that MODEL and the loading flags ask for."""
    limit_threads(args)
    import logging

    from ..kernels import compiling
    from ..llm import load

    logging.basicConfig(format="tinyinfer: warning: %(message)s")
    if not args.quiet and note not in compiling.listeners:
        compiling.listeners.append(note)
    return load(args.model, **loading(args), speculate=getattr(args, "wish", None))


def loading(args: argparse.Namespace) -> dict[str, Any]:
    """What the loading flags say, as keywords of `load`."""
    return {
        "quantize": args.quantize, "activations": args.activations, "context": args.context or None,
        "kv_dtype": args.kv_dtype, "threads": args.threads, "lora": lora_scales(args) or None,
    }  # fmt: skip


def model_name(model: str) -> str:
    """What requests call a model: its name, or the last part of its path."""
    path = Path(model)
    return path.resolve().name.removesuffix(".gguf") if path.exists() else model


def text_argument(text: str | None, file: str | None, what: str) -> str:
    """The text given, or that of `file`, or of standard input where `text` is "-" or absent and input is piped.

    From a file or a pipe one newline at the end is not part of the text: editors and `echo` put it there.
    Raises `BadRequest` where there is none, or where it is not UTF-8.
    """
    if text is not None and file is not None:
        raise BadRequest(f"{what} was given twice, as an argument and by --file", what)
    if file is not None:
        return file_text(file)
    if text is not None and text != "-":
        return checked_text(text, what)
    if sys.stdin is None or (text is None and sys.stdin.isatty()):
        raise BadRequest(f"{what} is needed: as an argument, by --file, or piped in", what)
    return decoded(sys.stdin.buffer.read(), "standard input")


def file_text(path: str) -> str:
    """The text of a file; raises `BadRequest` where it is not UTF-8."""
    return decoded(Path(path).read_bytes(), path)


def decoded(raw: bytes, where: str) -> str:
    """A file's text, without one newline at its end; raises `BadRequest` where it is not UTF-8."""
    try:
        return raw.decode("utf-8").removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as error:
        raise BadRequest(f"{where}: not UTF-8 text: byte {raw[error.start]:#04x} at {error.start:,}") from None


def checked_text(text: str, what: str) -> str:
    """`text` itself; raises `BadRequest` where the shell handed over bytes that are not UTF-8."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise BadRequest(f"{what} is not UTF-8 text: see character {error.start:,}", what) from None
    return text
