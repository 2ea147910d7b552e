"""Relax Rollout: the rollout side of agentic RL, embedded in the trainer.

An :class:`Engine` starts an agent app once per Session, serves it a model endpoint, records
every sampled token and returns training rows as a zero-copy :class:`Batch`. Here the agent is a
few lines and, without ``sglang_url``, the embedded simulator is the model:

>>> import sys, tempfile
>>> from pathlib import Path
>>> import relax_rollout as rr
>>> agent = '''
... import json, os, urllib.request
... task = json.load(open(os.environ["RELAX_INPUT_JSON"]))
... request = urllib.request.Request(
...     os.environ["RELAX_BASE_URL"] + "v1/chat/completions",
...     json.dumps({"model": "m", "messages": task["messages"]}).encode(),
...     {"Authorization": "Bearer " + os.environ["RELAX_SESSION_ID"]})
... urllib.request.urlopen(request).read()
... json.dump({"reward": 1.0}, open(os.environ["RELAX_OUTPUT_JSON"], "w"))
... '''
>>> with tempfile.TemporaryDirectory() as cwd:
...     _ = Path(cwd, "agent.py").write_text(agent)
...     command = f"{sys.executable} agent.py"
...     config = rr.Config(agent_command=command, agent_cwd=cwd, n_samples_per_prompt=2)
...     with rr.Engine(config) as engine:
...         engine.set_weight_version(7)
...         batch = engine.rollout(0, ["What is 2 + 2?"])
>>> len(batch), batch.numpy("reward").tolist(), batch.numpy("seg_weight_version").tolist()
(2, [1.0, 1.0], [7, 7])
>>> row = batch[0]
>>> len(row.tokens) == len(row.loss_mask) == len(row.logprobs)
True
>>> batch.report.session_balance
Balance(started=2, delivered=2, dropped=0, carried=0, carried_in=0)

:func:`doctor` looks at a model's chat format without an Engine.

Importing the package loads no library and starts no thread; both happen when the first
Engine is made, or :func:`doctor` called.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ._version import __version__

if TYPE_CHECKING:
    from .batch import Batch, MicroBatch
    from .chat_format import (
        FormatCheck,
        FormatPrompt,
        FormatReport,
        FormatSpan,
        FormatToken,
        TemplateReport,
        doctor,
    )
    from .columns import Column
    from .config import Config
    from .engine import Engine
    from .errors import (
        AlreadyOpenError,
        BackendError,
        ClosedError,
        ConfigError,
        EngineIOError,
        ForkedError,
        InvalidError,
        LibraryError,
        OutOfMemoryError,
        PanicError,
        RelaxError,
        StateError,
        StepFailedError,
    )
    from .evaluation import EvalDataset, EvalResult
    from .events import Event, EventKind
    from .hooks import Hooks, Judgement
    from .report import Balance, DatasetReport, Drop, DropExample, PartitionReport, StepReport
    from .row import Row, Segment, Turn
    from .sharing import SharedBatch

__all__ = [
    "AlreadyOpenError",
    "BackendError",
    "Balance",
    "Batch",
    "ClosedError",
    "Column",
    "Config",
    "ConfigError",
    "DatasetReport",
    "Drop",
    "DropExample",
    "Engine",
    "EngineIOError",
    "EvalDataset",
    "EvalResult",
    "Event",
    "EventKind",
    "ForkedError",
    "FormatCheck",
    "FormatPrompt",
    "FormatReport",
    "FormatSpan",
    "FormatToken",
    "Hooks",
    "InvalidError",
    "Judgement",
    "LibraryError",
    "MicroBatch",
    "OutOfMemoryError",
    "PanicError",
    "PartitionReport",
    "RelaxError",
    "Row",
    "Segment",
    "SharedBatch",
    "StateError",
    "StepFailedError",
    "StepReport",
    "TemplateReport",
    "Turn",
    "__version__",
    "doctor",
]

_HOMES = {
    "batch": ("Batch", "MicroBatch"),
    "chat_format": (
        "FormatCheck",
        "FormatReport",
        "FormatPrompt",
        "FormatSpan",
        "FormatToken",
        "TemplateReport",
        "doctor",
    ),
    "columns": ("Column",),
    "config": ("Config",),
    "engine": ("Engine",),
    "evaluation": ("EvalDataset", "EvalResult"),
    "events": ("Event", "EventKind"),
    "hooks": ("Hooks", "Judgement"),
    "report": (
        "Balance",
        "DatasetReport",
        "Drop",
        "DropExample",
        "PartitionReport",
        "StepReport",
    ),
    "row": ("Row", "Segment", "Turn"),
    "sharing": ("SharedBatch",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Imports the module of a public name when the name is first used (PEP 562)."""
    if name not in __all__:
        raise AttributeError(f"module 'relax_rollout' has no attribute {name!r}")
    module = importlib.import_module(f".{_HOME_OF.get(name, 'errors')}", __name__)
    value = getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
