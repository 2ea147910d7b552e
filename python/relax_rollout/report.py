"""What became of everything a rollout step started."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Balance:
    """One line of the accounts: ``started == delivered + dropped + carried``."""

    started: int = 0
    delivered: int = 0
    dropped: int = 0
    carried: int = 0

    @classmethod
    def _read(cls, data: Mapping[str, Any]) -> Balance:
        return cls(*(int(data.get(k) or 0) for k in ("started", "delivered", "dropped", "carried")))


@dataclass(frozen=True)
class Drop:
    """The Groups dropped for one reason."""

    reason: str
    """A short stable word: agent_exit, agent_timeout, first_request_timeout, no_request,
    start_failed, invalid_output, export, reward, score, step_end, closed."""
    groups: int = 0
    sessions: int = 0
    tokens: int = 0
    first: str = ""
    """The first such Group's cause, with exit code and log tail where there are any."""

    @classmethod
    def _read(cls, data: Mapping[str, Any]) -> Drop:
        return cls(
            reason=str(data.get("reason", "")),
            groups=int(data.get("groups") or 0),
            sessions=int(data.get("sessions") or 0),
            tokens=int(data.get("tokens") or 0),
            first=str(data.get("first") or ""),
        )


@dataclass(frozen=True)
class StepReport:
    """The end of one rollout step, at ``batch.report`` and ``engine.last_report``.

    >>> report = StepReport.from_dict(
    ...     {"rollout": 4, "accounting": {"groups": {"started": 3, "delivered": 2, "dropped": 1}}}
    ... )
    >>> report.group_balance
    Balance(started=3, delivered=2, dropped=1, carried=0)
    """

    rollout: int
    groups: int
    """Groups delivered in the step's batch."""
    rows: int
    """Rows delivered in the step's batch."""
    debt: int
    """Groups missing from ``rollout_batch_size`` because tasks ran out or the step failed."""
    seconds: float
    """Wall time of the step."""
    error: str | None
    """The first cause, if the step ended on ``max_consecutive_dropped_groups``."""
    group_balance: Balance
    session_balance: Balance
    token_balance: Balance
    """Sampled tokens. Delivered ones are those with loss mask 1 in the batch."""
    drops: tuple[Drop, ...]
    metrics: dict[str, float]
    """The step's numbers under the reference's names, such as ``rollout/raw_reward``."""
    raw: dict[str, Any] = field(repr=False)
    """The whole report as the engine sent it."""

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
            raw=dict(data),
        )
