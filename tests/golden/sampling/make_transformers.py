"""Writes transformers.json: the kept sets and probabilities of transformers' logits processors. See README.md."""

import json

import torch
import transformers
from cases import HISTORY, LOGITS, VOCAB, both
from transformers.generation import logits_process as hf

PROCESSORS = {
    "repetition_penalty": hf.RepetitionPenaltyLogitsProcessor, "temperature": hf.TemperatureLogitsWarper,
    "top_k": hf.TopKLogitsWarper, "top_p": hf.TopPLogitsWarper, "min_p": hf.MinPLogitsWarper,
    "typical_p": hf.TypicalLogitsWarper, "banned_ids": lambda ids: hf.SuppressTokensLogitsProcessor(ids, device="cpu"),
    "logit_bias": lambda bias: hf.SequenceBiasLogitsProcessor([[[int(id)], x] for id, x in bias.items()]),
    "min_tokens": lambda n: hf.MinNewTokensLengthLogitsProcessor(4, n, [20, 33], device="cpu"),
}  # fmt: skip

only_here = [
    {"banned_ids": [20, 3, 41]}, {"banned_ids": [20], "top_k": 3, "temperature": 0.6},
    {"logit_bias": {"3": 4.5, "20": -7.0}}, {"logit_bias": {"60": 2.0}, "top_p": 0.7},
    {"min_tokens": 9}, {"min_tokens": 8}, {"min_tokens": 9, "top_k": 4},
]  # fmt: skip
found = []
for fields, logits in both() + [(fields, logits) for fields in only_here for logits in LOGITS]:
    scores = torch.tensor([LOGITS[logits]], dtype=torch.float32)
    for name, value in fields.items():
        scores = PROCESSORS[name](value)(torch.tensor([HISTORY]), scores)
    kept = torch.isfinite(scores[0]).nonzero()[:, 0]
    probabilities = scores[0].double().softmax(0)[kept]
    found.append(
        {"fields": fields, "logits": logits, "ids": kept.tolist(), "p": [float(f"{p:.9g}") for p in probabilities]}
    )
record = {
    "made_with": f"transformers {transformers.__version__}, torch {torch.__version__}", "logits": LOGITS,
    "history": HISTORY, "prompt_length": 4, "stop_ids": [20, 33], "vocab": VOCAB, "cases": found,
}  # fmt: skip
with open("transformers.json", "w") as file:
    file.write("{\n" + ",\n".join(f'"{key}": {json.dumps(value)}' for key, value in record.items() if key != "cases"))
    file.write(',\n"cases": [\n' + ",\n".join(map(json.dumps, found)) + "\n]}\n")
