"""tinyinfer and llama.cpp by turns on the same GGUF file: python examples/compare_llama_cpp.py model.gguf

Needs llama-cpp-python: pip install "tinyinfer[bench]". Compile it on the machine that is measured, since a ready-made
wheel may lack its instructions; what it was compiled for is printed first. Should it crash in its first pass, as
one did that GCC 12 had compiled for AMX, `--no-repack` goes round that, at half of llama.cpp's speed or less.

Passes of the model alone are timed, without text or sampling, with the same number of threads: a prompt of 512 tokens,
and 16 tokens one by one behind 8 and behind 512. What is shown is the median of all rounds, the lowest and the highest.
llama.cpp runs as llama-bench runs it: logits of the last token only, weights repacked for this machine as it does by
itself; with flash attention and without. The engines take turns, so that a noisy
moment falls on all.

llama.cpp is fastest with Q4_0. `--requantize q4_0` makes such a file of the same model for as long as it takes, and
both engines run that too: good enough to measure speed, not for use, for its weights are rounded twice. `--theirs FILE`
gives llama.cpp alone another file, to be compared with ours.
"""

import argparse
import ctypes
import os
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import numpy as np

import tinyinfer
from tinyinfer.cli.tables import plain_table
from tinyinfer.kernels.threads import team_of
from tinyinfer.lab.bench import STEPS, Decode, Prefill
from tinyinfer.lab.cost import weight_forms
from tinyinfer.lab.machine import load_average
from tinyinfer.lab.timing import Samples, in_turn, seconds

try:
    import llama_cpp
except ImportError:
    sys.exit('comparing needs llama-cpp-python: pip install "tinyinfer[bench]"')

PROMPT, DEPTHS = 512, (8, 512)
HEADINGS = ("tokens a second", "prefill 512", "decode at 8", "decode at 512")
WAYS = "", ", flash attention"
FILE_TYPES = {"q4_0": 2, "q4_1": 3, "q8_0": 7}  # llama_ftype of llama.h
REST = 0.05  # seconds before each sample: the threads of the other engine go on looking for work for a while

Rate = Callable[[], float]


class LlamaCpp:
    """A model in llama.cpp."""

    def __init__(self, path: Path, threads: int, repack: bool):
        self.path, self.threads = path, threads
        params = llama_cpp.llama_model_default_params()
        params.use_extra_bufts = repack
        self.model = llama_cpp.llama_model_load_from_file(os.fsencode(path), params)
        if not self.model:
            sys.exit(f"{path}: llama.cpp can't load this file")
        vocabulary = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))
        ids = np.random.default_rng(0).integers(vocabulary, size=PROMPT + STEPS)
        self.ids = (llama_cpp.llama_token * len(ids))(*ids.tolist())

    @property
    def name(self) -> str:
        """What llama.cpp calls it: `llama 134.52M Q4_1`."""
        text = ctypes.create_string_buffer(200)
        llama_cpp.llama_model_desc(self.model, text, len(text))
        return text.value.decode()

    def rates(self, flash_attention: bool) -> list[Rate]:
        """The columns of the table, in a context just large enough."""
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = len(self.ids)
        params.n_batch = params.n_ubatch = PROMPT
        params.n_threads = params.n_threads_batch = self.threads
        params.flash_attn_type = int(flash_attention)
        context = llama_cpp.llama_init_from_model(self.model, params)
        if not context:
            sys.exit(f"{self.path}: llama.cpp can't make a context of {params.n_ctx} tokens")
        return [lambda: self.prefill(context), *(lambda depth=depth: self.decode(context, depth) for depth in DEPTHS)]

    def prefill(self, context) -> float:
        """Tokens a second of one prompt."""
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(context), False)
        return PROMPT / seconds(lambda: self.run(context, 0, PROMPT))

    def decode(self, context, depth: int) -> float:
        """Tokens a second, one by one, the first behind `depth` others."""
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(context), False)
        self.run(context, 0, depth)
        return STEPS / seconds(lambda: [self.run(context, depth + step, 1) for step in range(STEPS)])

    def run(self, context, begin: int, count: int) -> None:
        """`count` ids from `begin` on, behind what the context holds; logits of the last."""
        where = ctypes.byref(self.ids, begin * ctypes.sizeof(llama_cpp.llama_token))
        ids = ctypes.cast(where, ctypes.POINTER(llama_cpp.llama_token))
        code = llama_cpp.llama_decode(context, llama_cpp.llama_batch_get_one(ids, count))
        if code:
            sys.exit(f"{self.path}: llama.cpp's decode fails with code {code}")
        llama_cpp.llama_synchronize(context)


def our_rates(llm: tinyinfer.LLM) -> list[Rate]:
    """The same columns of tinyinfer."""
    return [Prefill(llm.model, PROMPT).rate, *(Decode(llm.model, depth).rate for depth in DEPTHS)]


def requantized(path: Path, kind: str, folder: str) -> Path:
    """The same model in another of llama.cpp's forms, in a file of `folder`."""
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype, params.allow_requantize = FILE_TYPES[kind], True
    target = Path(folder) / f"{path.stem}-{kind}.gguf"
    if llama_cpp.llama_model_quantize(os.fsencode(path), os.fsencode(target), params):
        sys.exit(f"{path}: llama.cpp can't make {kind} of this file")
    return target


def rested(rate: Rate) -> Rate:
    """The same measurement, after a moment in which the other engine's threads fall asleep."""

    def measure() -> float:
        time.sleep(REST)
        return rate()

    return measure


def compare(ours: dict[str, list[Rate]], theirs: dict[str, list[list[Rate]]], rounds: int) -> str:
    """The table: by file, what of tinyinfer's is compared and llama.cpp's two ways of running it."""
    engines = {f"tinyinfer, {file}": rates for file, rates in ours.items()}
    for file, ways in theirs.items():
        engines |= {f"llama.cpp, {file}{way}": rates for way, rates in zip(WAYS, ways, strict=True)}
    found = iter(in_turn([rested(rate) for rates in engines.values() for rate in rates], rounds))
    samples = {name: [next(found) for _ in rates] for name, rates in engines.items()}
    rows = [[name, *map(shown, row)] for name, row in samples.items()]
    for file in theirs:
        mine = samples[f"tinyinfer, {file if file in ours else next(iter(ours))}"]
        as_it_comes, better = (
            [combined(samples[f"llama.cpp, {file}{way}"][i].median for way in WAYS) for i in range(len(mine))]
            for combined in (next, max)
        )
        for name, other in (("as it comes", as_it_comes), ("the better way", better)):
            ratios = [f"{one.median / rate:.2f}x" for one, rate in zip(mine, other, strict=True)]
            rows.append([f"ours to {file}, {name}", *ratios])
    return plain_table(HEADINGS, rows)


def shown(samples: Samples) -> str:
    """The median, the lowest and the highest."""
    return f"{samples.median:.1f} ({samples.low:.1f} to {samples.high:.1f})"


def main() -> None:
    """Read the flags, run both, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, metavar="MODEL.gguf")
    parser.add_argument("--theirs", type=Path, metavar="FILE", help="another file for llama.cpp, beside the same one")
    parser.add_argument("--requantize", choices=FILE_TYPES, help="make such a file of the same model")
    parser.add_argument("--rounds", type=int, default=7, help="samples of each (default: %(default)s)")
    parser.add_argument("-t", "--threads", type=int, help="of both engines (default: what tinyinfer takes)")
    parser.add_argument("--no-repack", action="store_true", help="llama.cpp with its weights as they lie in the file")
    args = parser.parse_args()
    if args.model.suffix != ".gguf" or args.rounds < 1:
        parser.error("expected a .gguf file and at least one round")
    if args.theirs and args.theirs.name == args.model.name:
        parser.error(f"expected files of two names, found {args.model.name} twice")
    if args.threads is not None:
        os.environ["TINYINFER_THREADS"] = str(args.threads)
    with ExitStack() as stack:
        both, ours, theirs = [args.model], {}, {}
        if args.requantize:
            folder = stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
            both.append(requantized(args.model, args.requantize, folder))
        print(f"llama.cpp   {llama_cpp.llama_print_system_info().decode()}")
        for file in both:
            llm = tinyinfer.load(file, activations="int8")
            forms = ", ".join(weight_forms(llm.model.tensors))
            print(f"tinyinfer   {file.name}: {forms}; keys and values {llm.model.kv_dtype}")
            ours[file.name] = our_rates(llm)
        threads = team_of(llm.model.threads).size
        for file in [*both, *filter(None, [args.theirs])]:
            rival = LlamaCpp(file, threads, not args.no_repack)
            print(f"llama.cpp   {file.name}: {rival.name}; keys and values float16")
            theirs[file.name] = [rival.rates(flash_attention) for flash_attention in (False, True)]
        print(f"threads     {threads} each; load {load_average()} before", flush=True)
        print(f"\n{compare(ours, theirs, args.rounds)}\n\nload {load_average()} after")


@llama_cpp.llama_log_callback
def quiet(level: int, text: bytes, data: object) -> None:
    """Say nothing."""


if __name__ == "__main__":
    llama_cpp.llama_log_set(quiet, None)
    llama_cpp.llama_backend_init()
    try:
        main()
    except tinyinfer.TinyinferError as error:
        sys.exit(str(error))
