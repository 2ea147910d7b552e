"""``python -m relax_rollout run``: collects rollouts of a file of tasks into a file.

May enter: command-line arguments, the public API. Never: the library.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import logging
import math
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .batch import Batch
from .collect_files import Writer, open_writer
from .config import Config, describe_options, environment
from .console import mute_stdout
from .errors import ConfigError, InvalidError, RelaxError, StepFailedError
from .hooks import Hooks
from .report import StepReport
from .task_files import Keys, convert_rows, task_of

if TYPE_CHECKING:
    from .engine import Engine

OK, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130
"""Exit statuses: all steps ended; a step failed or there are no rows; the command line, a file or
an option is wrong; Ctrl-C. What was collected before is in the output file in any case."""

_GROUPS_A_STEP = 8
_CAUSE_LINES = 4
_EXAMPLES = 3
_HOOKS = ("reward", "group_reward", "advantage", "filter")


def add_parser(commands: Any) -> None:
    """Adds the command to those of ``python -m relax_rollout``."""
    parser = commands.add_parser(
        "run",
        allow_abbrev=False,
        help="collect rollouts of a file of tasks into Parquet or JSON lines",
        description="Runs an agent app on every task of a file, against an SGLang server or the "
        "built-in simulator, and writes one record for each training context. Exit status: 0; 1 if "
        "a step failed or nothing was collected; 2 for a wrong command line, file or option; 130 "
        "after Ctrl-C. What was collected before is written in any case.",
        epilog=f"A step is rollout_batch_size Groups, {_GROUPS_A_STEP} if it is not given; their "
        "rows are written when it ends. Every option of relax_rollout.Config is below under its "
        "own name.",
    )
    files = parser.add_argument_group("files")
    files.add_argument(
        "--tasks", required=True, metavar="FILE", help=".jsonl, .json, .parquet; FILE@[a:b] a part"
    )
    files.add_argument("--output", required=True, metavar="FILE", help=".parquet or .jsonl")
    files.add_argument("--input-key", default="input", metavar="COLUMN", help="has the prompt")
    files.add_argument("--label-key", metavar="COLUMN", help="goes into the metadata")
    files.add_argument("--metadata-key", default="metadata", metavar="COLUMN", help="an object")
    files.add_argument("--tool-key", metavar="COLUMN", help="goes into the metadata as tools")
    amount = parser.add_argument_group("how much")
    amount.add_argument("--steps", type=_positive, help="end after so many steps")
    amount.add_argument(
        "--epochs", type=_positive, default=1, help="times the file is gone through"
    )
    hooks = parser.add_argument_group("hooks")
    hooks.add_argument(
        "--hooks",
        nargs="+",
        type=_hook,
        default=[],
        metavar="NAME=PATH",
        help=f"import paths for {', '.join(_HOOKS)}, as reward=my_package.rewards.judge",
    )
    hooks.add_argument("--hook-threads", type=_positive, default=8, help="for plain functions")
    hooks.add_argument("--hook-timeout", type=float, metavar="SECONDS", help="of one call")
    parser.add_argument("--quiet", action="store_true", help="no progress bar and no log lines")
    options = parser.add_argument_group("options of the engine")
    for name, kind, doc in describe_options():
        _add_option(options, name, kind, doc)


def _add_option(group: Any, name: str, kind: str, doc: str) -> None:
    flag, help_ = f"--{name.replace('_', '-')}", doc.replace("%", "%%")
    dest = f"option_{name}"
    if kind == "bool":
        group.add_argument(flag, dest=dest, action=argparse.BooleanOptionalAction, help=help_)
    elif kind.startswith("list of"):
        item = int if kind.endswith("int") else str
        group.add_argument(flag, dest=dest, nargs="*", type=item, metavar=item.__name__, help=help_)
    elif kind == "mapping of str to str":
        group.add_argument(flag, dest=dest, nargs="*", metavar="KEY=VALUE", help=help_)
    elif kind.startswith("mapping"):
        group.add_argument(flag, dest=dest, type=_json_object, metavar="JSON", help=help_)
    else:
        read = {"int": int, "finite number": float}.get(kind, str)
        group.add_argument(flag, dest=dest, type=read, metavar=kind.split()[-1], help=help_)


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a positive number, found {text}")
    return int(text)


def _hook(text: str) -> tuple[str, str]:
    name, _, path = text.partition("=")
    name = name.replace("-", "_")
    if name not in _HOOKS or not path:
        raise argparse.ArgumentTypeError(f"expected one of {', '.join(_HOOKS)}=PATH, found {text}")
    return name, path


def _json_object(text: str) -> dict[str, Any]:
    """A JSON object, or @FILE with one in it."""
    try:
        value = json.loads(Path(text[1:]).read_bytes() if text.startswith("@") else text)
    except (OSError, ValueError) as err:
        raise argparse.ArgumentTypeError(f"cannot be read as JSON: {err}") from err
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"expected a JSON object, found {text}")
    return value


# ---- the run -------------------------------------------------------------------------------------


def main(args: argparse.Namespace) -> int:
    """Collects, and returns the exit status."""
    level = logging.CRITICAL + 1 if args.quiet else logging.INFO
    logging.basicConfig(level=level, format="%(message)s")
    try:
        config, hooks = _config(args), _hooks(args)
        tasks = _Tasks(args)
        _refuse_same_file(args)
        writer = open_writer(args.output)
    except (InvalidError, OSError) as err:
        print(f"python -m relax_rollout run: {err}", file=sys.stderr)
        return USAGE
    totals = Totals()
    try:
        return _collect(args, config, hooks, tasks, writer, totals)
    finally:
        try:
            print(totals.describe(args.output), flush=True)
        except BrokenPipeError:
            mute_stdout()


def _refuse_same_file(args: argparse.Namespace) -> None:
    tasks, output = Path(args.tasks.partition("@[")[0]), Path(args.output)
    if tasks.exists() and output.exists() and output.samefile(tasks):
        raise InvalidError(f"{output}: it is the file of the tasks; choose another --output")


def _collect(
    args: argparse.Namespace,
    config: Config,
    hooks: Hooks,
    tasks: _Tasks,
    writer: Writer,
    totals: Totals,
) -> int:
    from .engine import Engine

    try:
        with writer, Engine(config, hooks=hooks, progress=not args.quiet) as engine:
            for step in _steps(args, config):
                if not (tasks.left() or totals.carried):
                    break
                with engine.rollout(step, tasks) as batch:
                    writer.write(batch)
                    totals.add(batch)
                    _take(engine, batch)
    except StepFailedError as err:
        totals.add_report(err.report)
        print(err, file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except (ConfigError, InvalidError) as err:
        print(err, file=sys.stderr)
        return USAGE
    except (RelaxError, OSError) as err:
        print(err, file=sys.stderr)
        return FAILED
    return OK if totals.rows else FAILED


def _steps(args: argparse.Namespace, config: Config) -> Iterable[int]:
    """The rollouts that may be run: num_rollout itself is the final backfill of fully_async."""
    limits = [args.steps] if args.steps else []
    if config.num_rollout:
        limits.append(config.num_rollout + bool(config.fully_async))
    return range(min(limits)) if limits else itertools.count()


def _take(engine: Engine, batch: Batch) -> None:
    """Says that partitions were taken: a fully_async engine waits for that."""
    assert batch.report is not None
    for partition in batch.report.partitions:
        if partition.complete:
            engine.consumed(partition.id)


def _config(args: argparse.Namespace) -> Config:
    options = {f.name: getattr(args, f"option_{f.name}") for f in dataclasses.fields(Config)}
    options = {k: v for k, v in options.items() if v is not None}
    if "agent_env" in options:
        options["agent_env"] = environment(options["agent_env"])
    options.setdefault("rollout_batch_size", _GROUPS_A_STEP)
    return Config.from_dict(options)


def _hooks(args: argparse.Namespace) -> Hooks:
    return Hooks(**dict(args.hooks), threads=args.hook_threads, timeout=args.hook_timeout)


class _Tasks(Iterator[dict[str, Any]]):
    """The file's tasks, as often as was asked for. The first is read at once: faults show early."""

    def __init__(self, args: argparse.Namespace) -> None:
        keys = Keys(args.input_key, args.label_key, args.metadata_key, args.tool_key)
        self._rows = (
            task
            for _ in range(args.epochs)
            for task in convert_rows(args.tasks, lambda _, row: task_of(row, keys))
        )
        self._ahead: list[dict[str, Any]] = []
        if not self.left():
            raise InvalidError(f"{args.tasks}: no task in it")

    def left(self) -> bool:
        """Whether there is another task."""
        if not self._ahead:
            self._ahead = list(itertools.islice(self._rows, 1))
        return bool(self._ahead)

    def __next__(self) -> dict[str, Any]:
        if self.left():
            return self._ahead.pop()
        raise StopIteration


# ---- the summary ---------------------------------------------------------------------------------


class Totals:
    """What a run brought, and what it lost."""

    def __init__(self) -> None:
        self.rows = 0
        self.carried = 0
        """Groups that the last step left to the next."""
        self._steps = self._groups = self._sessions = self._sampled = self._tokens = 0
        self._rewards: list[float] = []
        self._turns: list[int] = []
        self._drops: dict[str, list[Any]] = {}
        self._began = time.monotonic()

    def add(self, batch: Batch) -> None:
        """Counts a step that ended."""
        assert batch.report is not None
        self.rows += len(batch)
        self._tokens += batch.n_tokens
        self._turns += batch.numpy("turns").tolist()
        rewards = dict(
            zip(
                batch.numpy("sample_indices").tolist(),
                batch.numpy("raw_reward").tolist(),
                strict=True,
            )
        )
        self._rewards += [r for r in rewards.values() if not math.isnan(r)]
        self.add_report(batch.report)

    def add_report(self, report: StepReport) -> None:
        """Counts what a step's report says."""
        self._steps += 1
        self.carried = report.group_balance.carried
        self._groups += report.group_balance.delivered
        self._sessions += report.session_balance.delivered
        self._sampled += report.token_balance.delivered
        for drop in report.drops:
            entry = self._drops.setdefault(drop.reason, [0, 0, drop.first, []])
            entry[3] += drop.examples
            entry[0] += drop.groups
            entry[1] += drop.sessions

    def describe(self, output: str) -> str:
        """The table that ends a run."""
        lines = [
            ("output", output if self.rows else f"{output} was not written"),
            ("steps", f"{self._steps} in {time.monotonic() - self._began:.1f} s"),
            ("groups", f"{self._groups} ({self._sessions} sessions, {self.rows} rows)"),
            ("tokens", f"{self._tokens}, {self._sampled} of them sampled"),
            ("rewards", _spread(self._rewards)),
            ("turns", _spread(self._turns)),
        ]
        if self.carried:
            lines.append(("unfinished", f"{self.carried} groups, which ended with the last step"))
        for reason, (groups, sessions, first, examples) in sorted(self._drops.items()):
            lines.append((f"dropped: {reason}", f"{groups} groups, {sessions} sessions"))
            lines += [("", f"  {line}") for line in first.strip().splitlines()[:_CAUSE_LINES]]
            lines += [("", f"  {example}") for example in examples[:_EXAMPLES]]
        width = max(len(name) for name, _ in lines)
        return "\n".join(f"{name:{width}}  {value}" for name, value in lines)


def _spread(values: Iterable[float]) -> str:
    numbers = list(values)
    if not numbers:
        return "none"
    mean = sum(numbers) / len(numbers)
    return f"mean {mean:.3g}, least {min(numbers):.3g}, most {max(numbers):.3g}"
