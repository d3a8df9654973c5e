"""The experiments in reading order; a module is imported when its experiment is run."""

from __future__ import annotations

import importlib
from dataclasses import dataclass

from ...errors import BadRequest
from .finding import Finding
from .setting import Setting


@dataclass(frozen=True)
class Experiment:
    """One measurement of the course; its function `measure` is in the module of its name."""

    name: str
    measures: str
    needs_model: bool = True

    def run(self, setting: Setting) -> Finding:
        """Measure, on this machine."""
        module = importlib.import_module(f".{self.name.replace('-', '_')}", __package__)
        return module.measure(setting)


EXPERIMENTS = (
    Experiment("cache", "a prompt and its answer with the key-value cache and without"),
    Experiment("attention", "one step of attention, recomputed and cached: time, and bytes of scores"),
    Experiment("macs", "multiply-adds to generate a text with the cache and without, by formula and counted"),
    Experiment("memory", "peak memory of a text with the cache and without"),
    Experiment("phases", "prompts and steps of decoding, by length"),
    Experiment("kv", "what the cache of keys and values takes, by formula and in fact"),
    Experiment("batch", "several sequences at once: throughput, latency, and where the knee is"),
    Experiment("scheduling", "64 requests in 8 slots: batches that wait for their longest, and continuous ones"),
    Experiment("paging", "memory reserved in one piece and in blocks; beginnings of prompts that are found again"),
    Experiment("quant", "what rounding weights to 8 and 4 bits does to them"),
    Experiment("outliers", "the few enormous dimensions between layers, what they do to 8 bits, and five cures"),
    Experiment("quality", "perplexity, facts and agreement of each scheme, with what chance leaves open"),
    Experiment("calibrated", "4 bits chosen by what weights are multiplied with: GPTQ and AWQ beside the nearest"),
    Experiment("speculative", "how often drafts are right, what that gains, and where it loses"),
    Experiment("soft-labels", "the distribution after a sentence, and how a temperature softens it"),
    Experiment("fit", "how much context, for how many users, in how much memory"),
    Experiment("roofline", "this machine's two limits, and every operation of prefill and decode under them"),
    Experiment("tokens", "what languages, emoji, digits, code and chat templates cost in tokens"),
    Experiment("sampling", "what order, temperature and truncation do to a distribution and to texts"),
    Experiment("trace", "one request through all stages, with the time of each"),
)


def experiment(name: str) -> Experiment:
    """The one of that name; raises `BadRequest` with all names where there is none."""
    for one in EXPERIMENTS:
        if one.name == name:
            return one
    known = ", ".join(one.name for one in EXPERIMENTS)
    raise BadRequest(f"there is no experiment {name!r}; there are {known}", "name")
