"""Write transformers.json beside this file: the texts that transformers' beam search finds on the tiny golden models.

    pip install torch transformers==5.24.0; python make.py

Weights widened to float32, eager attention. The end-of-sequence ids of a case are ids that its search comes across, so
that texts end at different steps. A case is kept only where four more runs, in each of which up to 2e-4 is added to
every log-probability by chance, find the same texts in the same order: no near tie decides, and another engine's
rounding can't change the outcome.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, GenerationConfig, LogitsProcessorList

HERE = Path(__file__).parent
FOLDERS = [
    "architectures/llama", "architectures/llama-rope-dynamic", "architectures/gemma3", "architectures/mistral-swa",
    "architectures/phi3-longrope", "architectures/deepseek-v3-mla", "architectures/gpt-oss", "architectures/gpt2",
    "architectures/bloom-alibi", "architectures/olmo3", "variants/falcon-grouped", "variants/mixtral-window",
]  # fmt: skip
KEPT_OF_EACH = 10
NOISE, RUNS = 2e-4, 4

# under tinyinfer's names, and what they are called here
PROCESSORS = [
    {}, {}, {"repetition_penalty": 1.3}, {"min_tokens": 5}, {"logit_bias": {}}, {"banned_ids": []},
    {"repetition_penalty": 0.8, "min_tokens": 4, "logit_bias": {}},
]  # fmt: skip


def noise(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    return scores + NOISE * torch.rand_like(scores)


def found(model: Any, case: dict[str, Any], noisy: bool = False) -> tuple[list[list[int]], list[float]]:
    """Generated ids of the best texts, best first, with their end-of-sequence ids; and their scores."""
    processors = case["processors"]
    names = {
        "repetition_penalty": "repetition_penalty",
        "min_tokens": "min_new_tokens",
        "banned_ids": "suppress_tokens",
    }
    config = GenerationConfig(
        do_sample=False, return_dict_in_generate=True, output_scores=True, pad_token_id=0,
        max_new_tokens=case["max_tokens"], eos_token_id=case["eos"] or None, **case["search"],
        sequence_bias=[[[int(id)], x] for id, x in processors.get("logit_bias", {}).items()] or None,
        **{theirs: processors[ours] for ours, theirs in names.items() if ours in processors},
    )  # fmt: skip
    prompt = torch.tensor([case["prompt"]])
    out = model.generate(
        prompt, attention_mask=torch.ones_like(prompt), generation_config=config,
        logits_processor=LogitsProcessorList([noise] if noisy else []),
    )  # fmt: skip
    lengths = (out.beam_indices >= 0).sum(1).tolist()
    texts = [row[len(case["prompt"]) :][:n].tolist() for row, n in zip(out.sequences, lengths, strict=True)]
    return texts, out.sequences_scores.tolist()


def draft(rng: random.Random, model: Any, vocab: int) -> dict[str, Any]:
    """A case: its ids to end at, to ban and to favour are some that the search meets without them."""
    num_beams = rng.choice([2, 3, 4, 5, 8])
    prompt = [rng.randrange(3, vocab) for _ in range(rng.choice([1, 5, 24]))]
    search = {
        "num_beams": num_beams, "length_penalty": rng.choice([-1.0, 0.0, 0.6, 1.0, 1.0, 2.0]),
        "early_stopping": rng.choice([False, True, "never"]),
        "num_return_sequences": rng.choice([1, num_beams, rng.randint(1, num_beams)]),
    }  # fmt: skip
    case = {"prompt": prompt, "max_tokens": rng.choice([6, 10, 16]), "eos": [], "processors": {}, "search": search}
    texts, _ = found(model, case | {"search": search | {"num_return_sequences": num_beams}})
    met = sorted({id for text in texts for id in text[1:]})

    def some(count: int) -> list[int]:
        return rng.sample(met, min(count, len(met)))

    processors = dict(rng.choice(PROCESSORS))
    if "banned_ids" in processors:
        processors["banned_ids"] = some(2)
    if "logit_bias" in processors:
        processors["logit_bias"] = {str(id): rng.choice([-1.5, 0.7, 1.2]) for id in some(3)}
    return case | {"processors": processors, "eos": some(rng.choice([0, 1, 1, 2, 3]))}


def cases(folder: str) -> list[dict[str, Any]]:
    """KEPT_OF_EACH of a model, most of which end texts at several lengths."""
    rng = random.Random(folder)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(HERE.parent / folder, dtype=torch.float32, attn_implementation="eager")
    model.generation_config = GenerationConfig()
    kept: list[dict[str, Any]] = []
    for _ in range(300):
        case = draft(rng, model.eval(), model.config.get_text_config().vocab_size)
        texts, scores = found(model, case)
        every = found(model, case | {"search": case["search"] | {"num_return_sequences": case["search"]["num_beams"]}})
        plain = len({len(text) for text in every[0]}) == 1
        if plain and sum(other["plain"] for other in kept) >= 2:
            continue
        if all(found(model, case, noisy=True)[0] == texts for _ in range(RUNS)):
            kept.append({"folder": folder, **case, "plain": plain, "texts": texts, "scores": scores})
        if len(kept) == KEPT_OF_EACH:
            break
    print(folder, len(kept), flush=True)
    return [{name: value for name, value in case.items() if name != "plain"} for case in kept]


if __name__ == "__main__":
    torch.set_num_threads(1)
    made_with = f"transformers {transformers.__version__}, torch {torch.__version__}"
    lines = [json.dumps(case) for folder in FOLDERS for case in cases(folder)]
    with open(HERE / "transformers.json", "w") as file:
        file.write(f'{{"made_with": {json.dumps(made_with)}, "cases": [\n' + ",\n".join(lines) + "\n]}\n")
