"""Training rows as zero-copy views.

A :class:`Batch` lies in one piece of memory that the engine filled and never touches again.
Columns are found by name, each one flat array for the entire batch:

==================  =======  ==========  ======================================================
name                type     length      meaning
==================  =======  ==========  ======================================================
offsets             int64    rows + 1    first token of each row in the token columns
cu_seqlens          int32    rows + 1    the same, as variable-length attention kernels want it
tokens              int32    tokens      exact ids
logprobs            float32  tokens      rollout logprob where loss_mask is 1, 0 elsewhere
loss_mask           uint8    tokens      1 exactly on ids the policy sampled in that row
prompt_len          int32    rows        tokens before the first response
reward              float64  rows        task outcome, NaN if unset
advantage           float32  rows        training credit
group_id            int64    rows        Group number within the run
session_seq         int32    rows        place of the Session in its Group
status              int32    rows        0 completed, 1 truncated
turns, aborts       int32    rows        responses, and backend aborts, along the lineage
seg_offsets         int64    rows + 1    first weight-version segment of each row
seg_start           int32    segments    row-relative first token of the segment
seg_weight_version  int64    segments    the version, -1 if it is not a number
meta_offsets        int64    rows + 1    byte boundaries in meta_json
meta_json           uint8    bytes       one JSON document a row
==================  =======  ==========  ======================================================
"""

from __future__ import annotations

import json
import operator
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, overload

import numpy as np

from ._lib import ColumnInfo
from .errors import ClosedError, InvalidError

if TYPE_CHECKING:
    import numpy.typing as npt

    from .report import StepReport

_DTYPES = {
    (code, bits): np.dtype(f"{kind}{bits // 8}")
    for code, kind in enumerate("iuf")
    for bits in (8, 16, 32, 64)
    if (code, bits) != (2, 8)
}
"""NumPy's types by DLPack code and bits."""

_CPU = (1, 0)
"""DLPack's name of host memory: kDLCPU, device 0."""


class _Memory(Protocol):
    """Where a batch lies: the library's arena, or a copy of one."""

    @property
    def batch_id(self) -> int: ...
    @property
    def rollout_id(self) -> int: ...
    @property
    def n_seqs(self) -> int: ...
    @property
    def n_tokens(self) -> int: ...
    @property
    def n_segments(self) -> int: ...
    @property
    def base(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def names(self) -> tuple[str, ...]: ...

    def info(self, name: str) -> ColumnInfo: ...

    def dlpack(self, column: ColumnInfo, versioned: bool) -> object: ...


class Column:
    """One column: what NumPy, torch, JAX and others need to view it without a copy.

    Views made from it may be written to, and keep the batch's memory alive.

    >>> column = Batch.empty(0).column("offsets")
    >>> column
    Column('offsets', '<i8', 1)
    >>> np.from_dlpack(column)
    array([0])
    """

    def __init__(self, memory: _Memory, info: ColumnInfo) -> None:
        self._memory = memory
        self._info = info

    @property
    def name(self) -> str:
        """The column's name."""
        return self._info.name

    @property
    def typestr(self) -> str:
        """Element type in NumPy's spelling, such as ``<i4``."""
        return self._info.typestr

    def __len__(self) -> int:
        return self._info.length

    def __repr__(self) -> str:
        return f"Column({self.name!r}, {self.typestr!r}, {len(self)})"

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return {
            "version": 3,
            "typestr": self._info.typestr,
            "shape": (self._info.length,),
            "data": (self._info.address, False),
        }

    def __dlpack_device__(self) -> tuple[int, int]:
        return _CPU

    def __dlpack__(
        self,
        *,
        stream: object = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> object:
        """A DLPack capsule: the versioned kind for consumers that ask for DLPack 1, else legacy."""
        if stream is not None:
            raise BufferError(f"column {self.name!r} is host memory: stream must be None")
        if dl_device is not None and tuple(dl_device) != _CPU:
            raise BufferError(f"column {self.name!r} is host memory: cannot export to {dl_device}")
        if copy:
            return np.array(self, copy=True).__dlpack__()
        return self._memory.dlpack(self._info, max_version is not None and max_version[0] >= 1)


class Segment(NamedTuple):
    """Tokens ``[start, end)`` of a row, sampled under one weight version."""

    start: int
    end: int
    weight_version: int
    """-1 if the backend's version is not a number."""


@dataclass(frozen=True)
class Row:
    """One training context. Arrays are views of the batch's columns."""

    batch: Batch
    index: int

    def _tokens(self, name: str) -> npt.NDArray[Any]:
        offsets = self.batch.numpy("offsets")
        return self.batch.numpy(name)[offsets[self.index] : offsets[self.index + 1]]

    def _scalar(self, name: str) -> Any:
        return self.batch.numpy(name)[self.index].item()

    @property
    def tokens(self) -> npt.NDArray[np.int32]:
        """All ids of the row: prompt, responses and observations."""
        return self._tokens("tokens")

    @property
    def loss_mask(self) -> npt.NDArray[np.uint8]:
        """1 exactly on ids the policy sampled in this row; as long as tokens."""
        return self._tokens("loss_mask")

    @property
    def logprobs(self) -> npt.NDArray[np.float32]:
        """Rollout logprobs where loss_mask is 1, 0 elsewhere; as long as tokens."""
        return self._tokens("logprobs")

    @property
    def prompt_len(self) -> int:
        """Tokens before the first response."""
        return int(self._scalar("prompt_len"))

    @property
    def prompt_tokens(self) -> npt.NDArray[np.int32]:
        """The ids before the first response."""
        return self.tokens[: self.prompt_len]

    @property
    def response_tokens(self) -> npt.NDArray[np.int32]:
        """The ids from the first response on, later observations included."""
        return self.tokens[self.prompt_len :]

    @property
    def response_loss_mask(self) -> npt.NDArray[np.uint8]:
        """loss_mask of response_tokens."""
        return self.loss_mask[self.prompt_len :]

    @property
    def response_logprobs(self) -> npt.NDArray[np.float32]:
        """logprobs of response_tokens."""
        return self.logprobs[self.prompt_len :]

    @property
    def reward(self) -> float:
        """The task outcome, NaN if unset."""
        return float(self._scalar("reward"))

    @property
    def advantage(self) -> float:
        """The training credit of the whole row."""
        return float(self._scalar("advantage"))

    @property
    def group_id(self) -> int:
        """The Group's number within the run."""
        return int(self._scalar("group_id"))

    @property
    def session_seq(self) -> int:
        """The Session's place in its Group."""
        return int(self._scalar("session_seq"))

    @property
    def truncated(self) -> bool:
        """Whether the last turn was cut by a limit."""
        return bool(self._scalar("status") == 1)

    @property
    def turns(self) -> int:
        """Responses along the lineage."""
        return int(self._scalar("turns"))

    @property
    def aborts(self) -> int:
        """Backend aborts along the lineage."""
        return int(self._scalar("aborts"))

    @property
    def segments(self) -> list[Segment]:
        """The weight versions the row was sampled under, in order."""
        offsets = self.batch.numpy("seg_offsets")
        part = slice(offsets[self.index], offsets[self.index + 1])
        starts = self.batch.numpy("seg_start")[part].tolist()
        versions = self.batch.numpy("seg_weight_version")[part].tolist()
        ends = [*starts[1:], len(self.tokens)]
        return [Segment(*s) for s in zip(starts, ends, versions, strict=True)]

    @property
    def meta(self) -> dict[str, Any]:
        """The row's metadata; parsed anew at each access."""
        offsets = self.batch.numpy("meta_offsets")
        text = self.batch.numpy("meta_json")[offsets[self.index] : offsets[self.index + 1]]
        return dict(json.loads(text.tobytes() or b"{}"))

    def __repr__(self) -> str:
        return (
            f"Row({self.index}: tokens={len(self.tokens)}, prompt_len={self.prompt_len}, "
            f"turns={self.turns}, reward={self.reward:g}, advantage={self.advantage:g})"
        )


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

    def __init__(self, memory: _Memory, report: StepReport | None = None) -> None:
        self._memory: _Memory | None = memory
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
        return cls(_empty(rollout_id), report)

    def _open(self) -> _Memory:
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
                self._arena = _whole(self._open())
            info = self._info(name)
            view = np.ndarray(info.length, _DTYPES[info.code, info.bits], self._arena, info.offset)
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
        return _unpickle, (*_pickle(self._open()), self.report)


# ---- copies -------------------------------------------------------------------------------------

_ALIGN = 64


class _Copy:
    """A batch in memory of Python's own: what unpickling gives, and a step without rows."""

    def __init__(
        self, counts: tuple[int, int, int, int, int], columns: list[ColumnInfo], nbytes: int
    ) -> None:
        self.batch_id, self.rollout_id, self.n_seqs, self.n_tokens, self.n_segments = counts
        self._buffer = np.zeros(nbytes + _ALIGN, np.uint8)
        shift = -self._buffer.ctypes.data % _ALIGN
        self.bytes = self._buffer[shift : shift + nbytes]
        self.base: int = self._buffer.ctypes.data + shift
        self.nbytes = nbytes
        self._columns = {c.name: c._replace(address=self.base + c.offset) for c in columns}
        self.names = tuple(self._columns)

    def info(self, name: str) -> ColumnInfo:
        return self._columns[name]

    def dlpack(self, column: ColumnInfo, versioned: bool) -> object:
        view = np.asarray(Column(self, column))
        if not versioned:
            return view.__dlpack__()
        try:
            return view.__dlpack__(max_version=(1, 0))
        except TypeError:  # NumPy before 2.1 knows the legacy kind only, which consumers take too
            return view.__dlpack__()


def _pickle(memory: _Memory) -> tuple[tuple[int, ...], list[ColumnInfo], bytes]:
    counts = (
        memory.batch_id,
        memory.rollout_id,
        memory.n_seqs,
        memory.n_tokens,
        memory.n_segments,
    )
    return counts, [memory.info(name) for name in memory.names], _whole(memory).tobytes()


def _whole(memory: _Memory) -> npt.NDArray[np.uint8]:
    """All bytes of a batch's memory as one view."""
    info = ColumnInfo(0, "", memory.base, memory.nbytes, 0, code=1, bits=8, domain=4)
    return np.asarray(Column(memory, info))


def _unpickle(
    counts: tuple[int, int, int, int, int],
    columns: list[ColumnInfo],
    data: bytes,
    report: StepReport | None,
) -> Batch:
    memory = _Copy(counts, columns, len(data))
    memory.bytes[:] = np.frombuffer(data, np.uint8)
    return Batch(memory, report)


# Columns of a step without rows: name, DLPack code, bits, domain.
_COLUMNS = [
    ("offsets", 0, 64, 2),
    ("cu_seqlens", 0, 32, 2),
    ("tokens", 0, 32, 0),
    ("logprobs", 2, 32, 0),
    ("loss_mask", 1, 8, 0),
    ("prompt_len", 0, 32, 1),
    ("reward", 2, 64, 1),
    ("advantage", 2, 32, 1),
    ("group_id", 0, 64, 1),
    ("session_seq", 0, 32, 1),
    ("status", 0, 32, 1),
    ("turns", 0, 32, 1),
    ("aborts", 0, 32, 1),
    ("seg_offsets", 0, 64, 2),
    ("seg_start", 0, 32, 3),
    ("seg_weight_version", 0, 64, 3),
    ("meta_offsets", 0, 64, 2),
    ("meta_json", 1, 8, 4),
]


def _empty(rollout_id: int) -> _Memory:
    columns = [
        ColumnInfo(i, name, 0, 1 if domain == 2 else 0, i * _ALIGN, code, bits, domain)
        for i, (name, code, bits, domain) in enumerate(_COLUMNS)
    ]
    return _Copy((0, rollout_id, 0, 0, 0), columns, len(columns) * _ALIGN)
