"""The trainer's reward model, filter and advantage function as hooks of the engine.

May enter: args, samples, what hooks get. Never: the engine.
"""

from __future__ import annotations

import copy
import importlib
import json
import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import ConfigError, InvalidError
from ..hooks import ADDED, Hooks, Judgement, is_async, is_nonzero_std, load, plain
from .outputs import decoder
from .samples import Decode, Sources, sample_of_context, untagged

_LOGGER = logging.getLogger("relax_rollout.relax")


def engine_hooks(args: Any, sources: Sources) -> Hooks:
    """The hooks that the trainer's arguments name; their functions get the trainer's samples.

    Raises:
        ConfigError: a path names nothing that can be called, or a built-in reward model is asked
            for and the trainer's package is not there.
    """
    filter_path = getattr(args, "dynamic_sampling_filter_path", None)
    advantage_path = getattr(args, "agentic_custom_advantage_path", None)
    made = Samples(sources, _LateDecoder(args), custom_advantage=bool(advantage_path))
    return Hooks(
        **_reward_hook(args, made),
        advantage=_advantage_hook(_load("agentic_custom_advantage_path", advantage_path)),
        filter=filter_path
        if is_nonzero_std(filter_path)
        else _filter_hook(args, made, _load("dynamic_sampling_filter_path", filter_path)),
        max_concurrency=int(getattr(args, "reward_max_concurrency", None) or 64),
        threads=int(getattr(args, "reward_num_workers", None) or 16),
        sample_details=True,
    )


class _LateDecoder:
    """Decodes as :func:`decoder`, which is made once, when the first hook is called. Hooks run on
    many threads."""

    def __init__(self, args: Any) -> None:
        self._args = args
        self._lock = threading.Lock()
        self._decode: Decode | None = None

    def __call__(self, tokens: list[int]) -> str:
        with self._lock:
            if self._decode is None:
                self._decode = decoder(self._args)
        return self._decode(tokens)


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


def _reward_hook(args: Any, made: Samples) -> dict[str, Any]:
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
    if group:
        return {"group_reward": _group_scorer(args, made, model)}
    return {"reward": _scorer(args, made, model)}


def _scorer(args: Any, made: Samples, model: Callable[..., Any]) -> Any:
    """Judges the context that stands for a Session."""
    if is_async(model):

        async def score_later(session: Any) -> Any:
            judged = Judged(made.representative(session))
            return judged.result(await model(args, judged.sample))

        return score_later

    def score(session: Any) -> Any:
        judged = Judged(made.representative(session))
        return judged.result(model(args, judged.sample))

    return score


def _group_scorer(args: Any, made: Samples, model: Callable[..., Any]) -> Any:
    """Judges all contexts of a Group's Sessions (spec/reference-pipeline.md 5.2)."""

    def judged(sessions: Any) -> list[list[Judged]]:
        return [[Judged(sample) for sample in made.of_session(s)] for s in sessions]

    if is_async(model):

        async def score_later(sessions: Any) -> Any:
            groups = judged(sessions)
            return _results(groups, await model(args, _flat(groups)))

        return score_later

    def score(sessions: Any) -> Any:
        groups = judged(sessions)
        return _results(groups, model(args, _flat(groups)))

    return score


def _flat(groups: list[list[Judged]]) -> list[Any]:
    return [judged.sample for group in groups for judged in group]


def _results(groups: list[list[Judged]], rewards: Any) -> list[list[Judgement]]:
    """What a model for Groups returned, by Session."""
    rewards = list(rewards)
    if len(rewards) != (count := sum(map(len, groups))):
        raise InvalidError(f"{len(rewards)} rewards for the {count} samples of the Group")
    left = iter(rewards)
    return [[judged.result(next(left)) for judged in group] for group in groups]


def _filter_hook(args: Any, made: Samples, function: Callable[..., Any] | None) -> Any:
    if function is None:
        return None

    def samples(sessions: list[dict[str, Any]]) -> list[Any]:
        return [
            made.of_context(session, context, i)
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


@dataclass(frozen=True)
class Samples:
    """Makes the samples that hooks get of what the engine asks about."""

    sources: Sources
    decode: Decode
    custom_advantage: bool
    """Whether an advantage function gives the credit that filters see."""

    def of_context(self, session: Mapping[str, Any], context: Mapping[str, Any], place: int) -> Any:
        """The sample of one context of the Session at a place of its Group, for filters."""
        return sample_of_context(
            session, context, self.sources, place, self.decode, self.custom_advantage
        )

    def of_session(self, session: Mapping[str, Any]) -> list[Any]:
        """The samples of all contexts of a Session, for reward models."""
        return [self._judged(session, context) for context in session["contexts"]]

    def representative(self, session: Mapping[str, Any]) -> Any:
        """The sample of the context that stands for a Session."""
        name = session.get("name")
        context = next(c for c in session["contexts"] if c["name"] == name)
        sample = self._judged(session, context)
        if not sample.response:  # no tokenizer: the engine's messages are better than nothing
            sample.response = response_text(session.get("messages") or [])
        return sample

    def _judged(self, session: Mapping[str, Any], context: Mapping[str, Any]) -> Any:
        return sample_of_context(session, context, self.sources, session["seq"], self.decode)


class Judged:
    """A sample on its way through a reward model, which may write into its metadata."""

    def __init__(self, sample: Any) -> None:
        self.sample = sample
        self._before = copy.deepcopy(_own(sample.metadata))

    def result(self, reward: Any) -> Judgement:
        """The model's reward, with what it wrote into the sample's metadata."""
        written = {
            key: value
            for key, value in _own(self.sample.metadata).items()
            if key not in self._before or not _same(self._before[key], value)
        }
        return Judgement(reward=reward, metadata=_sendable(written))


def _own(metadata: Any) -> dict[str, Any]:
    """Metadata without what the engine adds."""
    return {k: v for k, v in (metadata or {}).items() if k not in ADDED}


def _same(before: Any, now: Any) -> bool:
    try:
        return bool(before == now)
    except (TypeError, ValueError):  # arrays
        return False


def _sendable(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Metadata that the engine can take over: JSON."""
    out = {}
    for key, value in metadata.items():
        value = plain(value)
        try:
            json.dumps({key: value}, allow_nan=False)
        except (TypeError, ValueError) as err:
            _LOGGER.warning("metadata %r of a reward model is left out: no JSON: %s", key, err)
        else:
            out[key] = value
    return out


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
