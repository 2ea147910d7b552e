"""Batches of one process seen by others of the same machine.

May enter: where a batch lies, and its file descriptor. Never: what rows mean.
"""

from __future__ import annotations

import fcntl
import json
import mmap
import os
from multiprocessing import reduction
from typing import TYPE_CHECKING, Any

import numpy as np

from ._lib import ColumnInfo, NativeBatch
from .columns import Held, Memory, describe, whole
from .errors import ClosedError, InvalidError, StateError

if TYPE_CHECKING:
    from .batch import Batch


class SharedBatch:
    """What another process of this machine needs to map a batch: a descriptor and a description.

    Made by :meth:`.Batch.share`, on an engine with ``arena_shared``. It can be sent to another
    process through everything that pickles with :mod:`multiprocessing` (``Process`` arguments,
    ``Queue``, ``Pipe``). A ``Queue`` pickles on a thread of its own, so close the handle only when
    the other process has it. Over a Unix socket send both parts by hand::

        socket.send_fds(sock, [shared.description], [shared.fileno()])
        description, (fd,), _, _ = socket.recv_fds(sock, 1 << 16, 1)
        batch = rr.SharedBatch(fd, description).open()

    The memory lives until the last process lets go of it, whatever becomes of the engine. It is not
    counted against ``arena_limit_bytes`` once the engine's process has let go of it.
    """

    def __init__(self, fd: int, description: bytes) -> None:
        """Takes the descriptor over: :meth:`close` closes it."""
        self._fd = fd
        self.description = description
        """Counts and columns, as JSON; only :class:`SharedBatch` of the same version reads it."""

    def fileno(self) -> int:
        """The descriptor."""
        if self._fd < 0:
            raise ClosedError("shared batch: closed")
        return self._fd

    def open(self) -> Batch:
        """Maps the rows. What is written to them is seen by this process alone (copy on write).

        The batch has no report. It stays valid after :meth:`close`.
        """
        from .batch import Batch

        counts, nbytes, columns = _read(self.description)
        try:
            data = mmap.mmap(self.fileno(), nbytes, access=mmap.ACCESS_COPY)
        except (ValueError, OSError) as err:
            raise InvalidError(f"shared batch: cannot map {nbytes} bytes: {err}") from err
        return Batch(Held(counts, columns, np.frombuffer(data, np.uint8)))

    def close(self) -> None:
        """Closes the descriptor. Batches that were opened stay valid."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __enter__(self) -> SharedBatch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return _received, (reduction.DupFd(self.fileno()), self.description)


def _received(fd: Any, description: bytes) -> SharedBatch:
    return SharedBatch(fd.detach(), description)


def share(memory: Memory) -> SharedBatch:
    """The handle of a batch in shared memory of the library, or in memory that Python holds, which
    is copied: a step without rows can be shared like any other."""
    fd = _exported(memory) if isinstance(memory, NativeBatch) else _copied(memory)
    counts, columns = describe(memory)
    rows = [(c.name, c.length, c.offset, c.code, c.bits, c.domain) for c in columns]
    text = json.dumps({"counts": counts, "nbytes": memory.nbytes, "columns": rows})
    return SharedBatch(fd, text.encode())


def _exported(memory: NativeBatch) -> int:
    if not memory.shared:
        raise StateError("Batch.share: its memory is private; set the option arena_shared")
    fd = memory.export_fd()
    if fd < 0:
        raise StateError("Batch.share: this process has no descriptor left; raise ulimit -n")
    return fd


def _copied(memory: Memory) -> int:
    try:
        fd = os.memfd_create("relax-batch", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except OSError as err:
        raise StateError(f"Batch.share: no shared memory: {err}") from err
    with open(fd, "wb", closefd=False) as file:
        file.write(whole(memory).tobytes())
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE)
    return fd


_Counts = tuple[int, int, int, int, int]


def _read(description: bytes) -> tuple[_Counts, int, list[ColumnInfo]]:
    try:
        found = json.loads(description)
        a, b, c, d, e = map(int, found["counts"])
        nbytes = int(found["nbytes"])
        columns = [
            ColumnInfo(i, str(name), 0, *map(int, numbers))
            for i, (name, *numbers) in enumerate(found["columns"])
        ]
        ends = [c.offset + c.length * c.bits // 8 for c in columns]
        if nbytes < max(ends):
            raise ValueError(f"columns end at {max(ends)} of {nbytes} bytes")
    except (ValueError, TypeError, KeyError) as err:
        raise InvalidError(
            f"shared batch: description: expected what SharedBatch.description gave, found "
            f"{description[:80]!r} ({err})"
        ) from err
    return (a, b, c, d, e), nbytes, columns
