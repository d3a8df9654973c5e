"""Pieces -> the items of a response, and the events that tell how they come."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ..answer import Completion, Piece
from ..sampling import SamplingParams
from ..text.tokenizer import Tokenizer
from ..text.tool_call import ToolCall
from .errors import Refusal
from .shapes import Json, Shape, spoken

TEXT, REASONING = "output_text", "reasoning_text"  # types of parts, and what their events are called


class ResponseShape(Shape):
    """/v1/responses. Items come one after another: reasoning, text or a call; what is next ends what was before.

    The response that is not streamed is put together by the same steps, so that both are the same.
    """

    mark = None  # the last event says that it is whole

    def __init__(
        self,
        model: str,
        tokenizer: Tokenizer | None,
        said: Mapping[str, Any],
        params: SamplingParams,
        keep: Callable[[Json], None],
    ):
        """`said` is what the response repeats of the request, `params` are those in use; `keep` gets it when whole."""
        super().__init__(tokenizer)
        self._keep = keep
        self._response: Json = {
            "id": _new_id("resp"), "object": "response", "created_at": int(time.time()), "status": "in_progress",
            "background": False, "error": None, "incomplete_details": None, "model": model, "output": [],
            "parallel_tool_calls": True, "reasoning": {"effort": None, "summary": None}, "service_tier": "default",
            "temperature": params.temperature, "top_p": params.top_p, "truncation": "disabled", "usage": None,
            **said, "seed": params.seed,
        }  # fmt: skip
        self._count = 0  # of events
        self._tokens = self._reasoning_tokens = 0
        self._logprobs: list[Json] = []  # of tokens whose text is still to come
        self._open: Json | None = None  # the part of the last item that text comes for
        self._said: list[str] = []  # that text

    def take(self, index: int, piece: Piece) -> None:
        """A piece that is not streamed."""
        for _ in self.chunks(index, piece):
            pass

    def whole(self, completions: Sequence[Completion]) -> Json:
        """The response that is not streamed."""
        self._end(completions[0])
        return self._response

    def opening(self) -> Iterator[Json]:
        """It has begun."""
        for name in ("created", "in_progress"):
            yield self._event(f"response.{name}", response=self._response)

    def chunks(self, index: int, piece: Piece) -> Iterator[Json]:
        """The events of a piece; the last one ends the last item too."""
        self._tokens += len(piece.ids)
        logprobs = self.entries(spoken(piece.completion, piece.logprobs) or ())
        if piece.reasoning:
            self._reasoning_tokens = self._tokens
            self._logprobs.clear()
            yield from self._added(REASONING, piece.reasoning)
        elif not piece.tool_calls:
            self._logprobs += logprobs
        if piece.text:
            yield from self._added(TEXT, piece.text)
        for call in piece.tool_calls:
            yield from self._called(call)
        if piece.completion:
            if not self._response["output"]:
                yield from self._begun(TEXT)
            yield from self._done("incomplete" if piece.finish_reason == "length" else "completed")

    def closing(self, completions: Sequence[Completion]) -> Iterator[Json]:
        """The response is whole."""
        self._end(completions[0])
        yield self._event(f"response.{self._response['status']}", response=self._response)

    def failed(self, refusal: Refusal) -> Json:
        """It is not, and never will be."""
        error = {"code": "server_error", "message": refusal.message}
        return self._event("response.failed", response=self._response | {"status": "failed", "error": error})

    def _end(self, completion: Completion) -> None:
        timings, said = completion.timings, len(completion.ids)
        cut = completion.finish_reason == "length"
        self._response |= {
            "status": "incomplete" if cut else "completed",
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "usage": {
                "input_tokens": timings.prompt_tokens,
                "input_tokens_details": {"cached_tokens": timings.cached_tokens},
                "output_tokens": said, "output_tokens_details": {"reasoning_tokens": self._reasoning_tokens},
                "total_tokens": timings.prompt_tokens + said,
            },
        }  # fmt: skip
        self._keep(self._response)

    def _event(self, kind: str, **what: Any) -> Json:
        self._count += 1
        return {"type": kind, **what, "sequence_number": self._count - 1}

    # ---- items

    @property
    def _place(self) -> Json:
        """Which item is meant, the last one."""
        output = self._response["output"]
        return {"item_id": output[-1]["id"], "output_index": len(output) - 1}

    def _item(self, item: Json) -> Iterator[Json]:
        self._response["output"].append(item)
        yield self._event("response.output_item.added", item=dict(item), output_index=self._place["output_index"])

    def _begun(self, kind: str) -> Iterator[Json]:
        """A new item of text, and the one part of it."""
        if kind == TEXT:
            item = {"id": _new_id("msg"), "type": "message", "role": "assistant", "content": []}
            part = {"type": TEXT, "text": "", "annotations": [], "logprobs": []}
        else:
            item = {"id": _new_id("rs"), "type": "reasoning", "summary": [], "content": []}
            part = {"type": REASONING, "text": ""}
        yield from self._item(item | {"status": "in_progress"})
        yield self._event("response.content_part.added", **self._place, content_index=0, part=dict(part))
        self._open = part

    def _added(self, kind: str, text: str) -> Iterator[Json]:
        if self._open is None or self._open["type"] != kind:
            yield from self._done()
            yield from self._begun(kind)
        self._said.append(text)
        yield self._event(f"response.{kind}.delta", **self._place, content_index=0, delta=text, **self._spelled())

    def _spelled(self) -> Json:
        """The log-probabilities of the tokens that have come by now, for events of text."""
        if self._open["type"] != TEXT:
            return {}
        new, self._logprobs = self._logprobs, []
        self._open["logprobs"] += new
        return {"logprobs": new}

    def _called(self, call: ToolCall) -> Iterator[Json]:
        yield from self._done()
        item = {"id": _new_id("fc"), "type": "function_call", "call_id": call.id, "name": call.name}
        yield from self._item(item | {"arguments": "", "status": "in_progress"})
        said = {"arguments": call.arguments}
        yield self._event("response.function_call_arguments.delta", **self._place, delta=call.arguments)
        yield self._event("response.function_call_arguments.done", **self._place, name=call.name, **said)
        yield from self._item_done(said, "completed")

    def _done(self, status: str = "completed") -> Iterator[Json]:
        """Whatever is open ends."""
        if self._open is None:
            return
        part, kind = self._open, self._open["type"]
        part["text"], self._said = "".join(self._said), []
        self._spelled()
        what = {"logprobs": part["logprobs"]} if kind == TEXT else {}
        yield self._event(f"response.{kind}.done", **self._place, content_index=0, text=part["text"], **what)
        yield self._event("response.content_part.done", **self._place, content_index=0, part=part)
        self._open = None
        yield from self._item_done({"content": [part]}, status)

    def _item_done(self, what: Json, status: str) -> Iterator[Json]:
        output = self._response["output"]
        output[-1] = output[-1] | what | {"status": status}
        yield self._event("response.output_item.done", item=output[-1], output_index=len(output) - 1)


def _new_id(kind: str) -> str:
    return f"{kind}_{uuid.uuid4().hex}"
