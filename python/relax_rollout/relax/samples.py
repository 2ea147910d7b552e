"""What a trainer's Sample becomes on its way: a task going out, training rows coming back.

May enter: samples of the data source, batches, a decoder of tokens. Never: the engine.
"""

from __future__ import annotations

import copy
import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ..batch import Batch
from ..errors import InvalidError
from ..hooks import full_metadata
from ..row import Row

Decode: TypeAlias = Callable[[list[int]], str]
"""Token ids to text."""

Texts: TypeAlias = tuple[str, str]
"""A context's prompt, all before its first response, and the text from there on."""

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

    @property
    def effective_response_length(self) -> int:
        """Tokens that are trained, as metrics count a response."""
        return self.response_length if self.loss_mask is None else sum(self.loss_mask)

    def get_reward_value(self, args: Any) -> Any:
        """The reward, of an object the member that ``args.reward_key`` names."""
        key = getattr(args, "reward_key", None)
        return self.reward[key] if key and isinstance(self.reward, Mapping) else self.reward

    def to_dict(self) -> dict[str, Any]:
        """The fields as dumps hold them: the status as a text, counters as mappings."""
        return {
            **vars(self),
            "status": self.status.value,
            "spec_info": dict(vars(self.spec_info)),
            "prefix_cache_info": dict(vars(self.prefix_cache_info)),
        }


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

    Numbers go up for ever. A Group is forgotten at the end of the step it was delivered, dropped or
    filtered in.
    """

    def __init__(self) -> None:
        self._groups: dict[int, tuple[list[Any], dict[tuple[str, str | None], Texts]]] = {}
        """Samples, and what was decoded of the Group's contexts, by Session and name."""
        self._next = 0

    def __len__(self) -> int:
        return len(self._groups)

    def add(self, group: list[Any]) -> int:
        """Remembers a Group under a new number."""
        number = self._next
        self._next += 1
        self._groups[number] = (group, {})
        return number

    def of(self, metadata: Mapping[str, Any]) -> list[Any]:
        """The Group that metadata belongs to."""
        return self._of(metadata)[0]

    def texts(self, meta: Mapping[str, Any], decoded: Callable[[], Texts]) -> Texts:
        """Prompt and response of a context, decoded when first asked for: that takes 10 ms for 8k
        tokens, and reward models, filters and the trainer all get them."""
        known = self._of(meta["metadata"])[1]
        key = (meta["session_id"], meta.get("name"))
        if key not in known:
            known[key] = decoded()
        return known[key]

    def _of(
        self, metadata: Mapping[str, Any]
    ) -> tuple[list[Any], dict[tuple[str, str | None], Texts]]:
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
        """Lets go of Groups that nothing is heard of any more."""
        for number in numbers:
            self._groups.pop(number, None)


def untagged(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Metadata as the data source and the agent wrote it."""
    return {k: v for k, v in metadata.items() if k != TAG}


@dataclass(frozen=True)
class Context:
    """One exported context, be it a row of a batch or a part of an event."""

    meta: Mapping[str, Any]
    """As a row's: session_id, metadata, reward, turns (the turn table), agentic_trace and so on."""
    tokens: npt.NDArray[np.int32]
    logprobs: npt.NDArray[np.float32]
    """Rollout logprobs, as many as tokens; 0 where the loss mask is."""
    loss_mask: npt.NDArray[np.uint8]
    """1 on tokens that are trained, as many as tokens."""
    prompt_len: int
    weight_versions: Sequence[int]
    aborts: int
    truncated: bool
    custom_advantage: float | list[float] | None


def sample_of_row(row: Row, sources: Sources, decode: Decode, custom_advantage: bool) -> Any:
    """The sample that a training row is, a copy of the data source's with the outcome in it.

    ``custom_advantage`` says that the row's credit is the advantage function's.
    """
    meta = row.meta
    context = Context(
        meta=meta,
        tokens=row.tokens,
        logprobs=row.logprobs,
        loss_mask=row.loss_mask,
        prompt_len=row.prompt_len,
        weight_versions=[s.weight_version for s in row.segments],
        aborts=row.aborts,
        truncated=row.truncated,
        custom_advantage=_advantage(row, meta) if custom_advantage else None,
    )
    sample = sample_of(context, sources, row.session_seq, decode)
    if "routed_experts" in row.batch.names:
        sample.rollout_routed_experts = row.routed_experts
    return sample


def sample_of_context(
    session: Mapping[str, Any],
    context: Mapping[str, Any],
    sources: Sources,
    place: int,
    decode: Decode,
    custom_advantage: bool = False,
) -> Any:
    """The sample of a context that a hook gets, with sample_details: the one its row will be, but
    for routed experts."""
    turns = context["turn_table"]
    mask = np.zeros(len(context["tokens"]), np.uint8)
    for turn in turns:
        mask[_span(turn)] = not turn.get("masked")
    return sample_of(
        Context(
            meta={**context, "session_id": session["session_id"], "turns": turns},
            tokens=context["tokens"],
            logprobs=context["logprobs"],
            loss_mask=mask,
            prompt_len=context["prompt_len"],
            weight_versions=context["weight_versions"],
            aborts=context["abort_count"],
            truncated=context["status"] == "truncated",
            custom_advantage=_event_advantage(context) if custom_advantage else None,
        ),
        sources,
        place,
        decode,
    )


def sample_of(context: Context, sources: Sources, place: int, decode: Decode) -> Any:
    """A copy of the data source's sample with a context in it (spec/reference-pipeline.md 6.1)."""
    meta, start = context.meta, context.prompt_len
    sample = sources.sample_of(meta["metadata"], place)
    tokens = context.tokens.tolist()
    sample.tokens = sample.rollout_tokens = tokens
    sample.response_length = len(tokens) - start
    prompt, sample.response = sources.texts(
        meta, lambda: (decode(tokens[:start]), decode(tokens[start:]))
    )
    sample.prompt = prompt or sample.prompt
    sample.loss_mask = context.loss_mask[start:].tolist()
    sample.rollout_log_probs = context.logprobs[start:].tolist()
    sample.reward = meta.get("reward")
    sample.custom_advantage = context.custom_advantage
    sample.weight_versions = [str(v) for v in context.weight_versions]
    sample.abort_count = context.aborts
    sample.status = status_of(sample, context.truncated)
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


def _span(turn: Mapping[str, Any]) -> slice:
    """The tokens of a turn of the turn table."""
    return slice(turn["start"], turn["start"] + turn["response_length"])


# Credit of turns is one number for each response token, 0 on observations, also where all turns
# have the same; one number stays one, also beside rows with credit of turns
# (spec/reference-pipeline.md 5.3).


def _advantage(row: Row, meta: Mapping[str, Any]) -> float | list[float]:
    if not meta.get("per_turn"):
        return row.advantage
    return row.advantages[row.prompt_len :].tolist()  # type: ignore[no-any-return]


def _event_advantage(context: Mapping[str, Any]) -> float | list[float]:
    if "turn_advantages" not in context:
        return float(np.float32(context["advantage"]))
    spread = np.zeros(len(context["tokens"]), np.float32)
    for turn, value in zip(context["turn_table"], context["turn_advantages"], strict=True):
        spread[_span(turn)] = 0 if turn.get("masked") else value
    return spread[context["prompt_len"] :].tolist()  # type: ignore[no-any-return]


def status_of(sample: Any, truncated: bool) -> Any:
    """The status in the sample's own enumeration."""
    statuses = getattr(type(sample), "Status", Status)
    return statuses.TRUNCATED if truncated else statuses.COMPLETED


def metadata_of(meta: Mapping[str, Any]) -> dict[str, Any]:
    """The metadata of spec/reference-pipeline.md 6.2."""
    return full_metadata(untagged(meta["metadata"]), len(meta.get("turns") or ()), meta)


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
