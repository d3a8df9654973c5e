"""From what a request asks for to the matcher of its grammar, for one model's vocabulary."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

from ..errors import BadRequest, MissingExtra, SamplingError
from ..sampling import SamplingParams
from .constraint import REASONS, TOO_LARGE, Constraint, first_lines
from .schema import usable
from .search import culprit, patterns

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLParserLimits, LLTokenizer

    from ..text.tokenizer import Tokenizer

# Between the parts of JSON stands at most a space, or a line break and an indentation of so many: a model that loves
# spaces gets no further with them. In strings, whitespace is text like any other.
INDENTATION = 32
# Characters below U+0020 that have no short escape, and others by their number, can't be written: "\u0061" would be one
# more way to spell a name, which the schema's own names are not compared with.
JSON_OPTIONS = {"whitespace_pattern": rf" |\r?\n[ \t]{{0,{INDENTATION}}}", "json_allowed_escapes": 'nrbtf\\"'}

MOST_PATTERNS = 20  # whose first step is tried beforehand
KEPT = 8  # matchers that are kept for the next request


class Grammars:
    """Makes constraints for one vocabulary. Reading it takes a moment, so that it is done when one is first asked for.

    What was compiled is kept for the next requests that ask for the same.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, stop_ids: Iterable[int]):
        """`vocab_size` is how many ids there are logits of; `stop_ids` end a text."""
        self._text, self._vocab_size, self._stop_ids = tokenizer, vocab_size, sorted(stop_ids)
        self._compiled = lru_cache(KEPT)(self._compile)

    def constraint(self, params: SamplingParams) -> Constraint | None:
        """What `params` ask for, at its beginning; None where they ask for none.

        Raises `BadRequest` for what can't be compiled, and `MissingExtra` where llguidance is not installed.
        """
        if params.constrained_by is None:
            return None
        _ = self._tokenizer  # which says what to install
        return self._begin(self._compiled(_grammar(params), params.constrained_by).deep_copy())

    def _begin(self, matcher: LLMatcher) -> Constraint:
        return Constraint(matcher, self._vocab_size, self._tokenizer.vocab_size)

    def _compile(self, grammar: str, name: str) -> LLMatcher:
        matcher = self._matcher(grammar)
        complaint = self._complaint(matcher)
        if name == "json_schema":
            complaint = self._located(json.loads(grammar)["grammars"][0]["json_schema"], complaint)
        if complaint:
            raise BadRequest(f"{name} can't be compiled: {complaint}", name)
        return matcher

    def _located(self, schema: Any, complaint: str) -> str:
        """The complaint with the path of what it is about; the first patterns that count are looked at by themselves.

        What is wrong with those may show itself only where they begin, in the midst of an answer.
        """
        if complaint:
            return f"{culprit(schema, complaint, self._complaint_of)}: {complaint}"
        counted = {text: path for path, text in patterns(schema) if "{" in text}
        for text, path in list(counted.items())[:MOST_PATTERNS]:
            complaint = self._complaint_of({"type": "string", "pattern": text})
            if REASONS[TOO_LARGE] in complaint:
                return f"{path}: {complaint}"
        return ""

    def _matcher(self, grammar: str) -> LLMatcher:
        import llguidance

        return llguidance.LLMatcher(self._tokenizer, grammar, log_level=0, limits=self._limits)

    def _complaint_of(self, schema: Any) -> str:
        return self._complaint(self._matcher(_json_grammar(schema)))

    def _complaint(self, matcher: LLMatcher) -> str:
        """What is wrong with a grammar, "" for nothing; its first two steps show most of that."""
        if matcher.is_error():
            return first_lines(matcher.get_error())
        place = self._begin(matcher.deep_copy())
        try:
            ids = place.ids()
        except SamplingError as error:
            return str(error)
        try:
            if len(ids):
                place.accept(int(ids[0]))
                place.ids()
        except SamplingError as error:  # there may be other ways than by this id, unless it is too much to follow
            return str(error) if REASONS[TOO_LARGE] in str(error) else ""
        return "" if len(ids) or place.complete else "no text can be as it asks"

    @cached_property
    def _limits(self) -> LLParserLimits:
        """A third of what is usual, so that a hostile expression takes a fraction of a second and not several."""
        import llguidance

        return llguidance.LLParserLimits(
            initial_lexer_fuel=300_000, step_lexer_fuel=50_000, max_lexer_states=50_000, verbose_errors=False
        )

    @cached_property
    def _vocabulary(self) -> _Vocabulary:
        return _Vocabulary(self._text, self._vocab_size, self._stop_ids)

    @cached_property
    def _tokenizer(self) -> LLTokenizer:
        try:
            import llguidance
        except ImportError:
            raise MissingExtra("constrained output", "json") from None
        vocabulary = self._vocabulary
        return llguidance.LLTokenizer(
            llguidance.TokenizerWrapper(vocabulary), n_vocab=len(vocabulary.tokens), eos_token=vocabulary.stop_ids
        )


class _Vocabulary:
    """What llguidance asks of a tokenizer: what ids say, and the ids of a text where only one can come."""

    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, stop_ids: list[int]):
        said = tokenizer.all_bytes[:vocab_size]
        said += [b""] * (vocab_size - len(said))
        # llguidance needs an end; where the model has none, an id that it doesn't have stands for it
        self.tokens = said if stop_ids else [*said, b"<end>"]
        self.stop_ids = stop_ids or [vocab_size]
        self.eos_token_id = self.stop_ids[0]
        self.special_token_ids = sorted(tokenizer.special_ids.intersection(range(vocab_size)).union(self.stop_ids))
        self._tokenizer = tokenizer
        self._plain = set(range(len(self.tokens))).difference(self.special_token_ids)
        self.id_of = {self.tokens[id]: id for id in self._plain if self.tokens[id]}
        self._longest = max(map(len, self.id_of), default=0)

    def __call__(self, text: bytes) -> list[int]:
        """Ids that say just these bytes: the tokenizer's own where they do, else the longest tokens from the left.

        Empty where the vocabulary can't say it.
        """
        try:
            ids = self._tokenizer.encode(text.decode(), add_special_tokens=False)
        except ValueError:
            ids = []
        plain = all(id in self._plain for id in ids)
        return ids if plain and b"".join(self.tokens[id] for id in ids) == text else self._longest_tokens(text)

    def _longest_tokens(self, text: bytes) -> list[int]:
        ids, at = [], 0
        while at < len(text):
            lengths = range(min(self._longest, len(text) - at), 0, -1)
            length = next((n for n in lengths if text[at : at + n] in self.id_of), None)
            if length is None:
                return []
            ids.append(self.id_of[text[at : at + length]])
            at += length
        return ids


def _grammar(params: SamplingParams) -> str:
    """What llguidance reads: a grammar in Lark's form, or one of its own JSON that holds a schema or an expression."""
    if params.json:
        return _json_grammar({"type": "object"})
    if params.json_schema is not None:
        schema = usable(params.json_schema)
        if schema is False:
            raise BadRequest("json_schema: # is false, which no answer can be", "json_schema")
        return _json_grammar({} if schema is True else schema)
    if params.regex is not None:
        from llguidance import LLMatcher

        return LLMatcher.grammar_from_regex(params.regex)
    if params.choice:
        return "start: " + " | ".join(json.dumps(text, ensure_ascii=False) for text in params.choice)
    return params.grammar


def _json_grammar(schema: dict[str, Any]) -> str:
    return json.dumps({"grammars": [{"json_schema": {**schema, "x-guidance": JSON_OPTIONS}}]})
