"""How much of a prompt to run beside running answers, so that these do not wait long: learnt from what steps took."""

from __future__ import annotations

WEIGHT = 0.2  # of the newest step in a running mean
LEAST = 1  # tokens of a prompt in a step, however slow: it must go on


class Pace:
    """Means of what a step takes for answers alone, and what a prompt's token adds to it; in seconds.

    A token adds more beside a few answers than among hundreds of its own, and more the longer its text is. So only what
    steps of both took is looked at, and newer ones count more.
    """

    def __init__(self, slowdown: float):
        """A step with a part of a prompt may take `slowdown` times one without."""
        self._slowdown = slowdown
        self._decode: dict[int, float] = {}  # by the number of answers
        self._token: float | None = None

    def prompt_tokens(self, decoding: int, most: int) -> int:
        """How many tokens of prompts a step of so many answers can take, up to `most`."""
        if not decoding:
            return most
        decode = self._decode_seconds(decoding)
        if decode is None or not self._token:
            return min(most, LEAST)
        return min(most, max(int((self._slowdown - 1) * decode / self._token), LEAST))

    def note(self, decoding: int, prompt_tokens: int, seconds: float) -> None:
        """A step took so long."""
        if not prompt_tokens:
            self._decode[decoding] = _mean(self._decode.get(decoding), seconds)
        elif decoding and (decode := self._decode_seconds(decoding)) is not None:
            self._token = _mean(self._token, max(seconds - decode, 0.0) / prompt_tokens)

    def _decode_seconds(self, decoding: int) -> float | None:
        if decoding in self._decode or not self._decode:
            return self._decode.get(decoding)
        return self._decode[min(self._decode, key=lambda count: abs(count - decoding))]


def _mean(so_far: float | None, new: float) -> float:
    return new if so_far is None else so_far + WEIGHT * (new - so_far)
