"""Measurements: of this machine, and of models on it. Nothing here prints; the commands of `cli/` do.

timing.py    samples, their median and spread; several things measured in turn
machine.py   what the machine is and can do: memory, multiply-adds, load
cost.py      what a forward pass must read and multiply
bench.py     how fast a model prefills and decodes, held against both
load.py      how a server answers when many ask; http_client.py asks, load_plot.py draws
"""
