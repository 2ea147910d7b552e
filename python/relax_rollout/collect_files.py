"""Files that training rows are collected in: Parquet and JSON lines, step by step.

May enter: batches, paths. Never: the engine. A file has its name only once it is whole; until then
it is beside it with ``.part`` behind the name.
"""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from .batch import Batch
from .errors import InvalidError
from .row import Row


class Writer(Protocol):
    """A file that takes batches. Leaving the block gives it its name, also after an exception: what
    was written is good. Where nothing was, a file that has the name stays what it is."""

    def write(self, batch: Batch) -> None:
        """Appends a batch's rows."""

    def __enter__(self) -> Writer: ...

    def __exit__(
        self, kind: type[BaseException] | None, err: BaseException | None, at: TracebackType | None
    ) -> None: ...


def open_writer(path: str) -> Writer:
    """A writer by the name's ending: ``.parquet`` or ``.jsonl``.

    Raises:
        InvalidError: another ending, a name that cannot be written, or Parquet without pyarrow.
    """
    target = Path(path)
    if not target.parent.is_dir():
        raise InvalidError(f"{path}: the directory {target.parent} is not there")
    if target.is_dir():
        raise InvalidError(f"{path}: it is a directory")
    if target.suffix == ".jsonl":
        return _JSONLines(target)
    if target.suffix == ".parquet":
        return _Parquet(target)
    raise InvalidError(f"{path}: expected a name that ends with .parquet or .jsonl")


class _File(ABC):
    """The file while it grows."""

    def __init__(self, target: Path) -> None:
        self._target = target
        self._part = target.with_name(f"{target.name}.part")
        self._rows = 0

    @abstractmethod
    def _close(self) -> None:
        """Ends the file, so that it may be renamed."""

    def __exit__(
        self, kind: type[BaseException] | None, err: BaseException | None, at: TracebackType | None
    ) -> None:
        self._close()
        if self._rows:
            self._part.replace(self._target)
        else:
            self._part.unlink(missing_ok=True)


class _JSONLines(_File):
    def __init__(self, target: Path) -> None:
        super().__init__(target)
        # Half an emoji, as agents cut them, is no UTF-8: it stays the JSON escape that it was.
        self._file = self._part.open("w", encoding="utf-8", errors="backslashreplace")

    def __enter__(self) -> _JSONLines:
        return self

    def write(self, batch: Batch) -> None:
        """Appends a line for each row."""
        for row in batch:
            self._file.write(json.dumps(row_document(row), ensure_ascii=False) + "\n")
            self._rows += 1
        self._file.flush()

    def _close(self) -> None:
        self._file.close()


def row_document(row: Row) -> dict[str, Any]:
    """A row as JSON, with all of its metadata: numbers that are not known are null."""
    return {
        "rollout_id": row.batch.rollout_id,
        "session_seq": row.session_seq,
        "sample_index": row.sample_index,
        "prompt_len": row.prompt_len,
        "tokens": row.tokens.tolist(),
        "loss_mask": row.loss_mask.tolist(),
        "logprobs": row.logprobs.tolist(),
        "raw_reward": _number(row.raw_reward),
        "advantage": _number(row.advantage),
        "truncated": row.truncated,
        "turn_table": [t._asdict() for t in row.turn_table],
        "segments": [s._asdict() for s in row.segments],
        **row.meta,
    }


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value


_OPTIONAL = {"advantages": "float32"}
"""Columns that some batches of a run have and others have not, with the type of their items."""


class _Parquet(_File):
    def __init__(self, target: Path) -> None:
        super().__init__(target)
        try:
            import pyarrow as arrow
            import pyarrow.parquet as parquet
        except ImportError as err:
            raise InvalidError(
                f"{target}: Parquet needs the package pyarrow: pip install 'relax-rollout[arrow]', "
                "or choose a name that ends with .jsonl"
            ) from err
        self._arrow, self._parquet = arrow, parquet
        self._part.write_bytes(b"")  # that it cannot be written is known before a step ran
        self._writer: Any = None

    def __enter__(self) -> _Parquet:
        return self

    def write(self, batch: Batch) -> None:
        """Appends a record for each row, with the step's number in ``rollout_id``."""
        if not len(batch):
            return
        table = self._table(batch)
        if self._writer is None:
            self._writer = self._parquet.ParquetWriter(str(self._part), table.schema)
        missing = set(self._writer.schema.names) ^ set(table.schema.names)
        if missing:
            raise InvalidError(
                f"{self._target}: step {batch.rollout_id} has other columns than those before: "
                f"{', '.join(sorted(missing))}"
            )
        self._writer.write_table(table.select(self._writer.schema.names))
        self._rows += len(batch)

    def _table(self, batch: Batch) -> Any:
        pa = self._arrow
        table = pa.Table.from_batches([batch.to_arrow()]).replace_schema_metadata(None)
        ids = pa.array([batch.rollout_id] * len(batch), pa.int64())
        table = table.add_column(0, "rollout_id", ids)
        for name, item in _OPTIONAL.items():
            if name not in table.schema.names:
                item_type = pa.field("item", getattr(pa, item)(), nullable=False)
                table = table.append_column(name, pa.nulls(len(batch), pa.large_list(item_type)))
        return table

    def _close(self) -> None:
        if self._writer is not None:
            self._writer.close()
