"""Find the rows of a CSV that are nearest to a question, by embeddings:

    python examples/nearest.py examples/reviews.csv "a lamp for a child"

Any model's last vectors say something of a text; one that was trained to make embeddings says more.
"""

import csv
import sys

import numpy as np

import tinyinfer

source, question = sys.argv[1:]
with open(source, newline="", encoding="utf-8") as file:
    texts = [row["text"] for row in csv.DictReader(file)]
llm = tinyinfer.load("smollm2-135m-instruct")
vectors = llm.embed(texts)  # float32 [rows, hidden], each of length 1
center = vectors.mean(axis=0)  # what all texts have in common tells nothing
(asked,) = llm.embed([question])
near = (vectors - center) @ (asked - center)
for place in np.argsort(-near):
    print(f"{near[place]:+.3f}  {texts[place]}")
