"""What the trainer's reward models, filters and advantage functions get from the drop-in.

It is what they would get from the trainer's own agentic rollout: the samples that are trained.

Sections 5 and 6 of the reference's pipeline.
"""

import sys

import numpy as np
import pytest
from trainer import Client, DataSource, arguments, install

import relax_rollout as rr
import relax_rollout.relax as adapter
from relax_rollout.relax import outputs, samples
from relax_rollout.relax.rewards import Judged
from relax_rollout.relax.samples import Sample

THOUGHT = "<think>\n2+2 is 4\n</think>\n\nThe answer is 4"
THINKING = {"simulator": {"policy": {"default": [{"text": THOUGHT}]}}}

FIELDS = (
    *("group_index", "index", "label", "prompt", "tokens", "rollout_tokens", "response"),
    *("response_length", "loss_mask", "rollout_log_probs", "weight_versions", "abort_count"),
    *("status", "session_id", "metadata", "non_generation_time", "prefix_cache_info", "spec_info"),
)
"""What samples of hooks have as the samples that are trained have it."""

pytestmark = pytest.mark.usefixtures("drop_in")


def fields(sample, *more):
    return {name: getattr(sample, name) for name in (*FIELDS, *more)}


def judges(monkeypatch, **functions):
    """Functions of the trainer's user that can be named as ``user.<name>``."""
    install(monkeypatch, "user", **functions)


def team(tmp_path):
    """Sessions that export two contexts, of which the agent gives the first its reward."""
    return {"mode": "team", "outcomes": [1.0, 0.0], "usefulness": [1, 1], "claims": str(tmp_path)}


def step(source, rollout=0, client=None, **more):
    """The samples of a step's only Group."""
    out = adapter.generate_rollout(arguments(rollout_batch_size=1, **more), rollout, source, client)
    (group,) = out.samples
    return group


# ---- reward models -------------------------------------------------------------------------------


@pytest.mark.parametrize("turns", [1, 2])
def test_reward_models_judge_what_is_trained(monkeypatch, turns):
    seen = {}

    def judge(args, sample):
        seen[sample.index] = fields(sample)
        return float("</think>" in sample.response)

    judges(monkeypatch, judge=judge)
    source = DataSource(lambda number: {"turns": turns, "reward": None})
    group = step(
        source,
        custom_rm_path="user.judge",
        agentic_reasoning_parser="qwen3",
        relax_rollout=THINKING,
    )
    assert [s.reward for s in group] == [1.0, 1.0]
    assert [seen[s.index] for s in group] == [fields(s) for s in group]
    assert group[0].response.startswith(THOUGHT)
    assert group[0].tokens
    assert sum(group[0].loss_mask) > 0
    assert group[0].metadata["rollout_turns"] == turns


def test_without_a_tokenizer_reward_models_judge_the_messages(monkeypatch):
    seen = []

    async def judge(args, sample):
        seen.append(sample.response)
        return 1.0

    judges(monkeypatch, judge=judge)
    monkeypatch.setattr("relax_rollout.relax.rewards.decoder", lambda args: lambda tokens: "")
    step(DataSource(lambda number: {"mode": "no_reward"}), custom_rm_path="user.judge")
    assert seen == ["fine", "fine"]


def test_texts_are_decoded_once(monkeypatch):
    """Decoding is most of what a sample costs."""
    loaded, decoded = [], []

    def load(args):
        loaded.append(args)
        decode = decoder(args)
        return lambda tokens: decoded.append(tokens) or decode(tokens)

    decoder = outputs.decoder
    monkeypatch.setattr("relax_rollout.relax.rewards.decoder", load)
    monkeypatch.setattr("relax_rollout.relax.resident.decoder", load)
    judges(monkeypatch, judge=lambda args, sample: 1.0, keep=lambda args, samples: True)
    hooks = {"custom_rm_path": "user.judge", "dynamic_sampling_filter_path": "user.keep"}
    group = step(DataSource(lambda number: {"mode": "no_reward"}), **hooks)
    assert len(loaded) == 2, "for hooks and for rows"
    assert len(decoded) == 2 * len(group)
    assert [s.response for s in group] == ["fine<|im_end|>"] * 2
    assert len(adapter._resident[1]._sources) == 0, "texts go with their Group"


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_what_reward_models_write_into_metadata_stays(monkeypatch, kind):
    filtered = []

    def judge(args, sample):
        sample.metadata["acc"] = np.float64(0.5)
        sample.metadata["nested"]["list"].append(2)
        sample.metadata["rollout_turns"] = 77
        return 1.0

    async def judge_later(args, sample):
        return judge(args, sample)

    def keep(args, samples):
        filtered.extend(s.metadata["acc"] for s in samples)
        return True

    judges(monkeypatch, judge=judge if kind == "plain" else judge_later, keep=keep)
    source = DataSource(lambda number: {"mode": "no_reward", "nested": {"list": [1]}})
    client = Client()
    args = arguments(
        rollout_batch_size=1,
        custom_rm_path="user.judge",
        dynamic_sampling_filter_path="user.keep",
    )
    out = adapter.generate_rollout(args, 0, source, client)
    for sample in out.samples[0]:
        assert sample.metadata["acc"] == 0.5
        assert sample.metadata["nested"] == {"list": [1, 2]}
        assert sample.metadata["rollout_turns"] == 1, "the engine's own"
    assert filtered == [0.5, 0.5]
    assert out.metrics["acc/mean"] == 0.5


def test_metadata_that_cannot_be_kept_is_named(caplog):
    sample = Sample(metadata={"mode": "x", "array": np.zeros(2), "agentic_trace": {"turns": []}})
    judged = Judged(sample)
    sample.metadata |= {"judge": object(), "nan": float("nan"), "kept": [1], "agentic_trace": {}}
    sample.metadata["array"] = np.ones(2)
    assert judged.result(1).metadata == {"kept": [1], "array": [1.0, 1.0]}
    lines = [r.getMessage() for r in caplog.records]
    assert [line.split(" of a reward model")[0] for line in lines] == [
        "metadata 'judge'",
        "metadata 'nan'",
    ]
    sample.metadata = None
    assert judged.result(1).metadata == {}


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_a_group_reward_model_judges_every_context(monkeypatch, tmp_path, kind):
    """Section 5.2 and case 15 of section 12: rewards of agents give way."""
    seen = []

    def judge(args, samples):
        seen.extend((s.index, s.metadata["usefulness"], s.reward) for s in samples)
        samples[1].metadata["judge"] = "second"
        return [0.25, 0.5, None, 4]

    async def judge_later(args, samples):
        return judge(args, samples)

    def advantage(slots):
        assert slots[0]["searcher_0"]["judge"] == "second"
        return [dict.fromkeys(slot, 1.0) for slot in slots]

    judges(monkeypatch, judge=judge if kind == "plain" else judge_later, advantage=advantage)
    given = team(tmp_path)
    group = step(
        DataSource(lambda number: given),
        custom_rm_path="user.judge",
        group_rm=True,
        agentic_custom_advantage_path="user.advantage",
    )
    assert [index for index, _, _ in seen] == [1000, 1000, 1001, 1001]
    assert [usefulness for _, usefulness, _ in seen] == [[1, 1], 1, [1, 1], 1], "main, searcher"
    assert {seen[0][2], seen[2][2]} == {0.0, 1.0}, "what agents wrote"
    assert [seen[1][2], seen[3][2]] == [None, None]
    assert [s.reward for s in group] == [0.25, 0.5, None, 4]
    assert [s.metadata.get("judge") for s in group] == [None, "second", None, None]


def test_a_group_reward_model_that_counts_wrong_is_named(monkeypatch):
    judges(monkeypatch, judge=lambda args, samples: [1.0])
    more = {"relax_rollout": {"max_consecutive_dropped_groups": 1}}
    with pytest.raises(rr.StepFailedError, match="1 rewards for the 2 samples of the Group"):
        step(DataSource(), custom_rm_path="user.judge", group_rm=True, **more)


# ---- filters -------------------------------------------------------------------------------------


def test_filters_see_what_is_trained(monkeypatch, tmp_path):
    seen = []

    def advantage(slots):
        return [{"main": [s["main"]["outcome"]], "searcher_0": 0.3} for s in slots]

    def keep(args, samples):
        seen.append([fields(s, "custom_advantage", "reward") for s in samples])
        return any(s.custom_advantage == [1.0] * s.response_length for s in samples)

    judges(monkeypatch, advantage=advantage, keep=keep)
    given = team(tmp_path)
    group = step(
        DataSource(lambda number: given),
        agentic_custom_advantage_path="user.advantage",
        dynamic_sampling_filter_path="user.keep",
    )
    assert seen == [[fields(s, "custom_advantage", "reward") for s in group]]
    numbers = {s.custom_advantage for s in group if isinstance(s.custom_advantage, float)}
    assert numbers == {float(np.float32(0.3))}
    lists = sorted(s.custom_advantage for s in group if isinstance(s.custom_advantage, list))
    assert [set(values) for values in lists] == [{0.0}, {1.0}]


def test_filters_see_no_advantage_where_none_is_custom(monkeypatch):
    seen = []
    judges(monkeypatch, keep=lambda args, samples: seen.extend(samples) or True)
    step(DataSource(), dynamic_sampling_filter_path="user.keep")
    assert [s.custom_advantage for s in seen] == [None, None]


# ---- credit of turns -----------------------------------------------------------------------------


@pytest.mark.parametrize("credit", [[0.5, 1.0], [1.0, 1.0]])
def test_credit_of_turns_is_one_number_for_each_response_token(monkeypatch, credit):
    """Section 5.3: observations have none, also where all turns have the same."""
    filtered, processed = [], []

    def keep(args, samples):
        filtered.extend(s.custom_advantage for s in samples)
        return True

    def post(args, samples):
        processed.extend(s.custom_advantage for s in samples)
        return processed

    judges(
        monkeypatch,
        advantage=lambda slots: [dict.fromkeys(s, credit) for s in slots],
        keep=keep,
        post=post,
    )
    client = Client()
    group = step(
        DataSource(lambda number: {"turns": 2}),
        client=client,
        agentic_custom_advantage_path="user.advantage",
        dynamic_sampling_filter_path="user.keep",
        custom_reward_post_process_path="user.post",
    )
    for sample in group:
        given = sample.custom_advantage
        assert len(given) == sample.response_length
        assert [bool(a) for a in given] == [bool(m) for m in sample.loss_mask]
        trained = [a for a, m in zip(given, sample.loss_mask, strict=True) if m]
        half = len(trained) // 2
        assert trained == [credit[0]] * half + [credit[1]] * half
    assert processed == filtered == [s.custom_advantage for s in group]
    (put,) = client.puts
    rewards = put.data["rewards"]
    assert rewards.values.tolist() == [a for s in group for a in s.custom_advantage]


def test_credit_of_turns_that_are_all_there_is_stays_a_list(monkeypatch):
    """A context of one turn has the same on all response tokens (section 5.3), and nothing tells it
    from one number but what was given."""
    filtered = []

    def keep(args, samples):
        filtered.extend(s.custom_advantage for s in samples)
        return True

    def advantage(slots):
        return [dict.fromkeys(s, [0.5] if i else 0.5) for i, s in enumerate(slots)]

    judges(monkeypatch, advantage=advantage, keep=keep)
    group = step(
        DataSource(),
        agentic_custom_advantage_path="user.advantage",
        dynamic_sampling_filter_path="user.keep",
    )
    assert filtered == [s.custom_advantage for s in group]
    assert filtered == [0.5, [0.5] * group[1].response_length]


def test_one_number_beside_credit_of_turns_stays_one(monkeypatch):
    judges(
        monkeypatch,
        advantage=lambda slots: [
            dict.fromkeys(s, [0.5, 1.0] if i else 2.0) for i, s in enumerate(slots)
        ],
    )
    group = step(
        DataSource(lambda number: {"turns": 2}), agentic_custom_advantage_path="user.advantage"
    )
    assert group[0].custom_advantage == 2.0
    assert isinstance(group[1].custom_advantage, list)


def test_turns_that_another_row_trains_have_no_credit_in_events_either():
    """As in the column of the batch."""
    turns = [{"start": 1, "response_length": 1, "masked": True}, {"start": 2, "response_length": 2}]
    context = {
        "advantage": 0.5,
        "turn_advantages": [3.0, 0.5],
        "turn_table": turns,
        "tokens": np.arange(5),
        "prompt_len": 1,
    }
    assert samples._event_advantage(context) == [0.0, 0.5, 0.5, 0.0]
    assert samples._event_advantage({**context, "prompt_len": 2}) == [0.5, 0.5, 0.0]


# ---- metadata ------------------------------------------------------------------------------------

AGENT = """
import json, os, urllib.request
from pathlib import Path
task = json.loads(Path(os.environ["RELAX_INPUT_JSON"]).read_text())
tools = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
body = {"model": "m", "messages": task["messages"]}
if task["metadata"].get("offers"):
    body |= {"tools": tools, "chat_template_kwargs": {"enable_thinking": False}}
request = urllib.request.Request(
    os.environ["RELAX_BASE_URL"] + "v1/chat/completions",
    json.dumps(body).encode(),
    {"Authorization": "Bearer " + os.environ["RELAX_SESSION_ID"]},
)
urllib.request.urlopen(request).read()
"""


@pytest.mark.parametrize("offers", [True, False])
def test_metadata_has_tools_and_template_arguments(monkeypatch, tmp_path, offers):
    """Sections 5.3 and 6.2: for advantage functions, reward models, filters and in samples. The
    conversation's tools stand in the place of the data source's."""
    seen = []

    def note(metadata):
        seen.append((metadata["tools"], metadata["chat_template_kwargs"]))

    def advantage(slots):
        for slot in slots:
            note(slot[None])
        return [{None: float(i)} for i, _ in enumerate(slots)]

    def judge(args, samples):
        for sample in samples:
            note(sample.metadata)
        return [1.0] * len(samples)

    def keep(args, samples):
        for sample in samples:
            note(sample.metadata)
        return True

    judges(monkeypatch, advantage=advantage, judge=judge, keep=keep)
    (tmp_path / "agent.py").write_text(AGENT)
    group = step(
        DataSource(lambda number: {"offers": offers, "tools": ["the data source's"]}),
        agent_command=f"exec {sys.executable} agent.py",
        agent_cwd=str(tmp_path),
        agentic_custom_advantage_path="user.advantage",
        custom_rm_path="user.judge",
        group_rm=True,
        dynamic_sampling_filter_path="user.keep",
    )
    for sample in group:
        note(sample.metadata)
    tool = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
    expected = ([tool], {"enable_thinking": False}) if offers else ([], {})
    assert seen == [expected] * 8
