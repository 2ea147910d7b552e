"""What people see while an engine runs: its log lines and one progress bar.

What may enter: the data of LOG and PROGRESS events, a logger, a stream. What it never does:
poll, or know the library.
"""

from __future__ import annotations

import logging
import math
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TextIO


def mute_stdout() -> None:
    """Sends stdout nowhere from here on: its reader is gone, as ``| head`` that has seen enough."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def log_event(logger: logging.Logger, data: Mapping[str, Any]) -> None:
    """Writes a LOG event to a logger, at its own level, as the engine spelled it.

    >>> line = "AGENTIC ROLLOUT event=accounting_end rollout=0 groups=2"
    >>> log_event(logging.getLogger("quiet"), {"level": "INFO", "line": line})
    """
    logger.log(_level(data), "%s", data["line"])


def _level(data: Mapping[str, Any]) -> int:
    level = logging.getLevelName(str(data.get("level", "info")).upper())
    if isinstance(level, int):
        return level
    return logging.WARNING if level.endswith("WARN") else logging.INFO


@dataclass(frozen=True)
class _State:
    """What a bar shows."""

    title: str
    unit: str
    done: int
    total: int
    postfix: str

    @classmethod
    def read(cls, data: Mapping[str, Any]) -> _State:
        """The state in a PROGRESS event. A train step counts Sessions, an Eval samples."""
        done, total = int(data.get("done") or 0), int(data.get("total") or 0)
        counts = ", ".join(f"{k}={data[k]}" for k in ("scored", "prepared") if k in data)
        if "dataset" in data:
            name = "".join(c if c.isprintable() else " " for c in str(data["dataset"]))
            return cls(f"Eval {name}", "sample", done, total, counts)
        return cls(f"Rollout {data.get('rollout')} generation", "session", done, total, counts)

    def describe(self, seconds: float, width: int | None) -> str:
        """The line in tqdm's form, ``seconds`` after the beginning.

        The bar itself gets what the line leaves of ``width``; it goes if that is too little, or
        if there is no width.
        """
        share = min(1.0, self.done / self.total) if self.total else 1.0
        head = f"{self.title}: {100 * share:3.0f}%"
        done = self.done
        pace = f"{done / seconds:.2f}{self.unit}/s" if done and seconds else f"?{self.unit}/s"
        if 0 < done < seconds:
            pace = f"{seconds / done:.2f}s/{self.unit}"
        left = _clock(seconds * max(0, self.total - done) / done) if done else "?"
        tail = f" {done}/{self.total} [{_clock(seconds)}<{left}, {pace}"
        tail += f", {self.postfix}]" if self.postfix else "]"
        if width is None:
            return head + tail
        room = min(_WIDEST_BAR, width - len(head) - len(tail) - 2)
        bar = f"|{'#' * math.floor(room * share):{room}}|" if room >= _NARROWEST_BAR else ""
        return f"{head}{bar}{tail}"[:width]


_WIDEST_BAR, _NARROWEST_BAR = 30, 5


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes:02}:{rest:02}"


class Progress:
    """One bar on a stream: a line redrawn on a terminal; in a file a line now and then, and one
    at a step's end. A stream that can be written no more ends it silently."""

    _REDRAW_S = 0.1
    _TICK_S = 1.0
    _FILE_S = 30.0

    def __init__(self, stream: TextIO | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._terminal = stream is not None and not stream.closed and stream.isatty()
        self._clock = clock
        self._state: _State | None = None
        self._shown: _State | None = None
        self._heard_at = self._began = self._drawn_at = clock()
        self._drawn = 0
        """Columns of the line that is being redrawn."""

    def begin(self) -> None:
        """A step begins: time counts from here."""
        self._heard_at = self._clock()

    def show(self, data: Mapping[str, Any]) -> None:
        """Takes the data of a PROGRESS event, and draws it unless something was drawn just now."""
        state, now = _State.read(data), self._clock()
        if self._state is None or state.title != self._state.title:
            self.finish()
            self._began = self._heard_at  # of datasets in a row, the end of the one before
            self._drawn_at = -math.inf if self._terminal else self._began
        self._state, self._heard_at = state, now
        if now - self._drawn_at >= (self._REDRAW_S if self._terminal else self._FILE_S):
            self._draw(now)

    def tick(self) -> None:
        """Lets the clock of a bar on a terminal go on while nothing happens."""
        now = self._clock()
        if self._terminal and self._state is not None and now - self._drawn_at >= self._TICK_S:
            self._draw(now)

    def say(self, data: Mapping[str, Any], logger: logging.Logger) -> None:
        """Makes room for a LOG event. What the engine waits for is written here if the logger
        would keep it to itself."""
        self._clear()
        if data.get("event") == "idle_heartbeat" and not logger.isEnabledFor(_level(data)):
            self._write(f"{data['line']}\n")

    def finish(self) -> None:
        """Draws the last state of the bar, if it was not, and ends it."""
        unseen = self._state != self._shown or (self._terminal and not self._drawn)
        if self._state is not None and unseen:
            self._draw(max(self._heard_at, self._drawn_at))
        if self._drawn:
            self._write("\n")
        self._state = self._shown = None
        self._drawn = 0

    def _draw(self, now: float) -> None:
        assert self._state is not None
        line = self._state.describe(now - self._began, self._width())
        if self._terminal:
            self._write(f"\r{line.ljust(self._drawn)}")
            self._drawn = len(line)
        else:
            self._write(f"{line}\n")
        self._drawn_at, self._shown = now, self._state

    def _clear(self) -> None:
        if self._drawn:
            self._write(f"\r{' ' * self._drawn}\r")
            self._drawn, self._drawn_at = 0, -math.inf

    def _width(self) -> int | None:
        if not self._terminal or self._stream is None:
            return None
        try:
            columns = os.get_terminal_size(self._stream.fileno()).columns or 80  # 0: not known
        except (OSError, ValueError):
            columns = 80
        return max(20, columns - 1)  # some terminals begin a line after the last column

    def _write(self, text: str) -> None:
        if self._stream is None:
            return
        encoding = getattr(self._stream, "encoding", None) or "utf-8"
        try:
            self._stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
            self._stream.flush()
        except (OSError, ValueError):  # a pipe without reader, a closed file
            self._stream = None
