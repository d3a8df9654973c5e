"""Write the folders beside this file: adapters saved by PEFT, over the tiny models of architectures/, and their logits.

    pip install torch==2.13.0 transformers==5.24.0 peft==0.21.2; python make.py [FOLDER ...]

See README.md.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import torch
from peft import LoHaConfig, LoraConfig, PeftModel, get_peft_model
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

HERE = Path(__file__).parent
ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
LORA = {"r": 4, "lora_alpha": 8, "task_type": "CAUSAL_LM"}

APPLIED = {
    "llama-all": ("llama", {"target_modules": ALL}),
    "llama-patterns": (
        "llama",
        {
            "r": 3, "lora_alpha": 6, "target_modules": ["q_proj", "v_proj", "mlp.down_proj"], "use_rslora": True,
            "layers_to_transform": [0, 2], "rank_pattern": {"down_proj": 6, r"layers\.2\.self_attn\..*": 2},
            "alpha_pattern": {r"^model\.layers\.(0|1)\.self_attn.q_proj": 11.5},
        },
    ),
    "qwen2-half": ("qwen2", {"target_modules": ["q_proj", "v_proj", "up_proj"], "lora_dropout": 0.1}),
    "phi3-fused": ("phi3", {"target_modules": r".*\.(?:self_attn\.(?:qkv|o)_proj|mlp\.gate_up_proj)"}),
    "gpt2-conv": ("gpt2", {"target_modules": ["c_attn", "c_proj", "c_fc"], "fan_in_fan_out": True}),
    "gpt-neox-turns": ("gpt-neox", {"target_modules": ["query_key_value", "dense_h_to_4h"]}),
    "cohere-interleaved": ("cohere", {"target_modules": ["q_proj", "k_proj", "gate_proj"]}),
    "mixtral-attention": (
        "mixtral",
        {"target_modules": ["q_proj", "o_proj"], "exclude_modules": ["layers.1.self_attn.o_proj"]},
    ),
    "deepseek-v2-latent": (
        "deepseek-v2-mla",
        {"target_modules": ["q_proj", "q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "o_proj"]},
    ),
    "deepseek-v3-latent": (
        "deepseek-v3-mla",
        {"target_modules": r".*\.self_attn\.(q_b_proj|kv_a_proj_with_mqa)"},
    ),
    "glm4-fused": ("glm4", {"target_modules": ["q_proj", "k_proj", "gate_up_proj"]}),
    "falcon-one-norm": ("falcon", {"target_modules": ["query_key_value", "dense_4h_to_h"]}),
    "granite-scaled": ("granite", {"target_modules": ["o_proj", "down_proj", "v_proj"]}),
}  # fmt: skip
REFUSED = {
    "refused-dora": LoraConfig(target_modules=["q_proj"], use_dora=True, **LORA),
    "refused-loha": LoHaConfig(target_modules=["q_proj"], r=2, task_type="CAUSAL_LM"),
    "refused-embedding": LoraConfig(target_modules=["embed_tokens", "q_proj"], **LORA),
    "refused-head": LoraConfig(target_modules=["lm_head", "q_proj"], **LORA),
    "refused-biases": LoraConfig(target_modules=["q_proj"], bias="lora_only", lora_bias=True, **LORA),
    "refused-saved-modules": LoraConfig(target_modules=["q_proj"], modules_to_save=["input_layernorm"], **LORA),
    "refused-parameters": LoraConfig(target_modules=[], target_parameters=["experts.down_proj"], **LORA),
}


def base(name: str) -> torch.nn.Module:
    folder = HERE.parent / "architectures" / name
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    model.name_or_path = name  # which the adapter's config quotes
    return model.eval()


def randomise(model: torch.nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if "lora_" in name or "hada_" in name:
            scale = 0.5 / parameter.shape[-1] ** 0.5
            parameter.data = torch.randn(parameter.shape, generator=generator) * scale


def save(model: torch.nn.Module, folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder)
    (folder / "README.md").unlink(missing_ok=True)


@torch.no_grad()
def main() -> None:
    torch.set_num_threads(1)
    wanted = sys.argv[1:] or [*APPLIED, *REFUSED]
    for seed, (name, (architecture, settings)) in enumerate(APPLIED.items()):
        if name not in wanted:
            continue
        model = get_peft_model(base(architecture), LoraConfig(**(LORA | settings))).eval()
        randomise(model, seed)
        if name == "qwen2-half":  # as trainers that keep all in half precision save them
            model.bfloat16()
        save(model, HERE / name)
        model = PeftModel.from_pretrained(base(architecture), HERE / name).eval()
        vocab = model.config.vocab_size
        ids = torch.randint(3, vocab, (24,), generator=torch.Generator().manual_seed(100 + seed))
        golden = {"input_ids": ids, "logits": model(ids[None]).logits[0].clone()}
        plain = base(architecture)(ids[None]).logits[0]
        if name == "llama-patterns":  # with the other one beside it
            model.load_adapter(HERE / "llama-all", "other")
            model.base_model.set_adapter(["default", "other"])
            golden["logits_with_llama-all"] = model(ids[None]).logits[0].clone()
            model.delete_adapter("other")
            model.set_adapter("default")
        golden["merged"] = model.merge_and_unload()(ids[None]).logits[0].clone()
        save_file(golden, HERE / name / "golden.safetensors")
        moved, merged = ((golden["logits"] - other).abs().max().item() for other in (plain, golden["merged"]))
        print(f"{name}: the adapter moves logits by up to {moved:.2g}, merging by {merged:.2g}")
    for name in REFUSED.keys() & set(wanted):
        model = get_peft_model(base("mixtral" if name == "refused-parameters" else "llama"), REFUSED[name])
        randomise(model, 1)
        save(model, HERE / name)


if __name__ == "__main__":
    main()
