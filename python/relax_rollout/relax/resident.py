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
from ..transfer_queue import run
from .datasets import Dataset, eval_datasets
from .delivery import Group, Mailbox, plan
from .options import engine_config, router_url
from .outputs import decoder, log_train, output, show_sample
from .rewards import engine_hooks
from .samples import TAG, Decode, Sources, groups_of, sample_of_row, task_of

_LOGGER = logging.getLogger("relax_rollout.relax")


@dataclass(frozen=True)
class _Finished:
    """A step that ran, whose rows may not be in the queue yet."""

    rollout_id: int
    output: Any
    samples: list[Any]
    seconds: float


class Resident:
    """One engine, and what it knows of the trainer's samples."""

    def __init__(self, args: Any) -> None:
        self._sources = Sources()
        self._config = engine_config(args)
        self._router = router_url(args)
        self._mailbox = Mailbox()
        self._finished: _Finished | None = None
        self._complete: list[int] = []
        self._decode: Decode | None = None
        self._greeted = False
        self.engine = Engine(self._config, hooks=engine_hooks(args, self._sources), progress=True)

    def fits(self, args: Any) -> bool:
        """Whether the engine is open, and its router still the trainer's."""
        return not self.engine.closed and self._router == router_url(args)

    def close(self) -> None:
        """Ends the engine and its agents."""
        if self._mailbox.unsent:
            _LOGGER.warning("%d puts of the last step were not made", self._mailbox.unsent)
        self.engine.close()

    # ---- training -------------------------------------------------------------------------------

    def train(self, args: Any, rollout_id: int, source: Any, client: Any) -> Any:
        """Runs a step; returns when its rows can be read from the queue.

        If a put or a log function fails, a call with the same ``rollout_id`` goes on with that.
        """
        if self._finished is None or self._finished.rollout_id != rollout_id:
            self._finished = self._step(args, rollout_id, source, client)
        step = self._finished
        if client is not None:
            self._mailbox.send(client)
            if getattr(args, "debug_rollout_only", False):
                run(client.async_clear_partition(f"train_{rollout_id}"))
        self._show(rollout_id, step.samples)
        log_train(args, rollout_id, step.samples, step.output.metrics, step.seconds)
        self._finished = None
        return step.output

    def _step(self, args: Any, rollout_id: int, source: Any, client: Any) -> _Finished:
        if self._mailbox.unsent:
            raise InvalidError(
                f"generate_rollout {rollout_id}: {self._mailbox.unsent} puts of the step before "
                "failed; call again with its rollout_id first"
            )
        # The trainer starts a step only when its staleness allows, so what was complete is taken.
        while self._complete:
            self.engine.consumed(self._complete[0])
            self._complete.pop(0)
        began = time.monotonic()
        with_messages = bool(getattr(args, "rollout_global_dataset", True))
        tasks = SourceTasks(source, self._sources, with_messages)
        batch = self.engine.rollout(rollout_id, tasks)
        seconds = time.monotonic() - began
        groups = self._groups(args, batch)
        report = batch.report
        assert report is not None
        short = (
            sum(p.debt for p in report.partitions if p.short) if report.partitions else report.debt
        )
        if short:  # the trainer would wait for them for ever
            raise InvalidError(
                f"generate_rollout {rollout_id}: {short} Groups are missing, and the data source "
                "has no more samples"
            )
        complete = [p.id for p in report.partitions if p.complete]
        if client is not None:
            self._mailbox.add(plan(args, batch, groups, complete))
        self._complete += complete
        samples = [g.samples for g in groups]
        result = output("RolloutFnTrainOutput", samples=samples, metrics=dict(report.metrics))
        return _Finished(rollout_id, result, [s for g in samples for s in g], seconds)

    def _groups(self, args: Any, batch: Batch) -> list[Group]:
        custom = bool(getattr(args, "agentic_custom_advantage_path", None))
        decode = self._decoder(args)
        partitions = batch.numpy("partition")
        groups, delivered = [], []
        for rows in groups_of(batch):
            samples = [sample_of_row(batch[int(i)], self._sources, decode, custom) for i in rows]
            delivered.append(int(batch[int(rows[0])].meta["metadata"][TAG]))
            partition = int(partitions[rows[0]])
            groups.append(Group(tuple(map(int, rows)), samples, partition))
        self._sources.forget(delivered)
        if self._idle():
            self._sources.clear()  # what is left belongs to dropped Groups
        return sorted(groups, key=lambda g: (g.partition, g.order))

    def _idle(self) -> bool:
        """Whether the engine has no task: the report does not know one that came when the step was
        ending."""
        stats = self.engine.stats()
        return not stats["queued_tasks"] and not any(stats["groups"].values())

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
        numbers = {d.name: [self._sources.add([s]) for s in d.samples] for d in datasets}
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
    """

    def __init__(self, source: Any, sources: Sources, with_messages: bool) -> None:
        self._source = source
        self._sources = sources
        self._with_messages = with_messages

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
        return task_of(group, self._sources.add(group), self._with_messages)


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
