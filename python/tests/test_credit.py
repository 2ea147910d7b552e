"""Training credit of Sessions that export several contexts."""

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


def test_the_option_and_the_hook_belong_together(open_engine):
    with pytest.raises(rr.ConfigError, match="custom_advantage"):
        open_engine(advantage=outcome_times_usefulness, custom_advantage=False)
