"""Weights rounded by what they are multiplied with: GPTQ and AWQ on a short text.

walk.py      a checkpoint rounded layer by layer, while the text runs through it
layer.py     one layer at hand, with what its matrices met (inputs.py)
scaling.py   AWQ's factors in a layer, and folds.py where they can go
text.py      the text: by default text.txt, written for this project

The arithmetic is in `quant/gptq.py` and `quant/awq.py`, which know of matrices alone.
"""
