"""Answer many prompts at once: python examples/batch.py

Those who answer share each step's reading of the weights, and a beginning that prompts have in common is run once. For
files of requests there is `tinyinfer batch`.
"""

import time

import tinyinfer

llm = tinyinfer.load("smollm2-135m-instruct")
engine = tinyinfer.Engine(llm, slots=8)
prompts = [
    f"The capital of {name} is" for name in ("France", "Japan", "Italy", "Spain", "Egypt", "Peru", "India", "Cuba")
]
begun = time.perf_counter()
answers = engine.generate_many(prompts, max_tokens=16, temperature=0)
seconds = time.perf_counter() - begun
for prompt, answer in zip(prompts, answers, strict=True):
    print(prompt + answer.text.replace("\n", " "))
print(f"{sum(len(answer.ids) for answer in answers) / seconds:.0f} tokens a second, all together")
