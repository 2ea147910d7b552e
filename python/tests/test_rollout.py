"""Rollout steps end to end: real agents, the real engine, the simulator as model."""

import asyncio
import itertools
import json
import logging
import math
import threading

import numpy as np
import pytest
from conftest import eventually, task

import relax_rollout as rr
from relax_rollout import _lib

CALCULATOR = {
    "classes": [
        {
            "name": "answer",
            "match": {
                "role": "user",
                "last_contains": "tool_response",
                "last_regex": r"(?P<r>-?\d+)",
            },
            "candidates": [{"text": "The sum is ${r}."}],
        },
        {
            "name": "call",
            "match": {"role": "user", "last_regex": r"(?P<a>\d+) \+ (?P<b>\d+)"},
            "candidates": [
                {
                    "text": "<tool_call>\n"
                    '{"name": "add", "arguments": {"a": ${a}, "b": ${b}}}'
                    "\n</tool_call>"
                }
            ],
        },
    ],
    "default": [{"text": "I do not know."}],
}
ADDED = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
]


def spell(ids):
    """Text of the built-in byte tokenizer."""
    return b"".join(
        bytes([i]) if i < 256 else ADDED[i - 256].encode() for i in np.asarray(ids).tolist()
    ).decode()


def sums(numbers):
    for a, b in numbers:
        yield {
            "messages": [{"role": "user", "content": f"What is {a} + {b}?"}],
            "metadata": {"answer": a + b},
        }


def test_tool_calls_through_the_openai_sdk(open_engine):
    engine = open_engine(
        agent="calculator.py",
        simulator={"policy": CALCULATOR},
        agentic_tool_call_parser="qwen25",
        rollout_batch_size=2,
        n_samples_per_prompt=2,
        agentic_concurrency=2,
    )
    engine.set_weight_version(11)
    batch = engine.rollout(0, sums([(17, 25), (100, 1)]))
    assert len(batch) == 4
    for row in batch:
        assert row.turns == 2
        assert row.reward == 1.0
        assert row.advantage == 0.0, "all of the Group are equal"
        assert row.loss_mask[row.prompt_len :].min() == 0, "the tool's answer is not trained"
        sampled = spell(row.tokens[row.loss_mask == 1])
        a, b = (17, 25) if "17" in spell(row.prompt_tokens) else (100, 1)
        assert sampled == (
            f'<tool_call>\n{{"name": "add", "arguments": {{"a": {a}, "b": {b}}}}}\n</tool_call>'
            f"<|im_end|>The sum is {a + b}.<|im_end|>"
        )
        assert spell(row.tokens).startswith("<|im_start|>")
        assert np.allclose(row.logprobs[row.loss_mask == 1], 0.0), "only one reply was possible"
        assert {s.weight_version for s in row.segments} == {11}
        assert '"tool_calls"' in json.dumps(row.meta)
    report = batch.report
    assert report is engine.last_report
    assert (report.rollout, report.groups, report.rows, report.debt) == (0, 2, 4, 0)
    assert report.error is None
    for balance in (report.group_balance, report.session_balance, report.token_balance):
        assert balance.started == balance.delivered + balance.dropped + balance.carried
    assert report.session_balance.delivered == 4
    assert report.token_balance.delivered == int(batch.numpy("loss_mask").sum())


def test_logprobs_are_the_models(open_engine):
    two = {"policy": {"default": [{"text": "yes"}, {"text": "no"}]}}
    engine = open_engine(simulator=two, rollout_batch_size=8, agentic_concurrency=4)
    batch = engine.rollout(0, itertools.repeat(task()))
    for row in batch:
        sampled = row.logprobs[row.loss_mask == 1]
        assert math.isclose(sampled.sum(), math.log(0.5), rel_tol=1e-5)
    assert len({spell(r.response_tokens) for r in batch}) <= 2


def test_rewards_become_advantages(open_engine):
    engine = open_engine(n_samples_per_prompt=3, score=lambda sessions: [0.0, 0.5, np.float64(1.0)])
    batch = engine.rollout(0, [task("no_reward")])
    rewards = [r.reward for r in sorted(batch, key=lambda r: r.session_seq)]
    assert rewards == [0.0, 0.5, 1.0]
    advantages = np.array([r.advantage for r in sorted(batch, key=lambda r: r.session_seq)])
    np.testing.assert_allclose(advantages, np.array([-0.5, 0, 0.5]) / (0.5 + 1e-6), atol=1e-5)


def test_reward_objects(open_engine):
    engine = open_engine(reward_key="main", score=lambda s: [{"main": 1, "style": 0.5}] * len(s))
    assert engine.rollout(0, [task("no_reward")])[0].reward == 1.0


def test_tasks_are_pulled_as_needed(open_engine):
    pulled = []

    def tasks():
        for n in itertools.count():
            pulled.append(n)
            yield task(name=f"t{n}")

    source = tasks()
    engine = open_engine(rollout_batch_size=2)
    for step in range(3):
        batch = engine.rollout(step, source)
        assert len(batch) == 2
        assert batch.rollout_id == step
    assert len(pulled) == 6


def test_strings_and_submitted_tasks(open_engine):
    engine = open_engine(rollout_batch_size=2)
    engine.submit(["one", "two"])
    assert len(engine.rollout(0)) == 2


def test_when_tasks_run_out(open_engine):
    engine = open_engine(rollout_batch_size=3)
    batch = engine.rollout(0, [task()])
    assert len(batch) == 1
    assert batch.report.debt == 2
    empty = engine.rollout(1, [])
    assert len(empty) == 0
    assert empty.report.debt == 3
    assert empty.numpy("tokens").shape == (0,)
    assert len(engine.rollout(2, [task(), task(), task()])) == 3


def test_an_exception_in_tasks_leaves_the_step_open(open_engine):
    def broken():
        yield task("exit_one")
        raise OSError("the dataset is gone")

    engine = open_engine()
    with pytest.raises(OSError, match="the dataset is gone"):
        engine.rollout(0, broken())
    with pytest.raises(rr.StateError):
        engine.rollout(1, [task()])
    # The iterator is finished by now, so the step ends without rows.
    batch = engine.rollout(0)
    assert (len(batch), batch.report.debt) == (0, 1)
    assert len(engine.rollout(1, [task()])) == 1


def test_a_step_goes_on_after_ctrl_c(open_engine):
    calls = []

    def score(sessions):
        calls.append(sessions)
        if len(calls) == 1:
            raise KeyboardInterrupt
        return [1.0]

    engine = open_engine(score=score)
    with pytest.raises(KeyboardInterrupt):
        engine.rollout(0, [task("no_reward")])
    with pytest.raises(rr.StateError, match=r"step 0 is open; call rollout\(0\)"):
        engine.rollout(1, [task()])
    assert len(engine.rollout(0)) == 1
    assert calls[0] == calls[1]


def test_a_refused_task_is_passed_over_when_the_step_goes_on(open_engine):
    source = iter([task("exit_one"), {"messages": "not a list"}, task()])
    engine = open_engine()
    with pytest.raises(rr.InvalidError, match="messages"):
        engine.rollout(0, source)
    assert len(engine.rollout(0)) == 1


def test_log_lines_and_progress(open_engine, caplog, capsys):
    with caplog.at_level(logging.INFO, logger="relax_rollout"):
        open_engine(progress=True, n_samples_per_prompt=2).rollout(0, [task()])
    ends = [r.message for r in caplog.records if "event=accounting_end" in r.message]
    assert len(ends) == 1
    assert ends[0].startswith("AGENTIC ROLLOUT event=accounting_end rollout=0 groups=1 ")
    assert "Rollout 0 generation: 100% 2/2 [" in capsys.readouterr().err


def test_stats(open_engine):
    engine = open_engine()
    stats = engine.stats()
    assert isinstance(stats, dict)
    assert stats


def test_low_level_polling(open_engine):
    engine = open_engine()
    engine.submit([task()])
    engine.start_rollout(9)
    kinds = []
    while rr.EventKind.STEP_END not in kinds:
        event = engine.poll(60)
        assert event is not None, "no event within a minute"
        kinds.append(event.kind)
        if event.kind == rr.EventKind.TASKS_NEEDED:
            engine.reply(event, {"tasks": [task()], "end": True})
        if event.kind == rr.EventKind.BATCH:
            assert event.rollout_id == event.batch.rollout_id == 9
            assert len(event.batch) == 1
    assert kinds.count(rr.EventKind.BATCH) == 1
    assert kinds.index(rr.EventKind.BATCH) < kinds.index(rr.EventKind.STEP_END)


def test_asyncio(open_engine):
    engine = open_engine()

    async def run():
        ticks = 0

        async def tick():
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0.001)

        ticker = asyncio.create_task(tick())
        engine.submit([task()])
        engine.start_rollout(1)
        rows = 0
        while True:
            event = await engine.apoll(60)
            assert event is not None
            if event.kind == rr.EventKind.TASKS_NEEDED:
                engine.reply(event.id, {"tasks": [], "end": True})
            if event.kind == rr.EventKind.BATCH:
                rows = len(event.batch)
            if event.kind == rr.EventKind.STEP_END:
                break
        ticker.cancel()
        return rows, ticks

    rows, ticks = asyncio.run(run())
    assert rows == 1
    assert ticks > 5, "the loop was blocked"


def test_asyncio_loops_of_two_threads(open_engine):
    engine, events = open_engine(), []
    threads = [
        threading.Thread(target=lambda: events.append(asyncio.run(engine.apoll(60))))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    assert eventually(lambda: len(engine._waiters) == 2)
    engine.start_rollout(0)  # a log line, and that tasks are needed
    for thread in threads:
        thread.join(30)
    assert len(events) == 2
    assert None not in events


def test_pause_and_resume(open_engine):
    engine = open_engine()
    assert engine.pause(30)
    done = []
    thread = threading.Thread(target=lambda: done.append(engine.rollout(0, [task()])))
    thread.start()
    engine.set_weight_version(1)
    engine.resume()
    thread.join(60)
    assert len(done[0]) == 1


def test_arguments_are_checked(open_engine):
    engine = open_engine()
    with pytest.raises(rr.InvalidError, match="version is '7', expected an int64"):
        engine.set_weight_version("7")
    with pytest.raises(rr.InvalidError, match="rollout_id"):
        engine.rollout("0", [])
    with pytest.raises(rr.InvalidError, match="start_rollout: rollout_id"):
        engine.start_rollout(2**64)
    with pytest.raises(rr.InvalidError, match="tasks is one str"):
        engine.rollout(0, "What is 2 + 3?")
    engine.set_weight_version(np.int64(2))
    with pytest.raises(rr.InvalidError, match="reply: not a JSON value"):
        engine.reply(1, {"a": float("nan")})
    with pytest.raises(rr.RelaxError):
        engine.reply(99, {"tasks": [], "end": True})


def test_ctrl_c_during_close_is_seen_and_close_goes_on(open_engine, monkeypatch):
    engine = open_engine()
    waits = []

    def slow(handle, grace_ms):
        waits.append(grace_ms)
        if len(waits) == 3:
            raise KeyboardInterrupt
        return False

    with monkeypatch.context() as patch:
        patch.setattr(engine._lib, "close", slow)
        with pytest.raises(KeyboardInterrupt):
            engine.close(1e9)
    assert waits == [100] * 3, "in slices, so that Ctrl-C is seen in time"
    assert not engine.closed
    engine.close()
    assert engine.closed


def test_agents_have_their_grace_when_the_engine_is_closed(open_engine, tmp_path):
    agent = tmp_path / "agent.sh"
    agent.write_text(
        "trap 'sleep 0.5; touch clean; exit' TERM; touch up; while :; do sleep 0.02; done\n"
    )
    engine = open_engine(
        agent_command=f"sh {agent}", agent_cwd=str(tmp_path), agent_kill_grace=60.0
    )
    engine.submit([task()])
    engine.start_rollout(0)
    assert eventually((tmp_path / "up").exists, 60)
    engine.close(grace=60)
    assert (tmp_path / "clean").exists(), "it was killed in the middle of its clean-up"


def test_another_engine_can_be_made_after_a_close_without_time(open_engine):
    engine = open_engine()
    engine.close(grace=0)
    assert engine.closed

    def made():
        try:
            return open_engine()
        except rr.AlreadyOpenError:
            return None

    assert eventually(made, 60), "nobody goes on with the close"


def test_ctrl_c_right_after_an_engine_was_opened(open_engine, monkeypatch):
    open_engine().close()  # the library is loaded
    library = _lib.load()
    real = type(library).open

    def interrupted(self, text, cell):
        real(self, text, cell)
        assert cell.handle
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(type(library), "open", interrupted)
        with pytest.raises(KeyboardInterrupt):
            open_engine()
    assert not open_engine().closed


def test_a_close_that_takes_too_long_is_logged(open_engine, monkeypatch, caplog):
    engine = open_engine()
    with monkeypatch.context() as patch:
        patch.setattr(engine._lib, "close", lambda handle, grace_ms: False)
        engine.close(0.01)
    assert "parts of the engine still run after 0.01 s" in caplog.text
    engine._lib.close(engine._handle, 10_000)
