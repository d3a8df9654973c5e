"""From logits to an id.

    params.py       SamplingParams: what the caller asks for, checked (by checks.py) where it is made
    steps.py        the order, and the steps that scale and truncate, each a small pure function
    penalties.py    steps that change logits by what was said, masks, and functions of the caller's own
    dry.py, xtc.py, mirostat.py     one step each
    candidates.py   the tokens in play, which the steps hand on
    state.py        the past of a sequence, which the steps go by
    reading.py      which of a vocabulary's logits are worth reading
    plan.py         from parameters to the list of steps
    sampler.py      Sampler: the steps of one sequence, its random numbers, and the draw
    logprobs.py     how likely a token was
    effects.py      what each step does to one distribution, which `tinyinfer sampling` prints

Only `params` is imported here: it needs no NumPy, so that importing tinyinfer stays quick.
"""

from .params import SamplingParams

__all__ = ["SamplingParams"]
