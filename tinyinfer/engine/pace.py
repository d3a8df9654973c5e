"""How much of a prompt to run beside running answers, so that these do not wait long: learnt from what steps took."""

from __future__ import annotations

WEIGHT = 0.2  # of the newest step in a running mean
FASTER, SLOWER = 0.2, 0.08  # of one without a prompt that took less, or more, than those before
LEAST = 1  # tokens of a prompt in a step, however slow: it must go on
FIRST = 8  # while it is not known what they take
LONGEST_RUN = 12  # steps in a row with parts of prompts: then one without shows what answers take by now


class Pace:
    """Means of what a step takes for answers alone, and what a prompt's token adds to it; in seconds.

    A token adds more beside a few answers than among hundreds of its own, and more the longer its text is. So only what
    steps of both took is looked at, and newer ones count more. A step of answers alone that took long had something
    else in its way, as like as not: it counts little, else a busy moment would make those after it slow as well.
    """

    def __init__(self, slowdown: float):
        """A step with a part of a prompt may take `slowdown` times one without."""
        self._slowdown = slowdown
        self._decode: dict[int, float] = {}  # by the number of answers
        self._token: float | None = None
        self._run = 0  # steps since the last one without a part of a prompt

    def prompt_tokens(self, decoding: int, most: int) -> int:
        """How many tokens of prompts a step of so many answers can take, up to `most`; now and then none.

        Answers take longer as their texts grow. Were that not looked at while a long prompt runs, its tokens would seem
        to take ever longer, and it would get ever fewer.
        """
        if not decoding:
            return most
        if self._run >= LONGEST_RUN:
            self._run = 0  # whatever becomes of that step: no prompt waits for another
            return 0
        decode = self._decode_seconds(decoding)
        if decode is None or not self._token:
            return min(most, FIRST)
        return min(most, max(int((self._slowdown - 1) * decode / self._token), LEAST))

    def note(self, decoding: int, prompt_tokens: int, seconds: float) -> None:
        """A step took so long."""
        self._run = self._run + 1 if decoding and prompt_tokens else 0
        if not prompt_tokens:
            so_far = self._decode.get(decoding)
            weight = FASTER if so_far is None or seconds < so_far else SLOWER
            self._decode[decoding] = _mean(so_far, seconds, weight)
        elif decoding and (decode := self._decode_seconds(decoding)) is not None:
            self._token = _mean(self._token, max(seconds - decode, 0.0) / prompt_tokens)

    def _decode_seconds(self, decoding: int) -> float | None:
        if decoding in self._decode or not self._decode:
            return self._decode.get(decoding)
        return self._decode[min(self._decode, key=lambda count: abs(count - decoding))]


def _mean(so_far: float | None, new: float, weight: float = WEIGHT) -> float:
    return new if so_far is None else so_far + weight * (new - so_far)
