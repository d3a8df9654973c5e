"""What an answer holds beside its text: reasoning between marks, and calls of tools, told apart while they come.

The marks are never part of what is shown, and neither is the white space between them and the text:

    <think>\\nLet me see.\\n</think>\\n\\nPlease wait.\\n<tool_call>\\n{"name": "f", "arguments": {}}\\n</tool_call>
            reasoning               text                  a call

Whether a call is valid is known when it is whole, so it comes in one piece, and what turns out to be none is text like
any other, mark and all. How the text is cut into pieces plays no part in any of this.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, replace

from .calls import NONE
from .stream import StreamDecoder
from .tool_call import Names, ToolCall, ToolFormat

REASONING = {"<think>": "</think>", "[THINK]": "[/THINK]"}


@dataclass(frozen=True)
class Said:
    """What is certain to have been said since the last time: text, reasoning, and calls that are whole."""

    text: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()


def joined(parts: Iterable[Said]) -> Said:
    """All that was said, as one."""
    parts = list(parts)
    calls = tuple(call for part in parts for call in part.tool_calls)
    return Said("".join(part.text for part in parts), "".join(part.reasoning for part in parts), calls)


@dataclass(frozen=True)
class Markup:
    """How to read the answer to one prompt; by default all of it is text."""

    format: ToolFormat = NONE
    names: Names = None  # of the tools that were offered
    think: tuple[str, str] | None = None  # the marks around reasoning, where the model reasons
    thinking: bool = False  # whether the prompt ends inside them
    special: frozenset[str] = frozenset()  # the marks that are special tokens of the vocabulary
    seed: str = ""  # what ids of calls are made from

    @property
    def marks(self) -> tuple[str, ...]:
        """Every mark that may stand in an answer."""
        return (*self.format.opens, *self.format.others, *(self.think or ()))


class MarkupDecoder:
    """Ids to what they say: a stream decoder, and behind it the parser of the marks."""

    def __init__(self, decoder: StreamDecoder, markup: Markup):
        self._decoder, self._parser = decoder, MarkupParser(markup)

    @property
    def stop(self) -> str | None:
        """The stop string that ended the text, None as long as there is none."""
        return self._decoder.stop

    def push(self, id: int) -> Said:
        """Take the next id; raises `BadRequest` for one outside the vocabulary."""
        return self._parser.push(self._decoder.push(id))

    def finish(self, cut: bool) -> Said:
        """What was held back, when no more ids come; `cut` says that the model had not come to an end by itself."""
        rest = self._parser.push(self._decoder.finish())
        last = self._parser.finish(cut or self.stop is not None, self.stop or "")
        return joined((rest, last))


class MarkupParser:
    """Takes text in any pieces, and gives what is said in it.

    Reasoning can only begin an answer. Where the answer is cut inside of a call, or where a mark may have begun, what
    has come of that is not shown.
    """

    def __init__(self, markup: Markup):
        self.markup = markup
        self._held = ""
        self._read = self._reasoning_begins if markup.thinking else self._start
        self._think = markup.think
        self._gap: str | None = None  # what parts the text before a call from text behind it; None before any text
        self._marks = (*markup.format.opens, *markup.special)
        self._longest = max(map(len, markup.marks), default=0)
        # A long call is not read again for every piece of it, which would take ever longer: only where a mark comes, or
        # once what is held has grown by an eighth, to this.
        self._worth = 0
        self._stop = ""
        self._said: list[Said] = []
        self._calls = 0

    def push(self, text: str) -> Said:
        """Take more text; give what is now certain."""
        self._held += text
        if len(self._held) < self._worth and not self._mark_in(self._held[-len(text) - self._longest :]):
            return Said()
        self._worth = 0
        return self._run(False, False)

    def finish(self, cut: bool = False, stop: str = "") -> Said:
        """Give what was held back; `cut` says that more would have come, and `stop` what that begins with, if known."""
        self._stop = stop
        return self._run(True, cut)

    def _run(self, done: bool, cut: bool) -> Said:
        self._said = []
        while self._read(done, cut):
            pass
        return joined(self._said)

    # Each of these reads some of what is held, may hand over to another, and says whether to go on.

    def _start(self, done: bool, cut: bool) -> bool:
        body = self._held.lstrip()
        if self._think:
            if body.startswith(self._think[0]):
                self._held = body[len(self._think[0]) :]
                self._read = self._reasoning_begins
                return True
            if self._think[0].startswith(body):
                if not done:
                    return False
                self._held = "" if cut and self._mark_begins(body, self._think[:1]) else self._held
        if self.markup.format.alone and body:
            try:
                found = self.markup.format.alone(body, done, self.markup.names)
                if found is None:
                    self._worth = len(self._held) * 9 // 8
                    return False
                self._say_calls(found[0])
                self._held = body[found[1] :]
            except ValueError as error:
                if cut and self._unfinished(self.markup.format.alone, body):
                    self._say_calls(getattr(error, "before", []))
                    self._held = ""
        elif self.markup.format.alone and not done:
            return False
        self._read = self._text
        return True

    def _reasoning_begins(self, done: bool, cut: bool) -> bool:
        self._held = self._held.lstrip()
        self._read = self._reasoning if self._held else self._read
        return bool(self._held)

    def _reasoning(self, done: bool, cut: bool) -> bool:
        close = self._think[1]
        at = self._held.find(close)
        if at >= 0:
            self._say(reasoning=self._held[:at].rstrip())
            self._held, self._think = self._held[at + len(close) :], None
            self._read = self._text_begins
            return True
        end = self._certain((close,), done, cut)
        self._say(reasoning=self._held[:end])
        self._held = "" if done else self._held[end:]
        return False

    def _text_begins(self, done: bool, cut: bool) -> bool:
        rest = self._held.lstrip()
        if self._gap is not None and rest:
            rest = (self._gap or self._held[: -len(rest)]) + rest
        if rest or done:
            self._held, self._read = rest, (self._text if self._calls else self._start)
        return bool(rest)

    def _text(self, done: bool, cut: bool) -> bool:
        at, mark = min(((at, mark) for mark in self._marks if (at := self._held.find(mark)) >= 0), default=(-1, ""))
        if at < 0:
            end = self._certain(self._marks, done, cut)
            self._say(self._held[:end])
            self._held = "" if done else self._held[end:]
            return False
        before, behind = self._held[:at], self._held[at + len(mark) :]
        reader = self.markup.format.opens.get(mark)
        try:
            found = reader(behind, done, self.markup.names) if reader else ([], 0)
        except ValueError as error:
            if cut and self._unfinished(reader, behind):
                self._say(before.rstrip())
                self._say_calls(getattr(error, "before", []))
                self._held = ""
                return False
            self._say(before + ("" if mark in self.markup.special else mark))
            self._held = behind
            return True
        if found is None:
            shown = before.rstrip()
            self._say(shown)
            self._held = self._held[len(shown) :]
            self._worth = len(self._held) * 9 // 8
            return False
        shown = before.rstrip() if reader else before
        self._say(shown)
        self._say_calls(found[0])
        self._held = behind[found[1] :]
        if reader:
            self._gap = None if self._gap is None else before[len(shown) :]
            self._read = self._text_begins
        return True

    def _certain(self, marks: tuple[str, ...], done: bool, cut: bool) -> int:
        """Up to where what is held is no part of a mark that begins in it, nor white space before one."""
        held = self._held
        longest = max(map(len, marks), default=1)
        begun = range(max(0, len(held) - longest + 1), len(held))
        end = next((at for at in begun if any(mark.startswith(held[at:]) for mark in marks)), len(held))
        if done:
            return end if cut and self._mark_begins(held[end:], marks) else len(held)
        return len(held[:end].rstrip()) if marks else end

    def _mark_begins(self, text: str, marks: tuple[str, ...]) -> bool:
        text += self._stop
        return any(mark.startswith(text) or text.startswith(mark) for mark in marks)

    def _mark_in(self, text: str) -> bool:
        return any(mark in text for mark in self.markup.marks)

    def _unfinished(self, reader: object, text: str) -> bool:
        """Whether a call could still have come of a text."""
        try:
            return reader(text, False, self.markup.names) is None
        except ValueError:
            return False

    def _say(self, text: str = "", reasoning: str = "") -> None:
        self._gap = "" if text and self._gap is None else self._gap
        self._said.append(Said(text, reasoning))

    def _say_calls(self, calls: list[ToolCall]) -> None:
        named = []
        for call in calls:
            # nine letters and digits, which is what Mistral's templates insist on; the same for the same prompt
            made = hashlib.sha256(f"{self._calls} {self.markup.seed}".encode()).hexdigest()[:9]
            named.append(replace(call, id=call.id or made))
            self._calls += 1
        self._said.append(Said(tool_calls=tuple(named)))
