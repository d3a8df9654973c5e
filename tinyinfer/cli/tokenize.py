"""`tinyinfer tokenize`: the ids of a text, and what each of them stands for."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from .options import Parser, add_model, settle_model, text_argument
from .output import show_json

EPILOG = """\
Each line is an id and its text; bytes that are no whole character on their own show as \\ufffd.
With --ids the ids alone, as one list.
"""


def tokenize_command(parser: Parser) -> Callable[[argparse.Namespace], int]:
    """The flags of `tokenize`."""
    add_model(parser, "text", "the text; - or nothing reads standard input")
    parser.add_argument("-f", "--file", metavar="FILE", help="read the text from a file")
    parser.add_argument("--ids", action="store_true", help="show the ids alone, as a list")
    parser.add_argument("--json", action="store_true", help="write a JSON object: ids, and the text of each")
    parser.add_argument(
        "--no-special", "--no-bos", action="store_true", help="don't add the tokens that begin or end a text"
    )
    parser.epilog = EPILOG
    return tokenize


def tokenize(args: argparse.Namespace) -> int:
    """Print ids; the weights are not read."""
    settle_model(args)
    text = text_argument(args.text, args.file, "the text")

    from ..checkpoint.places import find_model
    from ..checkpoint.source import open_checkpoint
    from ..text.tokenizer import Tokenizer

    tokenizer = Tokenizer.from_checkpoint(open_checkpoint(find_model(args.model)))
    ids = list(tokenizer.encode(text, add_special_tokens=not args.no_special))
    if args.ids:
        print(ids)
        return 0
    pieces = [tokenizer.decode([token]) for token in ids]
    if args.json:
        show_json({"ids": ids, "pieces": pieces})
        return 0
    for token, piece in zip(ids, pieces, strict=True):
        print(f"{token:8d}  {piece!r}")
    return 0
