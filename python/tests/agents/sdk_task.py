"""What the agents on SDKs share: the task, the tool, and the outcome."""

import json
import os
from pathlib import Path

TASK = json.loads(Path(os.environ["RELAX_INPUT_JSON"]).read_text())
METADATA = TASK["metadata"]
PARAMETERS = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
    "required": ["a", "b"],
    "additionalProperties": False,
}


def add(arguments):
    """What the tool answers to arguments, a JSON text or a mapping."""
    numbers = json.loads(arguments) if isinstance(arguments, str) else arguments
    return str(numbers["a"] + numbers["b"])


def finish(answer, **facts):
    """Ends the Session: what the model said last, and what the test wants to know."""
    output = {"reward": 1.0, "metadata": {"answer": answer, **facts}}
    Path(os.environ["RELAX_OUTPUT_JSON"]).write_text(json.dumps(output))
