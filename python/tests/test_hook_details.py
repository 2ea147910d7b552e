"""Hooks that ask for more of each context than most need, and that say more than a reward."""

import numpy as np
import pytest
from conftest import options, task

import relax_rollout as rr
from relax_rollout.hooks import Judgement


def test_hooks_get_details_where_they_ask_for_them(open_engine):
    """As arrays: what the rows will be. Without being asked for there are none."""
    told = {}

    def judge(sample):
        told["reward"] = sample.get("contexts")
        return 1.0

    def advantage(slots):
        told["advantage"] = slots[0][None]
        return [{None: 2.0}]

    def keep(sessions):
        told["filter"] = sessions[0]["contexts"]
        return True

    settings = {"group_reward": lambda group: [judge(s) for s in group], "advantage": advantage}
    for details in (False, True):
        hooks = rr.Hooks(**settings, filter=keep, sample_details=details)
        engine = open_engine(hooks=hooks)
        row = engine.rollout(0, [task(turns=2)])[0]
        engine.close()
        assert ("tools" in row.meta) == ("tools" in told["advantage"]) == details
        if not details:
            assert told["reward"] is None
            assert "tokens" not in told["filter"][0]
            continue
        for (context,) in (told["reward"], told["filter"]):
            np.testing.assert_array_equal(context["tokens"], row.tokens)
            np.testing.assert_array_equal(context["logprobs"], row.logprobs)
            assert context["turn_table"] == row.meta["turns"]
            assert context["agentic_trace"] == row.meta["agentic_trace"]
            assert context["tools"] == row.meta["tools"] == []
        assert told["filter"][0]["advantage"] == 2.0


def test_the_option_and_the_details_belong_together():
    with pytest.raises(rr.ConfigError, match="option sample_details: False"):
        rr.Engine(options(sample_details=False), hooks=rr.Hooks(sample_details=True))


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_a_reward_with_metadata(open_engine, kind):
    def judge(sample):
        sample["metadata"]["mode"] = "what a hook changes stays its own"
        return Judgement(reward=0.5, metadata={"acc": np.float64(0.25)})

    async def judge_later(sample):
        return judge(sample)

    engine = open_engine(hooks=rr.Hooks(reward=judge if kind == "plain" else judge_later))
    row = engine.rollout(0, [task("no_reward")])[0]
    assert row.reward == 0.5
    assert row.meta["metadata"]["acc"] == 0.25
    assert row.meta["metadata"]["mode"] == "no_reward"


def test_rewards_of_contexts(open_engine, tmp_path):
    """A hook for Groups may give each context its own; a wrong number of them costs the Group."""
    answers = [[[1.0], 2.0], [[None, 3.0], 2.0]]
    places = [tmp_path / "first", tmp_path / "second"]
    for place in places:
        place.mkdir()
    engine = open_engine(
        n_samples_per_prompt=2,
        agentic_concurrency=1,
        hooks=rr.Hooks(
            group_reward=lambda group: answers.pop(0),
            advantage=lambda slots: [dict.fromkeys(slot, 1.0) for slot in slots],
        ),
    )
    batch = engine.rollout(
        0, [task("team", outcomes=[1, 0], usefulness=[1, 1], claims=str(p)) for p in places]
    )
    (drop,) = batch.report.drops
    assert "1 rewards for the 2 contexts" in drop.first
    assert [row.meta["reward"] for row in batch] == [None, 3.0, 2.0, None]
    assert [row.raw_reward for row in batch] == [3.0, 3.0, 2.0, 2.0]


def test_details_that_an_option_forbids():
    with pytest.raises(rr.ConfigError, match="sample_details: False, but Hooks") as refused:
        rr.Engine(options(sample_details=False), hooks=rr.Hooks(sample_details=True))
    assert refused.value.option == "sample_details"
