"""What quantization costs in use: perplexity of a text that no model has seen, facts, and agreement."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib import resources

import numpy as np

from ...checkpoint.quantized import quantization_plan, quantize_checkpoint
from ...checkpoint.source import Checkpoint, LazyTensors, tensor_layout, without_quantization
from ...llm import LLM
from ...model.tensors import floats
from ...quant import Form
from ...quant.study import absmax, absmax_groups
from .. import perplexity
from .finding import Drawing, Finding, Table, shown
from .setting import Setting

Made = Callable[[Checkpoint], Checkpoint]

# a beginning, and what a model that knows the fact goes on with, in small letters
FACTS = (
    ("The capital of France is", "paris"), ("The capital of Japan is", "tokyo"),
    ("The largest planet of our solar system is", "jupiter"), ("Water is made of hydrogen and", "oxygen"),
    ("Two plus two is equal to", "4|four"), ("The opposite of hot is", "cold"),
    ("The days of the week are Monday, Tuesday,", "wednesday"), ("The author of Romeo and Juliet is", "shakespeare"),
    ("The Earth goes around the", "sun"), ("A triangle has this many sides:", "3|three"),
    ("The chemical symbol of gold is", "au"), ("The first month of the year is", "january"),
    ("The language that is spoken in Brazil is", "portuguese"), ("A baby cat is called a", "kitten"),
    ("The Great Wall is in", "china"), ("Ice is frozen", "water"),
)  # fmt: skip
PENALTY = 1.1  # that the course's model advises
Z = 1.96  # standard errors to either side that hold 95 %


def rounded(checkpoint: Checkpoint, way: Callable[[np.ndarray], tuple[np.ndarray, float]]) -> Checkpoint:
    """The matrices inside of layers by one of the plainest schemes, widened to float16 again to be run."""
    plan, layout = quantization_plan(checkpoint.tensors, head="float32"), tensor_layout(checkpoint.tensors)
    chosen = {name for name, kind in plan.items() if isinstance(kind, Form)}

    def make(name: str) -> object:
        tensor = checkpoint.tensors[name]
        return way(floats(tensor))[0].astype(np.float16) if name in chosen else tensor

    forms = getattr(checkpoint.tensors, "forms", {})
    layout = {name: (np.dtype("<f2"), shape) if name in chosen else (dtype, shape)
              for name, (dtype, shape) in layout.items()}  # fmt: skip
    kept = {name: form for name, form in forms.items() if name not in chosen}
    return replace(checkpoint, tensors=LazyTensors(layout, make, kept), config=without_quantization(checkpoint.config))


def form(checkpoint: Checkpoint, name: str) -> Checkpoint:
    """A form that the kernels read; the head stays as it is where it has one of the kernels' forms, else int8."""
    return quantize_checkpoint(checkpoint, scheme=name)


SCHEMES: dict[str, Made] = {
    "int8, a scale a row": partial(form, name="int8-row"),
    "NF4, blocks of 64": partial(form, name="nf4-g64"),
    "4 bits, a scale a tensor": partial(rounded, way=lambda w: absmax(w, 4)),
    "4 bits, a scale a row": partial(rounded, way=lambda w: absmax(w, 4, per_row=True)),
    "4 bits, groups of 128": partial(rounded, way=lambda w: absmax_groups(w, 4, 128)),
    "tinyinfer's int4-g32": partial(form, name="int4-g32"),
}
INT8, TENSOR = "int8, a scale a row", "4 bits, a scale a tensor"
QUICK = (INT8, "NF4, blocks of 64", TENSOR)
COURSE = {
    "as stored": 23.08, "int8, a scale a row": 22.96, "4 bits, a scale a tensor": 365e6, "4 bits, a scale a row": 46,
    "4 bits, groups of 128": 31.08, "NF4, blocks of 64": 24.55,
}  # fmt: skip
COURSE_AGREES = {"int8, a scale a row": "142 of 144"}


def measure(setting: Setting) -> Finding:
    """Each scheme against the model as it is stored."""
    tokens, window = (2048, 512) if setting.full else (192, 192)
    stored = setting.llm
    text = held_out(stored, tokens, setting.text)
    window = min(window, stored.context)
    rows, facts = [], []
    for name in ("as stored", *(SCHEMES if setting.full else QUICK)):
        setting.say(name)
        llm = stored if name == "as stored" else LLM(SCHEMES[name](stored.checkpoint))
        against = None if llm is stored else stored
        found, _, apart = perplexity.measure(llm, text, window, max(window // 2, 1), against)
        agree = None if apart is None else round(apart.same_likeliest * found.tokens)
        rows.append((
            name, found.perplexity, *interval(found), COURSE.get(name), apart and apart.mean,
            *agreement(agree, found.tokens), COURSE_AGREES.get(name),
        ))  # fmt: skip
        facts += [_facts(llm, name, penalty) for penalty in ((1.0, PENALTY) if setting.full else (PENALTY,))]
    title = f"{found.tokens:,} tokens of {'prose that no model has seen' if setting.text is None else 'the text given'}"
    columns = ("weights", "perplexity", "95 % from", "to", "course", "divergence, nats", "same likeliest, of all",
               "95 % from", "to", "course, same")  # fmt: skip
    tables = [
        Table(title, columns, rows),
        Table(f"{len(FACTS)} facts", ("weights", "repetition penalty", "right", "95 % from", "to"), facts),
    ]
    return Finding(tables, _says(rows, facts), [_drawing(rows)])


def _says(rows: list[tuple], facts: list[tuple]) -> str:
    found = {name: (perplexity, low, high) for name, perplexity, low, high, *_ in rows}
    (stored, low, high), (eight, *_) = found["as stored"], found[INT8]
    told = low is None or not low < eight < high
    (tensor, *_), (nf4, *_) = found[TENSOR], found["NF4, blocks of 64"]
    right = [row[2] for row in facts if row[0] not in (TENSOR, "4 bits, a scale a row")]
    broken = next(row[2] for row in facts if row[0] == TENSOR)
    return (
        f"8 bits with a scale a row give {shown(eight)} beside the stored {shown(stored)}, which "
        f"{'can' if told else 'cannot'} be told apart on this text by the intervals, and nor can the course's 22.96 "
        f"and 23.08; 4 bits with one scale a tensor give {shown(tensor)}, and with NF4's levels and blocks "
        f"{shown(nf4)}. What is stored is not exact where a model was quantized when it was published, and other "
        "text, tokenizers and models have other perplexities (the course's are Qwen2.5-0.5B's), so that only ratios "
        f"can be compared. {len(FACTS)} facts tell a broken model, with {broken} right, from whole ones, with "
        f"{min(right)} to {max(right)}, and nothing finer; a repetition penalty forbids repeating the question's "
        "words, and so changes answers by itself."
    )


def held_out(llm: LLM, tokens: int, given: str | None) -> str:
    """The first tokens of this project's own prose, or of the text given."""
    text = given
    if text is None:
        text = resources.files(__package__).joinpath("prose.txt").read_text(encoding="utf-8")
    ids = llm.tokenizer.encode(text, add_special_tokens=False)
    return text if len(ids) <= tokens else llm.tokenizer.decode(ids[:tokens])


def interval(found: perplexity.Perplexity) -> tuple[float | None, float | None]:
    """Where the perplexity lies with 95 %, as if tokens were independent."""
    if found.standard_error is None:
        return None, None
    return tuple(math.exp(found.mean_surprise + side * Z * found.standard_error) for side in (-1, 1))


def agreement(agree: int | None, tokens: int) -> tuple[str, float | None, float | None]:
    """How often both find the same token the likeliest, in words, and where the share lies with 95 %."""
    return ("", None, None) if agree is None else (f"{agree} of {tokens}", *wilson(agree, tokens))


def wilson(hits: int, count: int) -> tuple[float, float]:
    """Where a share lies with 95 % when `hits` of `count` were seen: Wilson's score interval, JASA 22 (158), 1927."""
    share, spread = hits / count, Z * Z / count
    middle = share + spread / 2
    reach = Z * math.sqrt(share * (1 - share) / count + spread / (4 * count))
    return max((middle - reach) / (1 + spread), 0.0), min((middle + reach) / (1 + spread), 1.0)


def _facts(llm: LLM, name: str, penalty: float) -> tuple:
    right = sum(knows(llm, begins, goes_on, penalty) for begins, goes_on in FACTS)
    return name, penalty, right, *wilson(right, len(FACTS))


def knows(llm: LLM, begins: str, goes_on: str, penalty: float) -> bool:
    """Whether a greedy answer of a few tokens has one of the right words in it."""
    answer = llm.generate(begins, temperature=0.0, max_tokens=6, repetition_penalty=penalty).text.lower()
    return any(word in answer for word in goes_on.split("|"))


def _drawing(rows: list[tuple]) -> Drawing:
    names = (row[0].replace(", ", "\n").replace("a scale a ", "").replace("'s ", "'s\n") for row in rows)
    lines = {"perplexity": [(name, row[1]) for name, row in zip(names, rows, strict=True)]}
    return Drawing("What 8 and 4 bits make of perplexity, by how they are chosen", "weights", "perplexity", lines,
                   log_y=True, bars=True)  # fmt: skip
