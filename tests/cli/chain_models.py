"""Model folders whose every answer is known: each id is followed by the one that a chain names.

One-hot embeddings pass unchanged through layers that add nothing, and the head is a permutation.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from tests.text.tiny_tokenizers import byte_level_tokenizer_json
from tinyinfer.checkpoint.safetensors import write_safetensors

VOCAB, WIDTH = 275, 276
END = 273  # <|im_end|>

TEMPLATE = (
    "{% for message in messages %}"
    "{% if message.role == 'system' and 'forbidden' in message.content %}"
    "{{ raise_exception('System role refused') }}{% endif %}"
    "<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def say(text: str, after: str = "\n", end: int | None = END) -> dict[int, int]:
    """The chain that says `text` (each byte at most once) after `after`, and then the id `end`; None: begins again."""
    ids = [*after.encode(), *text.encode()]
    assert len(set(ids)) == len(ids), "a chain can follow a byte in one way only"
    return dict(zip(ids, [*ids[1:], ids[len(after.encode())] if end is None else end], strict=True))


def write_chain_model(
    folder: Path, chain: dict[int, int], template: str | None = TEMPLATE, context: int = 512, unused: str | None = None
) -> Path:
    """A Llama folder of one layer that follows `chain`; ids that are not in it are followed by END.

    `unused` names a tensor that no Llama has.
    """
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": VOCAB, "hidden_size": WIDTH,
        "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
        "head_dim": 4, "max_position_embeddings": context, "rms_norm_eps": 1e-6, "tie_word_embeddings": False,
        "eos_token_id": END,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text(byte_level_tokenizer_json())
    tokenizer_config = {"eos_token": "<|im_end|>"} | ({"chat_template": template} if template else {})
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer_config))
    write_weights(folder, chain, unused)
    return folder


def write_weights(folder: Path, chain: dict[int, int], unused: str | None = None) -> None:
    head = np.zeros((VOCAB, WIDTH), np.float32)
    for token in range(VOCAB):
        head[chain.get(token, END), token] = 1
    layer = "model.layers.0."
    tensors = {
        "model.embed_tokens.weight": np.eye(VOCAB, WIDTH, dtype=np.float32),
        "model.norm.weight": np.ones(WIDTH, np.float32),
        "lm_head.weight": head,
        layer + "input_layernorm.weight": np.ones(WIDTH, np.float32),
        layer + "post_attention_layernorm.weight": np.ones(WIDTH, np.float32),
        layer + "self_attn.q_proj.weight": np.full((8, WIDTH), 0.01, np.float32),
        layer + "self_attn.k_proj.weight": np.full((4, WIDTH), 0.01, np.float32),
        layer + "self_attn.v_proj.weight": np.full((4, WIDTH), 0.01, np.float32),
        layer + "self_attn.o_proj.weight": np.zeros((WIDTH, 8), np.float32),
        layer + "mlp.gate_proj.weight": np.full((8, WIDTH), 0.01, np.float32),
        layer + "mlp.up_proj.weight": np.full((8, WIDTH), 0.01, np.float32),
        layer + "mlp.down_proj.weight": np.zeros((WIDTH, 8), np.float32),
    }
    if unused:
        tensors[unused] = np.zeros(1, np.float32)
    layout = {name: (array.dtype, array.shape) for name, array in tensors.items()}
    write_safetensors(folder / "model.safetensors", layout, tensors.items())
