"""What the trainer's hooks take and return, and how their answers become replies.

May enter: the data of events, what hooks returned. Never: the engine, the library.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from .errors import InvalidError

ScoreHook: TypeAlias = Callable[[list[dict[str, Any]]], Sequence[Any]]
"""Takes the Sessions of one Group as the engine describes them and returns one reward for each:
a finite number, or an object of numbers with the key named by the option ``reward_key``."""

MetadataBySlot: TypeAlias = list[dict[str | None, dict[str, Any]]]
"""For each Session of a Group, in order, the metadata of each exported context by its name; the
name of an implicit export is None (guide, Custom Advantage for Multi-Agent Credit)."""

AdvantageHook: TypeAlias = Callable[[MetadataBySlot], Sequence[Mapping[str | None, float]] | None]
"""Returns one training credit for each context, in the same shape; None filters the Group."""


def plain(value: Any) -> Any:
    """Unwraps scalars of NumPy and tensor libraries, inside objects too."""
    if isinstance(value, Mapping):
        return {k: plain(v) for k, v in value.items()}
    return value.item() if hasattr(value, "item") else value


def score_reply(hook: ScoreHook, data: Mapping[str, Any]) -> dict[str, Any]:
    """The reply to a SCORE event."""
    return {"rewards": [plain(r) for r in hook(list(data.get("sessions", [])))]}


def advantage_reply(hook: AdvantageHook, data: Mapping[str, Any]) -> dict[str, Any]:
    """The reply to an ADVANTAGE event.

    Raises:
        InvalidError: a context has no finite number. Names nobody exported are ignored, as the
            reference does.

    >>> group = {"sessions": [{"session_id": "s0", "contexts": [
    ...     {"name": "main", "metadata": {"outcome": 1.0}, "turns": 2},
    ...     {"name": "searcher", "metadata": {"usefulness": 0.6}, "turns": 1}]}]}
    >>> def outcome_times_usefulness(slots):
    ...     return [{"main": s["main"]["outcome"],
    ...              "searcher": s["main"]["outcome"] * s["searcher"]["usefulness"]} for s in slots]
    >>> advantage_reply(outcome_times_usefulness, group)
    {'advantages': [[1.0, 0.6]]}
    >>> advantage_reply(lambda slots: [{"main": 1.0}], group)
    Traceback (most recent call last):
    relax_rollout.errors.InvalidError: ...session 0 (s0): no value for context 'searcher'
    """
    sessions = data.get("sessions", [])
    slots = [{c["name"]: c["metadata"] for c in s["contexts"]} for s in sessions]
    values = hook(slots)
    if values is None:
        return {"advantages": None}
    if isinstance(values, Mapping | str) or not hasattr(values, "__len__"):
        raise InvalidError(f"advantage hook: expected a list of mappings or None, found {values!r}")
    if len(values) != len(sessions):
        raise InvalidError(
            f"advantage hook: {len(values)} mappings for {len(sessions)} sessions; "
            "output i belongs to input session i"
        )
    return {
        "advantages": [
            _session_values(f"session {i} ({s['session_id']})", s["contexts"], values[i])
            for i, s in enumerate(sessions)
        ]
    }


def _session_values(
    session: str, contexts: Sequence[Mapping[str, Any]], given: Mapping[str | None, Any]
) -> list[float]:
    if not isinstance(given, Mapping):
        raise InvalidError(f"advantage hook: {session}: expected a mapping, found {given!r}")
    return [_credit(session, c["name"], given) for c in contexts]


def _credit(session: str, name: str | None, given: Mapping[str | None, Any]) -> float:
    if name not in given:
        raise InvalidError(f"advantage hook: {session}: no value for context {name!r}")
    value = plain(given[name])
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise InvalidError(
            f"advantage hook: {session}: context {name!r}: expected a finite number, "
            f"found {value!r}"
        )
    return float(value)
