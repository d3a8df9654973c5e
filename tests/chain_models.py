"""Models whose every answer is known: each id is followed by the one that a chain names.

One-hot embeddings pass unchanged through a layer that adds nothing, and the head is a permutation.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tests.text.tiny_tokenizers import added_token, byte_level_tokenizer_json
from tinyinfer.checkpoint.source import Checkpoint, write_folder

VOCAB = 275  # of the byte-level tokenizer, without further added tokens
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


def script(*texts: str, after: str = "\n", special: Collection[str] = ()) -> dict[str, Any]:
    """What `chain_checkpoint` needs to say these texts, each one new token: none may be one already.

    The prompt may hold none of them. Those that are in `special` are special tokens.
    """
    tokens = tuple(added_token(0, text, special=text in special) for text in texts)
    ids = range(VOCAB, VOCAB + len(texts))
    chain = dict(zip([*after.encode()[-1:], *ids], [*ids, END], strict=True))
    return {"chain": chain, "vocab": VOCAB + len(texts), "tokenizer_json": byte_level_tokenizer_json(tokens)}


def chain_checkpoint(
    chain: Mapping[int, int],
    *,
    template: str | None = TEMPLATE,
    context: int = 512,
    vocab: int = VOCAB,
    tokenizer_json: str | None = "",
    config: Mapping[str, Any] | None = None,
    generation_config: Mapping[str, Any] | None = None,
    tokenizer_config: Mapping[str, Any] | None = None,
    tensors: Mapping[str, np.ndarray] | None = None,
) -> Checkpoint:
    """A Llama of one layer that follows `chain`; ids that are not in it are followed by END.

    By default it has the byte-level tokenizer, and END is its end-of-sequence id. `config` and `tensors` add to what it
    has or replace it.
    """
    base = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": vocab, "hidden_size": vocab,
        "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
        "head_dim": 4, "max_position_embeddings": context, "rms_norm_eps": 1e-6, "tie_word_embeddings": False,
        "eos_token_id": END,
    }  # fmt: skip
    return Checkpoint(
        source=Path("chain"),
        config=base | dict(config or {}),
        tensors=_tensors(chain, vocab) | dict(tensors or {}),
        generation_config=dict(generation_config or {}),
        tokenizer_json=byte_level_tokenizer_json() if tokenizer_json == "" else tokenizer_json,
        tokenizer_config={"eos_token": "<|im_end|>"} if tokenizer_config is None else dict(tokenizer_config),
        chat_template=template,
    )


def write_chain_model(
    folder: Path, chain: Mapping[int, int], template: str | None = TEMPLATE, context: int = 512, **rest: Any
) -> Path:
    """The same as a Hugging Face folder."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    write_folder(chain_checkpoint(chain, template=template, context=context, **rest), folder)
    return folder


def _tensors(chain: Mapping[int, int], vocab: int) -> dict[str, np.ndarray]:
    head = np.zeros((vocab, vocab), np.float32)
    for token in range(vocab):
        head[chain.get(token, END), token] = 1
    layer = "model.layers.0."
    return {
        "model.embed_tokens.weight": np.eye(vocab, dtype=np.float32),
        "model.norm.weight": np.ones(vocab, np.float32),
        "lm_head.weight": head,
        layer + "input_layernorm.weight": np.ones(vocab, np.float32),
        layer + "post_attention_layernorm.weight": np.ones(vocab, np.float32),
        layer + "self_attn.q_proj.weight": np.full((8, vocab), 0.01, np.float32),
        layer + "self_attn.k_proj.weight": np.full((4, vocab), 0.01, np.float32),
        layer + "self_attn.v_proj.weight": np.full((4, vocab), 0.01, np.float32),
        layer + "self_attn.o_proj.weight": np.zeros((vocab, 8), np.float32),
        layer + "mlp.gate_proj.weight": np.full((8, vocab), 0.01, np.float32),
        layer + "mlp.up_proj.weight": np.full((8, vocab), 0.01, np.float32),
        layer + "mlp.down_proj.weight": np.zeros((vocab, 8), np.float32),
    }
