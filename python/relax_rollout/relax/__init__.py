"""The rollout function of the Relax trainer, as a drop-in.

Give the trainer a YAML file by ``--custom-config-path`` (``examples/relax/drop_in.yaml``)::

    use_agentic_rollout: false
    rollout_function_path: relax_rollout.relax.generate_rollout
    eval_function_path: relax_rollout.relax.generate_rollout

and leave all other options as they are, ``--use-agentic-rollout`` included: the trainer checks them
and then calls :func:`generate_rollout` for each step. The engine starts with the first call, stays
over calls, and ends with the process.
"""

from __future__ import annotations

import os
import threading
from typing import Any

from .outputs import RolloutFnEvalOutput, RolloutFnTrainOutput
from .resident import Resident, ended_badly
from .samples import Sample

__all__ = [
    "RolloutFnEvalOutput",
    "RolloutFnTrainOutput",
    "Sample",
    "generate_rollout",
    "init_agentic_resident_pipeline",
    "shutdown",
]

_lock = threading.Lock()
"""One step or Eval at a time: the trainer starts an Eval in the background."""
_resident: tuple[int, Resident] | None = None
"""The process's engine, with the pid it belongs to."""


def generate_rollout(
    args: Any,
    rollout_id: int,
    data_source: Any,
    data_system_client: Any = None,
    evaluation: bool = False,
) -> Any:
    """Runs one step of a training run, or an Eval (spec/reference-pipeline.md 10.1).

    A step's rows are in the partition ``train_{rollout_id}`` of the queue, and can be read, when
    this returns; with ``fully_async`` some pay the debt of the partition before. Without a client
    nothing is put. An Eval puts nothing.

    Args:
        args: The trainer's arguments.
        rollout_id: The step, from 0 on; ``num_rollout`` itself is the final backfill of a
            fully-async run.
        data_source: Has ``get_samples(n)``, itself or as a Ray actor.
        data_system_client: A TransferQueue client.
        evaluation: Run ``args.eval_datasets`` instead of a step.

    Returns:
        The trainer's ``RolloutFnTrainOutput`` or ``RolloutFnEvalOutput``, or an object with the
        same fields where the trainer is not installed.

    Raises:
        ConfigError: an option cannot be served; it names the option.
        StepFailedError: too many Groups in a row were dropped; it names the first cause.
        InvalidError: the data source gave no or wrong samples.
        Exception: what came after the rollout raised: a converter or post-process function, a put,
            a dump, a log function. The rows are kept, and calling again with the same rollout_id
            goes on with that.
    """
    with _lock:
        resident = _engine_for(args)
        try:
            if evaluation:
                return resident.evaluate(args, rollout_id)
            return resident.train(args, rollout_id, data_source, data_system_client)
        except BaseException as err:
            if ended_badly(err):
                _close()
            raise


def init_agentic_resident_pipeline(
    args: Any, data_source: Any = None, data_system_client: Any = None
) -> None:
    """Does nothing: the engine starts with the first step, when the trainer's router runs."""
    del args, data_source, data_system_client


def shutdown() -> None:
    """Ends the engine and its agents; the next call starts another."""
    with _lock:
        _close()


def _engine_for(args: Any) -> Resident:
    global _resident
    if _resident is not None and _resident[0] == os.getpid() and not _resident[1].fits(args):
        _close()
    if _resident is None or _resident[0] != os.getpid():
        _resident = (os.getpid(), Resident(args))
    return _resident[1]


def _close() -> None:
    global _resident
    if _resident is not None and _resident[0] == os.getpid():
        _resident[1].close()
    _resident = None
