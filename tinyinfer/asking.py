"""What it takes to begin an answer: a prompt as ids, complete parameters, a sampler, and a decoder for the text.

Nothing here runs the model: of it only the facts are read.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from .answer import Answer, TextDecoder
from .checkpoint.source import Checkpoint
from .config import ModelConfig, token_ids
from .constraints.constraint import Constraint
from .constraints.grammars import Grammars
from .errors import BadRequest, ContextOverflow, TemplateError, UnsupportedModel
from .rolling import check_rolling
from .sampling import SamplingParams
from .sampling.checks import flag
from .sampling.sampler import Sampler
from .text.chat import ChatPrompt, ChatTemplate, chat_prompt
from .text.markup import Markup, MarkupDecoder, Said
from .text.stream import StreamDecoder
from .text.tokenizer import Tokenizer

Message = Mapping[str, Any]  # {"role": ..., "content": ...}
Tools = Sequence[Mapping[str, Any]]  # as in OpenAI's API
Prompt = str | Sequence[int] | ChatPrompt


class Asking:
    """The text side of a model: its tokenizer and templates, and how a request becomes an `Answer`.

    checkpoint   what the files say
    config       ModelConfig, the facts that the model reads
    context      tokens that prompt and answer may have together
    stop_ids     end-of-sequence ids, of generation_config, config and tokenizer together
    """

    def __init__(self, checkpoint: Checkpoint, config: ModelConfig, context: int | None = None):
        """Raises `BadRequest` for a context that the model can't have."""
        self.checkpoint, self.config = checkpoint, config
        self.context = _checked_context(context, config)
        also = token_ids(checkpoint.generation_config.get("eos_token_id"), "generation_config.json: eos_token_id")
        self.stop_ids = frozenset(config.eos_ids + also)
        if self._tokenizer is not None:
            self.stop_ids |= self._tokenizer.stop_ids
            _give_memory_back()

    @property
    def path(self) -> Path:
        """The folder or file that the model came from."""
        return self.checkpoint.source

    @cached_property
    def _tokenizer(self) -> Tokenizer | None:
        return None if self.checkpoint.tokenizer_json is None else Tokenizer.from_checkpoint(self.checkpoint)

    @property
    def tokenizer(self) -> Tokenizer:
        """Text to ids and back. Raises where the model came without one, saying what was looked for."""
        return self._tokenizer or Tokenizer.from_checkpoint(self.checkpoint)

    @cached_property
    def chat_template(self) -> ChatTemplate:
        """The model's own template. Raises `TemplateError` where it has none."""
        if self.checkpoint.chat_template is None:
            raise TemplateError(f"{self.path}: this model has no chat template, so it can only continue a prompt")
        return ChatTemplate(self.checkpoint.chat_template, self.tokenizer.special_tokens)

    @cached_property
    def tool_template(self) -> ChatTemplate:
        """The template for conversations with tools, which a few models have beside the other."""
        source = self.checkpoint.tool_template
        return ChatTemplate(source, self.tokenizer.special_tokens) if source else self.chat_template

    def chat_prompt(
        self, messages: Sequence[Message], tools: Tools | None = None, tool_format: str | None = None
    ) -> ChatPrompt:
        """What a conversation becomes: ids, and how the answer is to be read; see `chat_stream`."""
        template = self.tool_template if tools else self.chat_template
        return chat_prompt(template, self.tokenizer, messages, tools, tool_format)

    def chat_ids(self, messages: Sequence[Message], tools: Tools | None = None) -> list[int]:
        """The ids that a conversation becomes. The template alone says where BOS stands: none is added."""
        return self.chat_prompt(messages, tools).ids

    def prompt_ids(self, prompt: Prompt, params: SamplingParams | None = None) -> list[int]:
        """A prompt as valid ids: text is tokenized, with one BOS where the tokenizer asks; an empty one becomes BOS.

        Raises `BadRequest` for an id outside the vocabulary, and for an empty prompt where there is no BOS;
        `ContextOverflow` for one longer than the context, unless `params` say that it rolls.
        """
        if isinstance(prompt, ChatPrompt):
            prompt = prompt.ids
        ids = self.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
        ids = self._checked_ids(ids, "text or a flat list of ids")
        if not ids:
            bos = self._tokenizer and self._tokenizer.bos_token_id
            if bos is None:
                raise BadRequest("the prompt is empty, and the model has no BOS token to begin from", "prompt")
            ids = self._checked_ids([bos], "a BOS id")
        rolls = params is not None and params.context_full == "roll"
        if len(ids) > self.context and not rolls:
            both = f"{len(ids):,} tokens, more than the context of {self.context:,}"
            raise ContextOverflow(f"the prompt has {both}", "prompt")
        return ids

    def resolved_params(self, params: SamplingParams | None = None, **overrides: Any) -> SamplingParams:
        """The complete sampling values: what was said, else what the model advises, else neutral."""
        return overridden(params, overrides).resolved(self.checkpoint.generation_config)

    def new_answer(
        self, prompt: Prompt, params: SamplingParams, context: int | None = None, graphemes: bool = False
    ) -> Answer:
        """An answer that nobody feeds yet, to a prompt and to `params` as resolved.

        `context`, by default the model's, is what prompt and answer share; for `graphemes` see `stream`.
        Raises as `prompt_ids` does, `BadRequest` for ids of `params` outside the vocabulary, a constraint that can't be
        compiled, or a text that can't roll, and `UnsupportedModel` for what needs a tokenizer where there is none.
        """
        ids, graphemes = self.prompt_ids(prompt, params), flag("graphemes", graphemes)
        decoder, breakers = self._text_decoder(prompt, params, graphemes), self._dry_breakers(params)
        vocab_size, constraint = self.config.vocab_size, self.constraint(params)
        sampler = Sampler(params, vocab_size, ids, self.stop_ids, breakers, constraint)
        answer = Answer(ids, sampler, self.stop_ids, decoder, context or self.context)
        if answer.rolling:
            check_rolling(self.config, answer.rolling)
        return answer

    def _text_decoder(self, prompt: Prompt, params: SamplingParams, graphemes: bool) -> TextDecoder:
        if self._tokenizer is not None:
            markup = prompt.markup if isinstance(prompt, ChatPrompt) else Markup()
            shown = frozenset(map(self._tokenizer.id_of, markup.special))
            return MarkupDecoder(StreamDecoder(self._tokenizer, params.stop, shown, graphemes), markup)
        if params.stop:
            raise UnsupportedModel(f"{self.path}: stop strings need a tokenizer, and this model came without one")
        return NoText()

    def constraint(self, params: SamplingParams) -> Constraint | None:
        """Which ids an answer may consist of, at its beginning; None where `params` leave it free.

        Raises `BadRequest` for what can't be compiled, `UnsupportedModel` where there is no tokenizer, and
        `MissingExtra` where llguidance is not installed.
        """
        return None if params.constrained_by is None else self._grammars.constraint(params)

    @cached_property
    def _grammars(self) -> Grammars:
        if self._tokenizer is None:
            raise UnsupportedModel(f"{self.path}: a constraint needs a tokenizer, and this model came without one")
        return Grammars(self._tokenizer, self.config.vocab_size, self.stop_ids)

    def _dry_breakers(self, params: SamplingParams) -> list[tuple[int, ...]]:
        """The ids of DRY's breakers: every token that holds the text of one, and the tokens of one that takes several.

        A model without a tokenizer has no texts, and so none.
        """
        if not params.dry_multiplier or self._tokenizer is None:
            return []
        found = [(id,) for text in params.dry_breakers for id in self._tokenizer.ids_with(text)]
        spelled = (self._tokenizer.encode(text, add_special_tokens=False) for text in params.dry_breakers)
        return found + [tuple(ids) for ids in spelled if len(ids) > 1]

    def _checked_ids(self, ids: Any, expected: str, parameter: str = "prompt") -> list[int]:
        try:
            array = np.asarray(ids)
        except ValueError:  # lists of different lengths
            array = np.array(None)
        if array.ndim != 1 or (array.size and not np.issubdtype(array.dtype, np.integer)):
            raise BadRequest(f"expected {expected}, found {repr(ids)[:80]}", parameter)
        outside = array[(array < 0) | (array >= self.config.vocab_size)]
        if outside.size:
            raise BadRequest(f"id {outside[0]} is outside the vocabulary of {self.config.vocab_size:,}", parameter)
        return array.tolist()


class NoText:
    """The text of a model without a tokenizer."""

    stop = None

    def push(self, id: int) -> Said:
        """Nothing."""
        return Said()

    def finish(self, cut: bool) -> Said:
        """Nothing."""
        return Said()


def overridden(params: SamplingParams | None, overrides: Mapping[str, Any]) -> SamplingParams:
    """`params`, or the usual ones, with some fields replaced; raises `BadRequest` for what is no such thing."""
    if not isinstance(params, SamplingParams | None):
        raise BadRequest(f"params should be SamplingParams, found {type(params).__name__}", "params")
    return (params or SamplingParams()).with_overrides(**overrides)


def _give_memory_back() -> None:
    """Let go of what reading a vocabulary has freed: glibc would keep it, 26 MB for 49,152 tokens, 63 for 151,936."""
    with suppress(OSError, AttributeError, TypeError):  # other systems do so by themselves, or have no such call
        ctypes.CDLL(None).malloc_trim(0)


def _checked_context(context: int | None, config: ModelConfig) -> int:
    if context is None:
        return config.context
    longest = config.longest_context
    if type(context) is not int or not 1 <= context <= longest:
        expected = f"a whole number from 1 to the model's {longest:,}"
        raise BadRequest(f"context should be {expected}, found {context!r}", "context")
    return context
