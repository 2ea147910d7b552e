"""What callers hand over: tasks, numbers and values that must become JSON.

May enter: arguments of the public calls. Never: the engine, the library.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Iterable, Mapping
from typing import Any

from .errors import InvalidError

Task = str | Mapping[str, Any]
"""One prompt: ``{"messages": [...], "metadata": {...}}``, either may be absent; a string is one
user message."""


def document(task: Task) -> dict[str, Any]:
    """The task as the engine reads it."""
    if isinstance(task, str):
        return {"messages": [{"role": "user", "content": task}]}
    if isinstance(task, Mapping) and set(task) <= {"messages", "metadata"} and task:
        return {k: v for k, v in task.items() if v is not None}
    shown = sorted(map(str, task)) if isinstance(task, Mapping) else type(task).__name__
    raise InvalidError(
        f'task: expected a str or a mapping with "messages" and/or "metadata", found {shown}'
    )


def many(call: str, tasks: Iterable[Task]) -> Iterable[Task]:
    """Refuses one task where many are meant: a str would be a task for each letter."""
    if isinstance(tasks, str | Mapping) or not isinstance(tasks, Iterable):
        raise InvalidError(
            f"{call}: tasks is one {type(tasks).__name__}, expected an iterable of tasks: [task]"
        )
    return tasks


def to_json(call: str, value: Any) -> str:
    """The text of a value, which must be JSON's."""
    try:
        return json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as err:
        raise InvalidError(f"{call}: not a JSON value: {err}") from err


def int64(call: str, name: str, value: Any) -> int:
    """An integer that C can take, also one of NumPy's."""
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None or not -(2**63) <= number < 2**63:
        raise InvalidError(f"{call}: {name} is {value!r}, expected an int64")
    return number
