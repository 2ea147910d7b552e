"""A tool-calling agent on the real openai SDK."""

import json
import os
from pathlib import Path

from openai import OpenAI

ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds two integers.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
        },
    },
}


def main():
    task = json.loads(Path(os.environ["RELAX_INPUT_JSON"]).read_text())
    client = OpenAI(
        base_url=os.environ["RELAX_BASE_URL"], api_key=os.environ["RELAX_SESSION_ID"], timeout=600
    )
    messages, calls = task["messages"], 0
    while True:
        response = client.chat.completions.create(model="model", messages=messages, tools=[ADD])
        message = response.choices[0].message
        messages.append(message.model_dump())
        if not message.tool_calls:
            break
        for call in message.tool_calls:
            calls += 1
            result = sum(json.loads(call.function.arguments).values())
            messages.append({"role": "tool", "tool_call_id": call.id, "content": str(result)})
    right = str(task["metadata"]["answer"]) in message.content
    output = {"reward": float(right), "metadata": {"tool_calls": calls}}
    Path(os.environ["RELAX_OUTPUT_JSON"]).write_text(json.dumps(output))


main()
