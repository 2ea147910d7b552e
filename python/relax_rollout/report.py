"""What became of everything a rollout step started."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any


@dataclass(frozen=True)
class Balance:
    """One line of the accounts: ``started + carried_in == delivered + dropped + carried``."""

    started: int = 0
    delivered: int = 0
    dropped: int = 0
    carried: int = 0
    """Taken into the next step unfinished, by ``partial_rollout``, ``fully_async`` or
    ``agentic_prelaunch``."""
    carried_in: int = 0
    """Started in an earlier step that carried them."""

    @classmethod
    def _read(cls, data: Mapping[str, Any]) -> Balance:
        return cls(*(int(data.get(f.name) or 0) for f in fields(cls)))


@dataclass(frozen=True)
class DropExample:
    """Where to find what happened in a dropped Session."""

    session_id: str
    group_id: str = ""
    seq: int = 0
    """Its place in its Group."""
    exit_code: int | None = None
    """The agent's; None if it did not run or a signal ended it."""
    signal: str = ""
    cause: str = ""
    """A text for people, with the end of the agent's output if the Session is at fault."""
    log: str = ""
    """The file that keeps the agent's output, "" for none. Without ``run_dir`` it is gone when the
    engine is closed."""
    trace: str = ""
    """The file with the Session's trace, to be read by ``python -m relax_rollout trace FILE
    --session ID``; "" if neither ``trace_dir`` nor ``save_debug_rollout_data`` is set."""

    @classmethod
    def _read(cls, data: Mapping[str, Any]) -> DropExample:
        code = data.get("exit_code")
        return cls(
            session_id=str(data.get("session_id", "")),
            group_id=str(data.get("group_id", "")),
            seq=int(data.get("seq") or 0),
            exit_code=None if code is None else int(code),
            signal=str(data.get("signal") or ""),
            cause=str(data.get("cause") or ""),
            log=str(data.get("log") or ""),
            trace=str(data.get("trace") or ""),
        )

    def __str__(self) -> str:
        """One line: which Session, how it ended, and its files."""
        parts = [f"{self.session_id} ({self.group_id}/{self.seq})"]
        if self.exit_code is not None:
            parts.append(f"exit code {self.exit_code}")
        if self.signal:
            parts.append(f"signal {self.signal}")
        parts += [
            f"{name} {path}" for name, path in (("log", self.log), ("trace", self.trace)) if path
        ]
        return ", ".join(parts)


@dataclass(frozen=True)
class Drop:
    """The Groups dropped for one reason."""

    reason: str
    """A short stable word: agent_exit, agent_timeout, first_request_timeout, no_request,
    left_before_lease, start_failed, invalid_output, export, reward, score, advantage, filter,
    filtered, filtered:<word>, step_end, surplus, memory; of tokens alone not_exported,
    repeated, undelivered, uncommitted, retried."""
    groups: int = 0
    sessions: int = 0
    tokens: int = 0
    first: str = ""
    """The first such Group's cause, with exit code and log tail where there are any."""
    examples: tuple[DropExample, ...] = ()
    """At most 5 of the Sessions: those at fault, or one of each Group if none is."""

    @classmethod
    def _read(cls, data: Mapping[str, Any]) -> Drop:
        return cls(
            reason=str(data.get("reason", "")),
            groups=int(data.get("groups") or 0),
            sessions=int(data.get("sessions") or 0),
            tokens=int(data.get("tokens") or 0),
            first=str(data.get("first") or ""),
            examples=tuple(DropExample._read(e) for e in data.get("examples") or ()),
        )

    def __str__(self) -> str:
        """The count, the first cause, and a line for each example."""
        lines = [
            f"{self.reason}: {self.groups} groups, {self.sessions} sessions, {self.tokens} tokens"
        ]
        lines += [f"    {line}" for line in self.first.splitlines()]
        lines += [f"  {example}" for example in self.examples]
        return "\n".join(lines)


@dataclass(frozen=True)
class PartitionReport:
    """What the step did for one partition of a ``fully_async`` run."""

    id: int
    """The rollout the rows belong to, as the column ``partition`` has it."""
    groups: int = 0
    """Groups that this step delivered into it."""
    debt: int = 0
    """Groups it still owes; a later step delivers them, unless it is ``short``."""
    complete: bool = False
    """Nothing more comes: once trained, say so with :meth:`Engine.consumed`."""
    short: bool = False
    """What it owes never comes: tasks ran out, or a batch could not be built. No step waits for
    :meth:`Engine.consumed`."""

    @classmethod
    def _read(cls, data: Mapping[str, Any]) -> PartitionReport:
        return cls(
            id=int(data.get("id") or 0),
            groups=int(data.get("groups") or 0),
            debt=int(data.get("debt") or 0),
            complete=bool(data.get("complete")),
            short=bool(data.get("short")),
        )


@dataclass(frozen=True)
class DatasetReport:
    """What became of one dataset's samples in an Eval."""

    name: str
    samples: int = 0
    delivered: int = 0
    dropped: int = 0
    rewards: tuple[float, ...] = ()
    """One for each delivered sample, NaN where it has none."""
    truncated: tuple[bool, ...] = ()

    @classmethod
    def _read(cls, data: Mapping[str, Any]) -> DatasetReport:
        return cls(
            name=str(data.get("name", "")),
            samples=int(data.get("samples") or 0),
            delivered=int(data.get("delivered") or 0),
            dropped=int(data.get("dropped") or 0),
            rewards=tuple(
                math.nan if reward is None else float(reward)
                for reward in data.get("rewards") or ()
            ),
            truncated=tuple(map(bool, data.get("truncated") or ())),
        )


@dataclass(frozen=True)
class StepReport:
    """The end of a rollout step or an Eval, at ``batch.report`` and ``engine.last_report``.

    >>> report = StepReport.from_dict(
    ...     {"rollout": 4, "accounting": {"groups": {"started": 3, "delivered": 2, "dropped": 1}}}
    ... )
    >>> report.group_balance
    Balance(started=3, delivered=2, dropped=1, carried=0, carried_in=0)
    """

    rollout: int
    groups: int
    """Groups delivered in the step's batch."""
    rows: int
    """Rows delivered in the step's batch."""
    debt: int
    """Groups missing from ``rollout_batch_size`` because tasks ran out or the step failed; with
    ``fully_async`` those that all open partitions owe."""
    seconds: float
    """Wall time of the step."""
    error: str | None
    """The first cause, if the step ended on ``max_consecutive_dropped_groups``, or why its batch
    could not be built."""
    group_balance: Balance
    session_balance: Balance
    token_balance: Balance
    """Sampled tokens. Delivered ones are those with loss mask 1 in the batch."""
    drops: tuple[Drop, ...]
    metrics: dict[str, float]
    """The step's numbers under the reference's names, such as ``rollout/raw_reward``."""
    partitions: tuple[PartitionReport, ...]
    """Those the step worked on, oldest first; only with ``fully_async``."""
    interrupted_groups: int
    """Carried Groups with a request that is parked."""
    filtered: int
    """Dropped Groups that a filter or the advantage hook took out."""
    retries: int
    """Sessions that were run again; see ``agent_retries``."""
    eval: bool
    """The step was an Eval."""
    datasets: tuple[DatasetReport, ...]
    """Those of an Eval, in their order."""
    raw: dict[str, Any] = field(repr=False)
    """The whole report as the engine sent it."""

    def __str__(self) -> str:
        """The step for people: its balance, and of each reason for drops what to look at.

        >>> print(StepReport.from_dict({"rollout": 4, "rows": 2, "drops": [
        ...     {"reason": "agent_exit", "groups": 1, "first": "agent exited with code 7",
        ...      "examples": [{"session_id": "session-1", "group_id": "train:group_3",
        ...                    "exit_code": 7, "log": "/run/failed/session-1.log"}]}]}))
        rollout 4: 0 groups, 2 rows in 0.0 s
          sessions: 0 started + 0 carried in = 0 delivered + 0 dropped + 0 carried
          tokens: 0 started + 0 carried in = 0 delivered + 0 dropped + 0 carried
        dropped agent_exit: 1 groups, 0 sessions, 0 tokens
            agent exited with code 7
          session-1 (train:group_3/0), exit code 7, log /run/failed/session-1.log
        """
        kind = "eval" if self.eval else "rollout"
        lines = [
            f"{kind} {self.rollout}: {self.groups} groups, {self.rows} rows in {self.seconds:.1f} s"
        ]
        for name, b in (("sessions", self.session_balance), ("tokens", self.token_balance)):
            lines.append(
                f"  {name}: {b.started} started + {b.carried_in} carried in = "
                f"{b.delivered} delivered + {b.dropped} dropped + {b.carried} carried"
            )
        if self.error is not None:
            lines.append(f"  failed: {self.error}")
        return "\n".join([*lines, *(f"dropped {drop}" for drop in self.drops)])

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> StepReport:
        """Reads the data of a step-end event; what is missing counts as zero."""
        accounting = data.get("accounting") or {}
        return cls(
            rollout=int(data.get("rollout") or 0),
            groups=int(data.get("groups") or 0),
            rows=int(data.get("rows") or 0),
            debt=int(data.get("debt") or 0),
            seconds=float(data.get("seconds") or 0.0),
            error=data.get("error") or None,
            group_balance=Balance._read(accounting.get("groups") or {}),
            session_balance=Balance._read(accounting.get("sessions") or {}),
            token_balance=Balance._read(accounting.get("tokens") or {}),
            drops=tuple(Drop._read(d) for d in data.get("drops") or ()),
            metrics=dict(data.get("metrics") or {}),
            partitions=tuple(PartitionReport._read(p) for p in data.get("partitions") or ()),
            interrupted_groups=int(data.get("interrupted_groups") or 0),
            filtered=int(data.get("filtered") or 0),
            retries=int(data.get("retries") or 0),
            eval=bool(data.get("eval")),
            datasets=tuple(DatasetReport._read(d) for d in data.get("datasets") or ()),
            raw=dict(data),
        )
