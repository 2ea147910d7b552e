"""What the trainer gets back, what it reads in its logs, and what of its own work is done for it.

May enter: samples, reports, args. Never: the engine.
"""

from __future__ import annotations

import functools
import importlib
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ..hooks import load
from ..transfer_queue import run
from .samples import Decode, Sample

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


def sample_class() -> Callable[..., Any]:
    """The trainer's class of samples, or ours where the trainer is not installed.

    For samples that no data source made, those of an Eval: the trainer logs and dumps what it gets
    back by members of its own class.
    """
    return _trainers("relax.utils.types", "Sample") or Sample


def _trainers(module: str, name: str) -> Callable[..., Any] | None:
    try:
        return getattr(importlib.import_module(module), name, None)
    except ImportError:
        return None


# ---- logs ----------------------------------------------------------------------------------------


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


# ---- what the trainer's own agentic rollout does around a step -----------------------------------


def save_train_dump(args: Any, rollout_id: int, samples: list[Any]) -> None:
    """Writes the file of ``--save-debug-rollout-data`` (``--dump-details`` sets it), by the
    trainer's own function. An agentic rollout function does that itself, where Evals are dumped by
    its caller (spec/reference-pipeline.md 7.5, 10.1).
    """
    if not getattr(args, "save_debug_rollout_data", None) or not samples:
        return
    save = _trainers("relax.utils.training.train_dump_utils", "save_debug_rollout_data")
    if save is None:
        _LOGGER.warning(
            "save_debug_rollout_data: not written, as the trainer's package `relax` cannot be "
            "imported here; set it under relax_rollout: for the library's own dump"
        )
        return
    tokenizer = tokenizer_of(getattr(args, "hf_checkpoint", None))
    save(args, samples, rollout_id=rollout_id, evaluation=False, tokenizer=tokenizer)


@contextmanager
def sglang_profile(args: Any, rollout_id: int) -> Iterator[None]:
    """Profiles SGLang while a step runs, by the trainer's own functions, if ``--sglang-profile``
    says so for this step. A profile that fails is a warning: the rollout does not need it."""
    if not getattr(args, "sglang_profile", False):
        yield
        return
    started = _profile("start_sglang_profile", args, rollout_id)
    try:
        yield
    finally:
        if started:
            _profile("stop_sglang_profile", args, rollout_id)


def _profile(name: str, args: Any, rollout_id: int) -> bool:
    """Calls one of the trainer's functions; returns whether it could."""
    function = _trainers("relax.utils.profile_utils", name)
    if function is None:
        _LOGGER.warning(
            "sglang_profile: not done, as the trainer's package `relax` cannot be imported here"
        )
        return False
    try:
        run(function(args, rollout_id))
    except Exception as err:  # of an HTTP client, or whatever the function is made of
        _LOGGER.warning("sglang_profile: %s of step %d: %r", name, rollout_id, err)
        return False
    return True


# ---- the checkpoint ------------------------------------------------------------------------------


def prepare_checkpoint(args: Any) -> None:
    """Gets tokenizer and template of a checkpoint that is not on this machine (``s3://...``), by
    the trainer's own function, which then names the local directory in ``args.hf_checkpoint``."""
    checkpoint = getattr(args, "hf_checkpoint", None)
    if not checkpoint or os.path.isdir(checkpoint):  # noqa: PTH112 - may be a URL
        return
    if prepare := _trainers("relax.utils.s3_model_loader", "prepare_model_maybe_update_args"):
        prepare(args, completeness="metadata")


@functools.lru_cache(maxsize=1)  # loading takes seconds, and a process has one model
def tokenizer_of(checkpoint: str | None) -> Any:
    """The checkpoint's tokenizer, None where none can be loaded."""
    if not checkpoint:
        return None
    try:
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(checkpoint, trust_remote_code=True)
    except Exception as err:  # whatever a checkpoint's own code raises
        _LOGGER.warning("samples have no prompt and response texts: no tokenizer: %s", err)
        return None


def decoder(args: Any) -> Decode:
    """Decodes tokens as the model's tokenizer does; to "" where none can be loaded."""
    tokenizer = tokenizer_of(getattr(args, "hf_checkpoint", None))
    if tokenizer is None:
        return lambda _: ""
    return lambda tokens: str(tokenizer.decode(tokens)) if tokens else ""
