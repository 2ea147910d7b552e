"""Hooks: what they are given, where they run, and what a broken one costs.

Cases N1 to N3, N9, N13, N16 and N17 of the specification. (A deviation from N2: rewards are asked
for once all Sessions of a Group are done.)
"""

import asyncio
import logging
import os
import signal
import sys
import threading
import time
import types

import numpy as np
import pytest
from conftest import check_script, eventually, options, task

import relax_rollout as rr
from relax_rollout import hooks as hooks_module
from relax_rollout.hook_calls import HookLoop, bind, call_here
from relax_rollout.steps import Step, StepRunner


@pytest.fixture
def library(monkeypatch):
    """A module of hooks that can be named by path."""
    module = types.ModuleType("my_hooks")
    module.reward = lambda sample: 0.5
    module.nested = types.SimpleNamespace(judge=lambda sample: 0.25)
    module.number = 3
    monkeypatch.setitem(sys.modules, "my_hooks", module)
    return module


# ---- what is accepted ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "value"),
    [("my_hooks.reward", 0.5), ("my_hooks:reward", 0.5), ("my_hooks:nested.judge", 0.25)],
)
def test_import_paths(library, path, value):
    assert rr.Hooks(reward=path).reward({}) == value


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"reward": "my_hooks.gone"}, "hook reward: 'my_hooks.gone'"),
        ({"advantage": "my_hooks.number"}, "hook advantage: expected a callable"),
        ({"filter": "reward"}, "hook filter: expected package.module.function"),
        ({"group_reward": 3}, "hook group_reward: expected a callable or an import path: 3"),
        ({"reward": len, "group_reward": len}, "both give rewards"),
        ({"max_concurrency": 0}, "max_concurrency: expected an int of at least 1"),
        ({"threads": -1}, "threads"),
        ({"retries": True}, "retries"),
        ({"timeout": float("nan"), "threads": 1}, "timeout: expected a positive number"),
        ({"retry_delay": 0}, "retry_delay: expected a positive number"),
        ({"reward": len, "timeout": 1}, "plain function on the thread that polls"),
    ],
)
def test_wrong_hooks(library, settings, message):
    with pytest.raises(rr.ConfigError, match=message.replace("(", r"\(")):
        rr.Hooks(**settings)


def test_a_module_that_cannot_be_imported_is_named(tmp_path, monkeypatch):
    (tmp_path / "broken_hooks.py").write_text("raise RuntimeError('no key')")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(rr.ConfigError, match="'broken_hooks.judge': RuntimeError: no key"):
        rr.Hooks(reward="broken_hooks.judge")


def test_a_hook_is_given_once():
    with pytest.raises(rr.ConfigError, match="score and a reward hook"):
        rr.Engine(options(), hooks=rr.Hooks(reward=len), score=len)
    with pytest.raises(rr.ConfigError, match=r"advantage and hooks\.advantage"):
        rr.Engine(options(), hooks=rr.Hooks(advantage=len), advantage=len)
    with pytest.raises(rr.ConfigError, match="option group_rm: False"):
        rr.Engine(options(group_rm=False), hooks=rr.Hooks(group_reward=len))
    with pytest.raises(rr.ConfigError, match="option custom_filter: False"):
        rr.Engine(options(custom_filter=False), hooks=rr.Hooks(filter=len))


def test_what_is_async():
    class Judge:
        async def __call__(self, sample):  # noqa: ARG002
            return 1.0

    async def judge(sample):
        return 1.0

    assert hooks_module.is_async(judge)
    assert hooks_module.is_async(Judge())
    assert not hooks_module.is_async(len)
    assert not hooks_module.is_async(lambda sample: judge(sample))


# ---- rewards ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["plain", "async", "threads"])
def test_a_reward_for_each_session(open_engine, kind):
    threads = set()

    def judge(sample):
        threads.add(threading.current_thread())
        return {"main": float(len(sample["messages"])), "helper": np.float32(0.5)}

    async def judge_later(sample):
        await asyncio.sleep(0)
        return judge(sample)

    hook = judge_later if kind == "async" else judge
    engine = open_engine(
        n_samples_per_prompt=3,
        rollout_batch_size=2,
        reward_key="main",
        hooks=rr.Hooks(reward=hook, threads=2 if kind == "threads" else 0),
    )
    batch = engine.rollout(0, [task("no_reward"), task("no_reward")])
    assert [r.reward for r in batch] == [2.0] * 6
    assert (threading.main_thread() in threads) == (kind == "plain")
    assert batch[0].meta["reward"] == {"main": 2.0, "helper": 0.5}


def test_agents_rewards_stay_unless_the_group_is_judged(open_engine):
    asked = []

    def judge(sample):
        asked.append(sample)
        return 0.0

    engine = open_engine(hooks=rr.Hooks(reward=judge))
    assert engine.rollout(0, [task(reward=1.0)])[0].reward == 1.0
    assert asked == []
    engine.close()
    engine = open_engine(
        n_samples_per_prompt=2,
        hooks=rr.Hooks(group_reward=lambda group: np.arange(len(group)) + 0.5),
    )
    batch = engine.rollout(0, [task(reward=1.0)])
    assert [r.reward for r in batch] == [0.5, 1.5]


def test_calls_run_at_a_time_but_not_more_than_allowed(open_engine):
    running, most = 0, 0

    async def judge(sample):
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.02)
        running -= 1
        return 1.0

    engine = open_engine(n_samples_per_prompt=6, hooks=rr.Hooks(reward=judge, max_concurrency=3))
    assert len(engine.rollout(0, [task("no_reward")])) == 6
    assert most == 3


@pytest.mark.parametrize("threads", [0, 2])
def test_retries(open_engine, threads):
    tries = []

    def judge(sample):
        tries.append(dict(sample["metadata"]))
        sample["metadata"]["changed"] = True
        if len(tries) < 3:
            raise ConnectionError("the judge is busy")
        return 1.0

    engine = open_engine(
        hooks=rr.Hooks(reward=judge, retries=2, retry_delay=0.001, threads=threads)
    )
    assert len(engine.rollout(0, [task("no_reward")])) == 1
    assert len(tries) == 3
    assert tries[0] == tries[2], "a try sees what an earlier one changed"


# ---- what breaks --------------------------------------------------------------------------------


async def hangs(sample):
    await asyncio.sleep(60)


async def exits(sample):
    raise SystemExit(3)


async def cancels(sample):
    raise asyncio.CancelledError


async def nothing(sample):
    return None


async def raises(sample):
    raise ValueError("no judge today")


@pytest.mark.parametrize(
    ("hook", "more", "message"),
    [
        (raises, {}, "sample 0 (session-"),
        (raises, {}, "ValueError: no judge today"),
        (hangs, {"timeout": 0.05}, "no answer within 0.05 s"),
        (lambda sample: time.sleep(2), {"timeout": 0.05, "threads": 1}, "no answer within 0.05 s"),
        (exits, {}, "the hook raised SystemExit"),
        (lambda sample: sys.exit(3), {}, "SystemExit: 3"),
        (lambda sample: sys.exit(3), {"threads": 1}, "the hook raised SystemExit(3)"),
        (cancels, {}, "it was cancelled"),
        (nothing, {}, "expected a finite number or an object, found None"),
        (lambda sample: raises(sample), {}, "declare it with `async def`"),
        (lambda sample: raises(sample), {"threads": 1}, "declare it with `async def`"),
        (lambda sample: {"other": 1}, {"threads": 1}, "reward_key"),
    ],
)
def test_a_broken_reward_hook_costs_its_group(open_engine, hook, more, message):
    engine = open_engine(max_consecutive_dropped_groups=1, hooks=rr.Hooks(reward=hook, **more))
    with pytest.raises(rr.StepFailedError) as failed:
        engine.rollout(0, [task("no_reward")])
    (drop,) = failed.value.report.drops
    assert drop.reason == "score"
    assert message in drop.first
    assert drop.first.startswith("reward hook, group train:group_")


def test_closing_does_not_wait_for_a_hook(open_engine):
    started = threading.Event()

    async def judge(sample):
        started.set()
        await asyncio.sleep(600)

    engine = open_engine(hooks=rr.Hooks(reward=judge))
    engine.submit([task("no_reward")])
    caught = []

    def roll():
        try:
            engine.rollout(0)
        except rr.ClosedError as err:
            caught.append(err)

    step = threading.Thread(target=roll)
    step.start()
    assert started.wait(20)
    engine.close()
    step.join(20)
    assert len(caught) == 1
    assert eventually(lambda: not any(t.name == "relax-hooks" for t in threading.enumerate()))


def test_a_thread_that_hangs_does_not_keep_the_process():
    out = check_script(
        """
import sys; sys.path.insert(0, ".")
from conftest import options, task
import time, relax_rollout as rr
hooks = rr.Hooks(reward=lambda sample: time.sleep(600), threads=1, timeout=0.1)
engine = rr.Engine(options(max_consecutive_dropped_groups=1), hooks=hooks)
try:
    engine.rollout(0, [task("no_reward")])
except rr.StepFailedError as err:
    print("no answer within" in str(err))
""",
        timeout=60,
    )
    assert out == "True\n"


def test_ctrl_c_while_hooks_run_beside(open_engine):
    """The step goes on where it was: nothing is judged twice that was judged."""
    judged = []

    async def judge(sample):
        if not judged:
            os.kill(os.getpid(), signal.SIGINT)
        judged.append(sample["session_id"])
        await asyncio.sleep(0.2)
        return 1.0

    engine = open_engine(hooks=rr.Hooks(reward=judge))
    with pytest.raises(KeyboardInterrupt):
        engine.rollout(0, [task("no_reward")])
    assert len(engine.rollout(0)) == 1
    assert len(judged) == 1


# ---- filters ------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["check_reward_nonzero_std", "some.pkg.check_reward_nonzero_std"])
def test_the_built_in_filter(open_engine, path):
    engine = open_engine(n_samples_per_prompt=2, hooks=rr.Hooks(filter=path))
    batch = engine.rollout(0, [task(reward=0.0)])
    assert len(batch) == 0
    assert [(d.reason, d.groups) for d in batch.report.drops] == [("filtered:zero_std_0.0", 1)]


class Verdict:
    def __init__(self, keep, reason=None):
        self.keep, self.reason = keep, reason


@pytest.mark.parametrize(
    ("verdict", "reason"),
    [
        (False, "filtered"),
        (np.False_, "filtered"),
        ((False, "too easy"), "filtered:too_easy"),
        ({"keep": False, "reason": "hard"}, "filtered:hard"),
        (Verdict(False, "old"), "filtered:old"),
    ],
)
def test_verdicts(open_engine, verdict, reason):
    told = []

    async def judge(sessions):
        told.append(sessions)
        return verdict if len(told) == 1 else Verdict(True)

    engine = open_engine(n_samples_per_prompt=2, hooks=rr.Hooks(filter=judge))
    batch = engine.rollout(0, [task(reward=1.0), task(reward=0.5)])
    assert [(d.reason, d.groups) for d in batch.report.drops] == [(reason, 1)]
    assert [r.reward for r in batch] == [0.5, 0.5]
    (first, _) = told[0]
    assert first["reward"] == 1.0
    assert first["contexts"][0]["advantage"] == 0.0


@pytest.mark.parametrize("verdict", [None, 1, "no", (1, "x"), {"reason": "x"}])
def test_a_wrong_verdict_costs_its_group(open_engine, verdict):
    hook = rr.Hooks(filter=lambda sessions: verdict)
    engine = open_engine(max_consecutive_dropped_groups=1, hooks=hook)
    with pytest.raises(rr.StepFailedError) as failed:
        engine.rollout(0, [task()])
    (drop,) = failed.value.report.drops
    assert drop.reason == "filter"
    assert "filter hook" in drop.first


# ---- without an engine --------------------------------------------------------------------------


def test_the_loop_ends_with_what_it_runs():
    started, stopped = threading.Event(), []

    async def judge(sample):
        started.set()
        try:
            await asyncio.sleep(600)
        finally:
            stopped.append(True)

    settings = rr.Hooks(reward=judge)
    loop = HookLoop(settings)
    done = []
    data = {"sessions": [{"session_id": "s", "reward": None}]}
    loop.submit(bind(settings)["score"], data, lambda *result: done.append(result))
    assert started.wait(20)
    loop.close()
    loop.close()
    loop.submit(bind(settings)["score"], data, lambda *result: done.append(result))
    assert stopped == [True]
    assert done == []


def interrupted():
    """A loop as Ctrl-C leaves it that came before its thread was started."""
    settings = rr.Hooks(reward=lambda sample: 1.0, threads=1)
    loop = HookLoop(settings)
    loop._loop, loop._thread = asyncio.new_event_loop(), threading.Thread()
    return loop, bind(settings)["score"]


def test_ctrl_c_before_the_loops_thread_started():
    loop, bound = interrupted()
    done, data = [], {"sessions": [{"session_id": "s", "reward": None}]}
    loop.submit(bound, data, lambda reply, err: done.append(reply))
    assert eventually(lambda: done == [{"rewards": [1.0]}])
    loop.close()
    loop, _ = interrupted()
    inner = loop._loop
    loop.close()
    assert inner.is_closed()


def test_many_replies_lose_none():
    async def judge(sample):
        await asyncio.sleep(0)
        return 1.0

    settings = rr.Hooks(reward=judge, max_concurrency=8)
    loop, bound, done = HookLoop(settings), bind(settings)["score"], []
    sessions = [{"session_id": "s", "reward": None}] * 4
    for _ in range(300):
        data = {"sessions": sessions}
        loop.submit(bound, data, lambda reply, err: done.append((reply, err)))
    assert eventually(lambda: len(done) == 300)
    loop.close()
    assert done == [({"rewards": [1.0] * 4}, None)] * 300


def test_the_same_event_is_not_answered_twice():
    settings = rr.Hooks(reward=lambda sample: 1.0, threads=1)
    loop, bound, done = HookLoop(settings), bind(settings)["score"], []
    data = {"sessions": [{"session_id": "s", "reward": None}]}
    other = dict(data)
    for event in (data, data, other):
        loop.submit(bound, event, lambda reply, err: done.append((reply, err)))
    assert eventually(lambda: len(done) == 2)
    loop.close()
    assert done == [({"rewards": [1.0]}, None)] * 2


@pytest.mark.parametrize("beside", [False, True])
def test_an_answer_that_nobody_waits_for_harms_nothing(beside):
    refused, log = [], logging.getLogger("engine")

    class Library:
        def reply(self, *call):
            refused.append(call[1])
            raise rr.StateError("no such event is open")

    settings = rr.Hooks(reward=lambda sample: 1, threads=int(beside))
    loop = HookLoop(settings)
    runner = StepRunner(Library(), 1, (settings, bind(settings), loop), log, None)
    data = {"group_id": "train:group_1", "sessions": [{"session_id": "s"}]}
    event = rr.Event(rr.EventKind.SCORE, 7, 0, None, data)
    runner._handle_event(event, Step("rollout", None, None))
    assert eventually(lambda: refused == [7])
    loop.close()


def test_plain_hooks_are_called_in_order():
    seen = []
    settings = rr.Hooks(reward=lambda sample: seen.append(sample["id"]) or 1)
    data = {"sessions": [{"id": i} for i in range(5)]}
    assert call_here(settings, bind(settings)["score"], data) == {"rewards": [1] * 5}
    assert seen == list(range(5))
