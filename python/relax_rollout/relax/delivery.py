"""From a step's rows to the trainer's queue: columns, puts, and their order.

May enter: batches, samples, args, a TransferQueue client. Never: the engine.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import transfer_queue
from ..batch import Batch
from ..errors import ConfigError, InvalidError
from ..hooks import load
from ..transfer_queue import Columns, Jagged, mask_sums
from .options import waterline
from .samples import status_of

_LOGGER = logging.getLogger("relax_rollout.relax")

RAW_REWARD = "relax_rollout_raw_reward"
"""Key of the YAML file: also put ``raw_reward``, which older trainers read."""

_PER_TOKEN = ("grpo", "gspo", "sapo", "cispo", "m2po", "rloo")
"""Estimators that take credit for each token (spec/reference-pipeline.md 6.3)."""


@dataclass(frozen=True)
class Group:
    """One Group of a step: its rows in the batch, and their samples."""

    rows: tuple[int, ...]
    samples: list[Any]
    partition: int

    @property
    def order(self) -> int:
        """Where the Group belongs in a put."""
        return int(self.samples[0].index or 0)


@dataclass(frozen=True)
class Put:
    """Rows that go to the queue together: whole Groups."""

    partition: int
    data: Any
    meta: list[dict[str, int]]
    is_last: bool

    @property
    def partition_id(self) -> str:
        """The partition's name in the queue."""
        return f"train_{self.partition}"


def plan(args: Any, batch: Batch, groups: Iterable[Group], complete: Iterable[int]) -> deque[Put]:
    """The puts of a step, in the order they must be made.

    Partitions go from the oldest on, each in pieces of whole Groups; ``is_last`` is true on the
    last piece of those in ``complete``, and on no other.
    """
    by_partition: dict[int, list[Group]] = {}
    for group in groups:
        by_partition.setdefault(group.partition, []).append(group)
    done = set(complete)
    if missing := done - set(by_partition):
        raise InvalidError(f"partitions {sorted(missing)} are complete without a row in this step")
    puts: deque[Put] = deque()
    for partition in sorted(by_partition):
        members = sorted(by_partition[partition], key=lambda g: g.order)
        size = waterline(args)
        pieces = [members[i : i + size] for i in range(0, len(members), size)]
        for i, piece in enumerate(pieces):
            last = partition in done and i == len(pieces) - 1
            puts.append(_put(args, batch, piece, partition, last))
    return puts


def _put(args: Any, batch: Batch, groups: list[Group], partition: int, is_last: bool) -> Put:
    samples = [s for g in groups for s in g.samples]
    if path := getattr(args, "custom_convert_samples_to_train_data_path", None):
        data = load("custom_convert_samples_to_train_data_path", path)(args, samples)
        return Put(partition, data, _meta_of(data, samples), is_last)
    columns = columns_of(args, batch, [r for g in groups for r in g.rows], samples)
    return Put(partition, columns, transfer_queue.custom_meta(columns), is_last)


def _meta_of(data: Any, samples: list[Any]) -> list[dict[str, int]]:
    """What samplers want to know of a converter's rows. As in the trainer both numbers are the
    rows' own: a converter may reorder samples, drop them, or make several rows of one."""
    option = "custom_convert_samples_to_train_data_path"
    names = set(data.keys())
    if "total_lengths" not in names:
        raise InvalidError(f"{option}: the rows have no total_lengths, but {sorted(names)}")
    lengths = [int(n) for n in data["total_lengths"]]
    if "sample_indices" in names:
        indices = [int(i) for i in data["sample_indices"]]
    else:
        indices = [int(s.index or 0) for s in samples]
    if len(indices) != len(lengths):
        raise InvalidError(
            f"{option}: {len(lengths)} total_lengths, and {len(indices)} "
            + ("sample_indices" if "sample_indices" in names else "samples; add sample_indices")
        )
    return transfer_queue.custom_meta({"total_lengths": lengths, "sample_indices": indices})


def columns_of(args: Any, batch: Batch, rows: list[int], samples: list[Any]) -> Columns:
    """The trainer's columns of some rows (spec/reference-pipeline.md 6.3).

    A post-process function may write into the samples, say into their loss masks. It goes first, as
    in the trainer, and the columns are those of the samples as it left them.
    """
    option = "custom_reward_post_process_path"
    path = getattr(args, option, None)
    processed = load(option, path)(args, samples) if path else None
    columns = transfer_queue.train_columns(
        batch,
        rows,
        sample_indices=np.array([s.index or 0 for s in samples], np.int64),
        group_index=np.array([s.group_index or 0 for s in samples], np.int64),
    )
    if path or any(getattr(s, "remove_sample", False) for s in samples):
        columns.update(_written(samples))
    if path:
        if isinstance(processed, tuple):  # (raw, processed)
            processed = processed[1]
        columns["rewards"] = _rewards(processed, columns["response_lengths"])
    if isinstance(columns["rewards"], Jagged):
        _check_estimator(args)
    if getattr(args, RAW_REWARD, False):
        columns["raw_reward"] = batch.numpy("raw_reward")[rows].astype(np.float32)
    if "round_number" in (samples[0].metadata or {}):
        columns["round_number"] = np.array([_round(s) for s in samples], np.int64)
    if getattr(samples[0], "train_metadata", None) is not None:
        columns["metadata"] = [s.train_metadata for s in samples]
    return columns


def _written(samples: list[Any]) -> Columns:
    """The columns of samples that somebody else than the engine may have written into."""
    masks = _jagged([_mask(s) for s in samples], np.int64)
    columns: Columns = {
        "tokens": _jagged([s.tokens for s in samples], np.int64),
        "total_lengths": np.array([len(s.tokens) for s in samples], np.int64),
        "response_lengths": np.array([s.response_length for s in samples], np.int64),
        "truncated": np.array([s.status == status_of(s, True) for s in samples], np.int64),
        "loss_masks": masks,
        "sample_index_mask_sums": mask_sums(masks, np.array([s.index or 0 for s in samples])),
    }
    if samples[0].rollout_log_probs is not None:
        columns["rollout_log_probs"] = _jagged([s.rollout_log_probs for s in samples], np.float32)
    return columns


def _mask(sample: Any) -> npt.NDArray[np.int64]:
    """The loss mask that the trainer makes of a sample's, which may be short or missing."""
    length = int(sample.response_length)
    given = np.asarray(() if sample.loss_mask is None else sample.loss_mask, np.int64)
    if len(given) > length:
        raise InvalidError(
            f"sample {sample.index}: a loss_mask of {len(given)} for a response of {length} "
            "tokens; give one number for each response token"
        )
    if getattr(sample, "remove_sample", False):
        return np.zeros(length, np.int64)
    return np.concatenate([given, np.ones(length - len(given), np.int64)])


def _jagged(rows: Sequence[Any], dtype: Any) -> Jagged:
    values = [np.asarray(row, dtype) for row in rows]
    return Jagged(np.concatenate(values), np.cumsum([0, *map(len, values)], dtype=np.int64))


def _round(sample: Any) -> int:
    try:
        return int(sample.metadata["round_number"])
    except (KeyError, TypeError, ValueError) as err:
        raise InvalidError(
            f"sample {sample.index}: metadata has no round_number, as the first sample's has"
        ) from err


def _rewards(values: Any, lengths: Any) -> Any:
    """What a post-process function returned: a number for each row, or lists for some."""
    rows = [v.tolist() if hasattr(v, "tolist") else v for v in values]
    if len(rows) != len(lengths):
        raise InvalidError(
            f"custom_reward_post_process_path: {len(rows)} rewards for {len(lengths)} samples"
        )
    if not any(isinstance(v, list) for v in rows):
        return np.array([float(v) for v in rows], np.float32)
    spread = [
        np.asarray(v if isinstance(v, list) else [v] * int(n), np.float32)
        for v, n in zip(rows, lengths, strict=True)
    ]
    for i, (row, n) in enumerate(zip(spread, lengths, strict=True)):
        if len(row) != n:
            raise InvalidError(
                f"custom_reward_post_process_path: row {i} has {len(row)} rewards for a "
                f"response of {n} tokens"
            )
    return _jagged(spread, np.float32)


def _check_estimator(args: Any) -> None:
    estimator = getattr(args, "advantage_estimator", None) or "grpo"
    if estimator not in _PER_TOKEN:
        raise ConfigError(
            f"option advantage_estimator: {estimator} takes one number a row, but credit for each "
            f"turn was given; choose one of {', '.join(_PER_TOKEN)}",
            "advantage_estimator",
        )


class Mailbox:
    """Makes puts one after the other, so that a partition's last is last.

    What was planned and not yet put is kept: after a failed put, sending goes on with that one.
    """

    def __init__(self) -> None:
        self._unsent: deque[Put] = deque()
        self._closed: set[int] = set()

    @property
    def unsent(self) -> int:
        """Puts that wait to be made."""
        return len(self._unsent)

    def add(self, puts: Iterable[Put]) -> None:
        """Plans puts, all or none. A partition that was closed by its last takes no more."""
        planned, closed = deque(puts), set(self._closed)
        for put in planned:
            if put.partition in closed:
                raise InvalidError(f"partition {put.partition_id}: rows after its last")
            if put.is_last:
                closed.add(put.partition)
        self._closed = closed
        self._unsent += planned

    def send(self, client: Any) -> None:
        """Makes all puts; returns when the rows can be read."""
        while self._unsent:
            put = self._unsent[0]
            transfer_queue.put(
                client, put.data, put.partition_id, meta=put.meta, is_last=put.is_last
            )
            _LOGGER.debug("put %d rows into %s", len(put.meta), put.partition_id)
            self._unsent.popleft()
