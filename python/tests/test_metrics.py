"""The step's numbers have the names dashboards know (guide, Metrics and Passrate).

Cases O1, O2, O6, O7 and O9 of the specification.
"""

import itertools
import re

import pytest
from conftest import ROOT, task

import relax_rollout as rr

NAMES = ROOT / "relax" / "internal" / "observe" / "names_test.go"

# What the simulator does not do, or what this run's settings exclude.
ELSEWHERE = (
    "rollout/spec_",
    "rollout/zero_std/count_1.0",
    "my_field/",
    "rollout/helper/",
    "rollout/divergence/",
)


def published():
    """The names of the guide and the reference, as the Go test lists them."""
    block = re.search(r"var published = \[\]string\{(.*?)\n\}", NAMES.read_text(), re.S).group(1)
    return [n for n in re.findall(r'"([^"]+)"', block) if not n.startswith(ELSEWHERE)]


@pytest.fixture
def metrics(open_engine):
    rewards = itertools.cycle([0, 0, 1, 0, 0, 1])

    def judge(sample):
        return {"score": next(rewards), "style": 0.5, "parts": [1, 2], "kind": "timeout"}

    engine = open_engine(
        n_samples_per_prompt=2,
        rollout_batch_size=2,
        agentic_concurrency=1,  # the Groups are judged one after another
        reward_key="score",
        log_passrate=True,
        log_reward_category="kind",
        rollout_num_gpus=1,
        advantage_estimator="rloo",
        hooks=rr.Hooks(reward=judge, filter="check_reward_nonzero_std"),
    )
    tasks = itertools.repeat(task("no_reward", difficulty=3, solved=True, _private=1, text="x"))
    return engine.rollout(4, tasks).report.metrics


def test_every_published_name_is_there(metrics):
    names = published()
    assert len(names) > 50
    missing = [name for name in names if name not in metrics]
    assert missing == []


def test_the_numbers(metrics):
    assert metrics["rollout/dynamic_filter/drop_zero_std_0.0"] == 1
    assert metrics["rollout/dropped_groups/filtered:zero_std_0.0"] == 1
    assert metrics["rollout/raw_reward"] == 0.5
    assert metrics["rollout/passrate/pass@1"] == 0.5
    assert metrics["rollout/passrate/pass@2"] == 1
    assert metrics["rollout/style/mean"] == metrics["rollout/style/max"] == 0.5
    assert metrics["rollout/parts/median"] == 1.5
    assert metrics["rollout/error_cat/timeout"] == 1
    assert metrics["difficulty/mean"] == metrics["difficulty/min"] == 3
    assert metrics["solved/max"] == 1
    assert not any("private" in name or name.startswith("text/") for name in metrics)
    assert metrics["rollout/global_batch_size"] == 4
    assert metrics["rollout/step"] == 4
    assert metrics["rollout/rloo/adv_abs_mean"] == 1
    assert metrics["rollout/wasted_tokens"] > 0


def test_a_session_with_several_contexts_counts_once(open_engine, tmp_path):
    team = task("team", outcomes=[1.0, 0.0], usefulness=[0.6, 0.2], claims=str(tmp_path))
    engine = open_engine(
        n_samples_per_prompt=2,
        log_passrate=True,
        advantage=lambda slots: [dict.fromkeys(slot, 1.0) for slot in slots],
    )
    batch = engine.rollout(0, [team])
    assert len(batch) == 4
    metrics = batch.report.metrics
    assert metrics["rollout/raw_reward"] == 0.5
    assert metrics["rollout/passrate/pass@1"] == 0.5
    assert metrics["rollout/num_turn/mean"] == 2
    assert metrics["rollout/global_batch_size"] == 2
    sums = {row.sample_index: row.mask_sum for row in batch}
    assert metrics["rollout/response_len/mean"] == sum(sums.values()) / 2
    assert metrics["outcome/mean"] == 0.5
    assert metrics["usefulness/max"] == 0.6
