"""Ask a server through OpenAI's client, which works with any server of that API:

tinyinfer serve smollm2-135m-instruct        # in another terminal; pip install "tinyinfer[serve]"
pip install openai
python examples/server_client.py [URL]
"""

import sys

import openai

url = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8080"
client = openai.OpenAI(base_url=f"{url}/v1", api_key="none")
model = client.models.list().data[0].id
messages = [{"role": "user", "content": "What is the capital of France?"}]

answer = client.chat.completions.create(model=model, messages=messages, max_tokens=40)
print(answer.choices[0].message.content, answer.usage.total_tokens)

for chunk in client.chat.completions.create(model=model, messages=messages, max_tokens=40, stream=True):
    print(chunk.choices[0].delta.content or "", end="", flush=True)
print()
