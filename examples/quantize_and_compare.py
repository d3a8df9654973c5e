"""Quantize a model, and see what that costs in use: python examples/quantize_and_compare.py [TEXT_FILE]

Perplexity is how surprised the model is by a text, divergence how far its next tokens are from those of the model that
it was made of. `tinyinfer quantize` writes the one that you choose.
"""

import sys
from importlib import resources
from pathlib import Path

import tinyinfer
from tinyinfer.lab.cost import weight_bytes
from tinyinfer.lab.perplexity import measure

MODEL, WINDOW = "smollm2-135m-instruct", 256
prose = resources.files("tinyinfer.lab.course").joinpath("prose.txt")  # written for this project: no model has seen it
text = (Path(sys.argv[1]) if len(sys.argv) > 1 else prose).read_text(encoding="utf-8")[:4000]

stored = tinyinfer.load(MODEL)
for form in (None, "int8", "nf4", "int4-g128"):
    llm = stored if form is None else tinyinfer.load(MODEL, quantize=form)
    found, _, apart = measure(llm, text, WINDOW, WINDOW, against=stored)
    print(
        f"{form or 'as stored':10} {weight_bytes(llm.model.tensors, 1) / 2**20:6.1f} MiB a step, "
        f"perplexity {found.perplexity:6.2f}, divergence {apart.mean:.4f} nats, "
        f"the same likeliest token in {apart.same_likeliest:.1%}"
    )
