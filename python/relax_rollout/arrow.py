"""Training rows as Arrow data, over the same memory, for inspection and Parquet files.

May enter: batches, pyarrow. Never: the engine. pyarrow is imported when it is needed, and is no
dependency of the package: ``pip install relax-rollout[arrow]``.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np

from .columns import BOUNDARIES, Domain

if TYPE_CHECKING:
    from .batch import Batch


def record_batch(batch: Batch) -> Any:
    """One record a row. Its fields are the columns: numbers a row, and ``large_list`` fields of
    what belongs to tokens, segments, turns and routed positions; ``meta_json`` is a string.

    No column is copied, except for boundaries of routed experts. The record batch keeps the memory
    alive.
    """
    pa = _pyarrow()
    fields: dict[str, Any] = {}
    for name in batch.names:
        domain = batch.domain(name)
        if domain == Domain.SEQ:
            fields[name] = _array(pa, batch.numpy(name))
        elif domain == Domain.ROUTE:
            fields[name] = _lists(pa, _route_offsets(batch), batch.numpy(name))
        elif domain in BOUNDARIES:
            make = _strings if domain == Domain.BYTES else _lists
            fields[name] = make(pa, batch.numpy(BOUNDARIES[domain]), batch.numpy(name))
    shape = batch.numpy("routed_experts_shape") if "routed_experts_shape" in batch.names else None
    metadata = {"rollout_id": str(batch.rollout_id), "batch_id": str(batch.batch_id)}
    if shape is not None:
        metadata["routed_experts_shape"] = ",".join(map(str, shape.tolist()))
    schema = pa.schema([(n, a.type) for n, a in fields.items()], metadata)
    return pa.RecordBatch.from_arrays(list(fields.values()), schema=schema)


def write_parquet(batch: Batch, path: str | os.PathLike[str]) -> None:
    """Writes one record a row."""
    pa = _pyarrow()
    import pyarrow.parquet

    pyarrow.parquet.write_table(pa.Table.from_batches([record_batch(batch)]), os.fspath(path))


def _pyarrow() -> Any:
    try:
        import pyarrow
    except ImportError as err:
        raise ImportError(
            "Arrow and Parquet need the package pyarrow: pip install relax-rollout[arrow]"
        ) from err
    return pyarrow


def _array(pa: Any, values: np.ndarray[Any, Any]) -> Any:
    kind = pa.from_numpy_dtype(values.dtype)
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


def _lists(pa: Any, offsets: np.ndarray[Any, Any], values: np.ndarray[Any, Any]) -> Any:
    items = _array(pa, values)
    kind = pa.large_list(pa.field("item", items.type, nullable=False))
    buffers = [None, pa.py_buffer(offsets)]
    return pa.Array.from_buffers(kind, len(offsets) - 1, buffers, children=[items])


def _strings(pa: Any, offsets: np.ndarray[Any, Any], text: np.ndarray[Any, Any]) -> Any:
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(text)]
    return pa.Array.from_buffers(pa.large_string(), len(offsets) - 1, buffers)


def _route_offsets(batch: Batch) -> np.ndarray[Any, Any]:
    width = int(np.prod(batch.numpy("routed_experts_shape")))
    positions = np.maximum(batch.numpy("total_lengths") - 1, 0) * width
    return np.concatenate([[0], np.cumsum(positions)]).astype(np.int64)
