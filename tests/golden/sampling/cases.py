"""What both engines are asked: logits, a history, and lists of steps. The two scripts beside it import this."""

import random

VOCAB = 64
_random = random.Random(20)
# rounded, so that a short decimal is the same float32 for everyone
LOGITS = {
    "peaked": [round(_random.gauss(0, 3), 5) for _ in range(VOCAB)],
    "flat": [round(_random.gauss(-1, 0.3), 5) for _ in range(VOCAB)],
    "sure": [round(_random.gauss(0, 1) + (12 if i == 20 else 0), 5) for i in range(VOCAB)],
    "few": [-0.65, -1.25, -1.95, -2.9] + [-20.0 - i / 2 for i in range(VOCAB - 4)],  # .51, .28, .14, .05
}
HISTORY = [5, 20, 20, 33, 7, 20, 41, 5, 60, 20, 33, 12]


def both():
    """Chains that both engines can do, as (fields of SamplingParams, logits)."""
    single = [
        {"temperature": 0.5}, {"temperature": 2.0}, {"temperature": 0.01},
        {"top_k": 1}, {"top_k": 5}, {"top_k": 40}, {"top_k": 64},
        {"top_p": 0.1}, {"top_p": 0.5}, {"top_p": 0.8}, {"top_p": 0.95}, {"top_p": 0.999},
        {"min_p": 0.02}, {"min_p": 0.2}, {"min_p": 0.9},
        {"typical_p": 0.2}, {"typical_p": 0.5}, {"typical_p": 0.95},
        {"repetition_penalty": 1.3}, {"repetition_penalty": 0.8},
    ]  # fmt: skip
    chains = [
        {"repetition_penalty": 1.1, "temperature": 0.7, "top_k": 20, "top_p": 0.8},
        {"temperature": 0.5, "top_p": 0.8}, {"temperature": 2.0, "top_p": 0.8},
        {"temperature": 1.5, "top_k": 30, "typical_p": 0.8, "top_p": 0.9, "min_p": 0.05},
        {"top_p": 0.8, "temperature": 0.5}, {"top_p": 0.8, "temperature": 2.0},
        {"min_p": 0.1, "temperature": 2.0, "top_k": 10},
        {"top_k": 10, "repetition_penalty": 1.5, "temperature": 1.2},
        {"typical_p": 0.7, "top_p": 0.7, "repetition_penalty": 1.2},
    ]  # fmt: skip
    return [(fields, logits) for fields in single + chains for logits in LOGITS]
