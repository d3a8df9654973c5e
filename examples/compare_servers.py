"""tinyinfer's server and llama.cpp's by turns, with the same chats: python examples/compare_servers.py model.gguf

    python examples/compare_servers.py model.gguf --llama-server build/bin/llama-server [--requantize q4_0]
    python examples/compare_servers.py --urls http://127.0.0.1:8080 http://127.0.0.1:8081

Chats run side by side, some turns each, behind a system message that all have in common; each turn brings all that was
said before. Every answer has the same number of tokens, without temperature, streamed over plain HTTP. A round has new
words: its first turn finds nothing in any cache, later ones what the server has kept. With `--warm` the system message
is the same in all rounds, so that only questions and answers are new. Servers take turns, so that a noisy moment falls
on all; the first round of each is not counted.

Servers that are started here have as many slots as there are chats, and the same number of threads. llama.cpp's runs
with continuous batching and its prompt cache, as it does by itself, with flash attention and without; for each of its
files the better one counts, number by number. `--requantize q4_0` adds the form in which llama.cpp is fastest, made of
the same file with llama-cpp-python (pip install "tinyinfer[bench]") for as long as it takes. Compile llama-server on
the machine that is measured, with GGML_NATIVE on, as it is unless one asks for something else. Have nothing else run:
its threads wait for each other at every operation, so one busy process more makes it many times slower.

TTFT is the time to an answer's first text, TPOT what each further token took, the mean of an answer.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from tinyinfer import TinyinferError
from tinyinfer.cli.tables import plain_table
from tinyinfer.lab.chats import Heard, Talk, converse, percentile
from tinyinfer.lab.http_client import target_of
from tinyinfer.lab.load import first_model
from tinyinfer.lab.machine import load_average
from tinyinfer.lab.servers import end_on_sigterm, our_server, running
from tinyinfer.lab.timing import Samples, in_turn

REST = 0.5  # seconds before each round: the threads of the other server go on looking for work for a while
OURS = "tinyinfer"
FIGURES: dict[str, tuple[int, Callable[[Heard], float]]] = {  # with 1 where more is better, -1 where less
    "tokens/s": (1, lambda heard: heard.tokens_per_second),
    "TTFT p50": (-1, lambda heard: percentile([one.ttft for one in heard.sent], 50)),
    "TTFT p95": (-1, lambda heard: percentile([one.ttft for one in heard.sent], 95)),
    "p95, turn 1": (-1, lambda heard: percentile([one.ttft for one in heard.turns[0]], 95)),
    "p95, later": (-1, lambda heard: percentile([one.ttft for turn in heard.turns[1:] for one in turn], 95)),
    "TPOT p50": (-1, lambda heard: percentile([one.tpot for one in heard.sent], 50)),
    "TPOT p95": (-1, lambda heard: percentile([one.tpot for one in heard.sent], 95)),
}


@dataclass
class Rival:
    """A server, and the rounds it has had."""

    name: str
    url: str
    model: str
    rounds: list[Heard]
    warm: bool = False  # one system message for all rounds

    def round(self, talk: Talk) -> float:
        """One more round; tokens a second. The words go by its number, so that all servers hear the same."""
        time.sleep(REST)
        talking = converse(target_of(self.url), self.model, talk, len(self.rounds), 0 if self.warm else None)
        heard = asyncio.run(talking)
        if heard.errors:
            sys.exit(f"{self.name}: {heard.errors[0]}")
        expected = talk.chats * talk.turns * talk.tokens
        if heard.tokens != expected:
            sys.exit(f"{self.name}: expected {expected} tokens of answers, found {heard.tokens}")
        self.rounds.append(heard)
        return heard.tokens_per_second

    def samples(self, of: Callable[[Heard], float]) -> Samples:
        """A figure of each round but the first."""
        return Samples(tuple(of(heard) for heard in self.rounds[1:]))


def table(rivals: Sequence[Rival], groups: dict[str, list[str]]) -> str:
    """Medians of the rounds. The first of `rivals` is ours; `groups` are names of others, of which the best counts."""
    found = {rival.name: [rival.samples(of) for _, of in FIGURES.values()] for rival in rivals}
    rows = [[name, *map(shown, samples)] for name, samples in found.items()]
    ours = found[rivals[0].name]
    for group, names in groups.items():
        row = []
        for i, (sign, _) in enumerate(FIGURES.values()):
            best = max(sign * found[name][i].median for name in names)
            row.append(f"{ours[i].median / (sign * best):.2f}x")
        rows.append([f"{rivals[0].name} / {group}", *row])
    return plain_table(("times in seconds", *FIGURES), rows)


def shown(samples: Samples) -> str:
    """The median, the lowest and the highest."""
    return f"{samples.median:.3g} ({samples.low:.3g}-{samples.high:.3g})"


def started(args: argparse.Namespace, talk: Talk, stack: ExitStack) -> tuple[dict[str, str], dict[str, list[str]]]:
    """Our server and llama.cpp's, which end with the stack: addresses by name, and groups of llama.cpp's."""
    files = [args.model, *filter(None, [args.theirs])]
    if args.requantize:
        folder = stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
        files.append(requantized(args.model, args.requantize, folder))
    threads = str(args.threads)
    print(f"llama.cpp   {version(args.llama_server)}")
    command = our_server(args.model, "--slots", talk.chats, "--threads", threads, "-q")
    urls, groups = {OURS: stack.enter_context(running(command)).url}, {}
    context = 2 * (talk.system_words + talk.turns * (talk.question_words + talk.tokens + 20)) * talk.chats
    flags = ["--parallel", talk.chats, "-t", threads, "-tb", threads, "-c", context, "--no-ui"]
    for file in files:
        groups[file.name] = []
        for flash in args.flash_attention:
            name = f"llama.cpp, {file.name}, flash {flash}"
            server = stack.enter_context(running([args.llama_server, "-m", file, *flags, "--flash-attn", flash]))
            urls[name] = server.url
            groups[file.name].append(name)
    return urls, groups


def version(program: str) -> str:
    """What llama-server says of itself. Raises `TinyinferError` where there is no such program."""
    try:
        done = subprocess.run([program, "--version"], capture_output=True, text=True)
    except OSError as error:
        raise TinyinferError(f"{program} can't be run: {error.strerror or error}; see --llama-server") from None
    return ", ".join((done.stdout + done.stderr).split("\n")[:2])


def requantized(path: Path, kind: str, folder: str) -> Path:
    """The same model in another of llama.cpp's forms, in a file of `folder`."""
    try:
        import llama_cpp
    except ImportError:
        sys.exit('--requantize needs llama-cpp-python: pip install "tinyinfer[bench]"')
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype, params.allow_requantize = {"q4_0": 2, "q8_0": 7}[kind], True  # llama_ftype of llama.h
    target = Path(folder) / f"{path.stem}-{kind}.gguf"
    if llama_cpp.llama_model_quantize(os.fsencode(path), os.fsencode(target), params):
        sys.exit(f"{path}: llama.cpp can't make {kind} of this file")
    return target


def arguments() -> argparse.Namespace:
    """The flags."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("model", type=Path, nargs="?", metavar="MODEL.gguf")
    add("--llama-server", default="llama-server", metavar="PATH", help="llama.cpp's server (default: %(default)s)")
    add("--urls", nargs=2, metavar="URL", help="two servers that run already, ours first, instead of starting any")
    add("--theirs", type=Path, metavar="FILE", help="another file for llama.cpp, beside the same one")
    add("--requantize", choices=("q4_0", "q8_0"), help="make such a file of the same model for llama.cpp")
    add(
        "--flash-attention", nargs="+", choices=("on", "off"), default=["off", "on"], help="of llama.cpp, tried in turn"
    )
    add("--warm", action="store_true", help="the same system message in all rounds")
    add("-t", "--threads", type=int, default=2, help="of each server (default: %(default)s)")
    add("--rounds", type=int, default=5, help="that count, of each server (default: %(default)s)")
    for name, value in Talk().__dict__.items():
        add(f"--{name.replace('_', '-')}", type=int, default=value, help="(default: %(default)s)")
    args = parser.parse_args()
    if (args.model is None) == (args.urls is None):
        parser.error("expected a model or --urls, one of them")
    if min(args.rounds, args.threads, args.chats, args.tokens) < 1 or args.turns < 2:
        parser.error("expected whole numbers from 1, and at least two turns")
    return args


def main() -> None:
    """Start the servers, hold the chats, print the table."""
    args = arguments()
    talk = Talk(**{name: getattr(args, name) for name in Talk().__dict__})
    with ExitStack() as stack:
        if args.urls:
            urls, groups = (
                dict(zip(("the first", "the second"), args.urls, strict=True)),
                {"the second": ["the second"]},
            )
        else:
            urls, groups = started(args, talk, stack)
        models = {name: asyncio.run(first_model(target_of(url))) for name, url in urls.items()}
        rivals = [Rival(name, url, models[name], [], args.warm) for name, url in urls.items()]
        print(f"chats       {talk.chats}, {talk.turns} turns of {talk.tokens} tokens; {args.rounds} rounds")
        print(f"load        {load_average()} before", flush=True)
        in_turn([lambda rival=rival: rival.round(talk) for rival in rivals], args.rounds)
    for rival in rivals:
        first, last = rival.rounds[-1].turns[0][0], rival.rounds[-1].turns[-1][0]
        print(f"prompts     {first.prompt_tokens} tokens, at last {last.prompt_tokens}, of which the server found "
              f"{last.cached_tokens} again: {rival.name}")  # fmt: skip
    print(f"\n{table(rivals, groups)}\n\nload {load_average()} after")


if __name__ == "__main__":
    end_on_sigterm()
    try:
        main()
    except TinyinferError as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        sys.exit(130)
