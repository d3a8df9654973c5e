"""Regular expressions that come with untrusted files, matched without backtracking.

Python's `re` can take longer than the universe has for a short expression. Here an expression takes a set of places in
the text to the set of places that it can end at from there, so that no place is looked at twice, and what that costs
is bounded by the sizes of both. Known are characters, `.`, `[...]`, `\\d` `\\w` `\\s` and their opposites, `\\b`, `\\.`
and the like, groups, `|`, `* + ? {m,n}`, lazy or not, `^` and `$`; not what looks around or back.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Set

LONGEST = 2000  # characters of an expression
DEEPEST = 8  # groups within groups
MOST_TIMES = 200  # in {m,n}

Places = Set[int]
Matcher = Callable[[str, Places], Places]

_TIMES = re.compile(r"\{(\d{0,4})(?:(,)(\d{0,4}))?\}")
_SIMPLE = {"*": (0, None), "+": (1, None), "?": (0, 1)}


class Unreadable(Exception):
    """An expression that is none, or that has what is not known here; the message says which."""


def ends(pattern: str, text: str, starts: Places) -> Places:
    """Where in `text` a match of `pattern` can end that begins at one of `starts`. Raises `Unreadable`."""
    return _Parser(pattern).matcher()(text, frozenset(starts))


def matches_all(pattern: str, text: str) -> bool:
    """Whether the whole of `text` is a match, as `re.fullmatch` says. Raises `Unreadable`."""
    return len(text) in ends(pattern, text, {0})


class _Parser:
    """Turns an expression into functions, one in another."""

    def __init__(self, pattern: str):
        if len(pattern) > LONGEST:
            raise Unreadable(f"an expression of {len(pattern):,} characters; the limit is {LONGEST:,}")
        self.pattern, self.at, self.depth = pattern, 0, 0

    def matcher(self) -> Matcher:
        whole = self.choice()
        if self.at < len(self.pattern):
            raise Unreadable(f"a {self.pattern[self.at]!r} that nothing opens")
        return whole

    def choice(self) -> Matcher:
        branches = [self.sequence()]
        while self.taken("|"):
            branches.append(self.sequence())
        return lambda text, starts: frozenset().union(*(branch(text, starts) for branch in branches))

    def sequence(self) -> Matcher:
        parts: list[Matcher] = []
        while self.at < len(self.pattern) and self.pattern[self.at] not in "|)":
            parts.append(self.repeated(self.one()))

        def match(text: str, places: Places) -> Places:
            for part in parts:
                places = part(text, places) if places else places
            return places

        return match

    def repeated(self, one: Matcher) -> Matcher:
        low, high = self.times()
        if (low, high) == (1, 1):
            return one

        def match(text: str, places: Places) -> Places:
            for _ in range(low):
                before, places = places, one(text, places)
                if places == before:  # as it will be however often
                    break
            reached, done = places, low
            while places and (high is None or done < high):
                places = one(text, places) - reached
                reached, done = reached | places, done + 1
            return reached

        return match

    def times(self) -> tuple[int, int | None]:
        following = self.pattern[self.at : self.at + 1]
        found = _TIMES.match(self.pattern, self.at)
        if following and following in "*+?":
            low, high = _SIMPLE[following]
            self.at += 1
        elif found and (found[1] or found[3]):
            low = int(found[1] or 0)
            high = (int(found[3]) if found[3] else None) if found[2] else low
            self.at = found.end()
            if low > (low if high is None else high) or max(low, high or 0) > MOST_TIMES:
                raise Unreadable(f"{found[0]} should be from a number to one no smaller, of at most {MOST_TIMES}")
        else:
            return 1, 1
        self.taken("?")  # lazy: which match is found first makes no difference to whether there is one
        if self.pattern[self.at : self.at + 1] in ("*", "+", "?"):
            raise Unreadable("a repetition of a repetition")
        return low, high

    def one(self) -> Matcher:
        """What a repetition is of."""
        char = self.next()
        if char == "(":
            return self.group()
        if char == "[":
            return _character(self.set())
        if char == ".":
            return _character(lambda c: c != "\n")
        if char == "^":
            return lambda text, places: places & {0}
        if char == "$":
            return lambda text, places: places & {len(text)}
        if char == "\\" and self.taken("b"):
            return _at_word_edges
        if char == "\\":
            return _character(self.escaped())
        if char in "*+?":
            raise Unreadable(f"a {char!r} after nothing")
        return _character(lambda c: c == char)

    def group(self) -> Matcher:
        if self.taken("?") and not self.taken(":"):
            raise Unreadable(f"a group with {'?' + self.pattern[self.at : self.at + 1]!r}")
        self.depth += 1
        if self.depth > DEEPEST:
            raise Unreadable(f"groups within groups, {self.depth} deep")
        inner = self.choice()
        if not self.taken(")"):
            raise Unreadable("a group that nothing closes")
        self.depth -= 1
        return inner

    def set(self) -> Callable[[str], bool]:
        opposite, kinds = self.taken("^"), []
        while not self.taken("]") or not kinds:  # a ] that comes first is a character
            char = "]" if self.pattern[self.at - 1] == "]" and not kinds else self.next()
            kind = self.escaped() if char == "\\" else None
            end = self.pattern[self.at : self.at + 2]
            if kind is None and len(end) == 2 and end[0] == "-" and end[1] not in "]\\":
                self.at += 2
                kinds.append(lambda c, low=char, high=end[1]: low <= c <= high)
            else:
                kinds.append(kind or (lambda c, char=char: c == char))
        return lambda c: any(kind(c) for kind in kinds) != opposite

    def escaped(self) -> Callable[[str], bool]:
        char = self.next()
        if char.lower() in "dws":
            known = re.compile(f"\\{char}")
            return lambda c: known.match(c) is not None
        if char.isalnum():
            raise Unreadable(f"the escape \\{char}")
        return lambda c: c == char

    def next(self) -> str:
        if self.at >= len(self.pattern):
            raise Unreadable("an end where more was to come")
        self.at += 1
        return self.pattern[self.at - 1]

    def taken(self, char: str) -> bool:
        """Go on past `char`, if that comes next."""
        found = self.pattern[self.at : self.at + 1] == char
        self.at += found
        return found


def _character(kind: Callable[[str], bool]) -> Matcher:
    return lambda text, places: frozenset(at + 1 for at in places if at < len(text) and kind(text[at]))


def _at_word_edges(text: str, places: Places) -> Places:
    def is_word(at: int) -> bool:
        return 0 <= at < len(text) and (text[at].isalnum() or text[at] == "_")

    return frozenset(at for at in places if is_word(at - 1) != is_word(at))
