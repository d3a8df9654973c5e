"""Everything that a request can ask for, through an adapter, against a plain model whose weights hold it already.

Live and merged weights add up in another order, so that logits differ by some 1e-6. Ids are equal all the same: no two
tokens of these texts are as near as that.
"""

from __future__ import annotations

import importlib.util
import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from tests.chain_models import TEMPLATE
from tests.text.tiny_tokenizers import byte_level_tokenizer_json
from tests.tiny_models import WINDOWED, random_model
from tinyinfer import LLM, Engine, ModelDrafter, NgramDrafter
from tinyinfer.checkpoint.quantized import quantize_checkpoint
from tinyinfer.checkpoint.source import Checkpoint
from tinyinfer.errors import BadRequest
from tinyinfer.model.merge import merged

TOLERANCE = 5e-5  # what logits are held to everywhere
VOCAB, PROMPT = 275, [3, 14, 15, 92, 65, 35, 89, 79]
GREEDY = {"max_tokens": 24, "temperature": 0, "ignore_eos": True}
DRAWN = {"max_tokens": 24, "temperature": 1.0, "seed": 5, "ignore_eos": True}


def base(seed: int = 0, **changes: Any) -> Checkpoint:
    config, tensors = random_model(None, seed, vocab_size=VOCAB, max_position_embeddings=256, **changes)
    tokenizer = {"eos_token": "<|im_end|>"}
    return Checkpoint(Path("base"), config, tensors, {}, byte_level_tokenizer_json(), tokenizer, TEMPLATE)


def write_adapter(folder: Path, checkpoint: Checkpoint, seed: int = 0, rank: int = 2) -> Path:
    """A LoRA adapter on every linear map of every layer, as PEFT writes one, from seeded normal numbers."""
    rng, tensors = np.random.default_rng(seed), {}
    for name, weight in checkpoint.tensors.items():
        if name.endswith("_proj.weight"):
            stem = f"base_model.model.{name.removesuffix('.weight')}"
            rows, columns = weight.shape
            tensors[f"{stem}.lora_A.weight"] = rng.standard_normal((rank, columns)) / np.sqrt(columns)
            tensors[f"{stem}.lora_B.weight"] = rng.standard_normal((rows, rank)) * 0.5
    kinds = sorted({name.split(".")[-3] for name in tensors})
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": kinds}
    folder.mkdir()
    safetensors.numpy.save_file(
        {name: array.astype(np.float32) for name, array in tensors.items()}, folder / "adapter_model.safetensors"
    )
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="module", params=[{}, WINDOWED], ids=["full", "windows"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[LLM, LLM]:
    """A model with an adapter at hand, "style", which a request has to ask for; and one that it was merged into."""
    checkpoint = base(**request.param)
    live = LLM(checkpoint, kv_dtype="float32", threads=2)
    live.load_adapter(write_adapter(tmp_path_factory.mktemp("lora") / "style", checkpoint))
    whole = merged(checkpoint, live.config, live.adapters.chosen("style"))
    return live, LLM(whole, kv_dtype="float32", threads=2)


@cache
def other_model() -> LLM:
    return LLM(base(7), kv_dtype="float32", threads=2)


def near(found: Any, expected: Any) -> bool:
    return np.allclose(found, expected, rtol=0, atol=TOLERANCE)


def test_the_adapter_makes_a_difference(pair: tuple[LLM, LLM]):
    live, whole = pair
    assert near(live.forward(PROMPT, "style"), whole.forward(PROMPT))
    assert live.generate(PROMPT, **GREEDY).ids != whole.generate(PROMPT, **GREEDY).ids


@pytest.mark.parametrize("how", [GREEDY, DRAWN], ids=["greedy", "drawn"])
@pytest.mark.parametrize("who", ["ngram", "ngram tree", "other", "other tree", "rounded", "rounded tree"])
def test_drafts(pair: tuple[LLM, LLM], who: str, how: dict[str, Any]):
    """A draft model goes without the adapter: what it says is but a guess."""
    live, whole = pair
    branches = 3 if "tree" in who else 1
    if "ngram" in who:
        drafter = NgramDrafter(6, 1, branches=branches, adaptive=False)
    elif "other" in who:
        drafter = ModelDrafter(other_model(), 6, branches, adaptive=False)
    else:
        small = LLM(quantize_checkpoint(live.checkpoint, scheme="int8"), kv_dtype="float32", threads=2)
        drafter = ModelDrafter(small, 6, branches, adaptive=False, reads_targets_keys=True)
    found = live.generate(PROMPT, adapters="style", speculate=drafter, **how)
    assert found.ids == whole.generate(PROMPT, **how).ids
    assert found.speculation.proposed or who == "ngram"
    again = live.generate(PROMPT, speculate=drafter, **how)
    assert again.ids == live.generate(PROMPT, **how).ids  # the same drafter, without the adapter


def test_samples(pair: tuple[LLM, LLM]):
    live, whole = pair
    found = live.samples(PROMPT, 3, adapters="style", **DRAWN)
    assert [done.ids for done in found] == [done.ids for done in whole.samples(PROMPT, 3, **DRAWN)]


def test_beams(pair: tuple[LLM, LLM]):
    live, whole = pair
    found = live.beams(PROMPT, 4, max_tokens=12, num_return_sequences=4, adapters="style")
    expected = whole.beams(PROMPT, 4, max_tokens=12, num_return_sequences=4)
    assert [beam.ids for beam in found] == [beam.ids for beam in expected]
    assert near([beam.score for beam in found], [beam.score for beam in expected])


@pytest.mark.skipif(importlib.util.find_spec("llguidance") is None, reason="llguidance is not installed")
@pytest.mark.parametrize("speculate", ["off", "ngram", "int8"])
@pytest.mark.parametrize(
    "form",
    [{"regex": "[a-e]{12,16}"}, {"choice": ["abcabc", "defdef"]}, {"json_schema": {"type": "array", "maxItems": 2}}],
    ids=["regex", "choice", "schema"],
)
def test_forms(pair: tuple[LLM, LLM], form: dict[str, Any], speculate: str):
    live, whole = pair
    how = {"max_tokens": 40, "temperature": 1.0, "seed": 2, **form}
    found = live.generate("a", adapters="style", speculate=speculate, **how)
    expected = whole.generate("a", **how)
    assert (found.ids, found.text, found.finish_reason) == (expected.ids, expected.text, expected.finish_reason)


def test_scores_and_log_probabilities(pair: tuple[LLM, LLM]):
    live, whole = pair
    found, expected = live.score(PROMPT, [5, 6, 7], "style"), whole.score(PROMPT, [5, 6, 7])
    assert near(found.logprob, expected.logprob)
    how = {**GREEDY, "logprobs": 2, "prompt_logprobs": 1}
    found, expected = live.generate(PROMPT, adapters="style", **how), whole.generate(PROMPT, **how)
    for name in ("logprobs", "prompt_logprobs"):
        told = [[one.logprob for one in getattr(done, name) if one] for done in (found, expected)]
        assert near(*told)


def test_sessions_and_edited_histories(pair: tuple[LLM, LLM]):
    live, whole = pair
    session = live.session()
    for prompt in (PROMPT, [*PROMPT, 4, 5], [*PROMPT[:5], 9, 9], PROMPT):
        expected = whole.generate(prompt, **GREEDY)
        found = session.generate(prompt, adapters="style", **GREEDY)
        assert found.ids == expected.ids
    assert session.generate([*PROMPT, *found.ids, 8], adapters="style", **GREEDY).timings.cached_tokens > len(PROMPT)


def test_saved_caches(pair: tuple[LLM, LLM], tmp_path: Path):
    live, whole = pair
    session = live.session()
    first = session.generate(PROMPT, adapters="style", **GREEDY)
    live.save_cache(session, tmp_path / "saved")
    with pytest.raises(BadRequest, match="another choice of adapters"):
        live.load_cache(tmp_path / "saved")
    longer = [*PROMPT, *first.ids, 7]
    found = live.load_cache(tmp_path / "saved", "style").generate(longer, adapters="style", **GREEDY)
    assert found.timings.cached_tokens > len(PROMPT)
    assert found.ids == whole.generate(longer, **GREEDY).ids
    with pytest.raises(BadRequest, match="another model"):
        whole.load_cache(tmp_path / "saved")


def test_texts_that_roll(tmp_path: Path):
    """Live and merged keys are rounded alike: they stay in float32."""
    checkpoint = base()
    live = LLM(checkpoint, 32, kv_dtype="float32", threads=2)
    live.load_adapter(write_adapter(tmp_path / "style", checkpoint))
    whole = LLM(merged(checkpoint, live.config, live.adapters.chosen("style")), 32, kv_dtype="float32", threads=2)
    how = {**GREEDY, "max_tokens": 90, "context_full": "roll"}
    found, expected = live.generate(PROMPT, adapters="style", **how), whole.generate(PROMPT, **how)
    assert (found.ids, found.dropped_tokens) == (expected.ids, expected.dropped_tokens)
    assert found.dropped_tokens > 28


def test_embeddings(pair: tuple[LLM, LLM]):
    live, whole = pair
    texts = [PROMPT, [5, 6], list(range(40))]
    for pooling in ("mean", "last", "cls"):
        assert near(live.embed(texts, pooling, adapters="style"), whole.embed(texts, pooling))


def test_an_engine_in_which_some_go_through_it(pair: tuple[LLM, LLM]):
    """The same beginnings with it and without: neither finds what the other left."""
    live, whole = pair
    engine, asked = Engine(live, slots=3), {}
    for n in range(6):
        model, wish = (whole, "style") if n % 2 else (live, None)
        prompt, how = PROMPT[: 4 + n], {**(DRAWN if n % 3 else GREEDY), "max_tokens": 8 + n}
        asked[engine.add(prompt, adapters=wish, **how)] = model.generate(prompt, **how).ids
    while engine.busy:
        for event in engine.step():
            if event.piece and event.piece.completion:
                assert event.piece.completion.ids == asked.pop(event.id)
    assert not asked
    alone = engine.add(PROMPT, adapters="style", speculate=NgramDrafter(4, 1, adaptive=False), **GREEDY)
    ends = [event.piece.completion for _ in iter(lambda: engine.busy, False) for event in engine.step()]
    assert ends[-1].ids == whole.generate(PROMPT, **GREEDY).ids
    assert alone is not None


@pytest.mark.skipif(importlib.util.find_spec("starlette") is None, reason="starlette is not installed")
def test_a_server(pair: tuple[LLM, LLM]):
    from tests.server.served import served

    live, whole = pair
    ask = {"prompt": PROMPT, "max_tokens": 12, "temperature": 1, "seed": 3, "ignore_eos": True}
    with served(live) as server:
        for wish in ("style", ["style"], {"style": 1.0}):
            found = server.post("/v1/completions", {**ask, "adapters": wish}).json()
            assert found["choices"][0]["text"] == whole.generate(PROMPT, **DRAWN | {"seed": 3, "max_tokens": 12}).text
        plain = server.post("/v1/completions", ask).json()["choices"][0]["text"]
        assert plain == live.generate(PROMPT, **DRAWN | {"seed": 3, "max_tokens": 12}).text
        vector = server.post("/v1/embeddings", {"input": PROMPT, "adapters": "style"}).json()["data"][0]["embedding"]
        assert near(vector, whole.embed([PROMPT])[0])
        assert server.client().models.retrieve("chain").adapters == ["style"]
