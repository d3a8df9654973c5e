"""A model that asks for a tool: python examples/tools.py "Is it raining in Oslo?"

A larger model, asked again with these messages, says in its own words what the tool gave.
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
messages = [{"role": "user", "content": sys.argv[1] if len(sys.argv) > 1 else "What is the weather in Paris?"}]
done = llm.chat(messages, tools=TOOLS, temperature=0, max_tokens=200)
messages.append(done.message)
for call in done.tool_calls:
    found = json.dumps(get_weather(**json.loads(call.arguments)))
    messages.append({"role": "tool", "tool_call_id": call.id, "content": found})
for message in messages:
    print(message)
