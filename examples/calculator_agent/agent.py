"""A small tool-using agent app: it answers an arithmetic question with a calculator.

It is an ordinary program. All it knows of its host are the environment variables of the
process contract and an OpenAI-compatible endpoint, which it calls with the standard library.
"""

from __future__ import annotations

import ast
import json
import operator
import os
import re
import urllib.request
from pathlib import Path
from typing import Any

MAX_TURNS = 6

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "calculator",
            "description": "Evaluates an arithmetic expression.",
            "parameters": {
                "type": "object",
                "properties": {"expression": {"type": "string"}},
                "required": ["expression"],
            },
        },
    }
]

OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}


def calculate(expression: str) -> int:
    """Evaluates + - * over integers; anything else is a ValueError."""

    def value(node: ast.AST) -> int:
        if isinstance(node, ast.Constant) and isinstance(node.value, int):
            return node.value
        if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
            return OPERATORS[type(node.op)](value(node.left), value(node.right))
        raise ValueError(f"cannot calculate {expression!r}")

    return value(ast.parse(expression, mode="eval").body)


def complete(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """One Chat Completions call; returns the assistant message."""
    request = urllib.request.Request(
        os.environ["RELAX_BASE_URL"].rstrip("/") + "/v1/chat/completions",
        data=json.dumps({"model": "model", "messages": messages, "tools": TOOLS}).encode(),
        headers={
            "Authorization": f"Bearer {os.environ['RELAX_SESSION_ID']}",
            "Content-Type": "application/json",
        },
    )
    with urllib.request.urlopen(request, timeout=9999) as response:
        answer = json.load(response)
    message: dict[str, Any] = answer["choices"][0]["message"]
    return message


def run_tool(call: dict[str, Any]) -> str:
    """The tool's answer as text; a bad call is an answer too, so that the model can react."""
    try:
        return str(calculate(json.loads(call["function"]["arguments"])["expression"]))
    except (ValueError, KeyError, TypeError, SyntaxError) as error:
        return f"error: {error}"


def solve(messages: list[dict[str, Any]]) -> tuple[str, int]:
    """Runs the tool loop; returns the last answer and the number of tool calls."""
    calls = 0
    for _ in range(MAX_TURNS):
        message = complete(messages)
        messages.append(message)
        if not message.get("tool_calls"):
            break
        for call in message["tool_calls"]:
            calls += 1
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": run_tool(call)})
    return messages[-1].get("content") or "", calls


def main() -> None:
    task = json.loads(Path(os.environ["RELAX_INPUT_JSON"]).read_text(encoding="utf-8"))
    answer, calls = solve(list(task["messages"]))
    numbers = re.findall(r"-?\d+", answer)
    right = bool(numbers) and int(numbers[-1]) == task["metadata"]["answer"]
    output = {
        "reward": float(right),
        "metadata": {"task_success": float(right), "tool_calls": calls},
    }
    Path(os.environ["RELAX_OUTPUT_JSON"]).write_text(json.dumps(output), encoding="utf-8")


if __name__ == "__main__":
    main()
