"""The engine of a training run: it outlives the calls that use it.

May enter: the trainer's args, data source and queue client. Nothing else holds an engine here.
"""

from __future__ import annotations

import copy
import importlib
import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ..batch import Batch
from ..engine import Engine
from ..errors import InvalidError, RelaxError
from ..evaluation import EvalDataset, EvalResult
from ..report import StepReport
from ..transfer_queue import run
from .datasets import Dataset, eval_datasets
from .delivery import Group, Mailbox, plan
from .options import engine_config, router_url
from .outputs import (
    decoder,
    log_train,
    output,
    prepare_checkpoint,
    save_train_dump,
    sglang_profile,
    show_sample,
)
from .rewards import engine_hooks
from .samples import TAG, Decode, Sources, groups_of, sample_of_row, task_of

_LOGGER = logging.getLogger("relax_rollout.relax")


@dataclass
class _Finished:
    """A step that ran. It is kept until the trainer has all of it, so that a call that failed can
    be made again."""

    rollout_id: int
    batch: Batch
    report: StepReport
    seconds: float
    groups: list[Group] | None = None
    """None until its rows are converted and their puts planned."""


class Resident:
    """One engine, and what it knows of the trainer's samples."""

    def __init__(self, args: Any) -> None:
        self._sources = Sources()
        prepare_checkpoint(args)
        self._config = engine_config(args)
        self._router = router_url(args)
        self._mailbox = Mailbox()
        self._finished: _Finished | None = None
        self._complete: list[int] = []
        self._given: set[int] = set()
        """Groups of the data source that the engine may still deliver."""
        self._decode: Decode | None = None
        self._greeted = False
        self.engine = Engine(self._config, hooks=engine_hooks(args, self._sources), progress=True)

    def fits(self, args: Any) -> bool:
        """Whether the engine is open, and its router still the trainer's."""
        return not self.engine.closed and self._router == router_url(args)

    def close(self) -> None:
        """Ends the engine and its agents."""
        if missing := self._undelivered():
            _LOGGER.warning("%s, and is given up", missing)
        self.engine.close()

    # ---- training -------------------------------------------------------------------------------

    def train(self, args: Any, rollout_id: int, source: Any, client: Any) -> Any:
        """Runs a step; returns when its rows can be read from the queue.

        If anything fails after the engine's step (a converter, a put, a log function), a call with
        the same ``rollout_id`` goes on with that: no agent runs again.
        """
        if self._finished is None or self._finished.rollout_id != rollout_id:
            self._run(args, rollout_id, source)
        step = self._finished
        assert step is not None
        if step.groups is None:
            self._convert(args, step, client)
        if client is not None:
            self._mailbox.send(client)
        groups = [g.samples for g in step.groups or ()]
        samples = [s for group in groups for s in group]
        metrics = dict(step.report.metrics)
        self._show(rollout_id, samples)
        save_train_dump(args, rollout_id, samples)
        log_train(args, rollout_id, samples, metrics, step.seconds)
        if client is not None and getattr(args, "debug_rollout_only", False):
            run(client.async_clear_partition(f"train_{_last_partition(args, rollout_id)}"))
        self._finished = None
        return output("RolloutFnTrainOutput", samples=groups, metrics=metrics)

    def _run(self, args: Any, rollout_id: int, source: Any) -> None:
        """Runs the engine's step, whose outcome is then kept."""
        if missing := self._undelivered():
            raise InvalidError(
                f"generate_rollout {rollout_id}: {missing}; call again with its rollout_id first"
            )
        # The trainer starts a step only when its staleness allows, so what was complete is taken.
        while self._complete:
            self.engine.consumed(self._complete[0])
            self._complete.pop(0)
        began = time.monotonic()
        with_messages = bool(getattr(args, "rollout_global_dataset", True))
        tasks = SourceTasks(source, self._sources, with_messages, self._given)
        with sglang_profile(args, rollout_id):
            batch = self.engine.rollout(rollout_id, tasks)
            seconds = time.monotonic() - began
            report = batch.report
            assert report is not None
            _check_debt(rollout_id, report)
            self._complete += [p.id for p in report.partitions if p.complete]
            self._finished = _Finished(rollout_id, batch, report, seconds)

    def _undelivered(self) -> str:
        """What the trainer has not got of the last step, "" for nothing."""
        if self._mailbox.unsent:
            return f"{self._mailbox.unsent} puts of the step before failed"
        if self._finished is not None and self._finished.groups is None:
            return f"the conversion of step {self._finished.rollout_id}'s rows failed"
        return ""

    def _convert(self, args: Any, step: _Finished, client: Any) -> None:
        """Makes a step's samples and plans its puts, by functions of the trainer's user."""
        groups = self._groups(args, step.batch)
        if client is not None:
            complete = [p.id for p in step.report.partitions if p.complete]
            self._mailbox.add(plan(args, step.batch, groups, complete))
        step.groups = groups
        self._forget()

    def _groups(self, args: Any, batch: Batch) -> list[Group]:
        custom = bool(getattr(args, "agentic_custom_advantage_path", None))
        decode = self._decoder(args)
        partitions = batch.numpy("partition")
        groups = []
        for rows in groups_of(batch):
            samples = [sample_of_row(batch[int(i)], self._sources, decode, custom) for i in rows]
            partition = int(partitions[rows[0]])
            groups.append(Group(tuple(map(int, rows)), samples, partition))
        return sorted(groups, key=lambda g: (g.partition, g.order))

    def _forget(self) -> None:
        """Lets go of the data source's Groups that nothing is heard of any more: those that were
        delivered, dropped or filtered."""
        stats = self.engine.stats()
        alive = {task.get(TAG) for task in stats["open_tasks"]}
        if queued := stats["queued_tasks"]:  # the newest: tasks are started in their order
            alive.update(sorted(self._given)[-queued:])
        self._sources.forget(self._given - alive)
        self._given &= alive  # the same set, which the iterator of an open step has

    def _decoder(self, args: Any) -> Decode:
        if self._decode is None:
            self._decode = decoder(args)
        return self._decode

    def _show(self, rollout_id: int, samples: list[Any]) -> None:
        if samples and not self._greeted:
            self._greeted = True
            show_sample("First rollout sample", samples[0])
        if samples:
            show_sample(f"Finish rollout {rollout_id}", samples[-1])

    # ---- Eval -----------------------------------------------------------------------------------

    def evaluate(self, args: Any, rollout_id: int) -> Any:
        """Runs the trainer's Eval datasets."""
        datasets = eval_datasets(args)
        numbers = {
            d.name: [self._sources.add(d.copies(i)) for i in range(len(d.samples))]
            for d in datasets
        }
        try:
            results = self.engine.evaluate(
                rollout_id, {d.name: self._tasks(args, d, numbers[d.name]) for d in datasets}
            )
            data = {d.name: self._eval_data(args, d, results[d.name]) for d in datasets}
        finally:
            for tags in numbers.values():
                self._sources.forget(tags)
        report = self.engine.last_report
        metrics = dict(report.metrics) if report is not None else {}
        return output("RolloutFnEvalOutput", data=data, metrics=metrics)

    def _tasks(self, args: Any, dataset: Dataset, numbers: list[int]) -> EvalDataset:
        with_messages = bool(getattr(args, "rollout_global_dataset", True))
        tasks = [
            task_of([sample], number, with_messages)
            for sample, number in zip(dataset.samples, numbers, strict=True)
        ]
        return EvalDataset(tasks=tasks, n_samples=dataset.n_samples, **dataset.overrides)

    def _eval_data(self, args: Any, dataset: Dataset, result: EvalResult) -> dict[str, list[Any]]:
        """Rewards, truncation and samples by logical sample, in the order of the prompts."""
        key = getattr(args, "eval_reward_key", None) or getattr(args, "reward_key", None)
        decode = self._decoder(args)
        batch = result.batch
        samples: list[Any] = []
        seen: dict[int, int] = {}
        for rows in _rows_by_sample(batch):
            every = [sample_of_row(batch[i], self._sources, decode, False) for i in rows]
            sample = next((s for s in every if s.reward is not None), every[0])
            prompt = int(sample.group_index)
            sample.index = prompt * dataset.n_samples + seen.setdefault(prompt, 0)
            seen[prompt] += 1
            samples.append(sample)
        samples.sort(key=lambda s: s.index)
        if samples:
            show_sample(f"eval_rollout_single_dataset example data of {dataset.name}", samples[0])
        if result.dropped:
            _LOGGER.warning("eval %s: %d samples were dropped", dataset.name, result.dropped)
        return {
            "rewards": [_primary(dataset.name, s.reward, key) for s in samples],
            "truncated": [s.status == type(s).Status.TRUNCATED for s in samples],
            "samples": samples,
        }


def _check_debt(rollout_id: int, report: StepReport) -> None:
    """Refuses a step whose Groups never come all: the trainer would wait for them for ever."""
    short = sum(p.debt for p in report.partitions if p.short) if report.partitions else report.debt
    if short:
        raise InvalidError(
            f"generate_rollout {rollout_id}: {short} Groups are missing, and the data source has "
            "no more samples"
        )


def _last_partition(args: Any, rollout_id: int) -> int:
    """The last partition that a step's rows go to: the final backfill of a fully-async run opens
    none of its own."""
    final = getattr(args, "fully_async", False) and rollout_id >= args.num_rollout
    return rollout_id - 1 if final else rollout_id


def _primary(dataset: str, reward: Any, key: str | None) -> Any:
    if not key or not isinstance(reward, dict):
        return reward
    if key not in reward:
        raise InvalidError(f"eval {dataset}: a reward has no {key!r}, but {sorted(reward)}")
    return reward[key]


def _rows_by_sample(batch: Batch) -> list[list[int]]:
    rows: dict[int, list[int]] = {}
    for i, sample in enumerate(batch.numpy("sample_indices").tolist()):
        rows.setdefault(sample, []).append(i)
    return list(rows.values())


class SourceTasks(Iterator[dict[str, Any]]):
    """Tasks from the trainer's data source, one Group of samples each.

    One Group is asked for at a time, so that none is taken that is not started: the data source
    counts what it gave as used. An error leaves the iterator as it was, to be tried again.

    ``given`` takes the number of each Group.
    """

    def __init__(self, source: Any, sources: Sources, with_messages: bool, given: set[int]) -> None:
        self._source = source
        self._sources = sources
        self._with_messages = with_messages
        self._given = given

    def __next__(self) -> dict[str, Any]:
        groups = get_samples(self._source, 1)
        if len(groups) != 1 or not groups[0]:
            raise InvalidError(
                f"data source: get_samples(1) gave {len(groups)} Groups, expected one with samples"
            )
        group = [copy.copy(sample) for sample in groups[0]]
        for sample in group:
            if getattr(getattr(sample, "status", None), "value", None) == "aborted":
                raise InvalidError(f"data source: sample {sample.index} is aborted already")
        number = self._sources.add(group)
        self._given.add(number)
        return task_of(group, number, self._with_messages)


def get_samples(source: Any, count: int) -> list[list[Any]]:
    """Groups of samples from a data source, an object or the handle of a Ray actor."""
    remote = getattr(source.get_samples, "remote", None)
    if remote is None:
        return list(source.get_samples(count))
    return list(importlib.import_module("ray").get(remote(count)))


def ended_badly(err: BaseException) -> bool:
    """Whether an engine cannot serve another call after an exception."""
    from ..errors import ClosedError, ForkedError, PanicError

    return isinstance(err, RelaxError) and isinstance(err, ClosedError | PanicError | ForkedError)
