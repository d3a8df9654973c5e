"""Four bits done better: codes chosen by what the matrices are multiplied with, beside the nearest, at the same bits.

GPTQ, https://arxiv.org/abs/2210.17323; AWQ, https://arxiv.org/abs/2306.00978; `quant/gptq.py` and `quant/awq.py` say
how. Both are calibrated on one text of this project and judged on another.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from ... import reference
from ...calibration.layer import run_layer
from ...calibration.text import usual_text
from ...calibration.walk import begin_walk
from ...checkpoint.quantized import quantize_checkpoint
from ...checkpoint.source import Checkpoint
from ...llm import LLM
from ...model.tensors import stored_tensors
from ...quant import FORMS, PackedWeight, bits_per_weight, dequantize, relative_error
from .. import perplexity
from .finding import Drawing, Finding, Table
from .matrices import some_layers
from .quality import held_out, interval
from .setting import Setting

EVEN = "int4-g64-symmetric"  # as many bits and as large blocks as NF4 has
SCHEMES = {
    "nearest, even steps": (EVEN, "rtn"), "nearest, NF4": ("nf4-g64", "rtn"),
    "GPTQ": (EVEN, "gptq"), "AWQ": (EVEN, "awq"),
}  # fmt: skip
QUICK_LAYERS, QUICK_CALIBRATION = 2, 512  # of the first quarter, as the text has to come so far
MEASURED = 256  # tokens that products are compared on


@dataclass(frozen=True)
class Made:
    """A model rounded by one scheme.

    worth   a matrix by its name -> what it is worth in the model as stored, float32 [N, K]
    bits    a weight of those that were rounded
    """

    checkpoint: Checkpoint
    worth: Callable[[str], np.ndarray]
    bits: float


def measure(setting: Setting) -> Finding:
    """Each scheme on the same matrices: how far weights, products and predictions move."""
    stored = setting.llm
    count = stored.config.num_layers
    layers = list(range(count)) if setting.full else some_layers(max(count // 4, 1), QUICK_LAYERS)
    tokens, window = (2048, 512) if setting.full else (192, 192)
    calibration = usual_text() if setting.full else held_out(stored, QUICK_CALIBRATION, usual_text())
    made = {}
    for name, (form, method) in SCHEMES.items():
        setting.say(name)
        made[name] = _rounded(stored, layers, form, method, calibration)
    text = held_out(stored, tokens, setting.text)
    errors = _errors(stored, layers, made, text)
    rows = [("as stored", None, None, None, *_judged(stored, stored, text, window))]
    for name, one in made.items():
        setting.say(f"perplexity, {name}")
        rows.append((name, one.bits, *errors[name], *_judged(LLM(one.checkpoint), stored, text, window)))
    read = len(stored.tokenizer.encode(calibration, add_special_tokens=False))
    where = "all layers" if setting.full else f"layers {', '.join(map(str, layers))} alone, the others as stored"
    title = f"{where}; calibrated on {read:,} tokens, judged on {tokens:,} of another text"
    columns = ("weights", "bits a weight", "error of weights", "error of products", "perplexity", "95 % from", "to",
               "divergence, nats", "standard error", "same likeliest")  # fmt: skip
    return Finding([Table(title, columns, rows)], SAYS, [_errors_drawn(rows[1:]), _divergence_drawn(rows[1:])])


SAYS = (
    "GPTQ and AWQ move weights further than the nearest of the same even steps do, and what comes of them less; NF4, "
    "which reads no text, gains by its levels alone, and where little is rounded or read it may gain as much. "
    "Perplexity moves within its interval, above all without --full, where two layers are rounded and the text to "
    "calibrate on is short: the divergence, taken token by token, tells the schemes apart, as far as its standard "
    "error allows. GPTQ's paper calibrates on 262,144 tokens and begins with trained weights; the catalogue's models "
    "were quantized when they were published, and all is compared with what is stored."
)


def _rounded(stored: LLM, layers: list[int], form: str, method: str, text: str) -> Made:
    """The matrices of some layers in a form; all else stays as stored."""
    checkpoint, config = stored.checkpoint, stored.config
    names = [one.name for index in layers for one in stored_tensors(config, index, checkpoint.tensors)]
    choices = {"scheme": form, "keep": rf"^(?!({'|'.join(map(re.escape, names))})$)"}
    walk = None
    if method != "rtn":
        walk, _ = begin_walk(checkpoint, method, text, **choices)
        checkpoint = replace(checkpoint, tensors=walk.tensors())
    made = quantize_checkpoint(checkpoint, **choices)
    new = [
        tensor for tensor in made.tensors.values() if isinstance(tensor, PackedWeight) and tensor.form == FORMS[form]
    ]
    bits = float(np.average([bits_per_weight(one) for one in new], weights=[np.prod(one.shape) for one in new]))
    return Made(made, walk.undone if walk else lambda name: dequantize(made.tensors[name]), bits)


def _errors(stored: LLM, layers: list[int], made: dict[str, Made], text: str) -> dict[str, tuple[float, float]]:
    """For each scheme the mean relative error of weights, and of their products with what they meet in a text."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in made}
    for matrix, weight, inputs in _matrices(stored, layers, text):
        products = inputs @ weight.T
        for name, one in made.items():
            worth = one.worth(matrix)
            found[name].append((relative_error(weight, worth), relative_error(products, inputs @ worth.T)))
    return {name: tuple(np.mean(errors, axis=0).tolist()) for name, errors in found.items()}


def _matrices(stored: LLM, layers: list[int], text: str) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """The rounded matrices by name, float32 [out, in], with their inputs [n, in]."""
    config, model, tensors = stored.config, stored.model.tensors, stored.checkpoint.tensors
    ids = stored.tokenizer.encode(text, add_special_tokens=False)[:MEASURED]
    x = reference.embed(config, model, np.array(ids))
    for index in range(max(layers) + 1):
        if index in layers:
            layer = run_layer(config, index, tensors, [x])
            for name, inputs in layer.inputs.items():
                if inputs and len(inputs[0]):
                    yield name, layer.floats[name], inputs[0]
        x = reference.transformer_layer(config, config.layers[index], model.layers[index], x)


def _judged(llm: LLM, stored: LLM, text: str, window: int) -> tuple[float | None, ...]:
    """Perplexity with its interval; divergence from the model as stored, its standard error, the share of agreement."""
    window = min(window, stored.context)
    found, _, apart = perplexity.measure(llm, text, window, max(window // 2, 1), None if llm is stored else stored)
    rest = (None, None, None) if apart is None else (apart.mean, apart.standard_error, apart.same_likeliest)
    return found.perplexity, *interval(found), *rest


def _errors_drawn(rows: list[tuple]) -> Drawing:
    lines = {
        "of weights": [(_short(row[0]), row[2]) for row in rows],
        "of products": [(_short(row[0]), row[3]) for row in rows],
    }
    title = "GPTQ and AWQ give weights away to save products"
    return Drawing(title, "how codes are chosen", "relative error", lines, bars=True)


def _divergence_drawn(rows: list[tuple]) -> Drawing:
    lines = {"divergence": [(_short(row[0]), row[7]) for row in rows]}
    title = "How far predictions move at the same bits"
    return Drawing(title, "how codes are chosen", "divergence, nats a token", lines, bars=True)


def _short(name: str) -> str:
    return name.replace(", ", ",\n")
