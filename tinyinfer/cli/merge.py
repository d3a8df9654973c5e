"""`tinyinfer merge`: LoRA adapters added to a model's weights, for a model that needs no adapters any more."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from .options import Parser, add_dtype, add_lora, add_writing, lora_scales
from .output import progress_bars


def merge_command(parser: Parser) -> Callable[[argparse.Namespace], int]:
    """The flags of `merge`."""
    add_writing(parser)
    add_lora(parser, required=True)
    add_dtype(parser, "what is quantized becomes float32")
    return merge


def merge(args: argparse.Namespace) -> int:
    """Write the merged model as a Hugging Face style folder, and print where it is."""
    from pathlib import Path

    from ..checkpoint.places import find_model
    from ..checkpoint.source import write_folder
    from ..model.adapters import open_adapter
    from ..model.merge import merged
    from ..model.tensors import open_complete

    scales = lora_scales(args)
    checkpoint, config = open_complete(find_model(args.model))
    adapters = [(open_adapter(Path(path), config), scale) for path, scale in scales.items()]
    model = merged(checkpoint, config, adapters, args.dtype)
    write_folder(model, args.folder, args.dtype, progress_bars(args.quiet))
    print(args.folder)
    return 0
