"""`--prompt-cache`: what one call has computed, kept in a file for the next."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import BadRequest
from .options import Parser

if TYPE_CHECKING:
    from ..llm import LLM, Session


def add_prompt_cache(parser: Parser) -> None:
    """The flags, as llama.cpp has them."""
    file_help = "keep what was computed in FILE, and begin from what it holds: what texts have in common is run once"
    parser.add_argument("--prompt-cache", metavar="FILE", help=file_help)
    parser.add_argument("--prompt-cache-ro", action="store_true", help="begin from FILE, but leave it as it is")


def open_session(llm: LLM, args: argparse.Namespace) -> Session:
    """A session that holds what the file does, or nothing where there is none yet."""
    if args.prompt_cache is None:
        if args.prompt_cache_ro:
            raise BadRequest("--prompt-cache-ro needs a file: --prompt-cache FILE", "prompt_cache")
        return llm.session()
    file = Path(args.prompt_cache)
    if file.exists():
        return llm.load_cache(file)
    if args.prompt_cache_ro:
        raise BadRequest(f"{file}: there is no such file, and --prompt-cache-ro makes none", "prompt_cache")
    return llm.session()


def keep_session(llm: LLM, session: Session, args: argparse.Namespace) -> None:
    """Write the file, unless it is only to be read or there is nothing to keep."""
    if args.prompt_cache is not None and not args.prompt_cache_ro and session.cached_ids:
        llm.save_cache(session, args.prompt_cache)
