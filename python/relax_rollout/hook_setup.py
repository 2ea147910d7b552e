"""What an engine makes of the hooks it was given.

May enter: options, hooks, ways to reply. Never: the engine itself, the library.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from .errors import ClosedError, ConfigError, InvalidError, PanicError, StateError
from .hook_calls import Bound, bind, failure
from .hooks import NONZERO_STD, Hooks, is_nonzero_std, load

HOOK_OPTIONS = {
    "score": "custom_rm",
    "advantage": "custom_advantage",
    "filter": "custom_filter",
}
"""The kinds of events that hooks answer, and the options that make the engine ask."""


def bind_hooks(
    options: dict[str, Any], hooks: Hooks | None, score: Any, advantage: Any
) -> tuple[Hooks, dict[str, Bound]]:
    """Puts the short forms with the hooks, and sets the options that make the engine ask them.

    Raises:
        ConfigError: a hook was given twice, or an option says that it is not to be asked.
    """
    hooks = hooks or Hooks()
    if score is not None and (hooks.reward is not None or hooks.group_reward is not None):
        raise ConfigError("Engine: score and a reward hook were given; leave one of them out")
    if advantage is not None:
        if hooks.advantage is not None:
            raise ConfigError("Engine: advantage and hooks.advantage were given; leave one out")
        hooks = replace(hooks, advantage=advantage)
    bound = bind(hooks, None if score is None else load("score", score))
    for kind, option in HOOK_OPTIONS.items():
        if kind in bound:
            _switch_on(options, option, bound[kind].name)
    if hooks.group_reward is not None:
        _switch_on(options, "group_rm", "group_reward")
    if hooks.sample_details:
        _want_details(options)
    if is_nonzero_std(hooks.filter):
        options.setdefault("dynamic_sampling_filter", NONZERO_STD)
    return hooks, bound


def _want_details(options: dict[str, Any]) -> None:
    if options.get("sample_details") is False:
        raise ConfigError(
            "option sample_details: False, but Hooks(sample_details=True) was given; leave one out",
            "sample_details",
        )
    options["sample_details"] = True


def _switch_on(options: dict[str, Any], option: str, hook: str) -> None:
    if options.setdefault(option, True) is False:
        raise ConfigError(
            f"option {option}: False, but Engine was given a {hook} hook; leave one of them out",
            option,
        )


class Replier:
    """Answers an event once its hook is done, on whichever thread that is."""

    def __init__(
        self,
        send: Callable[[Mapping[str, Any]], None],
        bound: Bound,
        group: object,
        log: logging.Logger,
    ) -> None:
        self._send = send
        self._bound = bound
        self._group = group
        self._log = log

    def __call__(self, reply: Mapping[str, Any] | None, err: BaseException | None) -> None:
        """Sends the reply, or that the Group is to be dropped for an exception."""
        # The step may be over, or the engine: then nobody waits for the reply.
        with contextlib.suppress(StateError, ClosedError, PanicError):
            if reply is not None:
                try:
                    self._send(reply)
                    return
                except InvalidError as refused:
                    err = refused
            assert err is not None
            name = self._bound.name
            self._log.error("%s hook failed for group %s", name, self._group, exc_info=err)
            self._send({"error": failure(self._bound, self._group, err)})
