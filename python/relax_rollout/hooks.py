"""What the trainer's hooks take and return, and how their answers become replies.

May enter: the data of events, what hooks returned. Never: the engine, the library, a thread.
"""

from __future__ import annotations

import asyncio
import base64
import importlib
import inspect
import math
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from .errors import ConfigError, InvalidError, shown

Sample: TypeAlias = dict[str, Any]
"""One Session as a reward hook sees it: ``session_id``, ``seq`` (its place in its Group), ``name``
of the context that stands for it, ``metadata``, ``messages``, ``status`` ("completed" or
"truncated"), its tokens ``length`` and ``prompt_len``, and the ``reward`` its agent wrote, None if
it wrote none.

With ``Hooks(sample_details=True)`` it has ``contexts`` too, as a :data:`FilterHook` gets them, but
without an advantage."""


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """A reward with metadata: what a reward hook may return in the place of a reward."""

    reward: Any
    """A finite number, or an object; None if that context has none."""
    metadata: Mapping[str, Any] | None = None
    """Laid over the context's own, key by key: rows, later hooks and metrics have it. JSON."""


RewardHook: TypeAlias = Callable[[Sample], Any]
"""Takes one Session without a reward and returns it: a finite number, or an object of numbers with
the key named by the option ``reward_key``, or a :class:`Judgement`. May be async."""

ScoreHook: TypeAlias = Callable[[list[Sample]], Any]
"""Takes the Sessions of one Group and returns one reward for each, as a :data:`RewardHook` does; or
for a Session a list with one for each of its contexts, None for none. May be async."""

MetadataBySlot: TypeAlias = list[dict[str | None, dict[str, Any]]]
"""For each Session of a Group, in order, the metadata of each exported context by its name; the
name of an implicit export is None (guide, Custom Advantage for Multi-Agent Credit). As in the
reference it has ``rollout_turns``, ``start_rollout_id`` and ``agentic_trace`` too, and with
``Hooks(sample_details=True)`` the ``tools`` and ``chat_template_kwargs`` of its conversation."""

AdvantageHook: TypeAlias = Callable[[MetadataBySlot], Any]
"""Returns the training credit of each context in the same shape: a number, or a list with one for
each assistant turn. None filters the Group. May be async."""

FilterHook: TypeAlias = Callable[[list[dict[str, Any]]], Any]
"""Takes the Sessions of one Group whose credit is known (``session_id``, ``reward``, and
``contexts`` with ``name``, ``metadata``, ``reward``, ``advantage``, ``turns``, ``length``,
``prompt_len``, ``response_len`` (tokens with loss mask 1), ``status``; ``turn_advantages`` if it
has credit for each turn) and says whether to train on it: a bool, or (keep, reason), or an object
or mapping with ``keep`` and ``reason``. A Group that is not kept is made up for. May be async.

With ``Hooks(sample_details=True)`` contexts have what their rows will have, too: ``tokens`` (int32)
and ``logprobs`` (float32, 0 where the loss mask is) as read-only arrays, ``weight_versions``,
``abort_count``, and of the row's metadata the turn table (``turn_table``), ``start_rollout_id``,
``agentic_trace``, ``tools`` and ``chat_template_kwargs``."""

NONZERO_STD = "check_reward_nonzero_std"
"""The built-in filter: it takes Groups out whose Sessions all have the same reward."""


@dataclass(frozen=True, kw_only=True)
class Hooks:
    """What the trainer does during a rollout. Each hook is a callable, or the import path of one as
    in the guide's options: ``"package.module.function"`` or ``"package.module:function"``.

    Plain functions run on the thread that calls :meth:`Engine.rollout`, one at a time, and the
    engine's agents go on meanwhile. ``async def`` functions run on an event loop of the engine's
    own beside it, many at a time, and so do plain ones if ``threads`` is set.

    A hook that raises, takes too long, or returns what the engine refuses costs its Group, never
    the trainer: the Group is dropped with a message that names the hook, the Group and the sample.

    >>> Hooks(reward="math.sqrt").reward(4.0)
    2.0
    >>> Hooks(reward="maths.sqrt")
    Traceback (most recent call last):
    relax_rollout.errors.ConfigError: hook reward: 'maths.sqrt': No module named 'maths'
    """

    reward: RewardHook | str | None = None
    """Called for each Session whose agent wrote no reward. Sets ``custom_rm``."""
    group_reward: ScoreHook | str | None = None
    """Called for each Group; its rewards take the place of those agents wrote. Sets ``custom_rm``
    and ``group_rm``."""
    advantage: AdvantageHook | str | None = None
    """Called for each Group. Sets ``custom_advantage``: rewards are then not normalised."""
    filter: FilterHook | str | None = None
    """Called for each Group with its credit. Sets ``custom_filter``; the name or path of
    ``check_reward_nonzero_std`` sets ``dynamic_sampling_filter`` instead."""
    max_concurrency: int = 64
    """Bound on calls of async functions that run at a time."""
    threads: int = 0
    """Bound on threads for plain functions; 0 runs them on the thread that polls."""
    timeout: float | None = None
    """Bound on one call in seconds; None for none. Only for async functions, and for plain ones if
    ``threads`` is set: a thread that takes too long is left to itself."""
    retries: int = 0
    """How often a call that raised or took too long is made again."""
    retry_delay: float = 0.5
    """Seconds before the first retry, doubled with each further one up to 30."""
    sample_details: bool = False
    """Whether hooks get each context's tokens and what else its row will have, and rows their
    ``tools`` and ``chat_template_kwargs`` in ``Row.meta``. Sets the option of this name."""

    def __post_init__(self) -> None:
        for name in ("reward", "group_reward", "advantage", "filter"):
            hook = getattr(self, name)
            if hook is not None and not (name == "filter" and is_nonzero_std(hook)):
                object.__setattr__(self, name, load(name, hook))
        self._check()

    def _check(self) -> None:
        if self.reward is not None and self.group_reward is not None:
            raise ConfigError("hook group_reward: leave it or hook reward out; both give rewards")
        for name, least in (("max_concurrency", 1), ("threads", 0), ("retries", 0)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ConfigError(f"hooks {name}: expected an int of at least {least}: {value!r}")
        for name in ("timeout", "retry_delay"):
            value = getattr(self, name)
            if value is not None and not (_is_number(value) and value > 0):
                raise ConfigError(
                    f"hooks {name}: expected a positive number of seconds, found {value!r}"
                )
        if self.timeout is None or self.threads:
            return
        for name in ("reward", "group_reward", "advantage", "filter"):
            hook = getattr(self, name)
            if callable(hook) and not is_async(hook):
                raise ConfigError(
                    f"hooks timeout: hook {name} is a plain function on the thread that polls, "
                    "which nothing can interrupt: make it `async def`, or set threads"
                )


def load(name: str, hook: Any) -> Callable[..., Any]:
    """The callable that a hook is, or that its import path names.

    Raises:
        ConfigError: there is no such module or function, or it cannot be called.
    """
    if not isinstance(hook, str):
        if not callable(hook):
            raise ConfigError(f"hook {name}: expected a callable or an import path: {hook!r}")
        return hook  # type: ignore[no-any-return]
    module, separator, attribute = hook.rpartition(":" if ":" in hook else ".")
    if not separator or not module or not attribute:
        raise ConfigError(f"hook {name}: expected package.module.function, found {hook!r}")
    try:
        found: Any = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as err:
        raise ConfigError(f"hook {name}: {hook!r}: {err}") from err
    except Exception as err:  # whatever the module does when it is imported
        raise ConfigError(f"hook {name}: {hook!r}: {type(err).__name__}: {err}") from err
    return load(name, None if isinstance(found, str) else found)


def is_async(hook: Any) -> bool:
    """Whether calling a hook gives something to await."""
    return inspect.iscoroutinefunction(hook) or inspect.iscoroutinefunction(
        getattr(hook, "__call__", None)  # noqa: B004 - an object's own async __call__
    )


def is_nonzero_std(hook: Any) -> bool:
    """Whether a filter is the name or path of the built-in one."""
    return isinstance(hook, str) and hook.replace(":", ".").split(".")[-1] == NONZERO_STD


Call: TypeAlias = Callable[[str, Callable[..., Any], Any], Awaitable[Any]]
"""Calls a hook with one argument. The text names the sample for errors, "" for the entire Group."""

Reply: TypeAlias = Callable[
    [Callable[..., Any], Mapping[str, Any], Call], Coroutine[Any, Any, dict[str, Any]]
]
"""Makes the reply to an event by calling a hook."""


def plain(value: Any) -> Any:
    """Unwraps scalars and arrays of NumPy and tensor libraries, inside objects too."""
    if isinstance(value, Mapping):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    return value.tolist() if hasattr(value, "tolist") else value


async def reward_reply(
    hook: Callable[..., Any], data: Mapping[str, Any], call: Call
) -> dict[str, Any]:
    """The reply to a SCORE event by one call for each Session without a reward."""
    sessions = _samples(data)

    async def judge(i: int, session: Sample) -> Any:
        if session.get("reward") is not None:
            return session["reward"]
        return await call(_where(i, session), hook, session)

    if not is_concurrent(call):
        return _rewards(sessions, [await judge(i, s) for i, s in enumerate(sessions)])
    calls = [asyncio.ensure_future(judge(i, s)) for i, s in enumerate(sessions)]
    try:
        return _rewards(sessions, await asyncio.gather(*calls))
    finally:
        for task in calls:
            task.cancel()


def _samples(data: Mapping[str, Any]) -> list[Sample]:
    return [
        {**session, "seq": i} for i, session in enumerate(map(_detailed, data.get("sessions", [])))
    ]


def _detailed(session: Mapping[str, Any]) -> dict[str, Any]:
    """The Session with arrays in its contexts for what events have as text."""
    contexts = session.get("contexts", [])
    if not any("tokens" in c for c in contexts):
        return dict(session)
    return {**session, "contexts": [_with_arrays(c) for c in contexts]}


def _with_arrays(context: Mapping[str, Any]) -> dict[str, Any]:
    columns = (("tokens", "<i4"), ("logprobs", "<f4"))
    return {**context, **{k: np.frombuffer(base64.b64decode(context[k]), t) for k, t in columns}}


def _where(i: int, session: Sample) -> str:
    return f"sample {i} ({session.get('session_id')})"


def _rewards(sessions: Sequence[Sample], answers: Sequence[Any]) -> dict[str, Any]:
    """The reply with what hooks returned for each Session."""
    given = [_answered(_where(i, sessions[i]), answer) for i, answer in enumerate(answers)]
    reply: dict[str, Any] = {"rewards": [reward for reward, _ in given]}
    if any(metadata is not None for _, metadata in given):
        reply["metadata"] = [metadata for _, metadata in given]
    return reply


def _answered(where: str, answer: Any) -> tuple[Any, Any]:
    """Reward and metadata of a Session, or lists of them for its contexts."""
    answer = answer.tolist() if hasattr(answer, "tolist") else answer
    if not isinstance(answer, list | tuple):
        judged = answer if isinstance(answer, Judgement) else Judgement(reward=answer)
        return checked_reward(where, plain(judged.reward)), _additions(judged)
    judged_each = [a if isinstance(a, Judgement) else Judgement(reward=a) for a in answer]
    rewards = [
        None if j.reward is None else checked_reward(f"{where}, context {i}", plain(j.reward))
        for i, j in enumerate(judged_each)
    ]
    metadata = [_additions(j) for j in judged_each]
    return rewards, metadata if any(metadata) else None


def _additions(judged: Judgement) -> Any:
    return plain(judged.metadata) if judged.metadata else None


def is_concurrent(call: Call) -> bool:
    """Whether calls may run beside one another, on an event loop."""
    return getattr(call, "concurrent", False)


def checked_reward(where: str, reward: Any) -> Any:
    """Refuses what cannot be a reward, so that the message names the sample.

    >>> checked_reward("sample 0", float("nan"))
    Traceback (most recent call last):
    relax_rollout.errors.InvalidError: sample 0: expected a finite number or an object, found nan
    """
    if isinstance(reward, Mapping | bool) or _is_number(reward):
        return reward
    raise InvalidError(f"{where}: expected a finite number or an object, found {shown(reward)}")


async def score_reply(
    hook: Callable[..., Any], data: Mapping[str, Any], call: Call
) -> dict[str, Any]:
    """The reply to a SCORE event by one call for the Group.

    >>> async def call(where, hook, argument): return hook(argument)
    >>> group = {"sessions": [{"session_id": "a"}, {"session_id": "b"}]}
    >>> asyncio.run(score_reply(lambda sessions: [0.5, [None, 1.0]], group, call))
    {'rewards': [0.5, [None, 1.0]]}
    """
    sessions = _samples(data)
    rewards = await call("", hook, sessions)
    if isinstance(rewards, Mapping | str) or not hasattr(rewards, "__iter__"):
        raise InvalidError(f"expected one reward for each session, found {shown(rewards)}")
    rewards = list(rewards)
    if len(rewards) != len(sessions):
        raise InvalidError(f"{len(rewards)} rewards for the {len(sessions)} sessions of the group")
    return _rewards(sessions, rewards)


async def advantage_reply(
    hook: Callable[..., Any], data: Mapping[str, Any], call: Call
) -> dict[str, Any]:
    """The reply to an ADVANTAGE event.

    Raises:
        InvalidError: a context has no finite number, or not one for each of its turns. Names nobody
            exported are ignored, as the reference does.

    >>> group = {"sessions": [{"session_id": "s0", "contexts": [
    ...     {"name": "main", "metadata": {"outcome": 1.0}, "turns": 2},
    ...     {"name": "searcher", "metadata": {"usefulness": 0.6}, "turns": 1}]}]}
    >>> async def call(where, hook, argument): return hook(argument)
    >>> def outcome_times_usefulness(slots):
    ...     return [{"main": [0.5, s["main"]["outcome"]],
    ...              "searcher": s["main"]["outcome"] * s["searcher"]["usefulness"]} for s in slots]
    >>> asyncio.run(advantage_reply(outcome_times_usefulness, group, call))
    {'advantages': [[[0.5, 1.0], 0.6]]}
    >>> asyncio.run(advantage_reply(lambda slots: [{"main": 1.0}], group, call))
    Traceback (most recent call last):
    relax_rollout.errors.InvalidError: session 0 (s0): no value for context 'searcher'
    """
    sessions = data.get("sessions", [])
    contexts = [[(c["name"], int(c.get("turns", 0))) for c in s["contexts"]] for s in sessions]
    slots = [{c["name"]: _slot_metadata(c) for c in s["contexts"]} for s in sessions]
    values = await call("", hook, slots)
    if values is None:
        return {"advantages": None}
    if isinstance(values, Mapping | str) or not hasattr(values, "__len__"):
        raise InvalidError(f"expected a list of mappings or None, found {shown(values)}")
    if len(values) != len(sessions):
        raise InvalidError(
            f"{len(values)} mappings for {len(sessions)} sessions; "
            "output i belongs to input session i"
        )
    return {
        "advantages": [
            _session_values(f"session {i} ({s['session_id']})", contexts[i], values[i])
            for i, s in enumerate(sessions)
        ]
    }


ADDED = (
    "start_rollout_id",
    "rollout_turns",
    "tools",
    "chat_template_kwargs",
    "agentic_trace",
)
"""Keys of a context's metadata that are the engine's (spec/reference-pipeline.md 6.2)."""


def full_metadata(
    metadata: Mapping[str, Any], turns: int, record: Mapping[str, Any]
) -> dict[str, Any]:
    """A context's metadata with what the reference adds to it (its pipeline, 5.3 and 6.2).

    ``record`` is the context in an event, or a row's ``meta``. A ``start_rollout_id`` of the
    agent's own stays; ``tools`` of the data source give way to those of the conversation.

    >>> full_metadata({"outcome": 1, "tools": [1]}, 2, {"start_rollout_id": 3, "tools": []})
    {'start_rollout_id': 3, 'outcome': 1, 'tools': [], 'rollout_turns': 2}
    """
    out = {"start_rollout_id": record.get("start_rollout_id"), **metadata, "rollout_turns": turns}
    for key in ("tools", "chat_template_kwargs"):
        if key in record:
            out[key] = record[key]
    if record.get("agentic_trace"):
        out["agentic_trace"] = record["agentic_trace"]
    return out


def _slot_metadata(context: Mapping[str, Any]) -> dict[str, Any]:
    return full_metadata(context["metadata"], context.get("turns", 0), context)


def _session_values(
    session: str,
    contexts: Sequence[tuple[str | None, int]],
    given: Mapping[str | None, Any],
) -> list[float | list[float]]:
    if not isinstance(given, Mapping):
        raise InvalidError(f"{session}: expected a mapping, found {shown(given)}")
    return [_credit(session, name, turns, given) for name, turns in contexts]


def _credit(
    session: str, name: str | None, turns: int, given: Mapping[str | None, Any]
) -> float | list[float]:
    if name not in given:
        raise InvalidError(f"{session}: no value for context {name!r}")
    value = plain(given[name])
    where = f"{session}: context {name!r}"
    if not isinstance(value, list):
        return _finite(where, value)
    if len(value) != turns:
        raise InvalidError(
            f"{where}: expected one number for each of its {turns} assistant turns, "
            f"found a list of {len(value)}"
        )
    return [_finite(f"{where}, turn {i}", v) for i, v in enumerate(value)]


_FLOAT32_MAX = 3.4028235677973366e38
"""What rounds to infinity in float32, the type of advantages."""


def _finite(where: str, value: Any) -> float:
    if not _is_number(value) or abs(value) >= _FLOAT32_MAX:
        raise InvalidError(f"{where}: expected a finite number, found {shown(value)}")
    return float(value)


async def filter_reply(
    hook: Callable[..., Any], data: Mapping[str, Any], call: Call
) -> dict[str, Any]:
    """The reply to a FILTER event.

    >>> async def call(where, hook, argument): return hook(argument)
    >>> asyncio.run(filter_reply(lambda sessions: (False, "too easy"), {"sessions": []}, call))
    {'keep': False, 'reason': 'too easy'}
    """
    verdict = await call("", hook, [_detailed(s) for s in data.get("sessions", [])])
    keep, reason = verdict, None
    if isinstance(verdict, tuple) and len(verdict) == 2:
        keep, reason = verdict
    elif isinstance(verdict, Mapping):
        keep, reason = verdict.get("keep"), verdict.get("reason")
    elif hasattr(verdict, "keep"):
        keep, reason = verdict.keep, getattr(verdict, "reason", None)
    keep = plain(keep)
    if not isinstance(keep, bool):
        raise InvalidError(f"expected a bool, or keep and reason, found {shown(verdict)}")
    return {"keep": keep, "reason": "" if reason is None else str(reason)}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
