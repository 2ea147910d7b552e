"""What the trainer gets back, and what it reads in its logs.

May enter: samples, reports, args. Never: the engine.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..hooks import load
from .samples import Decode

_LOGGER = logging.getLogger("relax_rollout.relax")


@dataclass
class RolloutFnTrainOutput:
    """The trainer's class of this name, where the trainer is not installed."""

    samples: list[list[Any]]
    metrics: dict[str, Any] | None = None


@dataclass
class RolloutFnEvalOutput:
    """The trainer's class of this name, where the trainer is not installed."""

    data: dict[str, dict[str, Any]]
    metrics: dict[str, Any] | None = None


def output(name: str, **fields: Any) -> Any:
    """An object of the trainer's class of that name, or of ours."""
    found = _trainers("relax.engine.rollout.base_types", name)
    return (found or globals()[name])(**fields)


def _trainers(module: str, name: str) -> Callable[..., Any] | None:
    try:
        return getattr(importlib.import_module(module), name, None)
    except ImportError:
        return None


_LOGGERS = ("relax.distributed.ray.rollout", "relax.engine.rollout.workload")
"""Where trainers have the function that logs a step to their trackers."""


def log_train(
    args: Any, rollout_id: int, samples: list[Any], metrics: dict[str, float], seconds: float
) -> None:
    """Logs a step: by the trainer's own function if there is one, else as lines."""
    for module in _LOGGERS:
        if function := _trainers(module, "_log_rollout_data"):
            function(rollout_id, args, samples, metrics, seconds)
            return
    if path := getattr(args, "custom_rollout_log_function_path", None):
        function = load("custom_rollout_log_function_path", path)
        if function(rollout_id, args, samples, metrics, seconds):
            return
    if getattr(args, "load_debug_rollout_data", None):
        return
    perf = {k: v for k, v in metrics.items() if k.startswith("perf/")}
    perf.setdefault("perf/rollout_time", seconds)
    rest = {k: v for k, v in metrics.items() if not k.startswith("perf/")}
    _LOGGER.info("perf %s: %s", rollout_id, perf)
    _LOGGER.info(
        "rollout %s: %s", rollout_id, {**rest, "rollout/step": rollout_step(args, rollout_id)}
    )


def rollout_step(args: Any, rollout_id: int) -> int:
    """The step that trackers show."""
    if not getattr(args, "wandb_always_use_train_step", False):
        return rollout_id
    samples = rollout_id * args.rollout_batch_size * args.n_samples_per_prompt
    return int(samples // args.global_batch_size)


def show_sample(which: str, sample: Any) -> None:
    """The line by which people check that a run does what it should."""
    text = f"{sample.prompt}{sample.response}"
    shown = text if len(text) <= 2000 else f"{text[:1000]} ... {text[-1000:]}"
    _LOGGER.info("%s: %r, label: %s, reward: %s", which, shown, sample.label, sample.reward)


def decoder(args: Any) -> Decode:
    """Decodes tokens as the model's tokenizer does; to "" where none can be loaded."""
    checkpoint = getattr(args, "hf_checkpoint", None)
    if not checkpoint:
        return lambda _: ""
    try:
        from transformers import AutoTokenizer

        tokenizer: Any = AutoTokenizer.from_pretrained(checkpoint, trust_remote_code=True)
    except Exception as err:  # whatever a checkpoint's own code raises
        _LOGGER.warning("samples have no prompt and response texts: no tokenizer: %s", err)
        return lambda _: ""
    return lambda tokens: str(tokenizer.decode(tokens)) if tokens else ""
