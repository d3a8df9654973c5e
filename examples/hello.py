"""Load a model and ask it something: python examples/hello.py"""

import tinyinfer

llm = tinyinfer.load("smollm2-135m-instruct")  # after: tinyinfer pull smollm2-135m-instruct
answer = llm.chat([{"role": "user", "content": "What is the capital of France?"}], max_tokens=40)
print(answer.text)
print(f"{answer.timings.decode_tokens_per_second:.0f} tokens a second")
