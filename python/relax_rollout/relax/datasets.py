"""The prompts of an Eval: the trainer's eval_datasets, read and made into samples.

May enter: args, files, the trainer's class of samples. Never: the engine.
"""

from __future__ import annotations

import ast
import copy
import itertools
import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import ConfigError, InvalidError
from ..hooks import load
from ..task_files import (
    READERS,
    Keys,
    Reader,
    converted,
    metadata_of,
    object_of,
    part_of,
    prompt_of,
    read_file,
    split_part,
)
from .outputs import sample_class
from .samples import messages_of

_LOGGER = logging.getLogger("relax_rollout.relax")


@dataclass(frozen=True)
class Dataset:
    """One dataset of an Eval, and the trainer's settings for it."""

    name: str
    samples: list[Any]
    """One for each prompt."""
    n_samples: int
    overrides: dict[str, Any]
    """Sampling settings that are not training's, by the engine's names."""

    def copies(self, prompt: int) -> list[Any]:
        """The samples of one prompt's runs, numbered over the dataset before any of them runs
        (spec/reference-pipeline.md 5.4): reward models see the numbers, and a run that fails moves
        no other's.
        """
        out = [copy.copy(self.samples[prompt]) for _ in range(self.n_samples)]
        for number, sample in enumerate(out, prompt * self.n_samples):
            sample.index = number
        return out


def eval_datasets(args: Any) -> list[Dataset]:
    """The datasets that the trainer evaluates on.

    Raises:
        ConfigError: there is none.
        InvalidError: a file cannot be read; it names the file.
    """
    configs = getattr(args, "eval_datasets", None)
    if not configs:
        configs = _of_pairs(getattr(args, "eval_prompt_data", None))
    return [_read(args, config) for config in configs]


def _of_pairs(pairs: Any) -> list[Any]:
    """``--eval-prompt-data name path ...``; one value alone is a path with the name aime."""
    if not pairs:
        raise ConfigError(
            "option eval_prompt_data: an Eval was asked for without a dataset; give it, or "
            "eval_config",
            "eval_prompt_data",
        )
    values = [pairs] if isinstance(pairs, str) else list(pairs)
    if len(values) == 1:
        values = ["aime", *values]
    if len(values) % 2:
        raise ConfigError(
            f"option eval_prompt_data: expected pairs of name and path, found {values}",
            "eval_prompt_data",
        )
    return [{"name": n, "path": p} for n, p in zip(values[::2], values[1::2], strict=True)]


def _setting(args: Any, config: Any, name: str, fallback: str) -> Any:
    value = config.get(name) if isinstance(config, Mapping) else getattr(config, name, None)
    return getattr(args, fallback, None) if value is None else value


def _read(args: Any, config: Any) -> Dataset:
    keys = Keys(
        prompt=_setting(args, config, "input_key", "eval_input_key")
        or getattr(args, "input_key", None)
        or "input",
        label=_setting(args, config, "label_key", "eval_label_key")
        or getattr(args, "label_key", None),
        metadata=_setting(args, config, "metadata_key", "metadata_key") or "metadata",
        tools=_setting(args, config, "tool_key", "eval_tool_key")
        or getattr(args, "tool_key", None)
        or "tools",
    )
    name = str(_setting(args, config, "name", ""))
    path = _setting(args, config, "path", "")
    overrides = {
        option: _setting(args, config, option, f"eval_{option}")
        for option in ("temperature", "top_p", "top_k", "max_response_len")
    }
    n_samples = _setting(args, config, "n_samples_per_eval_prompt", "n_samples_per_eval_prompt")
    new = sample_class()

    def sample(number: int, row: Mapping[str, Any]) -> Any:
        return new(group_index=number, **_fields(args, config, row, keys))

    return Dataset(
        name=name,
        samples=list(converted(str(path), trainer_rows(path), sample)),
        n_samples=int(n_samples or 1),
        overrides={k: v for k, v in overrides.items() if v is not None},
    )


def _fields(args: Any, config: Any, row: Mapping[str, Any], keys: Keys) -> dict[str, Any]:
    """What a row of a file gives to its sample, as the trainer makes its samples for training."""
    prompt = prompt_of(row, keys)
    if path := getattr(args, "custom_prompt_path", None):
        prompt = load("custom_prompt_path", path)(prompt, row)
    system = getattr(args, "system_prompt", None)
    # Prompts that are texts get no system prompt where no chat template is applied to them, and
    # agentic runs apply none.
    if system is not None and not isinstance(prompt, str):
        content = [{"type": "text", "text": system}]
        prompt = [{"role": "system", "content": content}, *messages_of(prompt)]
    metadata = metadata_of(row, keys)
    inject = getattr(config, "inject_metadata", None)
    if inject is not None:
        metadata = inject(copy.deepcopy(metadata))
    return {
        "prompt": prompt,
        "label": row.get(keys.label) if keys.label else None,
        "metadata": metadata,
    }


# ---- the trainer's paths -------------------------------------------------------------------------


def trainer_rows(path: Any) -> Iterator[dict[str, Any]]:
    """Yields the rows of what the trainer takes as a dataset's path.

    That is a file or a directory, or a list of them, as a list or as a text in brackets:
    ``[a.jsonl, /data/dir]``. ``@[a:b]`` behind an item takes a part of it, and behind the brackets
    of all. Directories are walked to the bottom, for JSON lines and Parquet. Lines that are not
    JSON are left out with a warning.

    Raises:
        InvalidError: a file is missing, of another kind, or a row is no object; it names the file.
    """
    wanted = slice(None)
    if isinstance(path, str):
        path, wanted = split_part(path)
    rows = itertools.chain.from_iterable(_item_rows(item) for item in _items(path))
    return part_of(rows, wanted)


def _items(path: Any) -> list[str]:
    if not isinstance(path, str):
        return [str(p) for p in path] if isinstance(path, list | tuple) else [str(path)]
    text = path.strip()
    if text[:1] + text[-1:] not in ("[]", "()"):
        return [path]
    try:
        found = ast.literal_eval(text)
    except (ValueError, SyntaxError):  # names without quotes
        items = (item.strip().strip("\"'") for item in text[1:-1].split(","))
        return [item for item in items if item]
    return [str(p) for p in found] if isinstance(found, list | tuple) else [str(found)]


def _item_rows(item: str) -> Iterator[dict[str, Any]]:
    path, wanted = split_part(item)
    rows = (read_file(file, _TRAINER_READERS) for file in _files(Path(path)))
    return part_of(itertools.chain.from_iterable(rows), wanted)


def _files(place: Path) -> list[Path]:
    """The files of a directory in the order of their whole names, or the file itself."""
    if not place.is_dir():
        return [place]
    files = [f for f in place.rglob("*") if f.suffix in _IN_DIRECTORIES and f.is_file()]
    if not files:
        raise InvalidError(f"{place}: no file in it ends with {', '.join(_IN_DIRECTORIES)}")
    return sorted(files, key=str)


def _json_lines(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError as err:
                _LOGGER.warning("%s line %d is left out, as it is not JSON: %s", path, number, err)
                continue
            yield object_of(f"{path} line {number}", row)


_TRAINER_READERS: Mapping[str, Reader] = {**READERS, ".jsonl": _json_lines}
_IN_DIRECTORIES = (".jsonl", ".parquet")
"""A directory may have other JSON files beside its data, which the trainer does not read."""
