"""Calls hooks: on the caller's thread, or on an event loop beside it.

May enter: hooks, events' data, and two ways to be done with a reply. Never: the engine itself.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import copy
import inspect
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

from .errors import InvalidError
from .hooks import (
    Hooks,
    Reply,
    advantage_reply,
    filter_reply,
    is_async,
    is_nonzero_std,
    reward_reply,
    score_reply,
)

_LONGEST_DELAY = 30.0
"""Seconds between retries, at most."""

_JOIN_SECONDS = 5.0
"""How long close waits for the loop's thread."""


@dataclass(frozen=True)
class Bound:
    """A hook with what is needed to answer its event."""

    name: str
    function: Callable[..., Any]
    reply: Reply
    beside: bool
    """It runs on the event loop, not on the thread that polls."""


def bind(hooks: Hooks, score: Callable[..., Any] | None = None) -> dict[str, Bound]:
    """The hooks by the kind of event they answer: score, advantage, filter.

    ``score`` is the short form of Engine: as ``group_reward``, but rewards agents wrote are kept.
    """
    rewards: list[tuple[str, Any, Reply]] = [
        ("reward", hooks.reward, reward_reply),
        ("group_reward", hooks.group_reward, score_reply),
        ("score", score, score_reply),
    ]
    out = {}
    for name, function, reply in rewards:
        if function is not None:
            out["score"] = _bind(hooks, name, function, reply)
    if hooks.advantage is not None:
        out["advantage"] = _bind(hooks, "advantage", hooks.advantage, advantage_reply)
    if hooks.filter is not None and not is_nonzero_std(hooks.filter):
        out["filter"] = _bind(hooks, "filter", hooks.filter, filter_reply)
    return out


def _bind(hooks: Hooks, name: str, function: Any, reply: Reply) -> Bound:
    return Bound(name, function, reply, hooks.threads > 0 or is_async(function))


class _Inline:
    """Calls plain functions where they are asked for. Nothing in it ever suspends."""

    concurrent = False

    def __init__(self, hooks: Hooks) -> None:
        self._hooks = hooks

    async def __call__(self, where: str, function: Callable[..., Any], argument: Any) -> Any:
        for attempt in range(self._hooks.retries + 1):
            try:
                return _settled(function(_own(self._hooks, argument)))
            except (Exception, SystemExit) as err:  # Ctrl-C is the caller's
                if attempt == self._hooks.retries:
                    raise HookError(where, err) from err
                time.sleep(_delay(self._hooks, attempt))
        raise AssertionError("unreachable")


def _settled(value: Any) -> Any:
    if inspect.isawaitable(value):
        if inspect.iscoroutine(value):
            value.close()
        raise InvalidError("it returned an awaitable: declare it with `async def`")
    return value


def _own(hooks: Hooks, argument: Any) -> Any:
    """What a hook may change without another try seeing it."""
    return copy.deepcopy(argument) if hooks.retries else argument


def _delay(hooks: Hooks, attempt: int) -> float:
    return float(min(_LONGEST_DELAY, hooks.retry_delay * 2**attempt))


class HookError(Exception):
    """A hook's exception with the sample it was about."""

    def __init__(self, where: str, cause: BaseException) -> None:
        what = f"{type(cause).__name__}: {cause}" if str(cause) else type(cause).__name__
        super().__init__(f"{where}: {what}" if where else what)


def failure(bound: Bound, group: object, err: BaseException) -> str:
    """Why a Group is dropped: names the hook, the Group and the sample if it was about one."""
    what = str(err) if isinstance(err, HookError | InvalidError) else repr(err)
    return f"{bound.name} hook, group {group}: {what}"


def call_here(hooks: Hooks, bound: Bound, data: Mapping[str, Any]) -> dict[str, Any]:
    """Calls a plain hook on this thread and returns the reply.

    >>> bound = bind(Hooks(reward=lambda sample: len(sample["messages"])))["score"]
    >>> call_here(Hooks(), bound, {"sessions": [{"messages": ["hi"]}, {"reward": 0.5}]})
    {'rewards': [1, 0.5]}
    """
    coroutine = bound.reply(bound.function, data, _Inline(hooks))
    try:
        coroutine.send(None)
    except StopIteration as done:
        return dict(done.value)
    raise AssertionError(f"{bound.name} hook: a plain function waited for something")


class HookLoop:
    """An event loop on a thread of its own, which calls hooks beside the thread that polls.

    The thread starts with the first call. :meth:`close` ends it; calls that still run then are
    cancelled and their events stay without a reply.
    """

    concurrent = True

    def __init__(self, hooks: Hooks) -> None:
        self._hooks = hooks
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._closed = False
        # Python 3.10 and newer bind these to the loop they are first waited for on.
        self._slots = asyncio.Semaphore(hooks.max_concurrency)
        self._threads = asyncio.Semaphore(max(1, hooks.threads))
        self._newest: Mapping[str, Any] | None = None
        self._calls: set[concurrent.futures.Future[None]] = set()

    def submit(
        self,
        bound: Bound,
        data: Mapping[str, Any],
        done: Callable[[dict[str, Any] | None, BaseException | None], None],
    ) -> None:
        """Calls a hook; ``done`` gets the reply or the exception, on the loop's thread.

        The same ``data`` again, as after a Ctrl-C that came just behind, is not answered twice.
        """
        with self._lock:
            if self._closed:
                return
            call = asyncio.run_coroutine_threadsafe(
                self._answer(bound, data, done), self._running()
            )
            self._calls.add(call)  # a task nobody holds may be collected while it waits
        call.add_done_callback(self._calls.discard)

    def _running(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
        if self._thread is None or self._thread.ident is None:  # Ctrl-C may come before it starts
            self._thread = threading.Thread(
                target=_run_loop, args=(self._loop,), name="relax-hooks", daemon=True
            )
            self._thread.start()
        return self._loop

    async def _answer(
        self,
        bound: Bound,
        data: Mapping[str, Any],
        done: Callable[[dict[str, Any] | None, BaseException | None], None],
    ) -> None:
        if data is self._newest:
            return
        self._newest = data  # here, since Ctrl-C never comes to the loop's thread
        try:
            reply = await bound.reply(bound.function, data, self)
        except asyncio.CancelledError:
            if self._closed:
                raise
            done(None, HookError("", RuntimeError("it was cancelled")))
        except Exception as err:
            done(None, err)
        else:
            done(reply, None)

    async def __call__(self, where: str, function: Callable[..., Any], argument: Any) -> Any:
        """Calls a hook with what the options say about time, tries and company."""
        slots = self._slots if is_async(function) else self._threads
        for attempt in range(self._hooks.retries + 1):
            try:
                async with slots:
                    return await self._once(function, _own(self._hooks, argument))
            except Exception as err:
                if attempt == self._hooks.retries:
                    raise HookError(where, self._named(err)) from err
            await asyncio.sleep(_delay(self._hooks, attempt))
        raise AssertionError("unreachable")

    def _named(self, err: Exception) -> Exception:
        if isinstance(err, asyncio.TimeoutError | TimeoutError) and not str(err):
            return TimeoutError(f"no answer within {self._hooks.timeout} s (hooks timeout)")
        return err

    async def _once(self, function: Callable[..., Any], argument: Any) -> Any:
        call = (
            _guarded(function, argument) if is_async(function) else _in_thread(function, argument)
        )
        return await asyncio.wait_for(call, self._hooks.timeout)

    def close(self) -> None:
        """Cancels what runs and joins the thread, unless a hook does not let go of it."""
        with self._lock:
            self._closed = True
            loop, self._loop = self._loop, None
            thread = self._thread
        if loop is not None and (thread is None or thread.ident is None):
            loop.close()
        elif loop is not None:
            loop.call_soon_threadsafe(loop.stop)
        if thread is not None and thread.is_alive() and thread is not threading.current_thread():
            thread.join(_JOIN_SECONDS)


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()


async def _guarded(function: Callable[..., Any], argument: Any) -> Any:
    """What would end the loop's thread, such as SystemExit, costs a Group as other exceptions."""
    try:
        return await function(argument)
    except (KeyboardInterrupt, SystemExit) as err:
        raise RuntimeError(f"the hook raised {type(err).__name__}") from err


def _in_thread(function: Callable[..., Any], argument: Any) -> Coroutine[Any, Any, Any]:
    """Calls a plain function on a thread that does not keep the process from ending."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Any] = loop.create_future()

    def settle(value: Any, err: BaseException | None) -> None:
        if answer.done():
            return
        if err is None:
            answer.set_result(value)
        elif isinstance(err, Exception) and not isinstance(err, StopIteration):
            answer.set_exception(err)
        else:
            answer.set_exception(RuntimeError(f"the hook raised {err!r}"))

    def run() -> None:
        value, problem = None, None
        try:
            value = _settled(function(argument))
        except BaseException as err:  # handed to the loop, which names the Group
            problem = err
        try:
            loop.call_soon_threadsafe(settle, value, problem)
        except RuntimeError:
            return  # the loop was closed, nobody waits

    async def wait() -> Any:
        threading.Thread(target=run, name="relax-hook", daemon=True).start()
        return await answer

    return wait()
