"""Drafts in one step: every token gets the floats that it gets when fed by itself, in a chain and in a tree."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from tests.kernels.tapes import run_by
from tests.tiny_models import ARCHITECTURES, VARIANTS, WINDOWED, golden_folder, random_runtime
from tinyinfer.cache import KV_DTYPES, Branches
from tinyinfer.checkpoint.source import open_checkpoint
from tinyinfer.config import read_config
from tinyinfer.kernels.table import QUERY_TILE
from tinyinfer.kernels.tape import use_compiled
from tinyinfer.model.forward import Chunk, Model
from tinyinfer.model.tensors import collect_tensors

pytestmark = pytest.mark.skipif(not use_compiled(), reason="BLAS gives other floats for other numbers of rows")

MODELS = [*ARCHITECTURES, *VARIANTS]
TREE = [-1, 0, 1, 2, 0, 4, 1, 0, 7, 8]  # ways 0 1 2 3, 0 4 5, 0 1 6, 0 7 8 9
BUSHY = [-1, 0, 0, 0, 1, 2, 1, 3, 4]  # breadth first: each token a part of its own


@cache
def golden(name: str, kv_dtype: str) -> Model:
    checkpoint = open_checkpoint(golden_folder(name))
    config = read_config(checkpoint.config)
    return Model(config, collect_tensors(config, checkpoint.tensors), kv_dtype=kv_dtype, threads=2)


def path_to(parents: list[int], row: int) -> list[int]:
    path = [row]
    while parents[path[0]] >= 0:
        path.insert(0, parents[path[0]])
    return path


def alone(model: Model, base, ids: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Logits after the last id, fed one by one after what `base` holds; and the keys that are then held."""
    sequence = base.fork()
    for id in ids:
        logits = model.forward([Chunk(sequence, np.array([id]))])[0]
    keys = _held(sequence)
    sequence.release()
    return logits, keys


def _held(sequence) -> np.ndarray:
    table = sequence.tables[-1]
    return np.stack(table.load(len(table.pool.keys) - 1, table.first_position, sequence.length))


def begun(model: Model, depth: int, block_size: int = 8):
    ids = np.random.default_rng(depth).integers(model.config.vocab_size, size=depth + 12)
    sequence = model.new_cache(block_size).sequence()
    if depth:
        model.forward([Chunk(sequence, ids[:depth])])
    return sequence, ids[depth:]


@pytest.mark.parametrize("parents", [TREE, BUSHY], ids=["tree", "bushy"])
@pytest.mark.parametrize("name", [name for name in MODELS if "dynamic" not in name])
def test_a_tree_gives_each_token_what_its_own_text_would(name: str, parents: list[int]):
    """All families: windows, slopes, learned positions, latent attention, experts. To the last bit."""
    model = golden(name, "float32")
    base, ids = begun(model, 9)
    parents = parents[: len(ids)]
    branches = Branches(base, parents)
    found = model.forward([Chunk(branches, ids[: len(parents)], None, slice(None))])
    branches.give_up()
    for row in range(len(parents)):
        expected, keys = alone(model, base, ids[path_to(parents, row)])
        assert np.array_equal(found[row], expected), row
    branches = Branches(base, parents)
    model.forward([Chunk(branches, ids[: len(parents)])])
    branches.keep(len(parents) - 1)
    assert np.array_equal(_held(base)[:, -3:], keys[:, -3:])


@pytest.fixture(scope="module")
def windowed() -> Model:
    return Model(*random_runtime(0, **WINDOWED), kv_dtype="int8", threads=2)


@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
@pytest.mark.parametrize("depth", [0, 3, 120, 260])
def test_chains_and_trees_across_stretches_of_the_past(kv_dtype: str, depth: int):
    model = Model(*random_runtime(0, max_position_embeddings=512), kv_dtype=kv_dtype, threads=2)
    base, _ = begun(model, depth)
    ids = np.random.default_rng(1).integers(97, size=2 * QUERY_TILE)
    chain = [model.forward([Chunk(base.fork(), ids[:n], None, slice(None))]) for n in range(1, len(ids) + 1)]
    for n in range(len(chain)):
        expected = alone(model, base, ids[: n + 1])[0]
        for longer in chain[n:]:
            assert np.array_equal(longer[n], expected)
    branches = Branches(base, TREE)
    found = model.forward([Chunk(branches, ids[: len(TREE)], None, slice(None))])
    branches.give_up()
    for row in range(len(TREE)):
        assert np.array_equal(found[row], alone(model, base, ids[path_to(TREE, row)])[0])


def test_trees_of_several_texts_beside_a_token_and_a_prompt(windowed: Model):
    model = windowed
    (one, ids), (two, more), (three, _), (four, rest) = (begun(model, depth) for depth in (5, 17, 9, 2))
    expected = [alone(model, one, ids[path_to(TREE, row)])[0] for row in range(len(TREE))]
    expected += [alone(model, two, more[path_to(BUSHY, row)])[0] for row in range(len(BUSHY))]
    expected += [alone(model, three, ids[:1])[0], alone(model, four, rest[:5])[0]]
    trees = Branches(one, TREE), Branches(two, BUSHY)
    chunks = [
        Chunk(trees[0], ids[: len(TREE)], None, slice(None)), Chunk(trees[1], more[: len(BUSHY)], None, slice(None)),
        Chunk(three, ids[:1]), Chunk(four, rest[:5]),
    ]  # fmt: skip
    # a cache each, as `begun` makes them, is all the same to a step
    found = model.forward(chunks)
    for row, logits in enumerate(expected):
        assert np.array_equal(found[row], logits), row


@pytest.mark.parametrize("team", [1, None])
def test_the_same_by_one_thread_and_in_numpy(team: int | None, monkeypatch: pytest.MonkeyPatch):
    """In NumPy products of several rows add up in another order, and so to 1e-5 of logits of order 1."""
    model = Model(*random_runtime(0, **WINDOWED), threads=1)
    run_by(monkeypatch, team)
    base, ids = begun(model, 7)
    branches = Branches(base, TREE)
    found = model.forward([Chunk(branches, ids[: len(TREE)], None, slice(None))])
    branches.give_up()
    for row in range(len(TREE)):
        expected = alone(model, base, ids[path_to(TREE, row)])[0]
        assert np.abs(found[row] - expected).max() <= (0 if team else 1e-5)


def test_a_tree_stays_within_learned_positions():
    model = golden("gpt2", "float32")
    base, ids = begun(model, model.config.max_positions - 2)
    branches = Branches(base, [-1, 0, 0, 0])
    model.forward([Chunk(branches, ids[:4])])  # four tokens, but on no way more than two
    branches.give_up()
    branches = Branches(base, [-1, 0, 1])
    with pytest.raises(ValueError, match="learned"):
        model.forward([Chunk(branches, ids[:3])])
