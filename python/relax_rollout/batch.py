"""Training rows as zero-copy views.

A :class:`Batch` lies in one piece of memory that the engine filled and never touches again.
Columns are found by name, each one flat array for the entire batch:

======================  =======  ==========  ==================================================
name                    type     length      meaning
======================  =======  ==========  ==================================================
offsets                 int64    rows + 1    first token of each row in the token columns
cu_seqlens              int32    rows + 1    the same, as variable-length attention kernels want it
tokens                  int32    tokens      exact ids
logprobs                float32  tokens      rollout logprob where loss_mask is 1, 0 elsewhere
loss_mask               uint8    tokens      1 exactly on ids the policy sampled in that row
prompt_len              int32    rows        tokens before the first response
total_lengths           int64    rows        tokens
response_lengths        int64    rows        tokens from the first response on
reward                  float64  rows        task outcome this context carries, NaN if unset
raw_reward              float32  rows        task outcome of the row's Session, NaN if unset
advantage               float32  rows        training credit of the whole row
group_id                int64    rows        Group number within the run
session_seq             int32    rows        place of the Session in its Group
sample_indices          int64    rows        logical sample: rows of one Session share it
sample_index_mask_sums  int64    rows        loss_mask summed over all rows of the Session
partition               int64    rows        rollout the row was delivered for
status                  int32    rows        0 completed, 1 truncated
truncated               int64    rows        1 if status is truncated
turns, aborts           int32    rows        responses, and backend aborts, along the lineage
seg_offsets             int64    rows + 1    first weight-version segment of each row
seg_start               int32    segments    row-relative first token of the segment
seg_weight_version      int64    segments    the version, -1 if it is not a number
turn_offsets            int64    rows + 1    first turn of each row
turn_start, turn_len    int32    turns       row-relative first token of the response, and tokens
turn_advantage          float32  turns       training credit of the turn
turn_masked             uint8    turns       1 if an earlier row trains it: loss_mask is 0 there
meta_offsets            int64    rows + 1    byte boundaries in meta_json
meta_json               uint8    bytes       one JSON document a row
======================  =======  ==========  ==================================================

Only where some row of the batch has credit for each turn, as an advantage hook can give it:

======================  =======  ==========  ==================================================
advantages              float32  tokens      credit of each token: the turn's where loss_mask is 1,
                                             0 elsewhere; of rows with one number, that number from
                                             the first response on
======================  =======  ==========  ==================================================

Only with routed experts:

======================  =======  ==========  ==================================================
routed_experts          int32    see Row     for all tokens of a row but the last: layers x top k
routed_experts_shape    int32    2           layers, top k
======================  =======  ==========  ==================================================

total_lengths, response_lengths, truncated, sample_indices, sample_index_mask_sums and raw_reward
have the names and types of the Relax trainer's batch; group_id is its group_index.
"""

from __future__ import annotations

import itertools
import operator
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from ._lib import ColumnInfo
from .columns import BOUNDARIES, DTYPES, Column, Domain, Held, Memory, describe, whole, zeros
from .columns import empty as empty_memory
from .errors import ClosedError, InvalidError
from .row import Row
from .sharing import SharedBatch, share

if TYPE_CHECKING:
    import numpy.typing as npt

    from .report import StepReport


class Batch:
    """The rows of one rollout step. ``len(batch)`` counts rows; iterating yields a :class:`Row`.

    Views stay valid for as long as they live, also after :meth:`close`, after the engine was
    closed, and in forked children. Pickling copies the memory, on purpose.

    >>> batch = Batch.empty(rollout_id=3)
    >>> batch
    Batch(rollout_id=3, rows=0, tokens=0)
    >>> batch.numpy("tokens")
    array([], dtype=int32)
    >>> batch.numpy("token")
    Traceback (most recent call last):
    relax_rollout.errors.InvalidError: column: no column 'token'; there are offsets, ...
    """

    def __init__(self, memory: Memory, report: StepReport | None = None) -> None:
        self._memory: Memory | None = memory
        self._views: dict[str, npt.NDArray[Any]] = {}
        self._arena: npt.NDArray[np.uint8] | None = None
        self.names = memory.names
        """Names of the columns."""
        self.rollout_id = memory.rollout_id
        """The step the rows were delivered for."""
        self.batch_id = memory.batch_id
        """Counts the batches of one engine from 1; 0 for an empty step."""
        self.report = report
        """The step's report, where the batch came from :meth:`Engine.rollout`."""

    @classmethod
    def empty(cls, rollout_id: int, report: StepReport | None = None) -> Batch:
        """A batch without rows: every column is there and has the length of zero rows."""
        return cls(empty_memory(rollout_id), report)

    def _open(self) -> Memory:
        if self._memory is None:
            raise ClosedError(f"batch of rollout {self.rollout_id}: closed")
        return self._memory

    @cached_property
    def n_tokens(self) -> int:
        """Tokens of all rows."""
        return self._open().n_tokens

    @property
    def address_range(self) -> tuple[int, int]:
        """Base address and size in bytes of the memory all columns lie in."""
        memory = self._open()
        return memory.base, memory.nbytes

    def column(self, name: str) -> Column:
        """A column by name, for any library that takes DLPack or ``__array_interface__``."""
        return Column(self._open(), self._info(name))

    def _info(self, name: str) -> ColumnInfo:
        try:
            return self._open().info(name)
        except KeyError:
            known = ", ".join(self.names)
            raise InvalidError(f"column: no column {name!r}; there are {known}") from None

    def numpy(self, name: str) -> npt.NDArray[Any]:
        """A column as a writable NumPy view."""
        view = self._views.get(name)
        if view is None:
            # One array over the whole memory, and views of it: half the price of one
            # __array_interface__ a column.
            if self._arena is None:
                self._arena = whole(self._open())
            info = self._info(name)
            view = np.ndarray(info.length, DTYPES[info.code, info.bits], self._arena, info.offset)
            self._views[name] = view
        return view

    def torch(self, name: str) -> Any:
        """A column as a torch tensor over the same memory.

        Raises ImportError where torch is not installed.
        """
        column = self.column(name)
        try:
            import torch
        except ImportError as err:
            raise ImportError(
                "Batch.torch needs the package torch; install it, or use Batch.numpy, or give "
                "Batch.column(name) to another library that takes DLPack"
            ) from err
        return torch.from_dlpack(column)

    def to_torch(self) -> dict[str, Any]:
        """All columns as torch tensors over the same memory, by name.

        Raises ImportError where torch is not installed.
        """
        return {name: self.torch(name) for name in self.names}

    def iter_microbatches(self, max_tokens: int) -> Iterator[MicroBatch]:
        """Yields runs of whole rows, in order, of at most ``max_tokens`` tokens each.

        A longer row is a micro-batch of its own. Nothing is copied; ``sample_index_mask_sums``
        still counts the rows of a Session that lie in others.

        >>> [m.rows for m in Batch.empty(0).iter_microbatches(1024)]
        []
        """
        if isinstance(max_tokens, bool) or not isinstance(max_tokens, int) or max_tokens < 1:
            raise InvalidError(f"max_tokens: expected a positive int, found {max_tokens!r}")
        offsets = self.numpy("offsets")
        start, rows = 0, len(self)
        while start < rows:
            fits = int(np.searchsorted(offsets, offsets[start] + max_tokens, side="right")) - 1
            stop = max(start + 1, min(fits, rows))
            yield MicroBatch(self, range(start, stop))
            start = stop

    def by_partition(self) -> dict[int, MicroBatch]:
        """The rows of each partition, oldest first: with ``fully_async`` a step delivers rows of
        the rollouts before, too, which its report calls partitions. Nothing is copied.

        >>> Batch.empty(3).by_partition()
        {}
        """
        of = self.numpy("partition")
        starts = [0, *(np.flatnonzero(of[1:] != of[:-1]) + 1).tolist(), len(of)]
        runs = [range(a, b) for a, b in itertools.pairwise(starts) if a < b]
        return {int(of[rows.start]): MicroBatch(self, rows) for rows in runs}

    def routes_before(self, row: int) -> int:
        """Rows before one that have a token: each has one position of routed experts less than
        tokens."""
        return int(np.count_nonzero(self.numpy("total_lengths")[:row]))

    def domain(self, name: str) -> Domain:
        """What one element of a column belongs to."""
        return Domain(self._info(name).domain)

    def to_arrow(self) -> Any:
        """The rows as a ``pyarrow.RecordBatch`` over the same memory; see :mod:`.arrow`.

        Raises ImportError where pyarrow is not installed.
        """
        from .arrow import record_batch

        return record_batch(self)

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        """Arrow's PyCapsules, for libraries that take them: polars, duckdb, datasets."""
        capsules: tuple[object, object] = self.to_arrow().__arrow_c_array__(requested_schema)
        return capsules

    def to_parquet(self, path: str | os.PathLike[str]) -> None:
        """Writes the rows to a Parquet file, one record each.

        Raises ImportError where pyarrow is not installed.
        """
        from .arrow import write_parquet

        write_parquet(self, path)

    def share(self) -> SharedBatch:
        """A handle by which another process of this machine maps the rows, without a copy.

        Needs the option ``arena_shared``; see :class:`SharedBatch`. Raises StateError without it,
        and where the process has no descriptor left.
        """
        return share(self._open())

    def __len__(self) -> int:
        return self._open().n_seqs

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> list[Row]: ...
    def __getitem__(self, index: int | slice) -> Row | list[Row]:
        rows = range(len(self))
        if isinstance(index, slice):
            return [Row(self, i) for i in rows[index]]
        try:
            return Row(self, rows[operator.index(index)])
        except IndexError:
            raise IndexError(f"row {index} of a batch of {len(rows)}") from None

    def __iter__(self) -> Iterator[Row]:
        return (Row(self, i) for i in range(len(self)))

    def close(self) -> None:
        """Drops this object's own reference. Views that were taken stay valid."""
        self._memory = None
        self._arena = None
        self._views.clear()

    def __enter__(self) -> Batch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        if self._memory is None:
            return f"Batch(rollout_id={self.rollout_id}, closed)"
        return f"Batch(rollout_id={self.rollout_id}, rows={len(self)}, tokens={self.n_tokens})"

    def __reduce__(self) -> tuple[Any, ...]:
        memory = self._open()
        return _load, (*describe(memory), whole(memory).tobytes(), self.report)


@dataclass(frozen=True)
class MicroBatch:
    """Rows of a batch that follow one another. Arrays are views, except boundaries."""

    batch: Batch
    rows: range

    def _slice(self, name: str) -> slice:
        first, last = self.rows.start, self.rows.stop
        domain = self.batch.domain(name)
        if domain == Domain.SEQ:
            return slice(first, last)
        if domain == Domain.SEQ1:
            return slice(first, last + 1)
        if domain == Domain.BATCH:
            return slice(None)
        if domain == Domain.ROUTE:
            width = int(np.prod(self.batch.numpy("routed_experts_shape")))
            offsets = self.batch.numpy("offsets")
            ends = [(int(offsets[i]) - self.batch.routes_before(i)) * width for i in (first, last)]
            return slice(*ends)
        offsets = self.batch.numpy(BOUNDARIES[domain])
        return slice(int(offsets[first]), int(offsets[last]))

    def numpy(self, name: str) -> npt.NDArray[Any]:
        """A column's part. Boundaries (``offsets``, ``cu_seqlens``, …) are new and begin with 0."""
        part = self.batch.numpy(name)[self._slice(name)]
        return part - part[0] if self.batch.domain(name) == Domain.SEQ1 else part

    def torch(self, name: str) -> Any:
        """As :meth:`numpy`, as a torch tensor."""
        part = self.batch.torch(name)[self._slice(name)]
        return part - part[0] if self.batch.domain(name) == Domain.SEQ1 else part

    def to_torch(self) -> dict[str, Any]:
        """All columns' parts as torch tensors, by name."""
        return {name: self.torch(name) for name in self.batch.names}

    @property
    def n_tokens(self) -> int:
        """Tokens of all rows."""
        return len(self.numpy("tokens"))

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Row]:
        return (self.batch[i] for i in self.rows)


def _load(
    counts: tuple[int, int, int, int, int],
    columns: list[ColumnInfo],
    data: bytes,
    report: StepReport | None,
) -> Batch:
    room = zeros(len(data))
    room[:] = np.frombuffer(data, np.uint8)
    return Batch(Held(counts, columns, room), report)
