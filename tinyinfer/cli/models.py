"""`tinyinfer pull`, `list` and `convert`: models come, are shown, and change form."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING

from .options import Parser, add_dtype, add_writing
from .output import note, progress_bars, show_json, size

if TYPE_CHECKING:
    from ..checkpoint.places import Place


def pull_command(parser: Parser) -> Callable[[argparse.Namespace], int]:
    """The flags of `pull`."""
    parser.add_argument("name", metavar="NAME", help="a name of the catalogue, or owner/name of the Hugging Face Hub")
    parser.add_argument("--force", action="store_true", help="fetch it again even where it is there")
    gguf_help = "the .gguf file as it was published, for other programs too (catalogue only)"
    parser.add_argument("--gguf", action="store_true", help=gguf_help)
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress")
    return pull


def pull(args: argparse.Namespace) -> int:
    """Fetch a model, and print where it is."""
    from ..checkpoint.pull import pull

    print(pull(args.name, progress_bars(args.quiet), force=args.force, gguf=args.gguf))
    return 0


def list_command(parser: Parser) -> Callable[[argparse.Namespace], int]:
    """The flags of `list`."""
    parser.add_argument("--json", action="store_true", help="write a JSON list")
    return list_models


def list_models(args: argparse.Namespace) -> int:
    """Print what is there, and what of the catalogue could be."""
    from ..checkpoint.places import home, installed

    places = installed()
    if args.json:
        show_json(
            [asdict(place) | {"path": place.path and str(place.path), "about": _about(place)} for place in places]
        )
        return 0
    note(f"models in {home()}; `tinyinfer pull NAME` fetches what is not there")
    width = max((len(place.name) for place in places), default=0)
    for place in places:
        print(
            f"{place.name:{width}}  {size(place.bytes):>8}  {'here   ' if place.path else 'to pull'}  {_about(place)}"
        )
    return 0


def _about(place: Place) -> str:
    from ..checkpoint.catalogue import catalogue

    entry = catalogue().get(place.name)
    if entry:
        return f"{entry.description} ({entry.licence})"
    return {"hub": "from the Hugging Face Hub", "gguf": "a GGUF file"}.get(place.kind, "a folder of your own")


def convert_command(parser: Parser) -> Callable[[argparse.Namespace], int]:
    """The flags of `convert`."""
    add_writing(parser, "a .gguf file, a folder that any program quantized, or a name from `tinyinfer list`")
    add_dtype(parser, "what is quantized stays so", "store all weights so, for other programs too")
    return convert


def convert(args: argparse.Namespace) -> int:
    """Write a model as a Hugging Face style folder, and print where it is."""
    from ..checkpoint.places import find_model
    from ..checkpoint.quantized import write_quantized
    from ..checkpoint.source import write_folder
    from ..model.tensors import open_complete

    (checkpoint, _), progress = open_complete(find_model(args.model)), progress_bars(args.quiet)
    if args.dtype:
        write_folder(checkpoint, args.folder, args.dtype, progress)
    else:
        write_quantized(checkpoint, args.folder, progress)
    print(args.folder)
    return 0
