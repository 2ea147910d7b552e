"""Two agents in one Session: a searcher finds the sum, then the main agent answers with it.

Each holds a conversation of its own with the same endpoint. At the end both are exported under
their names, so that the trainer can say what each is worth.
"""

from __future__ import annotations

import json
import os
import re
import urllib.request
from pathlib import Path
from typing import Any


def complete(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """One Chat Completions call; returns the assistant message."""
    request = urllib.request.Request(
        os.environ["RELAX_BASE_URL"].rstrip("/") + "/v1/chat/completions",
        data=json.dumps({"model": "model", "messages": messages}).encode(),
        headers={
            "Authorization": f"Bearer {os.environ['RELAX_SESSION_ID']}",
            "Content-Type": "application/json",
        },
    )
    with urllib.request.urlopen(request, timeout=3600) as response:
        message: dict[str, Any] = json.load(response)["choices"][0]["message"]
    return message


def number(text: str) -> int | None:
    """The first number of a text."""
    found = re.search(r"-?\d+", text)
    return int(found.group()) if found else None


def converse(system: str, text: str) -> list[dict[str, Any]]:
    """A conversation of one turn."""
    messages = [{"role": "system", "content": system}, {"role": "user", "content": text}]
    return [*messages, complete(messages)]


def main() -> None:
    task = json.loads(Path(os.environ["RELAX_INPUT_JSON"]).read_text())
    left, right = task["metadata"]["terms"]
    search = converse("You search.", f"Search: {left} + {right}")
    said = search[-1]["content"]
    answer = converse("You answer.", f"The searcher says: {said} What is {left} + {right}?")
    contexts = {
        "main": (answer, {"answer": number(answer[-1]["content"])}),
        "searcher": (search, {"found": number(said)}),
    }
    records = [
        json.dumps({"name": name, "messages": messages, "metadata": metadata})
        for name, (messages, metadata) in contexts.items()
    ]
    Path(os.environ["RELAX_OUTPUT_JSON"]).write_text("\n".join(records))


if __name__ == "__main__":
    main()
