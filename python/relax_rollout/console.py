"""What people see while an engine runs: its log lines and one progress line.

What may enter: the data of LOG and PROGRESS events, a logger, a stream. What it never does:
poll, or know the library.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping
from typing import Any, TextIO


def log_event(logger: logging.Logger, data: Mapping[str, Any]) -> None:
    """Writes a LOG event to a logger, at its own level, as the engine spelled it.

    >>> line = "AGENTIC ROLLOUT event=accounting_end rollout=0 groups=2"
    >>> log_event(logging.getLogger("quiet"), {"level": "INFO", "line": line})
    """
    level = logging.getLevelName(str(data.get("level", "info")).upper())
    if not isinstance(level, int):
        level = logging.WARNING if level.endswith("WARN") else logging.INFO
    logger.log(level, "%s", data["line"])


class Progress:
    """One line on a stream: redrawn on a terminal; in a file now and then, and at a step's end."""

    _REDRAW_S = 0.1
    _FILE_S = 30.0

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._terminal = stream.isatty()
        self._clock = clock
        self._rollout: Any = None
        self._began = self._drawn_at = clock()
        self._drawn = ""
        self._shown = (-1, -1)

    def show(self, data: Mapping[str, Any]) -> None:
        """Draws a PROGRESS event."""
        now = self._clock()
        if data.get("rollout") != self._rollout:
            self._rollout, self._began = data.get("rollout"), now
            self._drawn_at = -math.inf if self._terminal else now
            self._shown = (-1, -1)
        scored, total = int(data.get("scored") or 0), int(data.get("total") or 0)
        pause = self._REDRAW_S if self._terminal else self._FILE_S
        complete = scored >= total and (scored, total) != self._shown
        if not complete and now - self._drawn_at < pause:
            return
        line = f"Rollout {self._rollout} generation: scored={scored}/{total}"
        if self._terminal:
            line = f"{line} {_bar(scored, total)} {self._age(now)}"
            self._write(f"\r{line.ljust(len(self._drawn))}")
            self._drawn = line
        else:
            self._write(f"{line} {self._age(now)}\n")
        self._drawn_at, self._shown = now, (scored, total)

    def _age(self, now: float) -> str:
        return f"[{round(now - self._began)}s]"

    def finish(self) -> None:
        """Ends a line that is being redrawn, so that others can follow."""
        if self._drawn:
            self._write("\n")
            self._drawn = ""

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


def _bar(scored: int, total: int, width: int = 20) -> str:
    full = width * scored // total if total else 0
    return f"[{'#' * full}{'.' * (width - full)}]"
