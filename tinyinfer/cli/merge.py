"""`tinyinfer merge`: LoRA adapters added to a model's weights, for a model that needs no adapters any more."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from .options import Parser, add_lora, lora_scales
from .output import progress_bars


def merge_command(parser: Parser) -> Callable[[argparse.Namespace], int]:
    """The flags of `merge`."""
    parser.add_argument("model", metavar="MODEL", help="a name from `tinyinfer list`, a folder or a .gguf file")
    parser.add_argument("folder", metavar="OUT", help="the folder to write; must not be there yet, or be empty")
    add_lora(parser, required=True)
    dtypes = ("float32", "bfloat16", "float16")
    dtype_help = "store all weights so (default: as they are; what is quantized becomes float32)"
    parser.add_argument("--dtype", choices=dtypes, help=dtype_help)
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress")
    return merge


def merge(args: argparse.Namespace) -> int:
    """Write the merged model as a Hugging Face style folder, and print where it is."""
    from pathlib import Path

    from ..checkpoint.places import find_model
    from ..checkpoint.source import open_checkpoint, write_folder
    from ..config import read_config
    from ..model.adapters import open_adapter
    from ..model.merge import merged

    scales = lora_scales(args)
    checkpoint = open_checkpoint(find_model(args.model))
    config = read_config(checkpoint.config)
    adapters = [(open_adapter(Path(path), config), scale) for path, scale in scales.items()]
    model = merged(checkpoint, config, adapters, args.dtype)
    write_folder(model, args.folder, args.dtype, progress_bars(args.quiet))
    print(args.folder)
    return 0
