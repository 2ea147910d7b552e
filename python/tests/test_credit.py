"""Training credit: of Groups, of Sessions that export several contexts, of turns.

Cases N4 to N9, N11 and 3b-39 to 3b-41 of the specification.
"""

import numpy as np
import pytest
from conftest import task

import relax_rollout as rr


def team(tmp_path):
    return task("team", outcomes=[1.0, 0.0], usefulness=[0.6, 0.2], claims=str(tmp_path))


def outcome_times_usefulness(slots):
    return [
        {
            "main": s["main"]["outcome"],
            "nobody": None,
            "searcher_0": np.float64(s["main"]["outcome"] * s["searcher_0"]["usefulness"]),
        }
        for s in slots
    ]


def test_the_guides_example(open_engine, tmp_path):
    seen = []

    def advantage(slots):
        seen.append(slots)
        return outcome_times_usefulness(slots)

    engine = open_engine(n_samples_per_prompt=2, advantage=advantage)
    batch = engine.rollout(0, [team(tmp_path)])
    credit = {(row.meta["metadata"].get("outcome"), row.meta["name"]): row for row in batch}
    assert len(batch) == 4
    assert len(seen) == 1
    assert [sorted(slot) for slot in seen[0]] == [["main", "searcher_0"]] * 2
    assert credit[1.0, "main"].advantage == 1.0
    assert credit[0.0, "main"].advantage == 0.0
    searchers = {r.meta["metadata"]["usefulness"]: r for r in batch if r.meta["name"] != "main"}
    assert searchers[0.6].advantage == np.float32(0.6)
    assert searchers[0.2].advantage == 0.0
    assert credit[1.0, "main"].reward == 1.0
    assert np.isnan(searchers[0.6].reward)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (lambda slots: slots[:1], "1 mappings for 2 sessions"),
        (lambda slots: [{"main": 1.0}] * 2, "no value for context 'searcher_0'"),
        (lambda slots: [{"main": float("nan"), "searcher_0": 1}] * 2, "found nan"),
        (lambda slots: [{"main": "1", "searcher_0": 1}] * 2, "found '1'"),
        (lambda slots: [{"main": True, "searcher_0": 1}] * 2, "found True"),
        (lambda slots: [{"main": [1.0, 2.0], "searcher_0": 1}] * 2, "its 1 assistant turns"),
        (lambda slots: [{"main": [], "searcher_0": 1}] * 2, "found a list of 0"),
        (lambda slots: [{"main": [None], "searcher_0": 1}] * 2, "turn 0: expected a finite"),
        (lambda slots: [{"main": 1e39, "searcher_0": 1}] * 2, "found 1e+39"),
        (lambda slots: [{"main": None, "searcher_0": 1}] * 2, "found None"),
        (lambda slots: [1.0, 2.0], "expected a mapping"),
        (lambda slots: {"main": 1.0}, "expected a list of mappings"),
        (lambda slots: 1 / 0, "ZeroDivisionError"),
    ],
)
def test_a_wrong_answer_costs_its_group(open_engine, tmp_path, values, message):
    engine = open_engine(n_samples_per_prompt=2, advantage=values, max_consecutive_dropped_groups=1)
    with pytest.raises(rr.StepFailedError) as failed:
        engine.rollout(0, [team(tmp_path)])
    (drop,) = failed.value.report.drops
    assert drop.reason == "advantage"
    assert message in drop.first
    assert "advantage hook, group train:group_" in drop.first


def test_a_number_for_each_turn(open_engine, tmp_path):
    """Lists and numbers side by side; arrays are lists."""
    engine = open_engine(
        n_samples_per_prompt=2,
        advantage=lambda slots: [{"main": np.float32([2.5]), "searcher_0": -1}] * len(slots),
    )
    batch = engine.rollout(0, [team(tmp_path)])
    assert "advantages" in batch.names
    for row in batch:
        main = row.meta["name"] == "main"
        assert row.advantage == (2.5 if main else -1.0)
        (turn,) = row.turn_table
        assert turn.advantage == row.advantage
        sampled = row.loss_mask == 1
        assert (row.advantages[sampled] == row.advantage).all()
        assert (row.advantages[: row.prompt_len] == 0).all()
        if main:
            assert (row.advantages[~sampled] == 0).all()
        assert row.mask_sum == sum(
            int(r.loss_mask.sum()) for r in batch if r.sample_index == row.sample_index
        )
    assert len({r.sample_index for r in batch}) == 2


# ---- what NumPy makes of the same rewards -------------------------------------------------------


def normalised(estimator, rewards, std):
    """GRPO and RLOO as the reference does them (pipeline 6.4), recomputed."""
    if estimator == "rloo":
        return rewards - (rewards.sum() - rewards) / (len(rewards) - 1)
    centred = rewards - rewards.mean()
    return centred / (rewards.std(ddof=1) + 1e-6) if std else centred


@pytest.mark.parametrize(("estimator", "std"), [("grpo", True), ("grpo", False), ("rloo", True)])
def test_advantages_equal_numpys(open_engine, estimator, std):
    random = np.random.default_rng(7)
    drawn = []

    def score(sessions):
        drawn.append(random.normal(size=len(sessions)) * 10.0 ** random.integers(-3, 4))
        return drawn[-1]

    engine = open_engine(
        n_samples_per_prompt=5,
        rollout_batch_size=6,
        advantage_estimator=estimator,
        grpo_std_normalization=std,
        score=score,
    )
    batch = engine.rollout(0, [task("no_reward")] * 6)
    groups = {}
    for row in batch:
        groups.setdefault(row.group_id, []).append(row)
    assert len(groups) == len(drawn) == 6
    for rows in groups.values():
        rows.sort(key=lambda r: r.session_seq)
        rewards = np.array([r.reward for r in rows])
        assert any(np.array_equal(rewards, d) for d in drawn)
        np.testing.assert_allclose(
            [r.advantage for r in rows], normalised(estimator, rewards, std), rtol=1e-6
        )


def test_a_failed_session_is_not_a_zero(open_engine):
    """Its Group is gone, and no other Group's numbers know of it."""
    engine = open_engine(n_samples_per_prompt=2, score=lambda sessions: [1.0, 3.0])
    batch = engine.rollout(0, [task("exit_one"), task("no_reward")])
    assert [d.reason for d in batch.report.drops] == ["agent_exit"]
    np.testing.assert_allclose([r.advantage for r in batch], np.array([-1, 1]) / 2**0.5, rtol=1e-5)


def test_none_filters_the_group_and_the_step_refills(open_engine, tmp_path):
    places = [tmp_path / "first", tmp_path / "second"]
    for place in places:
        place.mkdir()
    answers = [None, outcome_times_usefulness]

    def advantage(slots):
        answer = answers.pop(0)
        return answer and answer(slots)

    engine = open_engine(n_samples_per_prompt=2, advantage=advantage)
    batch = engine.rollout(0, [team(place) for place in places])
    assert len(batch) == 4
    assert [(d.reason, d.groups) for d in batch.report.drops] == [("filtered", 1)]


def test_what_a_hook_changes_stays_its_own(open_engine, tmp_path):
    """Case N10: the rows' metadata is what the agents wrote."""

    def advantage(slots):
        for slot in slots:
            for metadata in slot.values():
                metadata.clear()
        return [dict.fromkeys(slot, 1.0) for slot in slots]

    engine = open_engine(n_samples_per_prompt=2, advantage=advantage)
    batch = engine.rollout(0, [team(tmp_path)])
    kept = sorted(row.meta["metadata"].get("outcome", -1) for row in batch)
    assert kept == [-1, -1, 0.0, 1.0]


def test_a_group_reward_model_beside_a_custom_advantage(open_engine, tmp_path):
    """Case N3 and the guide: a reward model for Groups still runs, one for Sessions does not."""
    asked = []

    def judge(sessions):
        asked.append([s["name"] for s in sessions])
        return [0.25] * len(sessions)

    places = [tmp_path / "group", tmp_path / "single"]
    for place in places:
        place.mkdir()
    ones = lambda slots: [dict.fromkeys(slot, 1.0) for slot in slots]  # noqa: E731
    engine = open_engine(n_samples_per_prompt=2, hooks=rr.Hooks(group_reward=judge, advantage=ones))
    batch = engine.rollout(0, [team(places[0])])
    assert asked == [["main", "main"]]
    assert {row.raw_reward for row in batch} == {0.25}
    assert [row.reward for row in batch if row.meta["name"] == "main"] == [0.25, 0.25]
    engine.close()
    engine = open_engine(
        n_samples_per_prompt=2,
        hooks=rr.Hooks(reward=lambda sample: 1 / 0, advantage=ones),
    )
    assert len(engine.rollout(0, [team(places[1])])) == 4


def test_the_option_and_the_hook_belong_together(open_engine):
    with pytest.raises(rr.ConfigError, match="custom_advantage"):
        open_engine(advantage=outcome_times_usefulness, custom_advantage=False)
