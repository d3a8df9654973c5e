"""`tinyinfer chat`: an interactive session that keeps its cache between turns."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable
from typing import Any

from ..errors import BadRequest, ContextOverflow, TemplateError, TinyinferError
from .conversation import Conversation
from .options import (
    Parser,
    add_loading,
    add_model,
    add_showing,
    checked_text,
    load_model,
    settle_model,
)
from .output import Screen, dropped_line, note, show, timing_lines
from .prompt_cache import add_prompt_cache, keep_session, open_session
from .sampling import add_sampling, sampling_params
from .speculation import add_speculation, speculation_wish
from .terminal import ReadLine, line_reader, read_turn

HELP = '''\
/reset         forget what was said (the system message stays)
/system TEXT   set the system message; /system alone removes it
/help          this
/exit          leave, as Ctrl-D does

A line that ends in \\ goes on in the next one. """ begins a text of several lines, and """ ends it.
Ctrl-C stops an answer; what was said of it stays.'''

EPILOG = f"""\
Where standard input is not a terminal, each line of it is a turn, and only the answers are written.

{HELP}
"""

_COMMAND = re.compile(r"/([a-z]+)(?:\s+(.*))?", re.DOTALL)


def chat_command(parser: Parser) -> Callable[[argparse.Namespace], int]:
    """The flags of `chat`."""
    add_model(parser)
    parser.add_argument("--system", metavar="TEXT", help="a system message to begin with")
    add_loading(parser, "show timings after every answer")
    add_showing(parser)
    add_sampling(parser)
    add_prompt_cache(parser)
    add_speculation(parser)
    parser.epilog = EPILOG
    return chat


def chat(args: argparse.Namespace) -> int:
    """Take turns until the input ends or the person leaves; 2 where a piped turn failed, else 0."""
    settle_model(args)
    params, args.wish = sampling_params(args), speculation_wish(args)
    system = checked_text(args.system, "the system message") if args.system else None
    interactive = _prepare_input()
    llm = load_model(args)
    if llm.checkpoint.chat_template is None:
        raise BadRequest(
            f"{args.model} has no chat template; it can only continue a text: tinyinfer run {args.model} PROMPT"
        )
    session = open_session(llm, args)
    conversation = Conversation(session, params, system, args.graphemes)
    code = _Chat(conversation, args, interactive).run(line_reader(interactive))
    keep_session(llm, session, args)
    return code


def _prepare_input() -> bool:
    """Whether a person types; bytes that are no text become characters that `checked_text` refuses, turn by turn."""
    if sys.stdin is None:
        raise BadRequest("chat reads standard input, but it is closed")
    interactive = sys.stdin.isatty()
    sys.stdin.reconfigure(encoding=None if interactive else "utf-8", errors="surrogateescape")
    return interactive


class _Chat:
    """Turns what is typed into commands and turns of the conversation."""

    def __init__(self, conversation: Conversation, args: argparse.Namespace, interactive: bool):
        self.conversation, self.interactive = conversation, interactive
        self.show_timings = args.verbose and not args.quiet
        self.screen = Screen(reasoning=not args.hide_reasoning and not args.quiet)
        self.failed = False

    def run(self, read_line: ReadLine) -> int:
        if self.interactive:
            note("/help shows what can be typed, Ctrl-D leaves")
        while True:
            try:
                text = read_turn(read_line)
                if text is None or text.strip() == "/exit":
                    break
                self.take(text)
            except KeyboardInterrupt:
                if not self.interactive:
                    raise
                note("", "Ctrl-D or /exit leaves")
        if self.interactive and text is None:
            note("")  # the shell's prompt then begins a line
        return 2 if self.failed and not self.interactive else 0

    def take(self, text: str) -> None:
        command = _COMMAND.fullmatch(text.strip())
        if command:
            self.command(command[1], (command[2] or "").strip())
        elif text.strip():
            self.turn(text)

    def command(self, name: str, rest: str) -> None:
        if name == "reset":
            self.conversation.reset()
            note("forgotten; the next turn begins anew")
        elif name == "system":
            self.conversation.system = rest or None
            note(f"the system message is now: {rest}" if rest else "there is no system message now")
        elif name == "help":
            note(HELP)
        else:
            note(f"there is no command /{name}; /help shows those that there are")

    def turn(self, text: str) -> None:
        """One turn and its answer; whatever goes wrong in it is said, and the session goes on."""
        try:
            completion = self.conversation.say(checked_text(text, "the message"), self.screen.show)
        except KeyboardInterrupt:
            if not self.interactive:
                raise
            note("", "(stopped)")
        except TinyinferError as error:
            self.failed = True
            note(f"tinyinfer: error: {error}", *self.advice(error))
        else:
            self.finish(completion)

    def finish(self, completion: Any) -> None:
        self.screen.end_reasoning()
        if not completion.text.endswith("\n"):
            show("\n")
        note(*dropped_line(completion))
        if completion.finish_reason == "length":
            filled = len(completion.prompt_ids) + len(completion.ids) >= self.conversation.session.llm.context
            full = filled and completion.params.context_full == "stop"
            note("(cut: the context is full; /reset makes room)" if full else "(cut at --max-tokens)")
        if self.show_timings:
            note(*timing_lines(completion), "")

    def advice(self, error: TinyinferError) -> list[str]:
        if isinstance(error, ContextOverflow):
            return ["/reset makes room: it forgets what was said before"]
        if isinstance(error, TemplateError) and self.conversation.system:
            return ["/system without a text removes the system message"]
        return []
