"""XTC, "exclude top choices": now and then, all likely tokens but the least likely of them are removed."""

from __future__ import annotations

from .candidates import Candidates, only, probabilities


def exclude_top(tokens: Candidates, threshold: float) -> Candidates:
    """Remove every token whose probability reaches `threshold`, but for the least likely one of these.

    Where fewer than two reach it nothing is removed, so that a token the model is sure of always stays; above 0.5 two
    never do. Among equally likely ones that with the highest id is the least likely.
    By p-e-w, https://github.com/oobabooga/text-generation-webui/pull/6335; as in llama.cpp, end-of-sequence and
    newline tokens are treated as any other, which the first version spared.
    """
    likely = probabilities(tokens) >= threshold
    if threshold > 0.5 or likely.sum() < 2:
        return tokens
    lowest = tokens.logits[likely].min()
    spared = (likely & (tokens.logits == lowest)).nonzero()[0][-1]
    likely[spared] = False
    return only(tokens, ~likely)
