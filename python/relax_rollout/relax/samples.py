"""What a trainer's Sample becomes on its way: a task going out, training rows coming back.

May enter: samples of the data source, batches, a decoder of tokens. Never: the engine.
"""

from __future__ import annotations

import copy
import enum
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from ..batch import Batch
from ..errors import InvalidError
from ..hooks import full_metadata
from ..row import Row

Decode: TypeAlias = Callable[[list[int]], str]
"""Token ids to text."""

TAG = "_relax_group"
"""The metadata key that says which Group of the data source a task is. Agents see it, samples and
hooks do not. Metrics leave names with an underscore out."""


class Status(enum.Enum):
    """How a sample ended: the values of the trainer's ``Sample.Status``."""

    PENDING = "pending"
    COMPLETED = "completed"
    TRUNCATED = "truncated"
    ABORTED = "aborted"
    FAILED = "failed"


@dataclass
class SpecInfo:
    """Counts of speculative decoding over a row's responses."""

    spec_accept_token_num: int = 0
    spec_draft_token_num: int = 0
    spec_verify_ct: int = 0
    completion_token_num: int = 0


@dataclass
class PrefixCacheInfo:
    """Prompt tokens of a row's responses, and those of them that the backend had already."""

    cached_tokens: int = 0
    total_prompt_tokens: int = 0


@dataclass
class Sample:
    """A sample with the fields of the trainer's (spec/reference-pipeline.md 6.1), for data sources
    of other programs. Where the data source gives samples of another class, that class is kept.
    """

    group_index: int | None = None
    index: int | None = None
    prompt: str | list[dict[str, Any]] | dict[str, Any] = ""
    tokens: list[int] = field(default_factory=list)
    rollout_tokens: list[int] = field(default_factory=list)
    multimodal_inputs: dict[str, Any] | None = None
    multimodal_train_inputs: dict[str, Any] | None = None
    response: str = ""
    response_length: int = 0
    label: str | None = None
    reward: float | dict[str, Any] | None = None
    custom_advantage: float | list[float] | None = None
    loss_mask: list[int] | None = None
    weight_versions: list[str] = field(default_factory=list)
    rollout_log_probs: list[float] | None = None
    rollout_routed_experts: Any = None
    remove_sample: bool = False
    abort_count: int = 0
    status: Any = Status.PENDING
    metadata: dict[str, Any] = field(default_factory=dict)
    train_metadata: dict[str, Any] | None = None
    session_id: str | None = None
    non_generation_time: float = 0.0
    spec_info: Any = field(default_factory=SpecInfo)
    prefix_cache_info: Any = field(default_factory=PrefixCacheInfo)

    Status = Status


# ---- going out -----------------------------------------------------------------------------------


def task_of(group: list[Any], number: int, with_messages: bool) -> dict[str, Any]:
    """The task of one Group of samples: all its Sessions get the first sample's prompt."""
    sample = group[0]
    metadata = dict(sample.metadata) if isinstance(sample.metadata, Mapping) else {}
    metadata[TAG] = number
    task: dict[str, Any] = {"metadata": metadata}
    if with_messages:
        task["messages"] = messages_of(sample.prompt)
    return task


def messages_of(prompt: Any) -> list[dict[str, Any]]:
    """A prompt as messages: a string is one user message, a blank one is none.

    >>> messages_of("hi"), messages_of(" "), messages_of({"role": "user", "content": "yes"})
    ([{'role': 'user', 'content': 'hi'}], [], [{'role': 'user', 'content': 'yes'}])
    """
    if isinstance(prompt, str):
        return [{"role": "user", "content": prompt}] if prompt.strip() else []
    messages = [prompt] if isinstance(prompt, Mapping) else list(prompt or ())
    if len(messages) == 1 and messages[0].get("role") == "user" and not messages[0].get("content"):
        return []
    return [dict(m) for m in messages]


# ---- coming back ---------------------------------------------------------------------------------


class Sources:
    """The data source's Groups that became tasks, by their numbers.

    Numbers go up for ever. A Group is forgotten when its rows came, or when a step left none
    behind.
    """

    def __init__(self) -> None:
        self._groups: dict[int, list[Any]] = {}
        self._next = 0

    def __len__(self) -> int:
        return len(self._groups)

    def add(self, group: list[Any]) -> int:
        """Remembers a Group under a new number."""
        number = self._next
        self._next += 1
        self._groups[number] = group
        return number

    def of(self, metadata: Mapping[str, Any]) -> list[Any]:
        """The Group that metadata belongs to."""
        number = metadata.get(TAG)
        if not isinstance(number, int) or number not in self._groups:
            raise InvalidError(
                f"metadata {TAG!r} is {number!r}, which is no Group of the data source: the "
                "agent's output must not change it"
            )
        return self._groups[number]

    def sample_of(self, metadata: Mapping[str, Any], place: int) -> Any:
        """A copy of the Group's sample at a place; those of an Eval have one for all places."""
        group = self.of(metadata)
        return copy.copy(group[min(place, len(group) - 1)])

    def forget(self, numbers: Iterable[int]) -> None:
        """Lets go of Groups whose rows were delivered."""
        for number in numbers:
            self._groups.pop(number, None)

    def clear(self) -> None:
        """Lets go of all Groups. Numbers are not used again."""
        self._groups.clear()


def untagged(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Metadata as the data source and the agent wrote it."""
    return {k: v for k, v in metadata.items() if k != TAG}


def sample_of_row(row: Row, sources: Sources, decode: Decode, custom_advantage: bool) -> Any:
    """The sample that a training row is, a copy of the data source's with the outcome in it."""
    meta = row.meta
    sample = sources.sample_of(meta["metadata"], row.session_seq)
    tokens = row.tokens.tolist()
    sample.tokens = sample.rollout_tokens = tokens
    sample.response_length = len(tokens) - row.prompt_len
    sample.prompt = decode(tokens[: row.prompt_len]) or sample.prompt
    sample.response = decode(tokens[row.prompt_len :])
    sample.loss_mask = row.response_loss_mask.tolist()
    sample.rollout_log_probs = row.response_logprobs.tolist()
    if "routed_experts" in row.batch.names:
        sample.rollout_routed_experts = row.routed_experts
    sample.reward = meta.get("reward")
    sample.custom_advantage = _advantage(row) if custom_advantage else None
    sample.weight_versions = [str(s.weight_version) for s in row.segments]
    sample.abort_count = row.aborts
    sample.status = status_of(sample, row.truncated)
    sample.session_id = meta["session_id"]
    sample.metadata = metadata_of(meta)
    sample.non_generation_time = non_generation_time(sample.metadata)
    turns = meta.get("turns") or ()
    cache = {"cached_tokens": "cached_tokens", "total_prompt_tokens": "prompt_tokens"}
    _count(sample, "prefix_cache_info", {k: _sum(turns, v) for k, v in cache.items()})
    spec = (meta.get("agentic_trace") or {}).get("spec_generations") or ()
    _count(sample, "spec_info", {k: _sum(spec, k) for k in SpecInfo.__dataclass_fields__})
    return sample


def _sum(records: Iterable[Mapping[str, Any]], key: str) -> int:
    return sum(int(r.get(key) or 0) for r in records)


def _count(sample: Any, name: str, counts: Mapping[str, int]) -> None:
    """Sets counters in an object of the sample's own; copies of a sample share theirs."""
    counters = copy.copy(getattr(sample, name, None))
    if isinstance(counters, dict):
        counters.update(counts)
    elif counters is not None:  # a class of the trainer's that has them
        for key, value in counts.items():
            setattr(counters, key, value)
    else:
        return
    setattr(sample, name, counters)


def _advantage(row: Row) -> float | list[float]:
    turns = [t.advantage for t in row.turn_table]
    return row.advantage if len(set(turns)) <= 1 else turns


def status_of(sample: Any, truncated: bool) -> Any:
    """The status in the sample's own enumeration."""
    statuses = getattr(type(sample), "Status", Status)
    return statuses.TRUNCATED if truncated else statuses.COMPLETED


def metadata_of(meta: Mapping[str, Any]) -> dict[str, Any]:
    """The metadata of spec/reference-pipeline.md 6.2."""
    return full_metadata(
        untagged(meta["metadata"]),
        meta.get("start_rollout_id"),
        len(meta.get("turns") or ()),
        meta.get("agentic_trace"),
    )


def non_generation_time(metadata: Mapping[str, Any]) -> float:
    """Seconds of the row's turns in which nothing was generated for them."""
    turns = (metadata.get("agentic_trace") or {}).get("turns") or ()
    spent = (
        float(t.get("wall_elapsed_s") or 0) - float(t.get("generation_elapsed_s") or 0)
        for t in turns
    )
    return max(0.0, sum(spent))


def groups_of(batch: Batch) -> list[np.ndarray[Any, np.dtype[np.int64]]]:
    """The batch's rows by Group, Groups and rows in the batch's order."""
    ids = batch.numpy("group_id")
    if not len(ids):
        return []
    return np.split(np.arange(len(ids)), np.flatnonzero(np.diff(ids)) + 1)
