"""Puts training rows into a TransferQueue, the data plane of the Relax and other trainers.

:func:`train_columns` makes a batch's rows into the columns such trainers read, in NumPy alone;
:func:`tensordict` makes the TensorDict a client takes; :func:`aput` and :func:`put` hand it over.

======================  ==============  =======================================================
column                  type            meaning
======================  ==============  =======================================================
tokens                  jagged int64    exact ids of the row
total_lengths           int64           how many
response_lengths        int64           those from the first response on
loss_masks              jagged int64    response-long: 1 exactly on ids the policy sampled
rollout_log_probs       jagged float32  response-long, 0 on observations
rewards                 float32         training credit; jagged and response-long where a batch has
                                        credit for each turn
group_index             int64           the prompt
sample_indices          int64           the logical sample: rows of one Session share it
sample_index_mask_sums  int64           loss_masks summed over the rows of the Session
truncated               int64           1 if the last turn was cut off
rollout_routed_experts  jagged int32    tokens - 1 rows of layers x top k, if recorded
======================  ==============  =======================================================

Names and types are those of the Relax trainer (spec/reference-pipeline.md 6.3), whatever the
rewards were: int, bool and float all give float32.

May enter: batches, a client. Never: the engine. torch, tensordict and TransferQueue are imported
when they are needed and are no dependencies of the package.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np

from .errors import InvalidError

if TYPE_CHECKING:
    import numpy.typing as npt

    from .batch import Batch

T = TypeVar("T")


@dataclass(frozen=True)
class Jagged:
    """Rows of different lengths, end to end: row i is ``values[offsets[i]:offsets[i + 1]]``.

    >>> Jagged(np.array([1, 2, 3]), np.array([0, 2, 3])).rows()
    [array([1, 2]), array([3])]
    """

    values: npt.NDArray[Any]
    offsets: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def rows(self) -> list[npt.NDArray[Any]]:
        """The rows as views."""
        return [
            self.values[self.offsets[i] : self.offsets[i + 1]] for i in range(len(self.offsets) - 1)
        ]


Value: TypeAlias = "npt.NDArray[Any] | Jagged | list[Any]"
"""One column: numbers a row, arrays a row, or any Python values a row."""

Columns: TypeAlias = dict[str, Value]


def train_columns(
    batch: Batch,
    rows: Sequence[int] | npt.NDArray[np.int64] | None = None,
    *,
    sample_indices: npt.NDArray[np.int64] | None = None,
    group_index: npt.NDArray[np.int64] | None = None,
) -> Columns:
    """The rows of a batch as a trainer's columns; see the module.

    ``rows`` picks and orders them; all rows of a Session must be in one call, as its mask sum is
    over them. ``sample_indices`` and ``group_index``, one for each picked row, number samples and
    prompts as the trainer does; without them the engine's own numbers are used.

    >>> from relax_rollout import Batch
    >>> columns = train_columns(Batch.empty(0))
    >>> {name: (value.values if isinstance(value, Jagged) else value).dtype.name
    ...  for name, value in columns.items()}["rollout_log_probs"]
    'float32'
    """
    picked = np.arange(len(batch)) if rows is None else np.asarray(rows, np.int64)
    whole = _Spans(batch.numpy("offsets")[picked], batch.numpy("total_lengths")[picked])
    prompts = batch.numpy("prompt_len")[picked].astype(np.int64)
    part = _Spans(whole.starts + prompts, whole.lengths - prompts)
    samples = batch.numpy("sample_indices")[picked] if sample_indices is None else sample_indices
    groups = batch.numpy("group_id")[picked] if group_index is None else group_index
    masks = part.take(batch.numpy("loss_mask"), np.int64)
    columns: Columns = {
        "tokens": whole.take(batch.numpy("tokens"), np.int64),
        "total_lengths": whole.lengths,
        "response_lengths": part.lengths,
        "rewards": _rewards(batch, picked, part),
        "group_index": np.asarray(groups, np.int64),
        "truncated": batch.numpy("truncated")[picked].astype(np.int64),
        "sample_indices": np.asarray(samples, np.int64),
        "loss_masks": masks,
        "sample_index_mask_sums": mask_sums(masks, np.asarray(samples)),
        "rollout_log_probs": part.take(batch.numpy("logprobs"), np.float32),
    }
    if "routed_experts" in batch.names:
        columns["rollout_routed_experts"] = _routed_experts(batch, picked)
    return columns


class _Spans:
    """Pieces of a token column, one a row."""

    def __init__(self, starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]) -> None:
        self.starts, self.lengths = starts, lengths.astype(np.int64)
        self.offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(self.lengths)])

    def take(self, values: npt.NDArray[Any], dtype: Any) -> Jagged:
        """The pieces end to end, in a new array of another type."""
        pairs = zip(self.starts.tolist(), self.lengths.tolist(), strict=True)
        pieces = [values[start : start + length] for start, length in pairs]
        return Jagged(np.concatenate([*pieces, values[:0]], dtype=dtype), self.offsets)


def _rewards(batch: Batch, rows: npt.NDArray[np.int64], part: _Spans) -> Value:
    # One layout for a whole step: rows with one number are spread where any row has a list.
    if "advantages" in batch.names:
        return part.take(batch.numpy("advantages"), np.float32)
    return batch.numpy("advantage")[rows].astype(np.float32)


def _routed_experts(batch: Batch, rows: npt.NDArray[np.int64]) -> Jagged:
    width = int(np.prod(batch.numpy("routed_experts_shape")))
    parts = [batch[int(i)].routed_experts.reshape(-1, width) for i in rows]
    lengths = [len(p) for p in parts]
    values = np.concatenate(parts) if parts else np.zeros((0, width), np.int32)
    return Jagged(values.astype(np.int32), np.cumsum([0, *lengths], dtype=np.int64))


def mask_sums(masks: Jagged, samples: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """For each row the sum of the masks of all rows with its sample index.

    >>> masks = Jagged(np.array([0, 1, 1, 1]), np.array([0, 2, 3, 4]))
    >>> mask_sums(masks, np.array([7, 8, 7])).tolist()
    [2, 1, 2]
    """
    total = np.concatenate([np.zeros(1, np.int64), np.cumsum(masks.values)])
    of_row = total[masks.offsets[1:]] - total[masks.offsets[:-1]]
    _, which = np.unique(samples, return_inverse=True)
    sums = np.zeros(len(samples), np.int64)
    np.add.at(sums, which, of_row)
    return sums[which]


def custom_meta(columns: Mapping[str, Value]) -> list[dict[str, int]]:
    """What a sampler wants to know of each row before it reads it."""
    lengths, samples = (np.asarray(columns[n]) for n in ("total_lengths", "sample_indices"))
    return [
        {"total_lengths": int(length), "sample_index": int(sample)}
        for length, sample in zip(lengths, samples, strict=True)
    ]


# ---- the client's side ---------------------------------------------------------------------------


def tensordict(columns: Mapping[str, Value]) -> Any:
    """The columns as a TensorDict: jagged ones as nested tensors, lists as non-tensor data.

    Raises ImportError where torch or tensordict is not installed.
    """
    try:
        import tensordict as td
        import torch
    except ImportError as err:
        raise ImportError(
            f"TransferQueue's rows need torch and tensordict, and {err.name} is not installed"
        ) from err

    def tensor(value: Value) -> Any:
        if isinstance(value, Jagged):
            return torch.nested.nested_tensor_from_jagged(
                torch.from_numpy(value.values), torch.from_numpy(value.offsets)
            )
        if isinstance(value, list):
            return td.NonTensorStack(*(td.NonTensorData(item) for item in value))
        return torch.from_numpy(np.ascontiguousarray(value))

    rows = len(columns["total_lengths"])
    return td.TensorDict({k: tensor(v) for k, v in columns.items()}, batch_size=[rows])


async def aput(
    client: Any,
    data: Any,
    partition_id: str,
    *,
    meta: Sequence[Mapping[str, Any]] | None = None,
    is_last: bool = False,
) -> Any:
    """Puts rows into a partition; returns once they can be read.

    ``data`` is a TensorDict, columns as :func:`train_columns` makes them, or a Batch. ``meta`` is
    one mapping a row for samplers; for columns and batches it is :func:`custom_meta`.
    ``is_last`` says that nothing more comes for the partition, to clients that want to know (the
    Relax trainer's); others tell by the number of rows that were announced.

    What samplers need to know of a row is there before the row can be read.
    """
    from .batch import Batch

    if isinstance(data, Batch):
        data = train_columns(data)
    if isinstance(data, dict):
        meta = custom_meta(data) if meta is None else meta
        data = tensordict(data)
    rows = [dict(m) for m in meta or ()]
    if meta is not None and len(rows) != data.batch_size[0]:
        raise InvalidError(
            f"put: {len(rows)} meta for the {data.batch_size[0]} rows of {partition_id}"
        )
    taken = inspect.signature(client.async_put).parameters
    if "custom_meta" in taken:
        last = {"is_last": is_last} if "is_last" in taken else {}
        return await client.async_put(
            data=data, partition_id=partition_id, custom_meta=rows or None, **last
        )
    return await _put_in_parts(client, data, partition_id, rows)


async def _put_in_parts(
    client: Any, data: Any, partition_id: str, rows: list[dict[str, Any]]
) -> Any:
    """For clients whose put takes no meta, as that of the package on PyPI."""
    metadata = await client.async_get_meta(
        data_fields=list(data.keys()),
        batch_size=data.batch_size[0],
        partition_id=partition_id,
        mode="insert",
    )
    if rows:
        metadata.update_custom_meta(rows)
        await client.async_set_custom_meta(metadata)
    return await client.async_put(data=data, metadata=metadata)


def put(
    client: Any,
    data: Any,
    partition_id: str,
    *,
    meta: Sequence[Mapping[str, Any]] | None = None,
    is_last: bool = False,
) -> Any:
    """As :func:`aput`, for callers without an event loop."""
    return run(aput(client, data, partition_id, meta=meta, is_last=is_last))


class _Loop:
    """One event loop for all calls: clients bind sockets to the loop they are first used on."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def get(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(
                    target=self._loop.run_forever, name="relax-transfer-queue", daemon=True
                ).start()
            return self._loop


_loop = _Loop()


def _loop_anew() -> None:
    global _loop
    _loop = _Loop()  # a forked child has not got the thread


os.register_at_fork(after_in_child=_loop_anew)


def run(work: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine on the loop that all puts of this process use, and waits for it."""
    future = asyncio.run_coroutine_threadsafe(work, _loop.get())
    try:
        return future.result()
    except BaseException:  # Ctrl-C must not leave a put running beside the next
        future.cancel()
        raise
