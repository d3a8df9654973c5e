"""A model that asks for a tool, and answers with what it gave.

python examples/tools.py "Is it raining in Oslo?"
"""

import json
import sys

import tinyinfer

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather in a city now",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]


def get_weather(city: str) -> dict:
    return {"city": city, "sky": "rain", "degrees": 7}


llm = tinyinfer.load("qwen2.5-coder-0.5b-instruct")
session = llm.session()
messages = [{"role": "user", "content": sys.argv[1] if len(sys.argv) > 1 else "What is the weather in Paris?"}]
for _ in range(4):  # a small model may ask again and again
    done = session.chat(messages, tools=TOOLS, temperature=0, max_tokens=200)
    messages.append(done.message)
    if done.finish_reason != "tool_calls":
        break
    for call in done.tool_calls:
        print(f"{call.name}({call.arguments})")
        found = get_weather(**json.loads(call.arguments))
        messages.append({"role": "tool", "tool_call_id": call.id, "content": json.dumps(found)})
print(done.text)
