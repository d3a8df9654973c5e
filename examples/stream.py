"""Show an answer while it is being made: python examples/stream.py"""

import tinyinfer

llm = tinyinfer.load("smollm2-135m-instruct")
for piece in llm.chat_stream([{"role": "user", "content": "Name three fruits."}], max_tokens=60):
    print(piece.text, end="", flush=True)
print(f"\n[{piece.finish_reason}]")
