"""The decode loop with nothing hidden: the cache grows by a token a step. python examples/decode_by_hand.py"""

import numpy as np

import tinyinfer
from tinyinfer.cache import KVCache
from tinyinfer.model.forward import Chunk

llm = tinyinfer.load("smollm2-135m-instruct")
sequence = KVCache(llm.config).sequence()
new = np.array(llm.tokenizer.encode("The capital of France is"))
ids = []
for _ in range(8):
    logits = llm.model.forward([Chunk(sequence, new)])  # the prompt at first, then one token at a time
    ids.append(int(logits[0].argmax()))
    new = np.array(ids[-1:])
print(llm.tokenizer.decode(ids))
print(f"{sequence.length} tokens held in the cache")
