"""A text that may outgrow its context: the first tokens stay, and the older half of the rest goes.

The first few tokens draw much of the attention whatever they say, and a model without them falls apart; kept as "sinks"
beside the latest tokens they keep it sound however long the text grows (StreamingLLM, https://arxiv.org/abs/2309.17453).
What stays is numbered anew, so that no position lies beyond those that the model knows.

Keys are kept as they were rotated, so that those that move are rotated again, back by as many positions. In float16 and
int8 they are rounded again as well. Half of the rest goes at once, so that no key moves twice: the half that moved up
is the one that goes next. Nothing is computed anew: what stays was computed while what is gone was still seen.
"""

from __future__ import annotations

from dataclasses import dataclass

from .config import ModelConfig
from .errors import BadRequest


@dataclass(frozen=True)
class Rolling:
    """When `context` tokens are held and one more comes, the first `keep` stay, and the next `drop` are dropped."""

    context: int
    keep: int

    @property
    def drop(self) -> int:
        """Half of the others; the larger one where they are odd."""
        return (self.context - self.keep + 1) // 2


def check_rolling(config: ModelConfig, rolling: Rolling) -> None:
    """Raise `BadRequest` where a model can't go on with tokens numbered anew, naming what stands against it."""
    context, keep = rolling.context, rolling.keep
    if keep > context - 2:
        expected = f"a number up to {context - 2:,}, for 2 of {context:,} tokens to come and go"
        raise BadRequest(f"context_keep should be {expected}, found {keep:,}", "context_keep")
    refused = "context_full='roll' is not possible: "
    if config.position_offset is not None:
        raise BadRequest(f"{refused}the model's positions are learned, and part of its keys", "context_full")
    for layer in config.layers:
        rope, window = layer.rope, layer.window
        if rope and rope.kind in ("dynamic", "longrope") and context > rope.original_length:
            turned = f"{rope.kind} scaling turns keys otherwise in a text of more than {rope.original_length:,} tokens"
            raise BadRequest(f"{refused}{turned}; a context of no more than that would do", "context_full")
        stays = context - keep - rolling.drop
        if window and window <= context and stays < window - 1:
            sees = f"layers see {window:,} tokens, and only {stays:,} stay beside the first {keep}"
            raise BadRequest(f"{refused}{sees}; a longer context would do, or one below {window:,}", "context_full")
