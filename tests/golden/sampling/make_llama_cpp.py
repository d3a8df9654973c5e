"""Writes llama_cpp.json: the kept sets and probabilities of llama.cpp's samplers. See README.md.

Takes a .gguf file whose vocabulary DRY's breakers are looked up in: its weights are not read.
"""

import ctypes
import json
import math
import sys

import llama_cpp as lc
from cases import HISTORY, LOGITS, VOCAB, both

ALL = 1000  # a window wider than any history here: the library itself takes -1 for 0
REPEATS = {  # ids, and texts that break
    "none": ([17, 30, 31, 32, 40, 30, 31, 32, 50, 31, 32, 30, 31, 32], []),
    "run": ([44, 45] + [46] * 9, []),
    "broken": ([30, 31, 18, 32, 33, 34, 40, 30, 31, 18, 32, 33], ['"']),
    "broken_last": ([30, 31, 32, 42, 30, 31, 32, 42], [":"]),
    "too_short": ([30, 31, 32, 33, 34, 30], []),
    "long": ([*range(17, 40), *range(17, 37)], []),
    "breaker_next": ([30, 31, 32, 18, 40, 30, 31, 32], ['"']),
}


def dist(vocab):
    return {
        "temperature": lc.llama_sampler_init_temp, "top_k": lc.llama_sampler_init_top_k,
        "top_p": lambda p: lc.llama_sampler_init_top_p(p, 1), "min_p": lambda p: lc.llama_sampler_init_min_p(p, 1),
        "typical_p": lambda p: lc.llama_sampler_init_typical(p, 1), "top_n_sigma": lc.llama_sampler_init_top_n_sigma,
        "repetition_penalty": lambda r: lc.llama_sampler_init_penalties(VOCAB, ALL, r, 0.0, 0.0),
        "penalties": lambda v: lc.llama_sampler_init_penalties(VOCAB, *v),
        "xtc_threshold": lambda t: lc.llama_sampler_init_xtc(1.0, t, 1, 7),
        "dry": lambda v: dry(vocab, *v), "logit_bias": bias,
    }  # fmt: skip


def dry(vocab, multiplier, base, allowed, window, breakers):
    texts = (ctypes.c_char_p * len(breakers))(*[text.encode() for text in breakers])
    return lc.llama_sampler_init_dry(vocab, multiplier, base, allowed, window, texts, len(breakers))


def bias(amounts):
    array = (lc.llama_logit_bias * len(amounts))(*[lc.llama_logit_bias(int(id), x) for id, x in amounts.items()])
    return lc.llama_sampler_init_logit_bias(VOCAB, len(amounts), array)


def fresh(logits):
    data = (lc.llama_token_data * VOCAB)(*[lc.llama_token_data(i, x, 0.0) for i, x in enumerate(logits)])
    return lc.llama_token_data_array(data=data, size=VOCAB, selected=-1, sorted=False), data


def result(array):
    left = sorted((array.data[i].id, array.data[i].logit) for i in range(array.size))
    left = [(id, logit) for id, logit in left if logit > -math.inf]
    best = max(logit for _, logit in left)
    total = math.fsum(math.exp(logit - best) for _, logit in left)
    return {"ids": [id for id, _ in left], "p": [float(f"{math.exp(x - best) / total:.9g}") for _, x in left]}


def run(made, fields, logits, history):
    array, _ = fresh(LOGITS[logits])
    for name, value in fields.items():
        sampler = made[name](value)
        for id in history:
            lc.llama_sampler_accept(sampler, id)
        lc.llama_sampler_apply(sampler, ctypes.byref(array))
        lc.llama_sampler_free(sampler)
    return {"fields": fields, "logits": logits, **result(array)}


def mirostat(tau, eta, temperature):
    sampler, warm = lc.llama_sampler_init_mirostat_v2(11, tau, eta), lc.llama_sampler_init_temp(temperature)
    steps = []
    for turn in range(24):
        name = list(LOGITS)[turn % 3]
        array, _ = fresh(LOGITS[name])
        lc.llama_sampler_apply(warm, ctypes.byref(array))
        lc.llama_sampler_apply(sampler, ctypes.byref(array))
        steps.append({"logits": name, "chosen": array.data[array.selected].id, **result(array)})
    return {"tau": tau, "eta": eta, "temperature": temperature, "steps": steps}


quiet = lc.llama_log_callback(lambda *_: None)  # kept, as the library calls it later
lc.llama_log_set(quiet, None)
lc.llama_backend_init()
params = lc.llama_model_default_params()
params.vocab_only = True
model = lc.llama_model_load_from_file(sys.argv[1].encode(), params)
vocab = lc.llama_model_get_vocab(model)
made = dist(vocab)

only_here = [
    {"top_n_sigma": 0.5}, {"top_n_sigma": 1.0}, {"top_n_sigma": 2.0}, {"temperature": 3.0, "top_n_sigma": 1.0},
    {"xtc_threshold": 0.02}, {"xtc_threshold": 0.1}, {"xtc_threshold": 0.2}, {"xtc_threshold": 0.5},
    {"penalties": [ALL, 1.0, 0.7, 0.0]}, {"penalties": [ALL, 1.0, 0.0, 1.5]}, {"penalties": [ALL, 1.2, -0.4, 0.9]},
    {"penalties": [4, 1.3, 0.5, 0.25]}, {"penalties": [1, 1.3, 0.5, 0.25]},
    {"logit_bias": {"3": 4.5, "20": -7.0}},
    {"penalties": [ALL, 1.1, 0.2, 0.1], "top_n_sigma": 2.5, "top_k": 30, "top_p": 0.95,
     "min_p": 0.02, "xtc_threshold": 0.05, "temperature": 0.8},
]  # fmt: skip
found = [run(made, fields, logits, HISTORY) for fields, logits in both()]
found += [run(made, fields, logits, HISTORY) for fields in only_here for logits in LOGITS]
repeats = []
for history, breakers in REPEATS.values():
    for values in ([0.8, 1.75, 2, ALL], [1.5, 1.2, 3, ALL], [2.0, 3.0, 1, 7], [0.5, 1.0, 2, ALL]):
        case = run(made, {"dry": [*values, breakers]}, "peaked", history)
        repeats.append({"history": history, "breakers": breakers, **case})
broken_by = {
    text: [i for i in range(VOCAB) if text.encode() in lc.llama_vocab_get_text(vocab, i)] for text in ('"', ":")
}
record = {
    "made_with": f"llama-cpp-python {lc.__version__}", "logits": LOGITS, "history": HISTORY, "vocab": VOCAB,
    "broken_by": broken_by, "mirostat": [mirostat(5.0, 0.1, 1.0), mirostat(2.0, 0.5, 1.5)],
}  # fmt: skip
with open("llama_cpp.json", "w") as file:
    file.write("{\n" + ",\n".join(f'"{key}": {json.dumps(value)}' for key, value in record.items()))
    for name, cases in (("cases", found), ("repeats", repeats)):
        file.write(f',\n"{name}": [\n' + ",\n".join(map(json.dumps, cases)) + "\n]")
    file.write("}\n")
