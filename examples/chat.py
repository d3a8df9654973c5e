"""Talk with a model: python examples/chat.py

A session keeps what it has computed, so that each turn runs only what is new. An empty line ends.
"""

import sys

import tinyinfer

llm = tinyinfer.load("smollm2-135m-instruct")
session, messages = llm.session(), []
print("You begin.")
for line in sys.stdin:
    if not line.strip():
        break
    messages.append({"role": "user", "content": line.strip()})
    for piece in session.chat_stream(messages, max_tokens=200):
        print(piece.text, end="", flush=True)
    messages.append(piece.completion.message)
    times = piece.completion.timings
    print(f"\n[{times.cached_tokens} of the prompt's {times.prompt_tokens} tokens were there already]")
