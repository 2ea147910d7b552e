"""What can go wrong. Every error of the package is a :class:`RelaxError`.

A message names the call, and the option, Session or file at fault, as the engine reports it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .report import StepReport

FORK_CURE = (
    "this process was forked after relax_rollout was loaded, and a Go runtime does not survive "
    'fork(). Start workers with multiprocessing.get_context("spawn") or "forkserver", or fork '
    "them before the first Engine is made. Batches and views that were inherited stay readable"
)


def shown(value: object) -> str:
    """A value as messages show it: long ones are cut."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


class RelaxError(Exception):
    """Base of all errors of this package."""


class InvalidError(RelaxError, ValueError):
    """An argument is wrong; the text names it and says what was expected."""


class ConfigError(InvalidError):
    """An option is unknown, of the wrong type, or has a value that cannot work.

    ``option`` is the option's name, or None where the document as a whole is at fault.
    """

    def __init__(self, message: str, option: str | None = None) -> None:
        super().__init__(message)
        self.option = option

    def __reduce__(self) -> tuple[type[ConfigError], tuple[str, str | None]]:
        return type(self), (str(self), self.option)


class StateError(RelaxError):
    """The call does not fit the engine's state, for example a second step while one is open."""


class ClosedError(RelaxError):
    """The engine was closed."""


class AlreadyOpenError(RelaxError):
    """An engine is already open in this process; there can be only one."""


class OutOfMemoryError(RelaxError, MemoryError):
    """The library had no memory for what it should hand over, or for a view of a column.

    A batch that finds none is another thing: its step waits for older batches to be let go, and
    ends after a minute with :class:`StepFailedError`.
    """


class EngineIOError(RelaxError):
    """The operating system refused something that no option names."""


class BackendError(RelaxError):
    """The inference backend cannot be reached or does not answer as SGLang does."""


class ForkedError(RelaxError):
    """Called in a child made by fork() after the library was loaded."""


class PanicError(RelaxError):
    """A fault inside the engine. The message has the first stack.

    The process lives and batches stay valid, but every later call fails the same way until
    the process is started again.
    """


class LibraryError(RelaxError):
    """librelax_rollout.so or relax-agent-init is missing, or belongs to another version."""


class StepFailedError(RelaxError):
    """A step ended on ``max_consecutive_dropped_groups``, or there was no memory for its batch
    (``arena_limit_bytes``); the message has the first cause.

    ``report`` is the step's :class:`~relax_rollout.StepReport`. Rows that were finished before
    are not delivered. The engine stays usable.
    """

    def __init__(self, message: str, report: StepReport) -> None:
        super().__init__(message)
        self.report = report

    def __reduce__(self) -> tuple[type[StepFailedError], tuple[str, StepReport]]:
        return type(self), (str(self), self.report)
