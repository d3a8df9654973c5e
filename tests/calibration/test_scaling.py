"""Whatever AWQ's factors are, the model says the same: for every family, by the reference, on its golden ids."""

from __future__ import annotations

import json
from collections import ChainMap
from dataclasses import replace

import numpy as np
import pytest

from tests.tiny_models import ARCHITECTURES, VARIANTS, golden_folder, random_runtime
from tinyinfer import reference
from tinyinfer.calibration.folds import folds
from tinyinfer.calibration.layer import run_layer
from tinyinfer.calibration.scaling import find_scaling
from tinyinfer.checkpoint.quantized import quantization_plan
from tinyinfer.checkpoint.source import dequantized, open_checkpoint
from tinyinfer.config import read_config
from tinyinfer.model.tensors import collect_tensors
from tinyinfer.quant import Form, awq

IDS = np.arange(1, 12)


@pytest.fixture
def any_factors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Random factors, as even as they have to be, in place of the best."""
    rng = np.random.default_rng(0)

    def factors(weights, inputs, form, tie):
        return tie(np.exp(rng.uniform(-1.5, 1.5, weights[0].shape[1]))).astype(np.float32)

    monkeypatch.setattr(awq, "factors", factors)


def sources(name: str) -> set[str]:
    config = read_config(json.loads((golden_folder(name) / "config.json").read_text()))
    return {fold.source for layer in config.layers for fold in folds(config, layer)}


@pytest.mark.parametrize("name", [*ARCHITECTURES, *VARIANTS])
def test_logits_are_what_they_were(name: str, any_factors: None):
    checkpoint = dequantized(open_checkpoint(golden_folder(name)))
    config, source = read_config(checkpoint.config), checkpoint.tensors
    model = collect_tensors(config, source)
    forms = {key: kind for key, kind in quantization_plan(source).items() if isinstance(kind, Form)}
    changed, xs = {}, [reference.embed(config, model, IDS)]
    for index, settings in enumerate(config.layers):
        layer = run_layer(config, index, source, xs)
        scaling = find_scaling(config, settings, layer, forms)
        changed |= {key: scaling.apply(key, layer.floats[key]) for key in (*scaling.rows, *scaling.columns)}
        xs = [reference.transformer_layer(config, settings, model.layers[index], x) for x in xs]
    exact = reference.forward(config, model, IDS)
    found = reference.forward(config, collect_tensors(config, ChainMap(changed, dict(source))), IDS)
    # factors from 0.2 to 4.5 and the roundings of float32; a fold that does not hold is off by more than 0.1
    np.testing.assert_allclose(found, exact, rtol=1e-3, atol=2e-4 * np.abs(exact).max())
    assert bool(changed) == (name not in ("gpt2", "gpt2-unscaled"))  # whose matrices are stored transposed


def test_a_norm_alone_changes_the_model(any_factors: None):
    """So that the test above could fail."""
    config, tensors = random_runtime()
    halved = {**tensors.layers[0], "attention_norm": tensors.layers[0]["attention_norm"] / 2}
    broken = replace(tensors, layers=(halved, *tensors.layers[1:]))
    exact = reference.forward(config, tensors, IDS)
    assert np.abs(reference.forward(config, broken, IDS) - exact).max() > 0.05 * np.abs(exact).max()


ALL = {"attention_norm", "mlp_norm", "value", "up"}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("llama", ALL),
        ("qwen2", ALL),
        ("phi3", ALL),  # fused
        ("gemma3", ALL),  # its norms multiply by weight + 1
        ("olmo2", {"value", "up"}),  # norms stand after
        ("mixtral", {"attention_norm", "value"}),  # routers read what comes of the second norm
        ("deepseek-v3-mla", {"attention_norm", "mlp_norm", "up"}),  # the first layers have no experts
        ("cohere", {"attention_norm", "value", "up"}),  # one norm for both halves
        ("olmo", {"up"}),  # norms have no weights, values are clipped
    ],
)
def test_what_can_be_folded_is_read_off_the_facts(name: str, expected: set[str]):
    assert sources(name) == expected


def test_one_factor_for_all_query_heads_that_read_a_value():
    config, _ = random_runtime()
    fold = next(fold for fold in folds(config, config.layers[0]) if fold.source == "value")
    sizes = np.random.default_rng(0).random(60)
    even = fold.even(sizes)
    np.testing.assert_allclose(even.reshape(2, 3, 10), np.repeat(sizes.reshape(2, 3, 10).mean(1)[:, None], 3, 1))
    np.testing.assert_allclose(fold.of_source(even), sizes.reshape(2, 3, 10).mean(1).reshape(-1))
