"""/metrics: what the server has done and does, in Prometheus' text form."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from ..answer import Completion

if TYPE_CHECKING:
    from .service import Service

FIRST = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100)  # seconds
EACH = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1)

MODEL = ["model"]  # the label of all that one of several models does

GAUGES = {  # of the engine's load
    "running": "requests in a step",
    "waiting": "requests that wait for their turn",
    "blocks_used": "blocks of keys and values in use",
    "blocks_idle": "blocks that are kept for prompts that begin alike",
    "blocks_most": "blocks that there may be",
    "wasted_tokens": "places in blocks in use that no token fills",
    "cache_bytes": "bytes of keys and values",
}
COUNTERS = {
    "steps": "steps of the engine",
    "run_tokens": "tokens that went through the model",
    "new_tokens": "tokens drawn",
    "prompt_tokens": "tokens of prompts",
    "cached_tokens": "tokens of prompts that were found in the cache",
    "evicted_blocks": "blocks given up for others",
    "preemptions": "requests that lost their blocks to others and were run again",
}


class Metrics:
    """The figures of one server."""

    def __init__(self, service: Service):
        self._service = service
        self.registry = CollectorRegistry()
        self.registry.register(self)
        made: dict[str, Any] = {"registry": self.registry}
        self.requests = Counter(
            "tinyinfer_requests", "requests by route, status and model", ["route", "status", "model"], **made
        )
        first, each = "seconds from a request to its first token", "seconds of each further token, mean of an answer"
        self._first = Histogram("tinyinfer_time_to_first_token_seconds", first, MODEL, buckets=FIRST, **made)
        self._drafted = Counter("tinyinfer_drafted_tokens", "tokens drafted to be verified", MODEL, **made)
        self._accepted = Counter("tinyinfer_accepted_tokens", "drafted tokens that were drawn", MODEL, **made)
        self._each = Histogram("tinyinfer_time_per_output_token_seconds", each, MODEL, buckets=EACH, **made)

    def note(self, model: str, completion: Completion) -> None:
        """A model gave an answer."""
        timings = completion.timings
        if timings.time_to_first_token is not None:
            self._first.labels(model).observe(timings.time_to_first_token)
        if timings.completion_tokens > 1:
            self._each.labels(model).observe(timings.decode_seconds / (timings.completion_tokens - 1))
        if completion.speculation:
            self._drafted.labels(model).inc(completion.speculation.proposed)
            self._accepted.labels(model).inc(completion.speculation.accepted)

    def collect(self) -> Iterator[Metric]:
        """What the engines know, when they are asked; those of models that are away know nothing."""
        models = self._service.models
        loads = {name: model.engine.load for name, model in models.items() if model.engine}
        loaded = {name: name in loads for name in models}
        yield _filled(GaugeMetricFamily("tinyinfer_model_loaded", "whether the model is loaded", labels=MODEL), loaded)
        if not loads:
            return
        for kind, described in ((GaugeMetricFamily, GAUGES), (CounterMetricFamily, COUNTERS)):
            for name, what in described.items():
                family = kind(f"tinyinfer_{name}", what, labels=MODEL)
                yield _filled(family, {model: getattr(load, name) for model, load in loads.items()})
        what = "share of the prompts' tokens that was found in the cache"
        rate = GaugeMetricFamily("tinyinfer_cache_hit_rate", what, labels=MODEL)
        yield _filled(rate, {model: load.hit_rate or 0.0 for model, load in loads.items()})

    def text(self) -> bytes:
        """All of it."""
        return generate_latest(self.registry)


def _filled(family: GaugeMetricFamily | CounterMetricFamily, values: Mapping[str, float]) -> Metric:
    for model, value in values.items():
        family.add_metric([model], value)
    return family
