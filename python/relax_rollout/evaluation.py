"""Datasets of an Eval, and what came of them.

May enter: tasks, a step's report, its batches. Never: the engine, the library.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from .batch import Batch
from .errors import InvalidError
from .report import DatasetReport, StepReport
from .tasks import Task, document, many


@dataclass(frozen=True, kw_only=True)
class EvalDataset:
    """Tasks to run in an Eval, each ``n_samples`` times.

    What is None is as in training.

    >>> EvalDataset(tasks=["What is 2 + 3?"], n_samples=4, temperature=0)
    EvalDataset(tasks=['What is 2 + 3?'], n_samples=4, temperature=0)
    """

    tasks: Iterable[Task]
    n_samples: int = 1
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    max_response_len: int | None = None
    """A turn's token limit where the request sets none."""
    metadata: Mapping[str, Any] | None = None
    """Laid under the metadata of each task, whose own values win."""

    def __repr__(self) -> str:
        shown = ((f.name, getattr(self, f.name)) for f in fields(self))
        return f"EvalDataset({', '.join(f'{k}={v!r}' for k, v in shown if v is not None)})"


@dataclass(frozen=True)
class EvalResult:
    """What one dataset of an Eval gave.

    Samples that were dropped (a failed agent, a failed reward) are missing from ``rewards`` and
    from the batch: an infrastructure failure is not a zero.
    """

    name: str
    batch: Batch
    """A row for each exported context, without advantages; the Eval's report is its ``report``."""
    rewards: tuple[float, ...]
    """One for each delivered sample, NaN where it has none, in the order of the tasks."""
    truncated: tuple[bool, ...]
    """Beside ``rewards``: whether the sample's last turn was cut off."""
    dropped: int
    """Samples without a result. ``batch.report.drops`` says why."""

    @property
    def reward(self) -> float:
        """The mean of the rewards that are there, NaN if none is."""
        known = [r for r in self.rewards if not math.isnan(r)]
        return sum(known) / len(known) if known else math.nan


def eval_documents(datasets: Mapping[str, EvalDataset | Iterable[Task]]) -> list[dict[str, Any]]:
    """The datasets as the engine reads them.

    Raises:
        InvalidError: there is none, or one of another shape; the text names it.
    """
    if not isinstance(datasets, Mapping) or not datasets:
        raise InvalidError(
            "evaluate: expected datasets as a mapping of names to tasks or EvalDataset, found "
            f"{'an empty one' if isinstance(datasets, Mapping) else type(datasets).__name__}"
        )
    return [_document(name, dataset) for name, dataset in datasets.items()]


def eval_results(
    rollout_id: int, names: Iterable[str], report: StepReport, batches: Mapping[str, Batch]
) -> dict[str, EvalResult]:
    """The results of a finished Eval by dataset. One without rows has an empty batch."""
    reports = {dataset.name: dataset for dataset in report.datasets}
    out = {}
    for name in names:
        batch = batches.get(name) or Batch.empty(rollout_id)
        batch.report = report
        found = reports.get(name) or DatasetReport(name)
        out[name] = EvalResult(name, batch, found.rewards, found.truncated, found.dropped)
    return out


# What an override's value must be, and how that is called in messages.
_OVERRIDES: dict[str, tuple[tuple[type, ...], str]] = {
    "n_samples": ((int,), "int"),
    "temperature": ((int, float), "number"),
    "top_p": ((int, float), "number"),
    "top_k": ((int,), "int"),
    "max_response_len": ((int,), "int"),
    "metadata": ((Mapping,), "mapping"),
}


def _document(name: str, dataset: EvalDataset | Iterable[Task]) -> dict[str, Any]:
    where = f"evaluate: dataset {name!r}"
    if not isinstance(name, str) or not name:
        raise InvalidError(f"{where}: expected a name, a str with text in it")
    if not isinstance(dataset, EvalDataset):
        dataset = EvalDataset(tasks=dataset)
    out: dict[str, Any] = {"name": name}
    for option, (kinds, called) in _OVERRIDES.items():
        value = getattr(dataset, option)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, kinds):
            raise InvalidError(f"{where}: {option}: expected {called}, found {value!r}")
        out[option] = dict(value) if isinstance(value, Mapping) else value
    out["tasks"] = [document(task) for task in many(where, dataset.tasks)]
    return out
