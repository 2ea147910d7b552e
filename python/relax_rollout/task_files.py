"""Files of tasks: JSON lines, JSON lists and Parquet, as trainers keep their prompts.

May enter: paths and names of columns. Never: the engine.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from .errors import InvalidError, shown

T = TypeVar("T")

Reader: TypeAlias = Callable[[Path], Iterator[dict[str, Any]]]
"""Yields the rows of a file."""

_SLICE = re.compile(r"^(?P<path>.+)@\[(?P<start>-?\d*):(?P<stop>-?\d*)\]$")


@dataclass(frozen=True)
class Keys:
    """Which columns of a row mean what."""

    prompt: str = "input"
    label: str | None = None
    metadata: str = "metadata"
    tools: str | None = None


def read_rows(path: str) -> Iterator[dict[str, Any]]:
    """Yields the rows of a file, or of all files of a directory in the order of their names.

    ``path@[a:b]`` takes a part, as slices of lists do.

    Raises:
        InvalidError: the file is missing, of another kind, or a row is no object; it names file and
            line.
    """
    path, wanted = split_part(path)
    place = Path(path)
    if not place.is_dir():
        return part_of(read_file(place), wanted)
    files = sorted(f for f in place.iterdir() if f.suffix in READERS)
    if not files:
        raise InvalidError(f"{path}: no file in it ends with {', '.join(READERS)}")
    return part_of(itertools.chain.from_iterable(map(read_file, files)), wanted)


def split_part(path: str) -> tuple[str, slice]:
    """A path, and which of its rows are wanted.

    >>> split_part("a.jsonl@[:5]"), split_part("a.jsonl")
    (('a.jsonl', slice(None, 5, None)), ('a.jsonl', slice(None, None, None)))
    """
    part = _SLICE.match(path)
    if part is None:
        return path, slice(None)
    start, stop = (int(part[name]) if part[name] else None for name in ("start", "stop"))
    return part["path"], slice(start, stop)


def part_of(rows: Iterable[T], wanted: slice) -> Iterator[T]:
    """The rows that are wanted; no more are read than needed, unless it counts from the end."""
    if (wanted.start or 0) < 0 or (wanted.stop or 0) < 0:
        return iter(list(rows)[wanted])
    return itertools.islice(rows, wanted.start, wanted.stop)


def read_file(place: Path, readers: Mapping[str, Reader] | None = None) -> Iterator[dict[str, Any]]:
    """Yields the rows of one file by the reader of its suffix, by default one of READERS.

    Raises:
        InvalidError: as :func:`read_rows`.
    """
    readers = READERS if readers is None else readers
    path = str(place)
    reader = readers.get(place.suffix)
    if reader is None:
        raise InvalidError(f"{path}: expected a name that ends with {', '.join(readers)}")
    try:
        yield from reader(place)
    except InvalidError:
        raise
    except (OSError, ValueError) as err:  # ValueError: not UTF-8, no Parquet
        why = getattr(err, "strerror", None) or err
        raise InvalidError(f"{path}: cannot be read: {why}") from err


def _json_lines(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                yield object_of(f"{path} line {number}", _parsed(f"{path} line {number}", line))


def _json_list(path: Path) -> Iterator[dict[str, Any]]:
    rows = _parsed(str(path), path.read_text(encoding="utf-8"))
    if not isinstance(rows, list):
        raise InvalidError(f"{path}: expected a list of objects, found {type(rows).__name__}")
    for i, row in enumerate(rows):
        yield object_of(f"{path}[{i}]", row)


def _parquet(path: Path) -> Iterator[dict[str, Any]]:
    try:
        import pyarrow.parquet as parquet
    except ImportError as err:
        raise InvalidError(
            f"{path}: Parquet needs the package pyarrow: pip install 'relax-rollout[arrow]'"
        ) from err
    with parquet.ParquetFile(path) as file:
        for batch in file.iter_batches(256):
            yield from batch.to_pylist()


READERS: Mapping[str, Reader] = {
    ".jsonl": _json_lines,
    ".json": _json_list,
    ".parquet": _parquet,
}


def _parsed(where: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as err:
        raise InvalidError(f"{where}: not JSON: {err}") from err


def object_of(where: str, row: Any) -> dict[str, Any]:
    """A row, if it is an object; else InvalidError names where."""
    if not isinstance(row, dict):
        raise InvalidError(f"{where}: expected an object, found {type(row).__name__}")
    return row


# ---- what a row means ----------------------------------------------------------------------------


def convert_rows(path: str, convert: Callable[[int, dict[str, Any]], T]) -> Iterator[T]:
    """Yields what ``convert`` makes of each row of a file or directory and its number, from 0 on.

    Raises:
        InvalidError: as :func:`read_rows` and ``convert``; it names the file and the row.
    """
    return converted(path, read_rows(path), convert)


def converted(
    path: str, rows: Iterable[dict[str, Any]], convert: Callable[[int, dict[str, Any]], T]
) -> Iterator[T]:
    """Yields what ``convert`` makes of rows, as :func:`convert_rows`; errors name the path."""
    for number, row in enumerate(rows):
        try:
            yield convert(number, row)
        except InvalidError as err:
            raise InvalidError(f"{path} row {number}: {err}") from err


def prompt_of(row: Mapping[str, Any], keys: Keys) -> Any:
    """A row's prompt: what is under the prompt's key, else its ``messages`` or ``prompt``."""
    for key in (keys.prompt, "messages", "prompt"):
        if row.get(key) is not None:
            return row[key]
    raise InvalidError(
        f"a row has no {keys.prompt!r}, 'messages' or 'prompt'; its columns are {sorted(row)}"
    )


def metadata_of(row: Mapping[str, Any], keys: Keys) -> dict[str, Any]:
    """A row's metadata with its tools and data source; a JSON text counts as what it says.

    Tools of their own column win over those of the metadata, as in the trainer.
    """
    metadata = row.get(keys.metadata) or {}
    if isinstance(metadata, str):
        metadata = _parsed(f"metadata under {keys.metadata!r}", metadata)
    if not isinstance(metadata, Mapping):
        found = type(metadata).__name__
        raise InvalidError(f"metadata under {keys.metadata!r}: expected an object, found {found}")
    out = dict(metadata)
    if keys.tools and row.get(keys.tools) is not None:
        out["tools"] = _tools(f"tools under {keys.tools!r}", row[keys.tools])
    if row.get("data_source") is not None:
        out.setdefault("data_source", row["data_source"])
    return out


def _tools(where: str, tools: Any) -> list[Any]:
    if isinstance(tools, str):
        tools = _parsed(where, tools)
    if not isinstance(tools, list):
        raise InvalidError(f"{where}: expected a list, found {type(tools).__name__}")
    return tools


def task_of(row: Mapping[str, Any], keys: Keys) -> dict[str, Any]:
    """A row as a task of the engine.

    The label goes into the metadata under its own name. A row without metadata gives all its other
    columns as metadata.

    >>> task_of({"input": "2 + 3", "answer": 5}, Keys())
    {'messages': [{'role': 'user', 'content': '2 + 3'}], 'metadata': {'answer': 5}}
    """
    prompt = prompt_of(row, keys)
    if isinstance(prompt, str):
        prompt = [{"role": "user", "content": prompt}]
    if not isinstance(prompt, list) or not all(isinstance(m, Mapping) for m in prompt):
        raise InvalidError(
            f"the prompt: expected a str or a list of messages, found {shown(prompt)}"
        )
    metadata = metadata_of(row, keys)
    if row.get(keys.metadata) is None:
        used = {keys.prompt, keys.metadata, keys.tools, "messages", "prompt"}
        metadata.update({k: v for k, v in row.items() if k not in used})
    elif keys.label and row.get(keys.label) is not None:
        metadata.setdefault(keys.label, row[keys.label])
    return {"messages": prompt, "metadata": metadata}
