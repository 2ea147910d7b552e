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
import sys
import time
import weakref
from collections import deque
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any

from . import _lib
from .batch import Batch
from .config import Config
from .console import Progress
from .dumps import ParquetDump
from .errors import (
    ClosedError,
    PanicError,
    RelaxError,
)
from .evaluation import EvalDataset, EvalResult, eval_documents, eval_results
from .events import Event, read_event
from .hook_calls import HookLoop
from .hook_setup import bind_hooks
from .hooks import AdvantageHook, Hooks, ScoreHook
from .native_files import find_supervisor
from .report import StepReport
from .steps import SLICE_MS, Step, StepRunner
from .tasks import Task, document, int64, many, to_json

_LOGGER = logging.getLogger("relax_rollout")


class Engine:
    """One running rollout engine. There can be one in a process at a time.

    Args:
        config: A :class:`~relax_rollout.Config`, or a mapping of its options.
        hooks: What the trainer does during a rollout: rewards, training credit, filters; see
            :class:`~relax_rollout.Hooks`.
        score: Gives rewards to Sessions whose agent wrote none; sets ``custom_rm``. It is called
            once for each Group, as ``Hooks.group_reward`` is, but agents' own rewards are kept.
        advantage: Short for ``Hooks(advantage=...)``. Gives each exported context its training
            credit; sets ``custom_advantage``. It gets the contexts' metadata, one mapping by name
            for each Session of a Group, and returns the same shape with numbers, or lists with one
            for each turn, or None to leave the Group out.
        progress: Show a bar on stderr while a step runs: Sessions of finished Groups, and behind
            them how many were scored. In a file that is a line now and then.
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
        hooks: Hooks | None = None,
        score: ScoreHook | str | None = None,
        advantage: AdvantageHook | str | None = None,
        progress: bool = False,
        log: logging.Logger | None = None,
    ) -> None:
        self.config = config if isinstance(config, Config) else Config.from_dict(config)
        options = self.config.to_dict()
        bound_hooks, bound = bind_hooks(options, hooks, score, advantage)
        self._hook_loop = HookLoop(bound_hooks)
        self._log = log or _LOGGER
        dump = ParquetDump.wanted(options, self._log)
        self._unread: deque[_lib.Slot] = deque()
        self._waiters: dict[asyncio.AbstractEventLoop, set[asyncio.Future[None]]] = {}
        self._lib = _lib.load()
        if not options.get("agent_supervisor"):
            options["agent_supervisor"] = find_supervisor()
        text = json.dumps(options, allow_nan=False)
        cell = _lib.EngineCell()
        # Also runs at interpreter exit, so that agents end and locks are let go of in order.
        self._finalizer = weakref.finalize(self, _close_quietly, self._lib, cell, self._hook_loop)
        try:
            self._lib.open(text, cell)
        except BaseException:  # Ctrl-C can come when the engine is open already
            self._finalizer()
            raise
        self._handle = cell.handle
        self._steps = StepRunner(
            self._lib,
            self._handle,
            (bound_hooks, bound, self._hook_loop),
            self._log,
            Progress(sys.stderr) if progress else None,
            dump,
        )

    # ---- steps ----------------------------------------------------------------------------------

    @property
    def last_report(self) -> StepReport | None:
        """The report of the last step that ended, None before the first."""
        return self._steps.last_report

    def rollout(self, rollout_id: int, tasks: Iterable[Task] | None = None) -> Batch:
        """Runs one step and returns its rows.

        ``tasks`` is pulled lazily: as many as the step has Groups to start, more as Groups are
        dropped. Pass an iterator to go on with it in the next step. Tasks submitted
        before are used first; None means that there are no others. With ``agentic_prelaunch``,
        ``partial_rollout`` or ``fully_async`` more are pulled than the step delivers, because
        Groups go on into the next steps: give all steps one iterator then.

        With ``fully_async`` rows may belong to earlier rollouts; see :meth:`Batch.by_partition`.

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

        def opened() -> Step:
            step = Step("rollout", self._lib.start_rollout, _lib.Slot(self._lib))
            step.tasks = None if tasks is None else iter(many("rollout", tasks))
            return step

        report, batches = self._steps.run("rollout", rollout_id, opened)
        batch = batches.get("") or Batch.empty(report.rollout)
        batch.report = report
        return batch

    def evaluate(
        self, rollout_id: int, datasets: Mapping[str, EvalDataset | Iterable[Task]]
    ) -> dict[str, EvalResult]:
        """Runs every sample of the datasets, one dataset after the other, and returns the results.

        A dataset is an iterable of tasks, or an :class:`~relax_rollout.EvalDataset` with options
        of its own. Rewards come from the agents or the hooks as in training; filters, advantages
        and normalisation do not apply. A sample that fails is dropped, counted, and not run again.
        Train Sessions that are kept over steps stay where they are meanwhile. Agents find
        ``RELAX_ROLLOUT_MODE=eval``.

        ``rollout_id`` is the step the weights come from. As with :meth:`rollout`, an Eval that an
        exception left goes on when it is called again with the same ``rollout_id``.

        Raises:
            StateError: a step is open, or another call of rollout or evaluate runs.
            StepFailedError: the Eval could not be finished; it has the report.
            InvalidError: a dataset is of another type or shape, or has a value that cannot be.
            ClosedError: the engine was closed.

        >>> import relax_rollout as rr
        >>> with rr.Engine({"agent_command": "exit 3", "agent_cwd": "/"}) as engine:
        ...     results = engine.evaluate(0, {"sums": ["What is 2 + 2?"]})
        >>> results["sums"].rewards, results["sums"].dropped
        ((), 1)
        """
        documents = eval_documents(datasets)
        text = to_json("evaluate", documents)

        def start(engine: int, number: int) -> None:
            self._lib.start_eval(engine, number, text)

        def opened() -> Step:
            return Step("evaluate", start, _lib.Slot(self._lib))

        report, batches = self._steps.run("evaluate", rollout_id, opened)
        return eval_results(report.rollout, (d["name"] for d in documents), report, batches)

    # ---- low level ------------------------------------------------------------------------------

    def submit(self, tasks: Iterable[Task]) -> None:
        """Queues tasks for this and later steps.

        Raises:
            InvalidError: a task is of another shape; none of them was queued.
            ClosedError: the engine was closed.
        """
        documents = [document(t) for t in many("submit", tasks)]
        self._lib.submit(self._handle, to_json("submit", documents))

    def start_rollout(self, rollout_id: int) -> None:
        """Opens a step, for callers that poll themselves. One STEP_END event answers it.

        Raises:
            StateError: another step is open.
            ClosedError: the engine was closed.
        """
        rollout_id = int64("start_rollout", "rollout_id", rollout_id)
        self._lib.start_rollout(self._handle, rollout_id)

    def start_eval(
        self, rollout_id: int, datasets: Mapping[str, EvalDataset | Iterable[Task]]
    ) -> None:
        """Opens an Eval, for callers that poll themselves; see :meth:`evaluate`.

        A BATCH event comes for each dataset that has rows, then one STEP_END.
        """
        rollout_id = int64("start_eval", "rollout_id", rollout_id)
        text = to_json("start_eval", eval_documents(datasets))
        self._lib.start_eval(self._handle, rollout_id, text)

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
            event = read_event(slot.read())
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
        waiter, waiters = loop.create_future(), self._waiters.setdefault(loop, set())
        if not waiters:
            loop.add_reader(fd, _wake, waiters)
        waiters.add(waiter)
        try:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(waiter, timeout)
        finally:
            waiters.discard(waiter)
            if not waiters:
                loop.remove_reader(fd)
                del self._waiters[loop]

    def reply(self, event: Event | int, answer: Mapping[str, Any]) -> None:
        """Answers an event that has an id. A refused reply leaves the event open."""
        event_id = event.id if isinstance(event, Event) else event
        self._lib.reply(self._handle, event_id, to_json("reply", dict(answer)))

    def fileno(self) -> int:
        """The eventfd that is readable while an event waits. The engine owns it: do not read,
        write or close it."""
        return self._lib.event_fd(self._handle)

    # ---- weights, pauses, numbers ---------------------------------------------------------------

    def set_weight_version(self, version: int) -> None:
        """Records the version that requests from now on are sampled under.

        It is used where the backend does not report a version itself. It pushes no weights.
        """
        version = int64("set_weight_version", "version", version)
        self._lib.set_weight_version(self._handle, version)

    def pause(self, timeout: float | None = None) -> bool:
        """Closes the generation gate and waits until no request is left at the backend.

        Requests in flight are aborted there and parked with the tokens they have; agents keep
        waiting. Call it between steps, or while :meth:`rollout` runs on another thread. Returns
        False if some were still there after ``timeout`` seconds: the gate is closed all the same,
        and another call goes on waiting.

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

    def consumed(self, partition: int) -> None:
        """Says that the trainer took a partition: the rollout its rows belong to.

        Only ``fully_async`` needs it: no more than ``max_staleness`` rollouts are worked on ahead
        of the oldest complete partition that was not taken, so :meth:`rollout` waits for this call
        where they would be. :class:`StateError`: the partition still owes groups, or no rollout
        has opened it.
        """
        self._lib.consumed(self._handle, int64("consumed", "partition", partition))

    def stats(self) -> dict[str, Any]:
        """A snapshot of what the engine is doing and what it waits for.

        ``waits`` lists every wait: of what kind it is, how many there are, since how long the
        oldest, and whose it is. ``groups`` and ``requests`` count them by what they wait for.
        """
        return dict(json.loads(self._lib.stats(self._handle)))

    # ---- the end --------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """Whether :meth:`close` was called."""
        return not self._finalizer.alive

    def close(self, grace: float = 10.0) -> None:
        """Ends the engine: waiting polls raise ClosedError, agents are ended (TERM, and KILL after
        ``agent_kill_grace``), all is joined.

        ``grace`` bounds the wait, in seconds; if it is over, a warning is logged, and what still
        runs ends on its own; another Engine can be made then. Ctrl-C ends the wait, and another
        call goes on with it. Calling it on a closed engine is harmless. Batches stay valid.
        """
        if self.closed:
            return
        self._steps.forget()
        until = time.monotonic() + grace
        joined = False
        try:
            while not (joined := self._lib.close(self._handle, _slice_ms(until))):
                if time.monotonic() >= until:
                    break
        except (ClosedError, PanicError):
            joined = True  # A poisoned engine has ended its agents and can do no more.
        self._finalizer.detach()
        self._hook_loop.close()
        if not joined:
            self._log.warning(
                "close: parts of the engine still run after %g s; they end on their own", grace
            )

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


def _wake(waiters: set[asyncio.Future[None]]) -> None:
    for waiter in waiters:
        if not waiter.done():
            waiter.set_result(None)


def _close_quietly(library: _lib.Library, cell: _lib.EngineCell, hooks: HookLoop) -> None:
    if cell.handle:
        with contextlib.suppress(RelaxError):
            library.close(cell.handle, 10_000)
    hooks.close()


def _slice_ms(until: float | None) -> int:
    """Milliseconds of the next wait inside the library, on the way to a point in time."""
    if until is None:
        return SLICE_MS
    return math.ceil(min(SLICE_MS, max(0.0, 1000 * (until - time.monotonic()))))
