"""The decode loop with nothing hidden, without the cache and with it: python examples/decode_by_hand.py"""

import numpy as np

import tinyinfer
from tinyinfer.model.forward import Chunk

llm = tinyinfer.load("smollm2-135m-instruct")
prompt = llm.tokenizer.encode("The capital of France is")

ids = list(prompt)
for _ in range(8):
    logits = llm.forward(ids)  # [n, vocab]: the whole text at every step, of which only the last row is new
    ids.append(int(logits[-1].argmax()))
print("without:", llm.tokenizer.decode(ids))

sequence = llm.model.new_cache().sequence()  # keys and values of the tokens that were run
cached_ids, new = list(prompt), prompt
for _ in range(8):
    logits = llm.model.forward([Chunk(sequence, np.array(new))])  # [1, vocab]: the prompt at first, then one token
    new = [int(logits[0].argmax())]
    cached_ids += new
print("with:   ", llm.tokenizer.decode(cached_ids))
print(f"{sequence.length} tokens held in the cache; the same ids: {cached_ids == ids}")
