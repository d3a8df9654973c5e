"""Completions and pieces -> the JSON of chats and completions, whole and streamed.

A shape serves one request. Answers are numbered: those to the first prompt come first, n of each.
"""

from __future__ import annotations

import math
import time
import uuid
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from .. import __version__
from ..answer import Completion, Piece
from ..sampling.logprobs import TokenLogprob
from ..text.tokenizer import Tokenizer
from .errors import Refusal

Json = dict[str, Any]
LEAST_LOGPROB = -9999.0  # OpenAI's way of writing the logarithm of nothing, which JSON can't hold


class Shape:
    """What becomes of the answers to one request. It is asked for the whole, or for events one after another."""

    mark: str | None = "[DONE]"  # what is sent when a stream is whole

    def __init__(self, tokenizer: Tokenizer | None):
        self._tokenizer = tokenizer

    def take(self, index: int, piece: Piece) -> None:
        """A piece of answer number `index` that is not streamed, for shapes that `whole` doesn't tell enough."""

    def whole(self, completions: Sequence[Completion]) -> Json:
        """The answer that is not streamed."""
        raise NotImplementedError

    def opening(self) -> Iterator[Json]:
        """What is sent before the first piece."""
        yield from ()

    def chunks(self, index: int, piece: Piece) -> Iterator[Json]:
        """What a piece of answer number `index` becomes."""
        raise NotImplementedError

    def closing(self, completions: Sequence[Completion]) -> Iterator[Json]:
        """What is sent after the last piece."""
        raise NotImplementedError

    def failed(self, refusal: Refusal) -> Json:
        """What is sent where a stream can't go on."""
        return refusal.body

    def token_bytes(self, id: int) -> bytes:
        """What a token says."""
        return b"" if self._tokenizer is None else self._tokenizer.token_bytes(id)

    def entries(self, found: Sequence[TokenLogprob]) -> list[Json]:
        """Log-probabilities as chats have them."""
        return [
            self._entry(token.id, token.logprob) | {"top_logprobs": [self._entry(*other) for other in token.top]}
            for token in found
        ]

    def _entry(self, id: int, logprob: float) -> Json:
        said = self.token_bytes(id)
        return {"token": token_text(said), "logprob": finite(logprob), "bytes": list(said)}


class ChoiceShape(Shape):
    """What chats and completions have in common: choices."""

    prefix = kind = chunk_kind = ""

    def __init__(self, model: str, tokenizer: Tokenizer | None, n: int = 1, include_usage: bool = False):
        """`model` is the name that is served, `n` how many answers each prompt has."""
        super().__init__(tokenizer)
        self._n, self._include_usage = n, include_usage
        self._head = {"id": self.prefix + uuid.uuid4().hex, "created": int(time.time()), "model": model}
        self._tail = {"system_fingerprint": f"tinyinfer-{__version__}"}
        self._begun: set[int] = set()

    def whole(self, completions: Sequence[Completion]) -> Json:
        """The answer that is not streamed."""
        choices = [self.choice(index, completion) for index, completion in enumerate(completions)]
        head = self._head | {"object": self.kind, "choices": choices}
        return head | {"usage": usage(completions, self._n)} | self._tail

    def chunks(self, index: int, piece: Piece) -> Iterator[Json]:
        """What a piece of answer number `index` becomes."""
        begins = index not in self._begun
        self._begun.add(index)
        for part in self.parts(index, piece, begins):
            choice = {"index": index, "finish_reason": None, "logprobs": None} | part
            yield self._chunk([choice]) | ({"usage": None} if self._include_usage else {})

    def closing(self, completions: Sequence[Completion]) -> Iterator[Json]:
        """The usage, where it was asked for."""
        if self._include_usage:
            yield self._chunk([]) | {"usage": usage(completions, self._n)}

    def _chunk(self, choices: list[Json]) -> Json:
        return self._head | {"object": self.chunk_kind, "choices": choices} | self._tail

    def choice(self, index: int, completion: Completion) -> Json:
        """One answer."""
        raise NotImplementedError

    def parts(self, index: int, piece: Piece, begins: bool) -> Iterator[Json]:
        """The choices of the chunks that a piece becomes, with what they have beside index; `begins` the first one."""
        raise NotImplementedError


class ChatShape(ChoiceShape):
    """/v1/chat/completions."""

    prefix, kind, chunk_kind = "chatcmpl-", "chat.completion", "chat.completion.chunk"

    def __init__(self, *args: Any, **rest: Any):
        super().__init__(*args, **rest)
        self._calls: dict[int, int] = defaultdict(int)  # how many of each answer were streamed

    def choice(self, index: int, completion: Completion) -> Json:
        """With its message."""
        message = completion.message | {"refusal": None}
        if completion.tool_calls and not completion.text:
            message["content"] = None
        logprobs = self._logprobs(spoken(completion, completion.logprobs))
        return {"index": index, "message": message, "logprobs": logprobs} | ending(completion)

    def parts(self, index: int, piece: Piece, begins: bool) -> Iterator[Json]:
        """First the role, then what is said, at last why it ends."""
        if begins:
            yield {"delta": {"role": "assistant", "content": "", "refusal": None}}
        logprobs = self._logprobs(spoken(piece.completion, piece.logprobs))
        if piece.reasoning:
            yield {"delta": {"reasoning_content": piece.reasoning}}
        if piece.text or (logprobs and logprobs["content"]):
            yield {"delta": {"content": piece.text}, "logprobs": logprobs}
        for call in piece.tool_calls:
            yield {"delta": {"tool_calls": [{"index": self._calls[index], **call.to_dict()}]}}
            self._calls[index] += 1
        if piece.completion:
            yield {"delta": {}} | ending(piece.completion)

    def _logprobs(self, found: Sequence[TokenLogprob] | None) -> Json | None:
        return None if found is None else {"content": self.entries(found), "refusal": None}


class TextShape(ChoiceShape):
    """/v1/completions. `echoed` are the prompts' texts where they are to stand before the answers."""

    prefix, kind, chunk_kind = "cmpl-", "text_completion", "text_completion"

    def __init__(self, *args: Any, echoed: Sequence[str] = (), **rest: Any):
        super().__init__(*args, **rest)
        self._echoed = echoed
        self._offsets: dict[int, int] = defaultdict(int)  # characters that the tokens streamed so far have said

    def choice(self, index: int, completion: Completion) -> Json:
        """With its text."""
        before, logprobs = self._echo(index), spoken(completion, completion.logprobs)
        if before is not None and logprobs is not None:
            first, *others = completion.prompt_logprobs
            logprobs = [TokenLogprob(completion.prompt_ids[0], math.nan, 0, ()) if first is None else first, *others,
                        *logprobs]  # fmt: skip
        text = (before or "") + completion.text
        return {"index": index, "text": text, "logprobs": self._logprobs(logprobs, index)} | ending(completion)

    def parts(self, index: int, piece: Piece, begins: bool) -> Iterator[Json]:
        """What is said, at last why it ends."""
        logprobs = self._logprobs(spoken(piece.completion, piece.logprobs), index)
        text = ((begins and self._echo(index)) or "") + piece.text
        if text or (logprobs and logprobs["tokens"]):
            yield {"text": text, "logprobs": logprobs}
        if piece.completion:
            yield {"text": ""} | ending(piece.completion)

    def _echo(self, index: int) -> str | None:
        return self._echoed[index // self._n] if self._echoed else None

    def _logprobs(self, found: Sequence[TokenLogprob] | None, index: int) -> Json | None:
        """A NaN, of the first token of a prompt, is null."""
        if found is None:
            return None
        logprobs: Json = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        for token in found:
            said, known = self.token_bytes(token.id), not math.isnan(token.logprob)
            logprobs["tokens"].append(token_text(said))
            logprobs["token_logprobs"].append(finite(token.logprob) if known else None)
            logprobs["top_logprobs"].append(self._top(token) if known else None)
            logprobs["text_offset"].append(self._offsets[index])
            self._offsets[index] += sum(byte & 0xC0 != 0x80 for byte in said)
        return logprobs

    def _top(self, token: TokenLogprob) -> dict[str, float]:
        """By text; of tokens that say the same the likelier."""
        found: dict[str, float] = {}
        for id, logprob in token.top:
            found.setdefault(token_text(self.token_bytes(id)), finite(logprob))
        return found


def usage(completions: Sequence[Completion], n: int) -> Json:
    """Tokens of the prompts, each counted once, and of all answers with the token that ends each."""
    prompts = completions[::n]
    prompt = sum(completion.timings.prompt_tokens for completion in prompts)
    said = sum(len(completion.ids) for completion in completions)
    found = {
        "prompt_tokens": prompt, "completion_tokens": said, "total_tokens": prompt + said,
        "prompt_tokens_details": {"cached_tokens": sum(completion.timings.cached_tokens for completion in prompts)},
    }  # fmt: skip
    drafts = [completion.speculation for completion in completions if completion.speculation]
    if drafts:
        accepted = sum(draft.accepted for draft in drafts)
        rejected = sum(draft.proposed for draft in drafts) - accepted
        details = {"accepted_prediction_tokens": accepted, "rejected_prediction_tokens": rejected}
        found["completion_tokens_details"] = details
    return found


def ending(completion: Completion) -> Json:
    """Why an answer ends, and the seed that gives it again."""
    return {"finish_reason": completion.finish_reason, "seed": completion.params.seed}


def spoken(completion: Completion | None, logprobs: Sequence[TokenLogprob] | None) -> Sequence[TokenLogprob] | None:
    """Without that of the end-of-sequence token, which is no part of what is said."""
    ended = logprobs and completion is not None and isinstance(completion.stop_reason, int)
    return logprobs[:-1] if ended else logprobs


def token_text(said: bytes) -> str:
    """A token's text; bytes that are no whole characters are written as OpenAI does, "bytes:\\xe2\\x80"."""
    try:
        return said.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in said)


def finite(logprob: float) -> float:
    """A logarithm that JSON can hold."""
    return max(logprob, LEAST_LOGPROB)
