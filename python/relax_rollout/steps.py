"""Runs a step on the caller's thread: polls its events and answers them until it ends.

May enter: the library and an open engine's handle, hooks, tasks. Never: the engine object, which
must be free to be collected while a step of it is open.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from . import _lib
from .batch import Batch
from .console import Progress, log_event
from .dumps import ParquetDump
from .errors import (
    InvalidError,
    RelaxError,
    StateError,
    StepFailedError,
)
from .events import Event, EventKind, read_event
from .hook_calls import Bound, HookLoop, call_here
from .hook_setup import HOOK_OPTIONS, Replier
from .hooks import Hooks
from .report import StepReport
from .tasks import Task, document, int64, to_json

SLICE_MS = 100
"""Longest single wait inside the library, so that Ctrl-C is seen in time."""


@dataclass
class Step:
    """A step (a rollout or an Eval) that was asked for and has not ended.

    An exception may cut in anywhere (Ctrl-C, or one of the task iterator): what was polled, asked
    and taken is kept for when the step goes on.
    """

    call: str
    """The method that runs it: rollout or evaluate."""
    start: Callable[[int, int], None]
    slot: _lib.Slot
    rollout_id: int = 0
    tasks: Iterator[Task] | None = None
    started: bool = False
    resumed: bool = False
    """An exception left the step, so its last call may have been made already."""
    event: Event | None = None
    """The event that is being handled."""
    batches: dict[str, Batch] = field(default_factory=dict)
    """By dataset; that of a rollout has the name ""."""
    taken: list[dict[str, Any]] = field(default_factory=list)

    def take(self, count: int) -> list[dict[str, Any]]:
        """Up to count tasks in ``taken``; fewer only where there are no more."""
        if self.tasks is not None:
            for task in islice(self.tasks, count - len(self.taken)):
                self.taken.append(document(task))
        return self.taken


class StepRunner:
    """Runs the steps of one engine, one at a time."""

    def __init__(
        self,
        library: _lib.Library,
        handle: int,
        bound: tuple[Hooks, Mapping[str, Bound], HookLoop],
        log: logging.Logger,
        progress: Progress | None,
        dump: ParquetDump | None = None,
    ) -> None:
        self._lib = library
        self._engine = handle
        self._hooks, self._bound, self._hook_loop = bound
        self._log = log
        self._progress = progress
        self._dump = dump
        self._step: Step | None = None
        self._stepping = False
        self.last_report: StepReport | None = None

    def forget(self) -> None:
        """Forgets an open step: the engine is closed."""
        self._step = None

    def run(
        self, call: str, rollout_id: int, opened: Callable[[], Step]
    ) -> tuple[StepReport, dict[str, Batch]]:
        """Runs a step to its end: a new one, or the one that an exception left."""
        if self._stepping:
            raise StateError(f"{call}: another call has not returned; one step runs at a time")
        try:
            # Not a lock: Ctrl-C between taking it and this block would leave it taken for ever.
            self._stepping = True
            step = self._enter_step(call, int64(call, "rollout_id", rollout_id), opened)
            report = self._run(step)
            batches = step.batches
            if self._dump is not None:
                self._dump.write(report, batches)
            self.last_report = report
            self._step = None
        finally:
            self._stepping = False
        if report.error is not None:
            raise StepFailedError(f"{call} {report.rollout} failed: {report.error}", report)
        return report, batches

    def _enter_step(self, call: str, rollout_id: int, opened: Callable[[], Step]) -> Step:
        step = self._step
        if step is None:
            step = opened()
            step.rollout_id = rollout_id
            self._step = step
        elif (step.call, step.rollout_id) != (call, rollout_id):
            raise StateError(
                f"{call}: step {step.rollout_id} is open; call {step.call}({step.rollout_id}) to "
                f"go on with it before {call}({rollout_id}), or close the engine"
            )
        else:
            step.resumed = True
        if not step.started:
            self._start_step(step)
        return step

    def _start_step(self, step: Step) -> None:
        try:
            step.start(self._engine, step.rollout_id)
        except RelaxError as err:
            if not (step.resumed and isinstance(err, StateError)):
                self._step = None
                raise
        step.started = True

    def _run(self, step: Step) -> StepReport:
        if self._progress is not None:
            self._progress.begin()
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

    def _poll_for(self, step: Step) -> bool:
        slot = step.slot
        if not self._lib.poll(self._engine, SLICE_MS, slot):
            if self._progress is not None:
                self._progress.tick()
            return False
        event = read_event(slot.read())
        step.event, slot.event.kind = event, 0  # in one statement, see Slot
        slot.discard()
        return True

    def _handle_event(self, event: Event, step: Step) -> None:
        if event.kind == EventKind.BATCH and event.batch is not None:
            step.batches[str(event.data.get("dataset", ""))] = event.batch
        elif event.kind == EventKind.TASKS_NEEDED:
            self._answer_tasks(event, step)
        elif event.kind in (EventKind.SCORE, EventKind.ADVANTAGE, EventKind.FILTER):
            self._answer_hook(event, step)
        elif event.kind == EventKind.LOG:
            if self._progress is not None:
                self._progress.say(event.data, self._log)
            log_event(self._log, event.data)
        elif event.kind == EventKind.PROGRESS and self._progress is not None:
            self._progress.show(event.data)

    def _answer(self, event: Event, step: Step, answer: Mapping[str, Any]) -> None:
        try:
            self._lib.reply(self._engine, event.id, to_json("reply", dict(answer)))
        except StateError:
            if not step.resumed:
                raise  # else the exception that left the step came right after this reply

    def _answer_tasks(self, event: Event, step: Step) -> None:
        count = int(event.data.get("count", 1))
        taken = step.take(count)
        try:
            self._answer(event, step, {"tasks": taken, "end": len(taken) < count})
        except InvalidError:
            step.taken.clear()  # others are taken when the step goes on
            raise
        step.taken.clear()

    def _answer_hook(self, event: Event, step: Step) -> None:
        kind = EventKind(event.kind).name.lower()
        bound = self._bound.get(kind)
        if bound is None:
            option = HOOK_OPTIONS[kind]
            cause = f"option {option} is set, but Engine was given no {kind} hook"
            self._answer(event, step, {"error": cause})
            return
        done = self._replier(event, bound)
        if bound.beside:
            self._hook_loop.submit(bound, event.data, done)
            return
        try:
            reply = call_here(self._hooks, bound, event.data)
        except Exception as err:  # a broken hook costs its Group, never the trainer
            done(None, err)
        else:
            done(reply, None)

    def _replier(self, event: Event, bound: Bound) -> Replier:
        """What answers an event once its hook is done."""
        library, handle, number = self._lib, self._engine, event.id

        def send(answer: Mapping[str, Any]) -> None:
            library.reply(handle, number, to_json("reply", dict(answer)))

        return Replier(send, bound, event.data.get("group_id"), self._log)
