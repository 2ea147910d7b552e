"""What one agent writes never ends the step of the others (design 4, rule 5)."""

import json
import sys

import numpy as np
import pytest
from conftest import task

import relax_rollout as rr

HUGE = sys.float_info.max


def writing(*outputs):
    """A task each, whose Sessions write the output."""
    return [task("literal", output=json.dumps(output)) for output in outputs]


def nested(levels):
    value = 1
    for _ in range(levels):
        value = [value]
    return value


def test_numbers_whose_sum_is_infinite(open_engine):
    engine = open_engine(n_samples_per_prompt=2, rollout_batch_size=2, reward_key="acc")
    output = {"reward": {"acc": 1, "cost": [HUGE, HUGE]}, "metadata": {"best": HUGE, "tries": 2}}
    batch = engine.rollout(0, writing(output, output))
    metrics = batch.report.metrics
    assert metrics["tries/mean"] == 2
    assert metrics["best/max"] == HUGE
    assert not {"best/mean", "rollout/cost/mean"} & set(metrics)
    results = engine.evaluate(1, {"d": rr.EvalDataset(tasks=writing(output, output))})
    assert results["d"].reward == 1
    assert len(engine.rollout(1, writing(output, output))) == 4


@pytest.mark.parametrize(
    ("output", "why"),
    [
        ({"reward": 1e300}, "a float32 holds"),
        ({"metadata": {"deep": nested(300)}}, "at most 200 nested lists and objects"),
    ],
)
def test_what_nobody_can_read_costs_its_own_group(open_engine, output, why):
    engine = open_engine(
        hooks=rr.Hooks(reward=lambda sample: 0.5), n_samples_per_prompt=1, rollout_batch_size=1
    )
    batch = engine.rollout(0, writing(output, {"metadata": {"deep": nested(190)}}))
    assert len(batch) == 1
    (drop,) = batch.report.drops
    assert drop.reason == "invalid_output"
    assert why in drop.first


def test_a_number_longer_than_pythons_integers(open_engine):
    engine = open_engine(
        hooks=rr.Hooks(reward=lambda sample: 0.5), n_samples_per_prompt=1, rollout_batch_size=1
    )
    digits = task("literal", output='{"metadata": {"n": ' + "1" * 5000 + "}}")
    batch = engine.rollout(0, [digits, task("no_reward")])
    assert [d.reason for d in batch.report.drops] == ["invalid_output"]
    assert np.isfinite(batch.numpy("reward")).all()
