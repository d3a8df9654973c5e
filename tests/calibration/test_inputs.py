"""What matrices meet: their inputs give the layer's own numbers again, and watching changes nothing."""

from __future__ import annotations

import numpy as np
import pytest

from tests.tiny_models import golden_folder, random_runtime
from tinyinfer import reference
from tinyinfer.calibration.inputs import layer_inputs
from tinyinfer.checkpoint.source import open_checkpoint
from tinyinfer.config import read_config
from tinyinfer.model.tensors import collect_tensors

IDS = np.array([5, 3, 96, 0, 41])


def test_layers_are_those_of_the_reference():
    config, tensors = random_runtime()
    x = reference.embed(config, tensors, IDS)
    for layer in layer_inputs(config, tensors, IDS):
        np.testing.assert_array_equal(layer.before, x)
        x = reference.transformer_layer(config, config.layers[layer.index], tensors.layers[layer.index], x)
        np.testing.assert_array_equal(layer.after, x)
    assert layer.index == config.num_layers - 1


def test_inputs_are_what_the_matrices_are_multiplied_with():
    config, tensors = random_runtime()
    first = next(layer_inputs(config, tensors, IDS))
    assert set(first.matrices) == {"query", "key", "value", "output", "gate", "up", "down"}
    found = {name: met[0] for name, met in first.matrices.items()}
    weights = tensors.layers[0]
    normed = reference.norm(config.norm, weights, "attention_norm", first.before)
    np.testing.assert_array_equal(found["query"][1], normed)
    np.testing.assert_array_equal(found["query"][0], weights["query"])
    (gate, x), (up, same), (down, inner) = (found[name] for name in ("gate", "up", "down"))
    np.testing.assert_array_equal(x, same)
    np.testing.assert_array_equal(inner, reference.gated(config, x @ gate.T, x @ up.T))
    seen = first.before + found["output"][1] @ found["output"][0].T
    np.testing.assert_allclose(first.after, seen + inner @ down.T, atol=1e-5)


@pytest.mark.parametrize("name", ["expert_gate", "expert_down"])
def test_each_expert_meets_the_tokens_it_was_given(name: str):
    checkpoint = open_checkpoint(golden_folder("qwen3-moe"))
    config = read_config(checkpoint.config)
    tensors = collect_tensors(config, checkpoint.tensors)
    layer = next(one for one in layer_inputs(config, tensors, np.arange(7)) if name in one.matrices)
    given = sum(len(inputs) for _, inputs in layer.matrices[name])
    assert given == 7 * config.experts.used
