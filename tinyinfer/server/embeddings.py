"""/v1/embeddings: texts to vectors, some at a time beside what the engine runs."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from ..adapters import Wish
from ..errors import BadRequest
from ..sampling.checks import flag, one_of
from .asked import read_prompts
from .errors import json_response, named
from .model import ServedModel
from .routes import asked_of, only, while_connected
from .service import Service

AT_ONCE = 16  # texts, after which others have a turn, and a client may have gone
FIELDS = ("model", "input", "encoding_format", "dimensions", "user", "pooling", "normalize", "adapters")


@dataclass(frozen=True)
class Texts:
    """What is asked for."""

    inputs: Sequence[str | list[int]]
    base64: bool
    pooling: str
    normalize: bool
    adapters: Wish


def read_texts(body: dict[str, Any], hidden: int) -> Texts:
    """The body of /v1/embeddings, for a model of vectors of `hidden` numbers. Raises `BadRequest` naming the field."""
    only(body, *FIELDS)
    if body.get("input") is None:
        raise BadRequest("input is needed: text, ids, or a list of either", "input")
    with named({"prompt": "input"}):
        inputs = read_prompts(body["input"])
    dimensions = body.get("dimensions")
    if dimensions is not None and (type(dimensions) is not int or dimensions != hidden):
        raise BadRequest(f"dimensions may only be the model's {hidden}, found {str(dimensions)[:80]}", "dimensions")
    form = one_of("encoding_format", body.get("encoding_format") or "float", ("float", "base64"))
    normalize = flag("normalize", body.get("normalize", True))
    return Texts(inputs, form == "base64", body.get("pooling") or "mean", normalize, body.get("adapters"))


async def embeddings(request: Request) -> Response:
    """The route."""
    service, model, body = await asked_of(request)
    found: list[Response] = []
    await while_connected(request.receive, _answer(service, model, body, found))
    return found[0]


async def _answer(service: Service, model: ServedModel, body: dict[str, Any], found: list[Response]) -> None:
    async with service.using(model):
        llm, vectors = model.engine.llm, []
        texts = read_texts(body, llm.config.hidden_size)
        with named({"prompt": "input"}):
            ids = await asyncio.to_thread(lambda: [llm.prompt_ids(text) for text in texts.inputs])
        how = texts.pooling, texts.normalize, texts.adapters
        for begin in range(0, len(ids), AT_ONCE):
            async with model.embedding:
                vectors += list(await asyncio.to_thread(llm.embed, ids[begin : begin + AT_ONCE], *how))
    found.append(json_response(shape(model.name, vectors, texts.base64, sum(map(len, ids)))))


def shape(model: str, vectors: Sequence[np.ndarray], packed: bool, tokens: int) -> dict[str, Any]:
    """OpenAI's JSON; `packed` vectors are base64 of float32, the lowest byte first."""
    data = [
        {"object": "embedding", "index": index, "embedding": _packed(vector) if packed else vector.tolist()}
        for index, vector in enumerate(vectors)
    ]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"object": "list", "data": data, "model": model, "usage": usage}


def _packed(vector: np.ndarray) -> str:
    return base64.b64encode(vector.astype("<f4").tobytes()).decode()
