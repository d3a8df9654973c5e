"""Add an architecture: a made-up family, known by two tables, runs fast and as reference.py has it.

    python examples/add_architecture.py

"Twin" is a transformer whose attention and feed-forward stand side by side behind one LayerNorm, with plain
feed-forwards and names of its own. What a real one takes is in CONTRIBUTING.md; there the entries go into
`config/families.py` and `model/names.py`.
"""

import tempfile
from pathlib import Path

import numpy as np

import tinyinfer
from tinyinfer import reference
from tinyinfer.checkpoint.source import Checkpoint, write_folder
from tinyinfer.config import FAMILIES, Family
from tinyinfer.model.names import NAMES, TensorNames

# 1. what config.json calls otherwise, what it leaves unsaid, and the facts that no key says
FAMILIES["TwinForCausalLM"] = Family(
    "twin",
    names={
        "hidden_size": "width",
        "num_hidden_layers": "depth",
        "num_attention_heads": "heads",
        "num_key_value_heads": None,
    },
    defaults={"hidden_act": "gelu", "norm_eps": 1e-5, "max_position_embeddings": 256},
    facts={"parallel": True, "layer_norms": ("attention_norm",), "gated": False},
    norm={"centered": True},
)

# 2. what the tensors are called: ours on the left, below a layer's name and below the model's
NAMES["TwinForCausalLM"] = TensorNames(
    {"attention_norm": "norm.weight", "query+key+value": "look.weight", "output": "seen.weight",
     "up": "think.weight", "down": "thought.weight"},
    {"embedding": "words.weight", "final_norm": "last.weight"},
    layers="blocks.", prefixes=("",), heads=("speak.weight",),
)  # fmt: skip

WIDTH, INNER, VOCAB, DEPTH = 32, 80, 100, 2
CONFIG = {
    "architectures": ["TwinForCausalLM"], "model_type": "twin", "width": WIDTH, "depth": DEPTH, "heads": 4,
    "intermediate_size": INNER, "vocab_size": VOCAB,
}  # fmt: skip
SHAPES = {"words.weight": (VOCAB, WIDTH), "last.weight": (WIDTH,), "speak.weight": (VOCAB, WIDTH)}
for layer in range(DEPTH):
    SHAPES |= {
        f"blocks.{layer}.norm.weight": (WIDTH,), f"blocks.{layer}.look.weight": (3 * WIDTH, WIDTH),
        f"blocks.{layer}.seen.weight": (WIDTH, WIDTH), f"blocks.{layer}.think.weight": (INNER, WIDTH),
        f"blocks.{layer}.thought.weight": (WIDTH, INNER),
    }  # fmt: skip

# 3. a checkpoint, here of random numbers, and both ways through it
rng = np.random.default_rng(0)
tensors = {name: rng.standard_normal(shape, np.float32) / np.float32(WIDTH**0.5) for name, shape in SHAPES.items()}
with tempfile.TemporaryDirectory() as folder:
    write_folder(Checkpoint(Path("twin"), CONFIG, tensors), Path(folder) / "twin")
    llm = tinyinfer.load(Path(folder) / "twin", kv_dtype="float32")  # nothing is rounded: only sums' order differs
    ids = list(range(1, 20))
    slow = reference.forward(llm.config, llm.model.tensors, np.array(ids))
    fast = llm.forward(ids)
print(f"{len(ids)} tokens, logits up to {np.abs(slow).max():.2f}; largest difference {np.abs(fast - slow).max():.1e}")
