"""The text that is calibrated on, as ids."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources

from ..errors import BadRequest
from ..text.tokenizer import Tokenizer

WINDOW = 256  # tokens that are run together, a beginning-of-text token among them where the tokenizer asks
LEAST, MOST = 128, 32_768  # tokens of a text; what all matrices of a layer met is held in memory


def usual_text() -> str:
    """A text written for this project: prose, questions, chat, code. About 3,300 tokens."""
    return resources.files(__package__).joinpath("text.txt").read_text(encoding="utf-8")


def windows(tokenizer: Tokenizer, text: str) -> list[Sequence[int]]:
    """The ids of a text, a window at a time; raises `BadRequest` for one of too few or too many tokens."""
    ids = tokenizer.encode(text, add_special_tokens=False)
    if not LEAST <= len(ids) <= MOST:
        raise BadRequest(
            f"the calibration text should have from {LEAST} to {MOST:,} tokens, found {len(ids):,}", "calibration"
        )
    bos = [id for id in tokenizer.encode("")[:1] if id == tokenizer.bos_token_id]
    step = WINDOW - len(bos)
    return [bos + ids[begin : begin + step] for begin in range(0, len(ids), step)]
