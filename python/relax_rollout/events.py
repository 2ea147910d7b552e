"""What comes out of the library: events.

May enter: what a poll gave. Never: the engine.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from . import _lib
from .batch import Batch


class EventKind(IntEnum):
    """What a polled :class:`Event` is."""

    BATCH = 1
    STEP_END = 2
    TASKS_NEEDED = 3
    SCORE = 4
    LOG = 5
    PROGRESS = 6
    ADVANTAGE = 7
    FILTER = 8


@dataclass(frozen=True)
class Event:
    """One thing the engine wants the host to know or to do."""

    kind: int
    """An :class:`EventKind`, or the bare number of a kind this package does not know."""
    id: int
    """Not 0 for events that want :meth:`Engine.reply`."""
    rollout_id: int
    batch: Batch | None
    """The rows, only for BATCH."""
    data: dict[str, Any]
    """The event's fields. A BATCH has some only in an Eval: ``dataset`` names whose rows it is."""


def read_event(raw: _lib.RawEvent) -> Event:
    """The event that the library gave away."""
    return Event(
        kind=EventKind(raw.kind) if raw.kind in list(EventKind) else raw.kind,
        id=raw.id,
        rollout_id=raw.rollout_id,
        batch=Batch(raw.batch) if raw.batch is not None else None,
        data=json.loads(raw.data) if raw.data else {},
    )
