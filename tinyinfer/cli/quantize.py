"""`tinyinfer quantize`: a model's weights in fewer bits, in the order in which the kernels read them."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..errors import BadRequest
from .options import Parser, add_writing, file_text, integer
from .output import note, progress_bars, size

if TYPE_CHECKING:
    from ..checkpoint.source import Checkpoint

METHODS = ("rtn", "gptq", "awq")


def quantize_command(parser: Parser) -> Callable[[argparse.Namespace], int]:
    """The flags of `quantize`."""
    add_writing(parser)
    add = parser.add_argument
    schemes = ("int4", "int5", "int8", "nf4")
    add("--scheme", choices=schemes, default="int4", help="how matrices are stored (default: int4)")
    group_help = "weights that share a scale: int4, int5 32, 64, 128; int8 32, 0 for a row; nf4 64 (default: the first)"
    add("--group-size", type=integer, metavar="N", help=group_help)
    add("--symmetric", action="store_true", help="int4, int5 without minimums: half a bit less, a larger error")
    add("--double", action="store_true", help="nf4 with its scales quantized too")
    head_help = "the output head: a scheme, or float32, bfloat16, float16 (default: int8)"
    add("--head", default="int8", metavar="KIND", help=head_help)
    table_help = "the embedding, where it is not the head too: likewise (default: as it is)"
    add("--embedding", metavar="KIND", help=table_help)
    add("--keep", metavar="REGEX", help="leave tensors as they are whose name this finds")
    method_help = "how codes are chosen: the nearest, or by what the matrices are multiplied with (default: rtn)"
    add("--method", choices=METHODS, default="rtn", help=method_help)
    text_help = "for gptq and awq: a text to calibrate on (default: a short one that comes with tinyinfer)"
    add("--calibration", metavar="FILE", help=text_help)
    parser.epilog = (
        "A matrix that is quantized already is kept where it has the form asked for; else it is made anew\n"
        "from what its codes say, and one error adds to the other."
    )
    return quantize


def quantize(args: argparse.Namespace) -> int:
    """Write a quantized model, print where it is, and say how large and how exact it became."""
    from ..checkpoint.foreign import ForeignTensors
    from ..checkpoint.places import find_model
    from ..checkpoint.quantized import quantize_folder
    from ..checkpoint.source import open_checkpoint, stored_bytes, tensor_forms
    from ..model.tensors import open_complete

    choices = ("scheme", "group_size", "symmetric", "double", "head", "embedding", "keep")
    chosen = {name: getattr(args, name) for name in choices}
    checkpoint, _ = open_complete(find_model(args.model))
    rounded, facts = _rounded(checkpoint, args, chosen)
    quantize_folder(rounded, args.folder, progress_bars(args.quiet), facts, **chosen)
    if not args.quiet:
        made = open_checkpoint(args.folder)
        before, after = (sum(stored_bytes(found.tensors).values()) for found in (checkpoint, made))
        note(f"{size(before)} became {size(after)}; {quantization_line(made.config['quantization_config'])}")
        forms, already = tensor_forms(made.tensors), tensor_forms(checkpoint.tensors)
        if isinstance(checkpoint.tensors, ForeignTensors):  # some became floats
            already = dict.fromkeys(checkpoint.tensors.matrices) | already
        twice = sum(forms.get(name) != form for name, form in already.items())
        if twice:
            note(f"matrices that were quantized before, in another form: {twice}; what that cost comes on top")
    print(args.folder)
    return 0


def _rounded(
    checkpoint: Checkpoint, args: argparse.Namespace, chosen: dict[str, Any]
) -> tuple[Checkpoint, dict[str, Any]]:
    """The model as the method leaves its layers, and what config.json says of that."""
    if args.method == "rtn":
        if args.calibration is not None:
            raise BadRequest(
                "--calibration is for --method gptq and awq; rtn looks at the weights alone", "calibration"
            )
        return checkpoint, {}
    from ..calibration.walk import calibrated

    text = None if args.calibration is None else file_text(args.calibration)
    return calibrated(checkpoint, args.method, text, **chosen)


def quantization_line(facts: dict) -> str:
    """`5.7 bits a weight, by gptq; relative error int4-g32 0.074, int8-g32 0.005`, from a config.json of ours."""
    errors = ", ".join(f"{form} {error:.2g}" for form, error in facts.get("relative_error", {}).items())
    method = f", by {facts['method']}" if facts.get("method") in METHODS[1:] else ""
    return f"{facts['bits_per_weight']:.3g} bits a weight{method}" + (f"; relative error {errors}" if errors else "")
