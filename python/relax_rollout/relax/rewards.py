"""The trainer's reward model, filter and advantage function as hooks of the engine.

May enter: args, samples, what hooks get. Never: the engine.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Mapping
from typing import Any

from ..errors import ConfigError
from ..hooks import Hooks, is_async, is_nonzero_std, load
from .samples import Sources, status_of, untagged


def engine_hooks(args: Any, sources: Sources) -> Hooks:
    """The hooks that the trainer's arguments name; their functions get the trainer's samples.

    Raises:
        ConfigError: a path names nothing that can be called, or a built-in reward model is asked
            for and the trainer's package is not there.
    """
    filter_path = getattr(args, "dynamic_sampling_filter_path", None)
    advantage_path = getattr(args, "agentic_custom_advantage_path", None)
    return Hooks(
        **_reward_hook(args, sources),
        advantage=_advantage_hook(_load("agentic_custom_advantage_path", advantage_path)),
        filter=filter_path
        if is_nonzero_std(filter_path)
        else _filter_hook(args, sources, _load("dynamic_sampling_filter_path", filter_path)),
        max_concurrency=int(getattr(args, "reward_max_concurrency", None) or 64),
        threads=int(getattr(args, "reward_num_workers", None) or 16),
    )


def _load(option: str, path: Any) -> Callable[..., Any] | None:
    if not path:
        return None
    try:
        return load(option, path)
    except ConfigError as err:
        raise ConfigError(f"option {option}: {err}", option) from err


def _trainers_models() -> Any:
    """The module with the trainer's own reward models, None where the trainer is not installed."""
    try:
        module = importlib.import_module("relax.engine.rewards")
    except ImportError:
        return None
    return module if hasattr(module, "async_rm") else None


def _reward_hook(args: Any, sources: Sources) -> dict[str, Any]:
    models, path = _trainers_models(), getattr(args, "custom_rm_path", None)
    group = bool(getattr(args, "group_rm", False))
    if models is None and not path:
        if getattr(args, "rm_type", None):
            raise ConfigError(
                f"option rm_type: {args.rm_type!r} is one of the trainer's reward models, and its "
                "package `relax` cannot be imported here; set custom_rm_path, or let agents write "
                "rewards",
                "rm_type",
            )
        if group:
            raise ConfigError("option group_rm: needs custom_rm_path", "group_rm")
        return {}
    if models is not None:
        model = models.batched_async_rm if group else models.async_rm
    else:
        model = _load("custom_rm_path", path)
    return {"group_reward" if group else "reward": _scorer(args, sources, model, group)}


def _scorer(args: Any, sources: Sources, model: Callable[..., Any], group: bool) -> Any:
    def samples(given: Any) -> Any:
        if group:
            return [sample_of_session(session, sources) for session in given]
        return sample_of_session(given, sources)

    if is_async(model):

        async def score_later(given: Any) -> Any:
            return await model(args, samples(given))

        return score_later
    return lambda given: model(args, samples(given))


def _filter_hook(args: Any, sources: Sources, function: Callable[..., Any] | None) -> Any:
    if function is None:
        return None

    def samples(sessions: list[dict[str, Any]]) -> list[Any]:
        return [
            sample_of_context(session, context, sources, i)
            for i, session in enumerate(sessions)
            for context in session["contexts"]
        ]

    if is_async(function):

        async def filter_later(sessions: list[dict[str, Any]]) -> Any:
            return await function(args, samples(sessions))

        return filter_later
    return lambda sessions: function(args, samples(sessions))


def _advantage_hook(function: Callable[..., Any] | None) -> Any:
    """The function without the tag in what it sees."""
    if function is None:
        return None

    def clean(slots: list[dict[str | None, dict[str, Any]]]) -> Any:
        return [{name: untagged(metadata) for name, metadata in slot.items()} for slot in slots]

    if is_async(function):

        async def advantage_later(slots: Any) -> Any:
            return await function(clean(slots))

        return advantage_later
    return lambda slots: function(clean(slots))


# ---- what hooks see ------------------------------------------------------------------------------


def sample_of_session(session: Mapping[str, Any], sources: Sources) -> Any:
    """The sample that a reward model judges: the data source's with the conversation in it.

    ``response`` is the text from the first answer on: reasoning, content and tool calls of
    assistant messages, and what came in between.
    """
    sample = sources.sample_of(session["metadata"], session["seq"])
    messages = session.get("messages") or []
    sample.response = response_text(messages)
    sample.response_length = session["length"] - session["prompt_len"]
    sample.messages = messages
    sample.metadata = untagged(session["metadata"])
    sample.reward = session.get("reward")
    sample.session_id = session.get("session_id")
    sample.status = status_of(sample, session.get("status") == "truncated")
    return sample


def sample_of_context(
    session: Mapping[str, Any], context: Mapping[str, Any], sources: Sources, place: int
) -> Any:
    """The sample of one exported context, as filters get it."""
    sample = sources.sample_of(context["metadata"], place)
    sample.metadata = untagged(context["metadata"])
    sample.reward = context.get("reward")
    sample.response_length = context["length"] - context["prompt_len"]
    sample.session_id = session.get("session_id")
    sample.status = status_of(sample, context.get("status") == "truncated")
    return sample


def response_text(messages: list[Mapping[str, Any]]) -> str:
    """The text of a conversation from the first assistant message on.

    >>> response_text([{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}])
    '4'
    """
    roles = [m.get("role") for m in messages]
    if "assistant" not in roles:
        return ""
    return "\n".join(filter(None, map(_text, messages[roles.index("assistant") :])))


def _text(message: Mapping[str, Any]) -> str:
    content = message.get("content") or ""
    if not isinstance(content, str):
        content = "".join(str(p.get("text") or "") for p in content if isinstance(p, Mapping))
    parts = [str(message.get("reasoning_content") or ""), content]
    parts += [
        json.dumps(c.get("function", c), ensure_ascii=False)
        for c in message.get("tool_calls") or ()
    ]
    return "\n".join(filter(None, parts))
