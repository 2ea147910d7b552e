"""Every failure is a typed error or a dropped Group that says what happened."""

import itertools
import json
import socket

import pytest
from conftest import CHECKPOINTS, options, task

import relax_rollout as rr

# ---- opening ------------------------------------------------------------------------------------


def test_missing_agent_cwd(tmp_path):
    gone = str(tmp_path / "gone")
    with pytest.raises(rr.ConfigError, match="agent_cwd") as caught:
        rr.Engine(options(agent_cwd=gone))
    assert caught.value.option == "agent_cwd"
    assert gone in str(caught.value)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("rollout_batch_size", -1),
        ("agent_timeout", -1),
        ("rollout_top_p", 2),
        ("api_port", 70000),
        ("backend", "vllm"),
        ("agent_env", {"RELAX_BASE_URL": "x"}),
        ("agentic_tool_call_parser", "no such parser"),
        ("simulator", {"policy": {"default": []}}),
        ("simulator", {"no such": 1}),
    ],
)
def test_values_that_cannot_work(option, value):
    with pytest.raises(rr.ConfigError, match="^Engine: .*option ") as caught:
        rr.Engine(options(**{option: value}))
    assert caught.value.option == option


def test_a_failed_open_leaves_room_for_the_next(open_engine):
    with pytest.raises(rr.ConfigError):
        rr.Engine(options(rollout_batch_size=-1))
    assert len(open_engine().rollout(0, [task()])) == 1


def unused_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def sglang_options(checkpoint, url):
    real = options(sglang_url=url, hf_checkpoint=checkpoint)
    del real["simulator"]
    return real


def test_unreachable_backend():
    url = f"http://127.0.0.1:{unused_port()}"
    with pytest.raises(rr.BackendError, match="sglang_url") as caught:
        rr.Engine(sglang_options(CHECKPOINTS / "tinychat", url))
    assert url in str(caught.value) or url[7:] in str(caught.value)


def test_tokenizer_without_a_chat_template():
    with pytest.raises(rr.ConfigError, match="template") as caught:
        rr.Engine(options(hf_checkpoint=CHECKPOINTS / "notemplate"))
    assert caught.value.option == "hf_checkpoint"


def test_checkpoint_that_does_not_exist(tmp_path):
    with pytest.raises(rr.ConfigError) as caught:
        rr.Engine(options(hf_checkpoint=str(tmp_path / "gone")))
    assert caught.value.option == "hf_checkpoint"


def test_a_score_hook_and_custom_rm_off():
    with pytest.raises(rr.ConfigError, match="custom_rm"):
        rr.Engine(options(custom_rm=False), score=lambda sessions: [])


# ---- agents -------------------------------------------------------------------------------------


def drop_of(report, reason):
    drops = {d.reason: d for d in report.drops}
    assert reason in drops, report.raw
    return drops[reason]


@pytest.mark.parametrize(
    ("mode", "reason", "cause"),
    [
        ("exit_one", "agent_exit", ["1", "the agent lost its way"]),
        ("bad_output", "invalid_output", ["line 1"]),
        ("no_call", "no_request", []),
        ("hang", "agent_timeout", ["agent_timeout"]),
        ("no_reward", "reward", ["reward"]),
    ],
)
def test_a_bad_agent_costs_its_group_and_the_step_refills(open_engine, mode, reason, cause):
    engine = open_engine(agent_timeout=3.0, agent_first_request_timeout=30.0, rollout_batch_size=2)
    good = itertools.repeat(task())
    batch = engine.rollout(0, itertools.chain([task(mode)], good))
    assert len(batch) == 2
    assert batch.report.group_balance.dropped == 1
    drop = drop_of(batch.report, reason)
    assert drop.groups == 1
    for words in cause:
        assert words in drop.first


def test_an_agent_that_never_asks_is_bounded(open_engine):
    engine = open_engine(
        agent_command="sleep 3600",
        agent_first_request_timeout=0.5,
        max_consecutive_dropped_groups=1,
    )
    with pytest.raises(rr.StepFailedError, match="agent_first_request_timeout|first request"):
        engine.rollout(0, [task()])


def test_a_command_that_cannot_start(open_engine):
    engine = open_engine(agent_command="/no/such/program", max_consecutive_dropped_groups=1)
    with pytest.raises(rr.StepFailedError, match="127|no such|not found"):
        engine.rollout(0, [task()])


def test_a_step_fails_with_the_first_cause(open_engine):
    engine = open_engine(max_consecutive_dropped_groups=3, rollout_batch_size=2)
    with pytest.raises(rr.StepFailedError, match="rollout 5 failed: .*") as caught:
        engine.rollout(5, itertools.repeat(task("exit_one")))
    report = caught.value.report
    assert report is engine.last_report
    assert "the agent lost its way" in str(caught.value)
    assert report.group_balance.dropped >= 3
    # The engine lives.
    assert len(engine.rollout(6, [task(), task()])) == 2


def test_refused_requests_do_not_cost_the_session(open_engine, tmp_path):
    engine = open_engine(max_body_bytes=4096)
    statuses = tmp_path / "statuses.json"
    batch = engine.rollout(0, [task("refused", size=10_000, report=str(statuses))])
    assert len(batch) == 1
    assert batch[0].turns == 1
    seen = json.loads(statuses.read_text())
    assert seen["large"][0] == 413
    assert "max_body_bytes" in str(seen["large"][1])
    assert seen["stranger"][0] in (401, 403, 404)
    assert "nobody" not in batch[0].meta


# ---- hooks --------------------------------------------------------------------------------------


def raises(sessions):
    raise ZeroDivisionError("no such metric")


@pytest.mark.parametrize(
    "hook",
    [
        raises,
        lambda s: [],
        lambda s: [float("nan")] * len(s),
        lambda s: ["x"] * len(s),
        lambda s: None,
    ],
)
def test_a_bad_hook_costs_its_group(open_engine, hook):
    calls = []

    def score(sessions):
        calls.append(sessions)
        return hook(sessions) if len(calls) == 1 else [1.0] * len(sessions)

    engine = open_engine(score=score)
    batch = engine.rollout(0, itertools.repeat(task("no_reward")))
    assert len(batch) == 1
    assert batch[0].reward == 1.0
    drop = drop_of(batch.report, "score")
    assert drop.groups == 1
    assert "score hook" in drop.first


def test_custom_rm_without_a_hook(open_engine):
    engine = open_engine(custom_rm=True, max_consecutive_dropped_groups=1)
    with pytest.raises(rr.StepFailedError, match="given no score hook"):
        engine.rollout(0, [task("no_reward")])


def test_what_a_hook_is_told(open_engine):
    told = []

    def score(sessions):
        told.extend(sessions)
        return [1.0] * len(sessions)

    engine = open_engine(score=score, n_samples_per_prompt=2)
    engine.rollout(0, [task("no_reward")])
    assert len(told) == 2
    assert all(isinstance(s, dict) for s in told)
