"""The table of tensor names: what each family calls the arrays that the model reads.

The model knows its tensors by the plain names on the left. Signs say how a family's tensor becomes them, so that
nothing later has to ask:

    "query+key+value"        one tensor holds all three, the rows of one after those of the other
    "query|key|value"        the same, but taken in turns: for each key-value head its queries, its key, its value
    "gate~up"                the rows alternate
    "... .weight.T"          it is stored transposed, [in, out]
    "experts.{}.w1.weight"   a tensor for each; also one array of all is taken, see `variants`

A bias goes with its weight: `x.weight` has `x.bias`, and what is called otherwise has `..._bias`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

PREFIXES = ("model.", "language_model.model.", "model.language_model.")  # also inside a file that holds more than text
TRANSFORMER = ("transformer.", "")


@dataclass(frozen=True)
class TensorNames:
    """What one family calls its tensors."""

    layer: Mapping[str, str]  # below the name of a layer
    outer: Mapping[str, str]  # below a prefix
    layers: str = "layers."  # below a prefix, before a layer's number
    prefixes: tuple[str, ...] = PREFIXES
    heads: tuple[str, ...] = ("lm_head.weight", "language_model.lm_head.weight")  # as they stand
    variants: tuple[Mapping[str, str], ...] = field(default=())  # other names; taken where the first of them is there


OUTER = {"embedding": "embed_tokens.weight", "final_norm": "norm.weight"}

LLAMA = {
    "attention_norm": "input_layernorm.weight",
    "query": "self_attn.q_proj.weight",
    "key": "self_attn.k_proj.weight",
    "value": "self_attn.v_proj.weight",
    "query_norm": "self_attn.q_norm.weight",
    "key_norm": "self_attn.k_norm.weight",
    "output": "self_attn.o_proj.weight",
    "mlp_norm": "post_attention_layernorm.weight",
    "gate": "mlp.gate_proj.weight",
    "up": "mlp.up_proj.weight",
    "down": "mlp.down_proj.weight",
}


def _changed(names: Mapping[str, str], without: tuple[str, ...] = (), **changes: str) -> dict[str, str]:
    return {name: hf for name, hf in names.items() if name not in without} | changes


_QKV, _GATE_UP = ("query", "key", "value"), ("gate", "up")
PHI3 = _changed(LLAMA, _QKV + _GATE_UP) | {
    "query+key+value": "self_attn.qkv_proj.weight",
    "gate+up": "mlp.gate_up_proj.weight",
}
AFTER_NORMS = {
    "attention_post_norm": "post_attention_layernorm.weight",
    "mlp_post_norm": "post_feedforward_layernorm.weight",
}
GEMMA = LLAMA | AFTER_NORMS | {"mlp_norm": "pre_feedforward_layernorm.weight"}
GLM4 = _changed(LLAMA, _GATE_UP) | {
    "gate+up": "mlp.gate_up_proj.weight",
    "attention_post_norm": "post_self_attn_layernorm.weight",
    "mlp_post_norm": "post_mlp_layernorm.weight",
}
STABLELM = LLAMA | {
    "query_norm": "self_attn.q_layernorm.norms.{}.weight",
    "key_norm": "self_attn.k_layernorm.norms.{}.weight",
}
PHI = LLAMA | {
    "query_norm": "self_attn.q_layernorm.weight",
    "key_norm": "self_attn.k_layernorm.weight",
    "output": "self_attn.dense.weight",
    "up": "mlp.fc1.weight",
    "down": "mlp.fc2.weight",
}

EXPERTS = LLAMA | {
    "router": "mlp.gate.weight",
    "router_correction": "mlp.gate.e_score_correction_bias",
    "expert_gate": "mlp.experts.{}.gate_proj.weight",
    "expert_up": "mlp.experts.{}.up_proj.weight",
    "expert_down": "mlp.experts.{}.down_proj.weight",
    "shared_gate": "mlp.shared_experts.gate_proj.weight",
    "shared_up": "mlp.shared_experts.up_proj.weight",
    "shared_down": "mlp.shared_experts.down_proj.weight",
}
STACKED_EXPERTS = {
    "expert_gate+expert_up": "mlp.experts.gate_up_proj",
    "expert_down": "mlp.experts.down_proj",
    "router": "mlp.gate.weight",
}
MIXTRAL = EXPERTS | {
    "router": "block_sparse_moe.gate.weight",
    "expert_gate": "block_sparse_moe.experts.{}.w1.weight",
    "expert_up": "block_sparse_moe.experts.{}.w3.weight",
    "expert_down": "block_sparse_moe.experts.{}.w2.weight",
}
GPT_OSS = LLAMA | {
    "sinks": "self_attn.sinks",
    "router": "mlp.router.weight",
    "expert_gate~expert_up": "mlp.experts.gate_up_proj.T",
    "expert_down": "mlp.experts.down_proj.T",
}
DEEPSEEK = EXPERTS | {
    "query_down": "self_attn.q_a_proj.weight",
    "query_down_norm": "self_attn.q_a_layernorm.weight",
    "query_up": "self_attn.q_b_proj.weight",
    "latent+rotary_key": "self_attn.kv_a_proj_with_mqa.weight",
    "latent_norm": "self_attn.kv_a_layernorm.weight",
    "latent_key|latent_value": "self_attn.kv_b_proj.weight",
}

GPT2 = {
    "attention_norm": "ln_1.weight",
    "query+key+value": "attn.c_attn.weight.T",
    "output": "attn.c_proj.weight.T",
    "mlp_norm": "ln_2.weight",
    "up": "mlp.c_fc.weight.T",
    "down": "mlp.c_proj.weight.T",
}
OPT = {
    "attention_norm": "self_attn_layer_norm.weight",
    "query": "self_attn.q_proj.weight",
    "key": "self_attn.k_proj.weight",
    "value": "self_attn.v_proj.weight",
    "output": "self_attn.out_proj.weight",
    "mlp_norm": "final_layer_norm.weight",
    "up": "fc1.weight",
    "down": "fc2.weight",
}
NEOX = {
    "attention_norm": "input_layernorm.weight",
    "query|key|value": "attention.query_key_value.weight",
    "output": "attention.dense.weight",
    "mlp_norm": "post_attention_layernorm.weight",
    "up": "mlp.dense_h_to_4h.weight",
    "down": "mlp.dense_4h_to_h.weight",
}
FALCON = NEOX | {"query|key|value": "self_attention.query_key_value.weight", "output": "self_attention.dense.weight"}
MPT = {
    "attention_norm": "norm_1.weight",
    "query+key+value": "attn.Wqkv.weight",
    "output": "attn.out_proj.weight",
    "mlp_norm": "norm_2.weight",
    "up": "ffn.up_proj.weight",
    "down": "ffn.down_proj.weight",
}

_MPT = TensorNames(
    MPT, {"embedding": "wte.weight", "final_norm": "norm_f.weight"}, layers="blocks.", prefixes=TRANSFORMER
)
_LLAMA, _GEMMA = TensorNames(LLAMA, OUTER), TensorNames(GEMMA, OUTER)
_EXPERTS = TensorNames(EXPERTS, OUTER, variants=(STACKED_EXPERTS,))
_DEEPSEEK = TensorNames(DEEPSEEK, OUTER, variants=(STACKED_EXPERTS,))
_OLMO = TensorNames(LLAMA | AFTER_NORMS, OUTER)
_FALCON = TensorNames(
    FALCON,
    {"embedding": "word_embeddings.weight", "embedding_norm": "word_embeddings_layernorm.weight",
     "final_norm": "ln_f.weight"},
    layers="h.",
    prefixes=TRANSFORMER,
    variants=({"attention_norm": "ln_attn.weight", "mlp_norm": "ln_mlp.weight"},),
)  # fmt: skip

NAMES: dict[str, TensorNames] = {
    "LlamaForCausalLM": _LLAMA,
    "MistralForCausalLM": _LLAMA,
    "MixtralForCausalLM": TensorNames(MIXTRAL, OUTER, variants=(STACKED_EXPERTS,)),
    "Qwen2ForCausalLM": _LLAMA,
    "Qwen3ForCausalLM": _LLAMA,
    "Qwen3MoeForCausalLM": _EXPERTS,
    "Phi3ForCausalLM": TensorNames(PHI3, OUTER),
    "PhiForCausalLM": TensorNames(PHI, OUTER | {"final_norm": "final_layernorm.weight"}),
    "GemmaForCausalLM": _LLAMA,
    "Gemma2ForCausalLM": _GEMMA,
    "Gemma3ForCausalLM": _GEMMA,
    "Gemma3ForConditionalGeneration": _GEMMA,
    "GraniteForCausalLM": _LLAMA,
    "SmolLM3ForCausalLM": _LLAMA,
    "Exaone4ForCausalLM": _OLMO,
    "Ernie4_5ForCausalLM": _LLAMA,
    "Glm4ForCausalLM": TensorNames(GLM4, OUTER),
    "CohereForCausalLM": _LLAMA,
    "Cohere2ForCausalLM": _LLAMA,
    "StableLmForCausalLM": TensorNames(STABLELM, OUTER),
    "Starcoder2ForCausalLM": TensorNames(LLAMA | {"up": "mlp.c_fc.weight", "down": "mlp.c_proj.weight"}, OUTER),
    "NemotronForCausalLM": _LLAMA,
    "OlmoForCausalLM": _LLAMA,
    "Olmo2ForCausalLM": _OLMO,
    "Olmo3ForCausalLM": _OLMO,
    "OlmoeForCausalLM": _EXPERTS,
    "GptOssForCausalLM": TensorNames(GPT_OSS, OUTER),
    "DeepseekV2ForCausalLM": _DEEPSEEK,
    "DeepseekV3ForCausalLM": _DEEPSEEK,
    "GPT2LMHeadModel": TensorNames(
        GPT2,
        {"embedding": "wte.weight", "positions": "wpe.weight", "final_norm": "ln_f.weight"},
        layers="h.",
        prefixes=TRANSFORMER,
    ),
    "OPTForCausalLM": TensorNames(
        OPT,
        {"embedding": "embed_tokens.weight", "positions": "embed_positions.weight",
         "final_norm": "final_layer_norm.weight"},
        prefixes=("model.decoder.", "decoder."),
    ),
    "GPTNeoXForCausalLM": TensorNames(
        NEOX,
        {"embedding": "embed_in.weight", "final_norm": "final_layer_norm.weight"},
        prefixes=("gpt_neox.", ""),
        heads=("embed_out.weight",),
    ),
    "FalconForCausalLM": _FALCON,
    "BloomForCausalLM": _FALCON,
    "MptForCausalLM": _MPT,
    "MPTForCausalLM": _MPT,
}  # fmt: skip
