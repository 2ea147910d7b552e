"""The prompts of an Eval: the trainer's eval_datasets, read and made into samples.

May enter: args, files, the trainer's class of samples. Never: the engine.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import ConfigError
from ..hooks import load
from ..task_files import Keys, convert_rows, metadata_of, prompt_of
from .outputs import sample_class
from .samples import messages_of


@dataclass(frozen=True)
class Dataset:
    """One dataset of an Eval, and the trainer's settings for it."""

    name: str
    samples: list[Any]
    """One for each prompt."""
    n_samples: int
    overrides: dict[str, Any]
    """Sampling settings that are not training's, by the engine's names."""


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
    path = str(_setting(args, config, "path", ""))
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
        samples=list(convert_rows(path, sample)),
        n_samples=int(n_samples or 1),
        overrides={k: v for k, v in overrides.items() if v is not None},
    )


def _fields(args: Any, config: Any, row: Mapping[str, Any], keys: Keys) -> dict[str, Any]:
    """What a row of a file gives to its sample."""
    prompt = prompt_of(row, keys)
    if path := getattr(args, "custom_prompt_path", None):
        prompt = load("custom_prompt_path", path)(prompt, row)
    if system := getattr(args, "system_prompt", None):
        prompt = [{"role": "system", "content": system}, *messages_of(prompt)]
    metadata = metadata_of(row, keys)
    inject = getattr(config, "inject_metadata", None)
    if inject is not None:
        metadata = inject(copy.deepcopy(metadata))
    return {
        "prompt": prompt,
        "label": row.get(keys.label) if keys.label else None,
        "metadata": metadata,
    }
