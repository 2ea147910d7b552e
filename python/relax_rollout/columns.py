"""Where a batch lies: its columns, in the library's arena or in memory that Python holds.

May enter: the library's column descriptions. Never: what rows mean.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ._lib import ColumnInfo


class Domain(IntEnum):
    """What one element of a column belongs to: ``RELAX_DOM_*`` of the C header."""

    TOKEN = 0
    SEQ = 1
    SEQ1 = 2
    SEGMENT = 3
    BYTES = 4
    TURN = 5
    ROUTE = 6
    BATCH = 7


BOUNDARIES = {
    Domain.TOKEN: "offsets",
    Domain.SEGMENT: "seg_offsets",
    Domain.BYTES: "meta_offsets",
    Domain.TURN: "turn_offsets",
}
"""The column with the rows' boundaries in columns of a domain."""

DTYPES = {
    (code, bits): np.dtype(f"{kind}{bits // 8}")
    for code, kind in enumerate("iuf")
    for bits in (8, 16, 32, 64)
    if (code, bits) != (2, 8)
}
"""NumPy's types by DLPack code and bits."""

_CPU = (1, 0)
"""DLPack's name of host memory: kDLCPU, device 0."""


class Memory(Protocol):
    """Where a batch lies: the library's arena, or memory that Python holds."""

    @property
    def batch_id(self) -> int:
        """Counts the batches of one engine from 1, 0 for none of them."""

    @property
    def rollout_id(self) -> int:
        """The step the rows were delivered for."""

    @property
    def n_seqs(self) -> int:
        """Rows."""

    @property
    def n_tokens(self) -> int:
        """Tokens of all rows."""

    @property
    def n_segments(self) -> int:
        """Weight-version segments of all rows."""

    @property
    def base(self) -> int:
        """Where the memory begins."""

    @property
    def nbytes(self) -> int:
        """How long it is."""

    @property
    def names(self) -> tuple[str, ...]:
        """The columns' names."""

    def info(self, name: str) -> ColumnInfo:
        """Where a column lies; KeyError if there is none of that name."""

    def dlpack(self, column: ColumnInfo, versioned: bool) -> object:
        """A DLPack capsule of a column."""


class Column:
    """One column: what NumPy, torch, JAX and others need to view it without a copy.

    Views made from it may be written to, and keep the batch's memory alive.

    >>> from relax_rollout import Batch
    >>> column = Batch.empty(0).column("offsets")
    >>> column
    Column('offsets', '<i8', 1)
    >>> np.from_dlpack(column)
    array([0])
    """

    def __init__(self, memory: Memory, info: ColumnInfo) -> None:
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


_ALIGN = 64


def zeros(nbytes: int) -> npt.NDArray[np.uint8]:
    """New memory, aligned as columns are."""
    room = np.zeros(nbytes + _ALIGN, np.uint8)
    shift = -room.ctypes.data % _ALIGN
    return room[shift : shift + nbytes]


class Held:
    """A batch in memory that Python holds: what unpickling gives, what another process shares, and
    a step without rows."""

    def __init__(
        self,
        counts: tuple[int, int, int, int, int],
        columns: list[ColumnInfo],
        data: npt.NDArray[np.uint8],
    ) -> None:
        self.batch_id, self.rollout_id, self.n_seqs, self.n_tokens, self.n_segments = counts
        self._data = data
        self.base: int = data.ctypes.data
        self.nbytes = len(data)
        self._columns = {c.name: c._replace(address=self.base + c.offset) for c in columns}
        self.names = tuple(self._columns)

    def info(self, name: str) -> ColumnInfo:
        """Where a column lies."""
        return self._columns[name]

    def dlpack(self, column: ColumnInfo, versioned: bool) -> object:
        """A DLPack capsule of NumPy's own."""
        view = np.asarray(Column(self, column))
        if not versioned:
            return view.__dlpack__()
        try:
            return view.__dlpack__(max_version=(1, 0))
        except TypeError:  # NumPy before 2.1 knows the legacy kind only, which consumers take too
            return view.__dlpack__()


def describe(memory: Memory) -> tuple[tuple[int, int, int, int, int], list[ColumnInfo]]:
    """The counts and columns that :class:`Held` takes."""
    counts = (
        memory.batch_id,
        memory.rollout_id,
        memory.n_seqs,
        memory.n_tokens,
        memory.n_segments,
    )
    return counts, [memory.info(name) for name in memory.names]


def whole(memory: Memory) -> npt.NDArray[np.uint8]:
    """All bytes of a batch's memory as one view."""
    info = ColumnInfo(0, "", memory.base, memory.nbytes, 0, code=1, bits=8, domain=4)
    return np.asarray(Column(memory, info))


# Columns of a step without rows: name, DLPack code, bits, domain.
COLUMNS = [
    ("offsets", 0, 64, 2),
    ("cu_seqlens", 0, 32, 2),
    ("tokens", 0, 32, 0),
    ("logprobs", 2, 32, 0),
    ("loss_mask", 1, 8, 0),
    ("prompt_len", 0, 32, 1),
    ("total_lengths", 0, 64, 1),
    ("response_lengths", 0, 64, 1),
    ("reward", 2, 64, 1),
    ("raw_reward", 2, 32, 1),
    ("advantage", 2, 32, 1),
    ("group_id", 0, 64, 1),
    ("session_seq", 0, 32, 1),
    ("sample_indices", 0, 64, 1),
    ("sample_index_mask_sums", 0, 64, 1),
    ("partition", 0, 64, 1),
    ("status", 0, 32, 1),
    ("truncated", 0, 64, 1),
    ("turns", 0, 32, 1),
    ("aborts", 0, 32, 1),
    ("seg_offsets", 0, 64, 2),
    ("seg_start", 0, 32, 3),
    ("seg_weight_version", 0, 64, 3),
    ("turn_offsets", 0, 64, 2),
    ("turn_start", 0, 32, 5),
    ("turn_len", 0, 32, 5),
    ("turn_advantage", 2, 32, 5),
    ("turn_masked", 1, 8, 5),
    ("meta_offsets", 0, 64, 2),
    ("meta_json", 1, 8, 4),
]


def empty(rollout_id: int) -> Memory:
    """The memory of a step without rows."""
    columns = [
        ColumnInfo(i, name, 0, 1 if domain == 2 else 0, i * _ALIGN, code, bits, domain)
        for i, (name, code, bits, domain) in enumerate(COLUMNS)
    ]
    return Held((0, rollout_id, 0, 0, 0), columns, zeros(len(columns) * _ALIGN))
