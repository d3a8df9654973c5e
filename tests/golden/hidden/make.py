"""Write hidden.safetensors beside this file: what transformers' last hidden states of the golden models pool to.

    pip install torch transformers==5.24.0; python make.py

One tensor a model, float32 [3, hidden]: mean, last and first of the vectors after the last norm (`last_hidden_state` of
the model without its head), for the `input_ids` of its golden.safetensors; weights widened to float32, eager attention.
"""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

ARCHITECTURES = Path(__file__).parent.parent / "architectures"

if __name__ == "__main__":
    torch.set_num_threads(1)
    found = {}
    for folder in sorted(ARCHITECTURES.iterdir()):
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
        ids = load_file(folder / "golden.safetensors")["input_ids"]
        with torch.no_grad():
            states = model.base_model(ids.reshape(1, -1), use_cache=False).last_hidden_state[0]
        found[folder.name] = torch.stack([states.mean(0), states[-1], states[0]])
    save_file(found, Path(__file__).parent / "hidden.safetensors")
    print(len(found))
