"""Evaluation steps: real agents, the simulator as model."""

import math

import numpy as np
import pytest
from conftest import task
from holding import SIMULATOR, scripted

import relax_rollout as rr
from relax_rollout.evaluation import eval_documents

pytestmark = pytest.mark.usefixtures("deadline")


def test_two_datasets_and_a_sample_that_fails(open_engine):
    engine = open_engine(agent="scripted.py", n_samples_per_prompt=2)
    engine.set_weight_version(4)
    hello = {"ask": "hello"}
    results = engine.evaluate(
        3,
        {
            "twice": rr.EvalDataset(
                tasks=[scripted(hello, reward=0.25), scripted(hello)],
                n_samples=2,
                metadata={"reward": 0.5, "split": "test"},
            ),
            "broken": [scripted(hello), scripted({"exit": 3}), scripted(hello, reward=0)],
        },
    )
    assert list(results) == ["twice", "broken"]
    twice, broken = results["twice"], results["broken"]
    assert twice.rewards == (0.25, 0.25, 0.5, 0.5), "in the order of the tasks"
    assert twice.reward == 0.375
    assert twice.truncated == (False,) * 4
    assert (twice.dropped, len(twice.batch)) == (0, 4)
    for row in twice.batch:
        assert row.meta["metadata"]["mode"] == "eval"
        assert row.meta["metadata"]["split"] == "test"
        assert row.meta["metadata"]["group"].startswith("eval:twice:3:group_")
        assert {s.weight_version for s in row.segments} == {4}
    assert broken.rewards == (1.0, 0.0)
    assert (broken.dropped, len(broken.batch)) == (1, 2)

    report = engine.last_report
    assert report.eval
    assert twice.batch.report is broken.batch.report is report
    assert [(d.name, d.samples, d.delivered) for d in report.datasets] == [
        ("twice", 4, 4),
        ("broken", 3, 2),
    ]
    assert report.session_balance.started == 7
    assert [(d.reason, d.sessions) for d in report.drops] == [("agent_exit", 1)]
    assert "code 3" in report.drops[0].first
    assert report.metrics["eval/twice"] == 0.375
    assert report.metrics["eval/broken"] == 0.5
    assert report.metrics["eval/twice-truncated_ratio"] == 0

    assert len(engine.rollout(4, [scripted(hello)])) == 2, "and training goes on"
    assert not engine.last_report.eval


def test_a_dataset_samples_by_its_own_options(open_engine):
    engine = open_engine(simulator=SIMULATOR, agent="scripted.py")
    long = [scripted({"ask": "a long answer"})]
    results = engine.evaluate(
        0,
        {
            "short": rr.EvalDataset(tasks=long, max_response_len=4, temperature=0),
            "whole": rr.EvalDataset(tasks=long),
        },
    )
    assert results["short"].truncated == (True,)
    assert results["short"].batch[0].loss_mask.sum() == 4
    assert results["whole"].truncated == (False,)


def test_the_trainer_scores_an_evaluation_too(open_engine):
    seen = []

    def score(sessions):
        seen.append(sessions)
        return [0.5 for _ in sessions]

    engine = open_engine(score=score)
    results = engine.evaluate(0, {"a": [task("no_reward")], "b": [task("no_reward"), task()]})
    assert results["a"].rewards == (0.5,)
    assert results["b"].rewards == (0.5, 1.0), "the agent's own reward stays"
    assert len(seen) == 2


def test_advantages_and_filters_are_for_training(open_engine):
    def refuse(_):
        raise AssertionError("not in an Eval")

    engine = open_engine(
        hooks=rr.Hooks(advantage=refuse, filter=refuse), max_consecutive_dropped_groups=1
    )
    result = engine.evaluate(0, {"a": [task()]})["a"]
    assert result.rewards == (1.0,)
    assert np.isfinite(result.batch.numpy("advantage")).all()


def test_a_dataset_without_a_result_is_empty(open_engine):
    engine = open_engine(max_consecutive_dropped_groups=1)
    results = engine.evaluate(0, {"bad": [task("exit_one")] * 3, "none": [], "good": [task()]})
    assert (results["bad"].rewards, results["bad"].dropped) == ((), 3)
    assert math.isnan(results["bad"].reward)
    assert len(results["bad"].batch) == len(results["none"].batch) == 0
    assert results["none"].dropped == 0
    assert results["good"].rewards == (1.0,)


def test_an_evaluation_goes_on_after_ctrl_c(open_engine):
    calls = []

    def score(sessions):
        calls.append(sessions)
        if len(calls) == 1:
            raise KeyboardInterrupt
        return [1.0]

    engine = open_engine(score=score)
    datasets = {"a": [task("no_reward")]}
    with pytest.raises(KeyboardInterrupt):
        engine.evaluate(0, datasets)
    with pytest.raises(rr.StateError, match=r"step 0 is open; call evaluate\(0\)"):
        engine.rollout(0, [task()])
    assert engine.evaluate(0, datasets)["a"].rewards == (1.0,)
    assert calls[0] == calls[1]


def test_callers_that_poll_themselves(open_engine):
    engine = open_engine()
    engine.start_eval(5, {"a": [task()], "b": [task("exit_one"), task()]})
    with pytest.raises(rr.StateError):
        engine.start_rollout(6)
    rows, bars = {}, set()
    while True:
        event = engine.poll(60)
        assert event is not None, "no event within a minute"
        if event.kind == rr.EventKind.BATCH:
            assert event.data["eval"] is True
            rows[event.data["dataset"]] = len(event.batch)
        if event.kind == rr.EventKind.PROGRESS:
            bars.add(event.data["dataset"])
        if event.kind == rr.EventKind.STEP_END:
            break
    assert (event.rollout_id, rows) == (5, {"a": 1, "b": 1})
    assert bars == {"a", "b"}


def test_the_bar_names_the_dataset(open_engine, capsys):
    open_engine(progress=True).evaluate(0, {"greetings": [task(), task()]})
    assert "Eval greetings: 100% 2/2 [" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("datasets", "says"),
    [
        ({}, "found an empty one"),
        (["What is 2 + 2?"], "expected datasets as a mapping of names"),
        ({"a": "What is 2 + 2?"}, "dataset 'a': tasks is one str"),
        ({"": []}, "expected a name"),
        ({3: []}, "dataset 3: expected a name"),
        ({"a": [{"prompt": "x"}]}, r"found \['prompt'\]"),
        ({"a": rr.EvalDataset(tasks=[], n_samples=1.5)}, "dataset 'a': n_samples: expected int"),
        ({"a": rr.EvalDataset(tasks=[], temperature="hot")}, "temperature: expected number"),
        ({"a": rr.EvalDataset(tasks=[], metadata=3)}, "metadata: expected mapping"),
    ],
)
def test_datasets_of_another_shape(datasets, says):
    with pytest.raises(rr.InvalidError, match=says):
        eval_documents(datasets)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"top_p": 2}, "top_p"),
        ({"temperature": -1}, "temperature"),
        ({"n_samples": -1}, "n_samples"),
        ({"metadata": {"a": math.nan}}, "not a JSON value"),
    ],
)
def test_values_that_cannot_be(open_engine, values, says):
    engine = open_engine()
    with pytest.raises(rr.InvalidError, match=says):
        engine.evaluate(0, {"a": rr.EvalDataset(tasks=["hello"], **values)})
    assert engine.evaluate(0, {"a": [task()]})["a"].rewards == (1.0,), "nothing was started"
