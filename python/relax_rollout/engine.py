"""The engine from Python: submit tasks, run rollout steps, set weight versions.

Nothing calls back from the library. The engine queues events; :meth:`Engine.rollout` polls and
answers them on the calling thread, in slices short enough for Ctrl-C.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import operator
import sys
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import islice
from types import TracebackType
from typing import Any

from . import _lib
from .batch import Batch
from .config import Config
from .console import Progress, log_event
from .errors import (
    ClosedError,
    ConfigError,
    InvalidError,
    PanicError,
    RelaxError,
    StateError,
    StepFailedError,
)
from .hooks import AdvantageHook, ScoreHook, advantage_reply, score_reply
from .report import StepReport

Task = str | Mapping[str, Any]
"""One prompt: ``{"messages": [...], "metadata": {...}}``, either may be absent; a string is one
user message."""

_SLICE_MS = 100
"""Longest single wait inside the library, so that Ctrl-C is seen in time."""

_LOGGER = logging.getLogger("relax_rollout")


class EventKind(IntEnum):
    """What a polled :class:`Event` is."""

    BATCH = 1
    STEP_END = 2
    TASKS_NEEDED = 3
    SCORE = 4
    LOG = 5
    PROGRESS = 6
    ADVANTAGE = 7


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
    """The event's fields, empty for BATCH."""


@dataclass
class _Step:
    """A rollout step that was asked for and has not ended.

    An exception may cut in anywhere (Ctrl-C, or one of the task iterator): what was polled, asked
    and taken is kept for when the step goes on.
    """

    rollout_id: int
    tasks: Iterator[Task] | None
    slot: _lib.Slot
    started: bool = False
    resumed: bool = False
    """An exception left the step, so its last call may have been made already."""
    event: Event | None = None
    """The event that is being handled."""
    batch: Batch | None = None
    taken: list[dict[str, Any]] = field(default_factory=list)

    def take(self, count: int) -> list[dict[str, Any]]:
        """Up to count tasks in ``taken``; fewer only where there are no more."""
        if self.tasks is not None:
            for task in islice(self.tasks, count - len(self.taken)):
                self.taken.append(_task(task))
        return self.taken


class Engine:
    """One running rollout engine. There can be one in a process at a time.

    Args:
        config: A :class:`~relax_rollout.Config`, or a mapping of its options.
        score: Gives rewards to Sessions whose agent wrote none; sets ``custom_rm``. It runs on
            the thread that polls. If it raises, or returns rewards the engine refuses, its Group
            is dropped with that cause and the step refills.
        advantage: Gives each exported context its training credit; sets ``custom_advantage``. It
            gets the contexts' metadata, one mapping by name for each Session of a Group, and
            returns the same shape with numbers, or None to leave the Group out. It runs and fails
            as ``score`` does.
        progress: Draw ``Rollout 0 generation: scored=3/8`` on stderr while a step runs.
        log: Takes the engine's log lines. Default: ``logging.getLogger("relax_rollout")``.

    All methods may be called from any thread. Use it as a context manager, or call
    :meth:`close`; it is also closed when collected and at interpreter exit.

    Raises:
        ConfigError: an option is unknown, of the wrong type, or has a value that cannot work.
        BackendError: ``sglang_url`` cannot be reached or does not answer as SGLang does.
        AlreadyOpenError: this process has an engine.
        LibraryError: the library or the agent supervisor is missing or of another version.
        ForkedError: this process was forked after the library was loaded.

    >>> import relax_rollout as rr
    >>> with rr.Engine({"agent_command": "bash run.sh", "agent_cwd": "/"}) as engine:
    ...     engine.set_weight_version(7)
    ...     engine.stats()["weight_version"]
    7
    >>> engine
    <Engine closed librelax_rollout.so>
    >>> engine.rollout(0, ["What is 2 + 2?"])
    Traceback (most recent call last):
    relax_rollout.errors.ClosedError: start_rollout: ...closed
    """

    def __init__(
        self,
        config: Config | Mapping[str, Any],
        *,
        score: ScoreHook | None = None,
        advantage: AdvantageHook | None = None,
        progress: bool = False,
        log: logging.Logger | None = None,
    ) -> None:
        self.config = config if isinstance(config, Config) else Config.from_dict(config)
        options = self.config.to_dict()
        _switch_on(options, "custom_rm", "score", score)
        _switch_on(options, "custom_advantage", "advantage", advantage)
        self._score = score
        self._advantage = advantage
        self._log = log or _LOGGER
        self._progress = Progress(sys.stderr) if progress else None
        self._step: _Step | None = None
        self._stepping = False
        self._unread: deque[_lib.Slot] = deque()
        self._waiters: set[asyncio.Future[None]] = set()
        self.last_report: StepReport | None = None
        """The report of the last step that ended."""

        self._lib = _lib.load()
        if not options.get("agent_supervisor"):
            options["agent_supervisor"] = _lib.find_supervisor()
        self._handle = self._lib.open(json.dumps(options, allow_nan=False))
        # Also runs at interpreter exit, so that agents end and locks are let go of in order.
        self._finalizer = weakref.finalize(self, _close_quietly, self._lib, self._handle)

    # ---- steps ----------------------------------------------------------------------------------

    def rollout(self, rollout_id: int, tasks: Iterable[Task] | None = None) -> Batch:
        """Runs one step and returns its rows.

        ``tasks`` is pulled lazily: as many as the step has Groups to start, more as Groups are
        dropped. Pass an iterator to go on with it in the next step. Tasks submitted
        before are used first; None means that there are no others.

        The step's report is at ``batch.report`` and :attr:`last_report`. If the tasks ran out
        before any Group was finished the batch has no rows (``len(batch) == 0``, every column
        of zero length) and ``batch.report.debt`` says how many Groups are missing.

        If an exception leaves this call (Ctrl-C, or one raised by ``tasks``), the step stays
        open: call again with the same ``rollout_id`` to go on with it, or close the engine.

        Raises:
            StepFailedError: too many Groups in a row were dropped; it has the report.
            StateError: another step is open, or another call of rollout runs.
            InvalidError: ``rollout_id`` or a task is of another type or shape.
            ClosedError: the engine was closed.

        >>> import relax_rollout as rr
        >>> broken = rr.Config(
        ...     agent_command="exit 3", agent_cwd="/", max_consecutive_dropped_groups=1
        ... )
        >>> with rr.Engine(broken) as engine:
        ...     try:
        ...         engine.rollout(0, ["What is 2 + 2?"])
        ...     except rr.StepFailedError as err:
        ...         [(drop.reason, drop.groups) for drop in err.report.drops]
        [('agent_exit', 1)]
        """
        if self._stepping:
            raise StateError("rollout: another call has not returned; one step runs at a time")
        try:
            # Not a lock: Ctrl-C between taking it and this block would leave it taken for ever.
            self._stepping = True
            step = self._enter_step(rollout_id, tasks)
            report = self._run(step)
            batch = step.batch or Batch.empty(rollout_id)
            batch.report = self.last_report = report
            self._step = None
        finally:
            self._stepping = False
        if report.error is not None:
            raise StepFailedError(f"rollout {report.rollout} failed: {report.error}", report)
        return batch

    def _enter_step(self, rollout_id: int, tasks: Iterable[Task] | None) -> _Step:
        step = self._step
        if step is None:
            rollout_id = _int64("rollout", "rollout_id", rollout_id)
            source = None if tasks is None else iter(_many("rollout", tasks))
            step = self._step = _Step(rollout_id, source, _lib.Slot(self._lib))
        elif step.rollout_id != rollout_id:
            raise StateError(
                f"rollout: step {step.rollout_id} is open; call rollout({step.rollout_id}) to go "
                f"on with it before step {rollout_id}, or close the engine"
            )
        else:
            step.resumed = True
        if not step.started:
            self._start_step(step)
        return step

    def _start_step(self, step: _Step) -> None:
        try:
            self._lib.start_rollout(self._handle, step.rollout_id)
        except RelaxError as err:
            if not (step.resumed and isinstance(err, StateError)):
                self._step = None
                raise
        step.started = True

    def _run(self, step: _Step) -> StepReport:
        try:
            while True:
                if step.event is None and not self._poll_for(step):
                    continue
                assert step.event is not None
                if step.event.kind == EventKind.STEP_END:
                    return StepReport.from_dict(step.event.data)
                self._handle_event(step.event, step)
                step.event, step.resumed = None, False
        finally:
            if self._progress is not None:
                self._progress.finish()

    def _poll_for(self, step: _Step) -> bool:
        slot = step.slot
        if not self._lib.poll(self._handle, _SLICE_MS, slot):
            return False
        event = _event(slot.read())
        step.event, slot.event.kind = event, 0  # in one statement, see Slot
        slot.discard()
        return True

    def _handle_event(self, event: Event, step: _Step) -> None:
        if event.kind == EventKind.BATCH:
            step.batch = event.batch
        elif event.kind == EventKind.TASKS_NEEDED:
            self._answer_tasks(event, step)
        elif event.kind == EventKind.SCORE:
            self._answer_hook(event, step, "custom_rm", self._score, score_reply)
        elif event.kind == EventKind.ADVANTAGE:
            self._answer_hook(event, step, "custom_advantage", self._advantage, advantage_reply)
        elif event.kind == EventKind.LOG:
            if self._progress is not None:
                self._progress.finish()
            log_event(self._log, event.data)
        elif event.kind == EventKind.PROGRESS and self._progress is not None:
            self._progress.show(event.data)

    def _answer(self, event: Event, step: _Step, answer: Mapping[str, Any]) -> None:
        try:
            self.reply(event, answer)
        except StateError:
            if not step.resumed:
                raise  # else the exception that left the step came right after this reply

    def _answer_tasks(self, event: Event, step: _Step) -> None:
        count = int(event.data.get("count", 1))
        taken = step.take(count)
        try:
            self._answer(event, step, {"tasks": taken, "end": len(taken) < count})
        except InvalidError:
            step.taken.clear()  # others are taken when the step goes on
            raise
        step.taken.clear()

    def _answer_hook(
        self,
        event: Event,
        step: _Step,
        option: str,
        hook: Any,
        reply: Callable[[Any, Mapping[str, Any]], dict[str, Any]],
    ) -> None:
        name = EventKind(event.kind).name.lower()
        group = event.data.get("group_id")
        if hook is None:
            cause = f"option {option} is set, but Engine was given no {name} hook"
        else:
            try:
                self._answer(event, step, reply(hook, event.data))
                return
            except (ClosedError, PanicError):
                raise
            except Exception as err:
                # A broken hook costs its Group, never the trainer.
                cause = f"{name} hook: {type(err).__name__}: {err}"
                self._log.exception("%s hook failed for group %s", name, group)
        self._answer(event, step, {"error": cause})

    # ---- low level ------------------------------------------------------------------------------

    def submit(self, tasks: Iterable[Task]) -> None:
        """Queues tasks for this and later steps.

        Raises:
            InvalidError: a task is of another shape; none of them was queued.
            ClosedError: the engine was closed.
        """
        documents = [_task(t) for t in _many("submit", tasks)]
        self._lib.submit(self._handle, _json("submit", documents))

    def start_rollout(self, rollout_id: int) -> None:
        """Opens a step, for callers that poll themselves. One STEP_END event answers it.

        Raises:
            StateError: another step is open.
            ClosedError: the engine was closed.
        """
        rollout_id = _int64("start_rollout", "rollout_id", rollout_id)
        self._lib.start_rollout(self._handle, rollout_id)

    def poll(self, timeout: float | None = None) -> Event | None:
        """Returns the next event, or None if none came within ``timeout`` seconds.

        None waits without bound. Ctrl-C ends the wait and loses no event. Log and progress events
        are returned like all others; :func:`~relax_rollout.console.log_event` writes a log event
        to a logger. While :meth:`rollout` runs on another thread the events are its own: do not
        poll then.

        >>> import relax_rollout as rr
        >>> with rr.Engine({"agent_command": "true", "agent_cwd": "/"}) as engine:
        ...     engine.start_rollout(0)
        ...     kind = None
        ...     while kind != rr.EventKind.STEP_END:
        ...         event = engine.poll(60)
        ...         kind = event.kind
        ...         if kind == rr.EventKind.TASKS_NEEDED:
        ...             engine.reply(event, {"tasks": [], "end": True})
        >>> event.data["groups"], event.data["debt"]
        (0, 1)
        """
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            event = self._poll_once(_slice_ms(until))
            if event is not None:
                return event
            if until is not None and time.monotonic() >= until:
                return None

    def _poll_once(self, timeout_ms: int) -> Event | None:
        # Two threads may poll, so each takes a slot of its own, one with an event left first.
        slot = self._unread.popleft() if self._unread else _lib.Slot(self._lib)
        try:
            if not self._lib.poll(self._handle, timeout_ms, slot):
                return None
            event = _event(slot.read())
            slot.discard()
            return event
        finally:
            if slot.event.kind:
                self._unread.append(slot)

    async def apoll(self, timeout: float | None = None) -> Event | None:
        """As :meth:`poll`, for asyncio: waits for the engine's eventfd and blocks no thread."""
        loop = asyncio.get_running_loop()
        until = None if timeout is None else loop.time() + timeout
        while True:
            event = self._poll_once(0)
            if event is not None:
                return event
            left = None if until is None else until - loop.time()
            if left is not None and left <= 0:
                return None
            await self._readable(loop, left)

    async def _readable(self, loop: asyncio.AbstractEventLoop, timeout: float | None) -> None:
        fd = self.fileno()
        waiter = loop.create_future()
        if not self._waiters:
            loop.add_reader(fd, self._wake_waiters)
        self._waiters.add(waiter)
        try:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(waiter, timeout)
        finally:
            self._waiters.discard(waiter)
            if not self._waiters:
                loop.remove_reader(fd)

    def _wake_waiters(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    def reply(self, event: Event | int, answer: Mapping[str, Any]) -> None:
        """Answers an event that has an id. A refused reply leaves the event open."""
        event_id = event.id if isinstance(event, Event) else event
        self._lib.reply(self._handle, event_id, _json("reply", dict(answer)))

    def fileno(self) -> int:
        """The eventfd that is readable while an event waits. The engine owns it: do not read,
        write or close it."""
        return self._lib.event_fd(self._handle)

    # ---- weights, pauses, numbers ---------------------------------------------------------------

    def set_weight_version(self, version: int) -> None:
        """Records the version that requests from now on are sampled under.

        It is used where the backend does not report a version itself. It pushes no weights.
        """
        version = _int64("set_weight_version", "version", version)
        self._lib.set_weight_version(self._handle, version)

    def pause(self, timeout: float | None = None) -> bool:
        """Closes the generation gate and waits until no request is left at the backend.

        Requests in flight are aborted there and parked with the tokens they have; agents keep
        waiting. Returns False if some were still there after ``timeout`` seconds: the gate is
        closed all the same, and another call goes on waiting.

        >>> import relax_rollout as rr
        >>> with rr.Engine({"agent_command": "true", "agent_cwd": "/"}) as engine:
        ...     engine.pause(timeout=10)  # then update the backend's weights
        ...     engine.set_weight_version(8)
        ...     engine.resume()
        True
        """
        until = None if timeout is None else time.monotonic() + timeout
        while not self._lib.pause(self._handle, _slice_ms(until)):
            if until is not None and time.monotonic() >= until:
                return False
        return True

    def resume(self) -> None:
        """Opens the gate again; parked requests continue from their tokens."""
        self._lib.resume(self._handle)

    def stats(self) -> dict[str, Any]:
        """A snapshot of what the engine is doing and what it waits for."""
        return dict(json.loads(self._lib.stats(self._handle)))

    # ---- the end --------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """Whether :meth:`close` was called."""
        return not self._finalizer.alive

    def close(self, grace: float = 10.0) -> None:
        """Ends the engine: waiting polls raise ClosedError, agents are killed, all is joined.

        ``grace`` bounds the wait, in seconds; if it is over, a warning is logged, and what still
        runs ends on its own. Ctrl-C ends the wait, and another call goes on with it. Calling it
        on a closed engine is harmless. Batches stay valid.
        """
        if self.closed:
            return
        self._step = None
        until = time.monotonic() + grace
        joined = False
        try:
            while not (joined := self._lib.close(self._handle, _slice_ms(until))):
                if time.monotonic() >= until:
                    break
        except (ClosedError, PanicError):
            joined = True  # A poisoned engine has ended its agents and can do no more.
        self._finalizer.detach()
        if not joined:
            self._log.warning("close: parts of the engine still run after %g s", grace)

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, err: BaseException | None, at: TracebackType | None
    ) -> None:
        # A forked child that leaves the block has nothing to close, and must not hide err.
        if not _lib.forked():
            self.close()

    def __repr__(self) -> str:
        return f"<Engine {'closed' if self.closed else 'open'} {self._lib.path.name}>"


def _close_quietly(library: _lib.Library, handle: int) -> None:
    with contextlib.suppress(RelaxError):
        library.close(handle, 10_000)


# ---- tasks and rewards --------------------------------------------------------------------------


def _task(task: Task) -> dict[str, Any]:
    if isinstance(task, str):
        return {"messages": [{"role": "user", "content": task}]}
    if isinstance(task, Mapping) and set(task) <= {"messages", "metadata"} and task:
        return {k: v for k, v in task.items() if v is not None}
    shown = sorted(map(str, task)) if isinstance(task, Mapping) else type(task).__name__
    raise InvalidError(
        f'task: expected a str or a mapping with "messages" and/or "metadata", found {shown}'
    )


def _switch_on(options: dict[str, Any], option: str, name: str, hook: object) -> None:
    """Sets the option that makes the engine ask a hook, if there is one."""
    if hook is not None and options.setdefault(option, True) is False:
        raise ConfigError(
            f"option {option}: False, but Engine was given a {name} hook; leave one of them out",
            option,
        )


def _json(call: str, value: Any) -> str:
    try:
        return json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as err:
        raise InvalidError(f"{call}: not a JSON value: {err}") from err


def _int64(call: str, name: str, value: Any) -> int:
    """An integer that C can take, also one of NumPy's."""
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None or not -(2**63) <= number < 2**63:
        raise InvalidError(f"{call}: {name} is {value!r}, expected an int64")
    return number


def _many(call: str, tasks: Iterable[Task]) -> Iterable[Task]:
    """Refuses one task where many are meant: a str would be a task for each letter."""
    if isinstance(tasks, str | Mapping) or not isinstance(tasks, Iterable):
        raise InvalidError(
            f"{call}: tasks is one {type(tasks).__name__}, expected an iterable of tasks: [task]"
        )
    return tasks


def _slice_ms(until: float | None) -> int:
    """Milliseconds of the next wait inside the library, on the way to a point in time."""
    if until is None:
        return _SLICE_MS
    return math.ceil(min(_SLICE_MS, max(0.0, 1000 * (until - time.monotonic()))))


def _event(raw: _lib.RawEvent) -> Event:
    return Event(
        kind=EventKind(raw.kind) if raw.kind in list(EventKind) else raw.kind,
        id=raw.id,
        rollout_id=raw.rollout_id,
        batch=Batch(raw.batch) if raw.batch is not None else None,
        data=json.loads(raw.data) if raw.data else {},
    )
