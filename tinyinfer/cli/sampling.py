"""The sampling flags, under the names that llama.cpp gives them where it has them, and `tinyinfer sampling`."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from typing import Any

from ..errors import BadRequest
from ..sampling import SamplingParams
from ..sampling.params import CONSTRAINTS, ORDER
from .options import Parser, checked_text, file_text, integer, number
from .tables import markdown_table, plain_table

STEP_NAMES = {
    "typ_p": "typical",
    "typical_p": "typical",
    "top_n_sigma": "top_n_sigma",
}  # llama.cpp's, where they differ

# flag or flags: (field, type, what stands for its value, help)
FLAGS: dict[tuple[str, ...], tuple[str, Callable, str, str]] = {
    ("--temp", "--temperature"): ("temperature", number, "T", "0: always the likeliest token; higher: more varied"),
    ("--top-k",): ("top_k", integer, "K", "draw from the K likeliest tokens; 0: off"),
    ("--top-p",): ("top_p", number, "P", "draw from the fewest tokens that reach probability P; 1: off"),
    ("--min-p",): ("min_p", number, "P", "drop tokens less than P times as likely as the likeliest; 0: off"),
    ("--typical", "--typical-p"): ("typical_p", number, "P", "draw from tokens of typical surprise that reach P"),
    ("--top-nsigma", "--top-n-sigma"): ("top_n_sigma", number, "N", "drop logits N deviations below the top; 0: no"),
    ("--xtc-probability",): ("xtc_probability", number, "P", "how often XTC removes top choices; 0: never"),
    ("--xtc-threshold",): ("xtc_threshold", number, "P", "what makes a top choice (default: 0.1)"),
    ("--repeat-penalty", "--repetition-penalty"): (
        "repetition_penalty", number, "X", "weaken what prompt and output hold, by a factor; 1: off"),
    ("--repetition-window",): ("repetition_window", integer, "N", "last tokens seen; -1 (default): all"),
    ("--frequency-penalty",): ("frequency_penalty", number, "X", "weaken a token for each time it is in the output"),
    ("--frequency-window",): ("frequency_window", integer, "N", "last tokens seen; -1 (default): all"),
    ("--presence-penalty",): ("presence_penalty", number, "X", "weaken a token that is in the output at all"),
    ("--presence-window",): ("presence_window", integer, "N", "last tokens seen; -1 (default): all"),
    ("--dry-multiplier",): ("dry_multiplier", number, "X", "strength of DRY, against repeated sequences; 0: off"),
    ("--dry-base",): ("dry_base", number, "X", "its growth with a longer repeat (default: 1.75)"),
    ("--dry-allowed-length",): ("dry_allowed_length", integer, "N", "tokens that may be repeated (default: 2)"),
    ("--dry-penalty-last-n", "--dry-window"): ("dry_window", integer, "N", "last tokens seen; -1 (default): all"),
    ("--mirostat",): ("mirostat", integer, "N", "2: hold the text's surprise instead of truncating; 0 (default): off"),
    ("--mirostat-ent",): ("mirostat_tau", number, "BITS", "the surprise that mirostat aims at (default: 5)"),
    ("--mirostat-lr",): ("mirostat_eta", number, "X", "how fast it does (default: 0.1)"),
    ("--keep",): ("context_keep", integer, "N", "with --context-shift: the first N tokens always stay (default: 4)"),
    ("--min-tokens",): ("min_tokens", integer, "N", "don't let the model end before N tokens"),
}  # fmt: skip

LOGPROB_FLAGS: dict[tuple[str, ...], tuple[str, Callable, str, str]] = {
    ("--logprobs",): ("logprobs", integer, "N", "with --json: log-probabilities of the answer, and of the N likeliest"),
    ("--prompt-logprobs",): ("prompt_logprobs", integer, "N", "with --json: the same of the prompt"),
    ("--logprobs-of",): ("logprobs_of", str, "WHAT", "model, the default: raw; sampled: of what was drawn from"),
}  # fmt: skip

OTHER_FLAGS = {
    "max_tokens": "-n", "seed": "--seed", "stop": "--stop", "ignore_eos": "--ignore-eos", "order": "--samplers",
    "dry_breakers": "--dry-sequence-breaker", "logit_bias": "--logit-bias", "banned_ids": "--banned-ids",
    "allowed_ids": "--allowed-ids", "json": "--json-object", "json_schema": "--json-schema", "regex": "--regex",
    "grammar": "--grammar", "choice": "--choice", "context_full": "--context-shift",
}  # fmt: skip

EPILOG = """\
The table shows eight tokens, A to H, as a model might rate them after the prompt "B A C D" and the output "B A A C",
and what a parameter makes of their probabilities, in percent; a dash is a token that can't come. H ends the text.
"""


def sampling_command(parser: Parser) -> Callable[[argparse.Namespace], int]:
    """The flags of `sampling`."""
    parser.add_argument("--md", action="store_true", help="write Markdown")
    parser.epilog = EPILOG
    return sampling


def sampling(args: argparse.Namespace) -> int:
    """Print what each parameter does to one distribution."""
    from ..sampling.effects import COLUMNS, effects, meanings

    table = markdown_table if args.md else plain_table
    flags = {field: names[0] for names, (field, *_) in (FLAGS | LOGPROB_FLAGS).items()} | OTHER_FLAGS
    fields = [
        [f"`{name}`", f"`{default}`", f"`{flags[name]}`" if name in flags else "", meaning]
        for name, default, meaning in meanings()
    ]
    if not args.md:
        fields = [[cell.strip("`") for cell in row] for row in fields]
    order = " > ".join([", ".join(CONSTRAINTS), "allowed_ids, banned_ids, min_tokens", "logit_bias", *ORDER])
    print(f"order: {order}\n")
    print(table(COLUMNS, effects()) + "\n")
    print(table(["parameter", "default", "flag", "what it does"], fields, 4))
    return 0


def add_sampling(parser: Parser) -> None:
    """Everything that `SamplingParams` holds, but for functions."""
    group = parser.add_argument_group("sampling", "what is not given is taken from the model's generation_config.json")
    add = group.add_argument
    whole_help = "most tokens to generate; -1, the default: until the model ends or its context is full"
    add("-n", "--max-tokens", "--n-predict", "--predict", type=integer, metavar="N", help=whole_help)
    _add(group, FLAGS)
    add("--repeat-last-n", type=integer, metavar="N", help="last tokens that all three penalties look at")
    breaker_help = "a text that no repeat reaches across; may be given several times; none: no such text"
    add("--dry-sequence-breaker", action="append", metavar="TEXT", help=breaker_help)
    bias_help = "add to a token's logit: 15043+1 or 15043-1.5; may be given several times"
    add("-l", "--logit-bias", action="append", metavar="ID+X", help=bias_help)
    add("--banned-ids", metavar="ID,ID", help="ids that never come")
    add("--allowed-ids", metavar="ID,ID", help="the only ids that may come")
    add("--samplers", "--order", metavar="A;B;C", help=f"the steps in their order (default: {';'.join(ORDER)})")
    add("-s", "--seed", type=integer, metavar="N", help="repeat the run that had this seed; -1, the default: a new one")
    add("--stop", action="append", metavar="TEXT", help="end before this text; may be given several times")
    add("--ignore-eos", action="store_true", help="go on past the end-of-sequence token")
    shift_help = "where the context is full, drop the older half of the text, but for --keep, and go on"
    add("--context-shift", action="store_true", help=shift_help)
    form = parser.add_argument_group("form", 'of the answer, one of these at most; needs pip install "tinyinfer[json]"')
    add = form.add_argument
    add("--json-object", action="store_true", help="one JSON object")
    schema_help = "what a JSON schema allows: a file of it, or its text, which begins with {"
    add("-j", "--json-schema", "--json-schema-file", metavar="FILE", help=schema_help)
    add("--regex", metavar="PATTERN", help="what matches a regular expression from end to end")
    add("--grammar", metavar="TEXT", help="what a grammar in llguidance's form of Lark allows")
    add("--grammar-file", metavar="FILE", help="the same, read from a file")
    add("--choice", action="append", metavar="TEXT", help="one of several texts, each given by its own --choice")


def add_logprobs(parser: Parser) -> None:
    """Log-probabilities, where a command can write them."""
    _add(parser, LOGPROB_FLAGS)


def _add(group: Any, flags: dict[tuple[str, ...], tuple[str, Callable, str, str]]) -> None:
    for names, (field, kind, metavar, help) in flags.items():
        group.add_argument(*names, dest=field, type=kind, metavar=metavar, help=help)


def sampling_params(args: argparse.Namespace) -> SamplingParams:
    """The sampling flags as `SamplingParams`; raises `BadRequest` for an impossible value."""
    values: dict[str, Any] = {field: getattr(args, field, None) for field, *_ in (FLAGS | LOGPROB_FLAGS).values()}
    for name in ("repetition_window", "frequency_window", "presence_window"):
        if values[name] is None:
            values[name] = args.repeat_last_n
        elif args.repeat_last_n is not None:
            raise BadRequest(f"--repeat-last-n sets {name} as well; give one of the two", name)
    if values["context_keep"] is not None and not args.context_shift:
        raise BadRequest("--keep says nothing by itself: give --context-shift too", "context_keep")
    if values["top_n_sigma"] == -1:  # which is off in llama.cpp
        values["top_n_sigma"] = 0.0
    values |= {
        "max_tokens": _unless_minus_one(args.max_tokens), "seed": _unless_minus_one(args.seed),
        "dry_breakers": _breakers(args.dry_sequence_breaker), "logit_bias": _biases(args.logit_bias),
        "banned_ids": _ids(args.banned_ids, "--banned-ids"), "allowed_ids": _ids(args.allowed_ids, "--allowed-ids"),
        "order": args.samplers and tuple(STEP_NAMES.get(name, name) for name in args.samplers.split(";")),
        "stop": args.stop, "ignore_eos": args.ignore_eos, "context_full": "roll" if args.context_shift else None,
        **_form(args),
    }  # fmt: skip
    return SamplingParams(**{name: value for name, value in values.items() if value is not None})


def _form(args: argparse.Namespace) -> dict[str, Any]:
    """What form the answer is to have."""
    schema, grammar = args.json_schema, args.grammar and checked_text(args.grammar, "--grammar")
    if schema is not None and not schema.lstrip().startswith("{"):
        schema = file_text(schema)
    if args.grammar_file is not None:
        if grammar is not None:
            raise BadRequest("the grammar was given twice, by --grammar and by --grammar-file", "grammar")
        grammar = file_text(args.grammar_file)
    form = {"json_schema": schema, "regex": args.regex, "grammar": grammar, "choice": args.choice}
    return form | {"json": args.json_object}


def _unless_minus_one(value: int | None) -> int | None:
    return None if value == -1 else value


def _breakers(texts: list[str] | None) -> list[str] | None:
    return None if texts is None else [text.replace("\\n", "\n") for text in texts if text != "none"]


def _biases(texts: list[str] | None) -> dict[str, float] | None:
    if texts is None:
        return None
    found = {}
    for text in texts:
        match = re.fullmatch(r"(\d+)([+-].+)", text)
        try:
            found[match[1]] = float(match[2])
        except (TypeError, ValueError):
            raise BadRequest(
                f"--logit-bias should be like 15043+1 or 15043-1.5, found {text!r}", "logit_bias"
            ) from None
    return found


def _ids(text: str | None, flag: str) -> list[int] | None:
    if text is None:
        return None
    if not re.fullmatch(r"\d+(,\d+)*", text):
        raise BadRequest(f"{flag} should be ids with commas between them, found {text!r}", flag[2:].replace("-", "_"))
    return [int(id) for id in text.split(",")]
