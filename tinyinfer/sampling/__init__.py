"""From logits to an id.

    params.py    SamplingParams: what the caller asks for, checked where it is made
    steps.py     the ordered steps that scale and narrow the candidates, each a small pure function
    sampler.py   Sampler: the steps of one sequence, its random numbers, and the draw

Only `params` is imported here: it needs no NumPy, so that importing tinyinfer stays quick.
"""

from .params import SamplingParams

__all__ = ["SamplingParams"]
