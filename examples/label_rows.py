"""Label the rows of a CSV; every answer keeps to a JSON schema, so that it can be read without a doubt.

pip install "tinyinfer[json]"
python examples/label_rows.py examples/reviews.csv labelled.csv
"""

import csv
import json
import sys

import tinyinfer

SCHEMA = {
    "type": "object",
    "properties": {
        "label": {"enum": ["positive", "negative"]},
        "product": {"type": "string", "maxLength": 30},
    },
    "required": ["label", "product"],
    "additionalProperties": False,
}
TASK = "Is this review positive or negative, and what product does it speak of?\n\n"

source, target = sys.argv[1:]
session = tinyinfer.load("qwen2.5-coder-0.5b-instruct").session()  # the task, which all prompts share, is run once
with open(source, newline="", encoding="utf-8") as rows, open(target, "w", newline="", encoding="utf-8") as labelled:
    reader = csv.DictReader(rows)
    writer = csv.DictWriter(labelled, [*reader.fieldnames, *SCHEMA["required"]])
    writer.writeheader()
    for row in reader:
        question = [{"role": "user", "content": TASK + row["text"]}]
        answer = session.chat(question, json_schema=SCHEMA, temperature=0, max_tokens=200)  # room for the longest
        writer.writerow(row | json.loads(answer.text))
