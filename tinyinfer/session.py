"""Calls that share a cache."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from .adapters import Wish
from .answer import Completion, Piece
from .asking import Message, Prompt, Tools
from .cached_sequence import CachedSequence
from .sampling import SamplingParams

if TYPE_CHECKING:
    from .llm import LLM


class Session:
    """Calls that share a cache: whatever begins as the last call did, prompt and answer, is not computed again.

    That holds as long as the adapters are the same.
    One answer at a time: a stream that is read on after another call was begun raises `BadRequest`. Threads that
    generate at the same time take a session each.
    """

    def __init__(self, llm: LLM):
        self.llm = llm
        self.reset()

    def reset(self) -> None:
        """Forget everything."""
        self._held = CachedSequence(self.llm.model)

    @property
    def cached_ids(self) -> list[int]:
        """The ids whose keys and values are held; of a text that rolls, also those that were dropped."""
        return list(self._held.ids)

    def stream(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        adapters: Wish = None,
        graphemes: bool = False,
        speculate: Any = None,
        **overrides: Any,
    ) -> Iterator[Piece]:
        """As `LLM.stream`; the prompt is all of the text, not only what is new."""
        params = self.llm.resolved_params(params, **overrides)
        chosen = self.llm.adapters.chosen(adapters)
        drafter = self.llm.chosen_drafter(speculate)
        return self.llm._answer(self._held, prompt, params, chosen, graphemes, drafter)

    def generate(self, prompt: Prompt, params: SamplingParams | None = None, **overrides: Any) -> Completion:
        """As `LLM.generate`; the prompt is all of the text, not only what is new."""
        return last(self.stream(prompt, params, **overrides))

    def chat_stream(
        self,
        messages: Sequence[Message],
        params: SamplingParams | None = None,
        tools: Tools | None = None,
        tool_format: str | None = None,
        **overrides: Any,
    ) -> Iterator[Piece]:
        """As `LLM.chat_stream`; the messages are all of the conversation, not only the new one."""
        return self.stream(self.llm.chat_prompt(messages, tools, tool_format), params, **overrides)

    def chat(
        self,
        messages: Sequence[Message],
        params: SamplingParams | None = None,
        tools: Tools | None = None,
        tool_format: str | None = None,
        **overrides: Any,
    ) -> Completion:
        """As `LLM.chat`; the messages are all of the conversation, not only the new one."""
        return last(self.chat_stream(messages, params, tools, tool_format, **overrides))


def last(pieces: Iterator[Piece]) -> Completion:
    """The whole that the last piece holds."""
    completion = None
    for piece in pieces:
        completion = piece.completion
    return completion
