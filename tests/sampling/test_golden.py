"""The steps against what transformers and llama.cpp made of the same logits (golden/sampling): kept ids, probabilities.

Both compute in float32, and some of their logits were rounded to it between steps; 1e-6 of probability is what that
comes to here. Nothing is near enough to a cut for a rounding error to change what is kept.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tinyinfer.sampling import SamplingParams
from tinyinfer.sampling.candidates import probabilities
from tinyinfer.sampling.params import ORDER
from tinyinfer.sampling.sampler import Sampler

FOLDER = Path(__file__).parents[1] / "golden" / "sampling"
TRANSFORMERS = json.loads((FOLDER / "transformers.json").read_text())
LLAMA_CPP = json.loads((FOLDER / "llama_cpp.json").read_text())
TOLERANCE = 1e-6

STEP_OF = {"typical_p": "typical", "repetition_penalty": "penalties", "xtc_threshold": "xtc"}
# what should change nothing: as many as there are; a limit that was reached; two tokens can't both pass one half
NEUTRAL = {"{'top_k': 64}", "{'min_tokens': 8}", "{'xtc_threshold': 0.5}"}


def named(case: dict[str, Any]) -> str:
    return f"{case['logits']}-" + "-".join(f"{name}={value}" for name, value in case["fields"].items())


def params_of(fields: dict[str, Any]) -> SamplingParams:
    """The fields, with the steps in the order in which they are written."""
    values = {"temperature": 1.0, "seed": 3} | fields
    steps = [STEP_OF.get(name, name) for name in fields]
    if "penalties" in fields:
        window, *amounts = values.pop("penalties")
        for name, amount in zip(("repetition", "frequency", "presence"), amounts, strict=True):
            values |= {f"{name}_penalty": amount, f"{name}_window": window}
    if "dry" in fields:
        names = ("dry_multiplier", "dry_base", "dry_allowed_length", "dry_window", "dry_breakers")
        values |= dict(zip(names, values.pop("dry"), strict=True))
    if "xtc_threshold" in fields:
        values["xtc_probability"] = 1.0
    first = [step for step in steps if step in ORDER]
    return SamplingParams(**values, order=[*first, *(step for step in ORDER if step not in first)])


def compare(sampler: Sampler, logits: list[float], expected: dict[str, Any]) -> None:
    tokens = sampler.distribution(np.float32(logits))
    assert tokens.ids.tolist() == expected["ids"]
    np.testing.assert_allclose(probabilities(tokens), expected["p"], rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("case", TRANSFORMERS["cases"], ids=named)
def test_transformers(case):
    golden = TRANSFORMERS
    history, split = golden["history"], golden["prompt_length"]
    sampler = Sampler(params_of(case["fields"]), golden["vocab"], history[:split], golden["stop_ids"])
    for id in history[split:]:
        sampler.state.accept(id)
    compare(sampler, golden["logits"][case["logits"]], case)


@pytest.mark.parametrize("case", LLAMA_CPP["cases"], ids=named)
def test_llama_cpp(case):
    # it counts the prompt in all three penalties; with the whole history as output the definitions are the same
    sampler = Sampler(params_of(case["fields"]), LLAMA_CPP["vocab"])
    for id in LLAMA_CPP["history"]:
        sampler.state.accept(id)
    compare(sampler, LLAMA_CPP["logits"][case["logits"]], case)


@pytest.mark.parametrize("case", LLAMA_CPP["repeats"], ids=lambda case: f"{case['history']}-{case['fields']['dry']}")
def test_dry_of_llama_cpp(case):
    breakers = [(id,) for text in case["breakers"] for id in LLAMA_CPP["broken_by"][text]]
    history = case["history"]
    sampler = Sampler(params_of(case["fields"]), LLAMA_CPP["vocab"], history[:5], (), breakers)
    for id in history[5:]:
        sampler.state.accept(id)
    compare(sampler, LLAMA_CPP["logits"][case["logits"]], case)


@pytest.mark.parametrize("run", LLAMA_CPP["mirostat"], ids=lambda run: f"tau={run['tau']}")
def test_mirostat_of_llama_cpp(run):
    """Its limit is not shown, but 24 kept sets follow from it, each from what was chosen before."""
    fields = {"mirostat": 2, "mirostat_tau": run["tau"], "mirostat_eta": run["eta"]}
    sampler = Sampler(SamplingParams(temperature=run["temperature"], **fields), LLAMA_CPP["vocab"])
    sizes = set()
    for step in run["steps"]:
        logits = LLAMA_CPP["logits"][step["logits"]]
        compare(sampler, logits, step)
        sampler.accept(step["chosen"], sampler.distribution(np.float32(logits)))
        sizes.add(len(step["ids"]))
    assert len(sizes) > 3


def test_the_golden_cases_can_tell_steps_apart():
    """Every case keeps or weighs something else than the bare logits do, for at least one distribution."""
    for golden in (TRANSFORMERS, LLAMA_CPP):
        changed = {}
        for case in golden["cases"]:
            bare = Sampler(SamplingParams(temperature=1.0), golden["vocab"])
            tokens = bare.distribution(np.float32(golden["logits"][case["logits"]]))
            same = tokens.ids.tolist() == case["ids"] and np.allclose(probabilities(tokens), case["p"], atol=1e-4)
            name = str(case["fields"])
            changed[name] = changed.get(name, False) or not same
        assert {name for name, moved in changed.items() if not moved} <= NEUTRAL
