"""The drop-in for the Relax trainer, with a stand-in for the trainer and real agents.

Sections 1.8, 4.3, 4.5, 5.4, 6, 7 and 10 of the reference's pipeline.
"""

import inspect
import itertools
import json
import logging
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import check_script
from trainer import Client, DataSource, Rows, arguments, install

import relax_rollout as rr
import relax_rollout.relax as adapter
from relax_rollout.relax import resident, samples
from relax_rollout.relax.samples import Sample, Status

FINE = {"default": [{"text": "fine"}]}

pytestmark = pytest.mark.usefixtures("drop_in")


# ---- the contract --------------------------------------------------------------------------------


def test_the_signature_is_the_trainers():
    parameters = list(inspect.signature(adapter.generate_rollout).parameters)
    assert parameters == ["args", "rollout_id", "data_source", "data_system_client", "evaluation"]


def test_a_step_gives_rows_samples_and_metrics():
    source = DataSource(lambda number: {"reward": float(number), "answer": "x"})
    client = Client()
    out = adapter.generate_rollout(arguments(), 0, source, client)
    assert type(out) is adapter.RolloutFnTrainOutput
    assert source.asked == [1, 1], "no Group is taken that is not started"
    assert [[s.index for s in g] for g in out.samples] == [[1000, 1001], [1002, 1003]]
    (put,) = client.puts
    assert (put.id, put.last) == ("train_0", False)
    assert put.data["sample_indices"].tolist() == [1000, 1001, 1002, 1003]
    assert put.data["group_index"].tolist() == [100, 100, 101, 101]
    assert put.data["rewards"].tolist() == [0.0] * 4, "all rewards of a Group are equal"
    lengths = zip(put.data["total_lengths"].tolist(), range(1000, 1004), strict=True)
    assert put.meta == [{"total_lengths": n, "sample_index": i} for n, i in lengths]
    assert out.metrics["rollout/raw_reward"] == 0.5
    assert "metadata" not in put.data.columns


def test_samples_have_what_the_trainer_reads():
    source = DataSource(lambda number: {"turns": 2, "reward": 1})
    out = adapter.generate_rollout(arguments(rollout_batch_size=1), 0, source, None)
    sample = out.samples[0][1]
    assert type(sample) is Sample
    assert sample.prompt.startswith("<|im_start|>user\nhello<|im_end|>")
    assert sample.response.startswith("fine<|im_end|>")
    assert sample.label == "label 0"
    assert (sample.reward, sample.custom_advantage, sample.status) == (1, None, Status.COMPLETED)
    assert sample.response_length == len(sample.loss_mask) == len(sample.rollout_log_probs)
    assert len(sample.tokens) > sample.response_length
    assert sample.rollout_tokens == sample.tokens
    assert sample.weight_versions == ["0"]
    assert sample.session_id.startswith("session-")
    assert sample.metadata["turns"] == 2, "the data source's"
    assert sample.metadata["answered"] == "", "the agent's"
    assert sample.metadata["rollout_turns"] == 2
    assert sample.metadata["start_rollout_id"] == 0
    assert sample.metadata["agentic_trace"]["turn_count"] == 2
    assert not [key for key in sample.metadata if key.startswith("_")]
    assert sample.non_generation_time >= 0


def test_samples_count_what_the_backend_had_and_guessed():
    """The trainer makes its own metrics of these counts: they agree with the step's."""
    source = DataSource(lambda number: {"turns": 2})
    args = arguments(relax_rollout={"simulator": {"drafts": 3, "policy": FINE}})
    out = adapter.generate_rollout(args, 0, source, None)
    given = [s for group in out.samples for s in group]
    assert len({id(s.prefix_cache_info) for s in given}) == len(given) == 4
    cached = sum(s.prefix_cache_info.cached_tokens for s in given)
    prompt = sum(s.prefix_cache_info.total_prompt_tokens for s in given)
    assert 0 < cached < prompt
    assert out.metrics["rollout/prefix_cache_hit_rate"] == pytest.approx(cached / prompt)
    accepted = sum(s.spec_info.spec_accept_token_num for s in given)
    drafted = sum(s.spec_info.spec_draft_token_num for s in given)
    assert out.metrics["rollout/spec_accept_rate"] == pytest.approx(accepted / drafted)
    sampled = sum(s.spec_info.completion_token_num for s in given)
    assert sampled == sum(sum(s.loss_mask) for s in given)
    verified = sum(s.spec_info.spec_verify_ct for s in given)
    assert out.metrics["rollout/spec_accept_length"] == pytest.approx(sampled / verified)


def test_counts_go_where_a_samples_class_has_them():
    class Plain:
        pass

    sample = Plain()
    sample.prefix_cache_info = given = {"cached_tokens": 0, "hits": 1}
    samples._count(sample, "prefix_cache_info", {"cached_tokens": 5})
    samples._count(sample, "spec_info", {"spec_verify_ct": 5})
    assert sample.prefix_cache_info == {"cached_tokens": 5, "hits": 1}
    assert given["cached_tokens"] == 0
    assert not hasattr(sample, "spec_info")


def test_samples_of_another_class_stay_what_they_are():
    class Theirs(Sample):
        extra = "kept"

    class Source(DataSource):
        def get_samples(self, count):
            return [[Theirs(**vars(s)) for s in g] for g in super().get_samples(count)]

    out = adapter.generate_rollout(arguments(rollout_batch_size=1), 0, Source(), None)
    assert type(out.samples[0][0]) is Theirs


def test_the_engine_survives_calls_and_is_made_anew_for_another_router(monkeypatch):
    source = DataSource()
    adapter.generate_rollout(arguments(), 0, source, None)
    first = adapter._resident[1].engine
    adapter.generate_rollout(arguments(), 1, source, None)
    assert adapter._resident[1].engine is first
    monkeypatch.setattr(resident, "router_url", lambda args: "http://127.0.0.1:1")
    adapter.generate_rollout(arguments(), 2, source, None)
    assert adapter._resident[1].engine is not first
    assert first.closed


def test_an_engine_that_was_closed_is_made_anew():
    source = DataSource()
    adapter.generate_rollout(arguments(), 0, source, None)
    adapter._resident[1].engine.close()
    out = adapter.generate_rollout(arguments(), 1, source, None)
    assert len(out.samples) == 2


def test_a_data_source_that_is_a_ray_actor(monkeypatch):
    source, refs = DataSource(), []

    def remote(count):
        refs.append(count)
        return SimpleNamespace(value=source.get_samples(count))

    handle = SimpleNamespace(get_samples=SimpleNamespace(remote=remote))
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(get=lambda ref: ref.value))
    out = adapter.generate_rollout(arguments(), 0, handle, None)
    assert (len(out.samples), refs) == (2, [1, 1])


def test_a_dropped_group_is_made_up_for():
    source = DataSource(lambda number: {"mode": "exit_one"} if number == 0 else {})
    out = adapter.generate_rollout(arguments(), 0, source, None)
    assert [g[0].group_index for g in out.samples] == [101, 102]
    assert len(adapter._resident[1]._sources) == 0


def test_a_step_that_fails_says_why():
    source = DataSource(lambda number: {"mode": "exit_one"})
    args = arguments(relax_rollout={"max_consecutive_dropped_groups": 2})
    with pytest.raises(rr.StepFailedError, match="agent exited with code 1"):
        adapter.generate_rollout(args, 0, source, None)
    source.metadata = lambda number: {}
    assert len(adapter.generate_rollout(args, 1, source, None).samples) == 2


def test_a_data_source_that_runs_dry_is_named_and_may_recover():
    source = DataSource(groups=1)
    with pytest.raises(rr.InvalidError, match=r"get_samples\(1\) gave 0 Groups"):
        adapter.generate_rollout(arguments(), 0, source, None)
    source.left = 5
    out = adapter.generate_rollout(arguments(), 0, source, None)
    assert [g[0].group_index for g in out.samples] == [100, 101]


# ---- credit --------------------------------------------------------------------------------------


def normalised(rewards):
    rewards = np.asarray(rewards, np.float64)
    return (rewards - rewards.mean()) / (rewards.std(ddof=1) + 1e-6)


def test_a_reward_model_judges_samples(monkeypatch):
    seen, judged = [], []

    async def judge(args, sample):
        seen.append((args.marker, sample.label, sample.response, sorted(sample.metadata)))
        judged.append((sample.index, sample.response_length))
        return len(seen)

    install(monkeypatch, "trainers_rm", judge=judge)
    args = arguments(custom_rm_path="trainers_rm.judge", marker="the args", rollout_batch_size=1)
    source = DataSource(lambda number: {"mode": "no_reward"})
    client = Client()
    out = adapter.generate_rollout(args, 0, source, client)
    assert seen[0] == ("the args", "label 0", "fine<|im_end|>", sorted(out.samples[0][0].metadata))
    final = [(s.index, s.response_length) for s in out.samples[0]]
    assert sorted(judged) == final, "each of the Group's samples"
    rewards = [s.reward for s in out.samples[0]]
    assert sorted(rewards) == [1, 2]
    np.testing.assert_allclose(client.column(0, "rewards"), normalised(rewards), rtol=1e-5)


def test_a_plain_reward_model_is_called_off_the_engines_thread(monkeypatch):
    import threading

    threads = []

    def judge(args, sample):
        threads.append(threading.current_thread())
        return {"score": 0.5, "helper": 2}

    install(monkeypatch, "trainers_rm", judge=judge)
    args = arguments(custom_rm_path="trainers_rm.judge", reward_key="score", rollout_batch_size=1)
    out = adapter.generate_rollout(args, 0, DataSource(lambda n: {"mode": "no_reward"}), None)
    assert threading.current_thread() not in threads
    assert out.samples[0][0].reward == {"score": 0.5, "helper": 2}
    assert out.metrics["rollout/helper/mean"] == 2


def test_a_group_reward_model_gets_the_group(monkeypatch):
    def judge(args, samples):
        return [float(s.index) for s in samples]

    install(monkeypatch, "trainers_rm", judge=judge)
    args = arguments(custom_rm_path="trainers_rm.judge", group_rm=True)
    out = adapter.generate_rollout(args, 0, DataSource(), None)
    assert [[s.reward for s in g] for g in out.samples] == [[1000, 1001], [1002, 1003]]


def test_the_trainers_own_reward_models_are_used(monkeypatch):
    async def async_rm(args, sample):
        return 1 if sample.label == "label 0" else 0

    async def batched_async_rm(args, samples):
        raise AssertionError("not for single samples")

    for name in ("relax", "relax.engine"):
        install(monkeypatch, name, __path__=[])
    models = {"async_rm": async_rm, "batched_async_rm": batched_async_rm}
    install(monkeypatch, "relax.engine.rewards", **models)
    source = DataSource(lambda number: {"mode": "no_reward"})
    out = adapter.generate_rollout(arguments(rm_type="math"), 0, source, None)
    assert [[s.reward for s in g] for g in out.samples] == [[1, 1], [0, 0]]


def test_a_filter_gets_samples_and_its_group_is_made_up_for(monkeypatch):
    lengths = []

    def keep(args, samples):
        lengths.append([s.response_length for s in samples])
        good = samples[0].label != "label 0" and all(s.reward == 1.0 for s in samples)
        return SimpleNamespace(keep=good, reason="the_first")

    install(monkeypatch, "trainers_filter", keep=keep)
    args = arguments(dynamic_sampling_filter_path="trainers_filter.keep")
    source = DataSource(lambda number: {"turns": 2})
    out = adapter.generate_rollout(args, 0, source, None)
    assert [g[0].group_index for g in out.samples] == [101, 102]
    assert out.metrics["rollout/dynamic_filter/drop_the_first"] == 1
    assert [s.response_length for s in out.samples[0]] in lengths
    assert all(map(all, lengths))


def test_the_built_in_filter_goes_by_its_name(monkeypatch):
    rewards = itertools.count()

    def judge(args, sample):
        return 0 if sample.label == "label 0" else next(rewards)

    install(monkeypatch, "trainers_rm", judge=judge)
    args = arguments(
        dynamic_sampling_filter_path="relax.engine.filters.any.check_reward_nonzero_std",
        custom_rm_path="trainers_rm.judge",
    )
    out = adapter.generate_rollout(args, 0, DataSource(lambda n: {"mode": "no_reward"}), None)
    assert [g[0].group_index for g in out.samples] == [101, 102]
    assert out.metrics["rollout/dynamic_filter/drop_zero_std_0.0"] == 1


def test_custom_advantage_of_contexts(monkeypatch, tmp_path):
    seen = []

    def advantage(slots):
        seen.extend(slots)
        for metadata in (m for slot in slots for m in slot.values()):
            assert metadata["rollout_turns"] == len(metadata["agentic_trace"]["turns"]) == 1
            assert metadata["start_rollout_id"] == 0
        return [{"main": s["main"]["outcome"], "searcher_0": 0.5} for s in slots]

    install(monkeypatch, "trainers_advantage", advantage=advantage)
    args = arguments(
        agentic_custom_advantage_path="trainers_advantage.advantage", rollout_batch_size=1
    )
    team = {"mode": "team", "outcomes": [1.0, 0.0], "usefulness": [1, 1], "claims": str(tmp_path)}
    client = Client()
    out = adapter.generate_rollout(args, 0, DataSource(lambda n: team), client)
    assert not [k for slot in seen for m in slot.values() for k in m if k.startswith("_")]
    (group,) = out.samples
    assert [s.index for s in group] == [1000, 1000, 1001, 1001]
    assert client.column(0, "sample_indices").tolist() == [1000, 1000, 1001, 1001]
    rewards = client.column(0, "rewards").tolist()
    assert rewards == [s.custom_advantage for s in group]
    assert sorted(rewards) == [0.0, 0.5, 0.5, 1.0]
    sums = client.column(0, "sample_index_mask_sums")
    masks = [sum(s.loss_mask) for s in group]
    assert sums.tolist() == [masks[0] + masks[1]] * 2 + [masks[2] + masks[3]] * 2


def test_rewards_may_be_post_processed_and_columns_replaced(monkeypatch):
    def post_process(args, samples):
        return [0] * len(samples), [float(s.index) for s in samples]

    def convert(args, samples):
        return Rows({"total_lengths": [len(s.tokens) for s in samples], "mine": samples})

    install(monkeypatch, "trainers_credit", post_process=post_process, convert=convert)
    client = Client()
    args = arguments(custom_reward_post_process_path="trainers_credit.post_process")
    adapter.generate_rollout(args, 0, DataSource(), client)
    assert client.column(0, "rewards").tolist() == [1000, 1001, 1002, 1003]
    args = arguments(custom_convert_samples_to_train_data_path="trainers_credit.convert")
    adapter.generate_rollout(args, 1, DataSource(), client)
    (put,) = client.of(1)
    assert [m["sample_index"] for m in put.meta] == [s.index for s in put.data["mine"]]


def test_columns_that_only_some_runs_have():
    class Source(DataSource):
        def get_samples(self, count):
            groups = super().get_samples(count)
            for sample in (s for g in groups for s in g):
                sample.train_metadata = {"of": sample.index}
            return groups

    client = Client()
    source = Source(lambda number: {"round_number": number + 5})
    adapter.generate_rollout(arguments(relax_rollout_raw_reward=True), 0, source, client)
    data = client.puts[0].data
    assert data["metadata"] == [{"of": i} for i in range(1000, 1004)]
    assert data["round_number"].tolist() == [5, 5, 6, 6]
    assert data["raw_reward"].tolist() == [1.0] * 4
    assert data["raw_reward"].dtype == np.float32


# ---- Eval ----------------------------------------------------------------------------------------


def eval_file(tmp_path, rows):
    path = tmp_path / "eval.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_eval_gives_rewards_in_order(tmp_path):
    rows = [
        {"question": "hello", "answer": "a", "metadata": {"reward": 0.25}},
        {"question": "hello", "answer": "b", "metadata": {"mode": "exit_one"}},
        {"question": "hello", "answer": "c", "metadata": {"reward": 0.75, "turns": 2}},
    ]
    dataset = SimpleNamespace(
        name="sums",
        path=eval_file(tmp_path, rows),
        input_key="question",
        label_key="answer",
        metadata_key="metadata",
        tool_key=None,
        n_samples_per_eval_prompt=2,
        temperature=0.5,
        top_p=None,
        top_k=None,
        max_response_len=64,
        inject_metadata=lambda metadata: {**metadata, "eval_dataset": "sums"},
    )
    args = arguments(eval_datasets=[dataset])
    source = DataSource()
    adapter.generate_rollout(args, 0, source, None)
    out = adapter.generate_rollout(args, 0, source, Client(), evaluation=True)
    assert type(out) is adapter.RolloutFnEvalOutput
    data = out.data["sums"]
    assert data["rewards"] == [0.25, 0.25, 0.75, 0.75]
    assert data["truncated"] == [False] * 4
    assert [s.index for s in data["samples"]] == [0, 1, 4, 5]
    assert [s.group_index for s in data["samples"]] == [0, 0, 2, 2]
    assert [s.label for s in data["samples"]] == ["a", "a", "c", "c"]
    assert data["samples"][0].metadata["eval_dataset"] == "sums"
    assert out.metrics["eval/sums"] == 0.5
    assert len(adapter.generate_rollout(args, 1, source, None).samples) == 2, "training goes on"


def test_eval_datasets_of_names_and_paths(tmp_path):
    path = eval_file(tmp_path, [{"input": "hello", "metadata": {"reward": {"acc": 1, "x": 2}}}])
    args = arguments(eval_prompt_data=["one", path, "part", f"{path}@[0:1]"], reward_key="acc")
    out = adapter.generate_rollout(args, 3, DataSource(), None, evaluation=True)
    assert {name: d["rewards"] for name, d in out.data.items()} == {"one": [1], "part": [1]}


def test_an_eval_with_another_key_than_its_rewards_names_it(tmp_path):
    path = eval_file(tmp_path, [{"input": "hello", "metadata": {"reward": {"acc": 1}}}])
    args = arguments(eval_prompt_data=["one", path], reward_key="acc", eval_reward_key="score")
    with pytest.raises(rr.InvalidError, match=r"eval one: a reward has no 'score', but \['acc'\]"):
        adapter.generate_rollout(args, 3, DataSource(), None, evaluation=True)


def test_an_eval_without_a_dataset_names_the_option():
    with pytest.raises(rr.ConfigError, match="eval_prompt_data"):
        adapter.generate_rollout(arguments(), 0, DataSource(), None, evaluation=True)


# ---- the trainer's classes and logs --------------------------------------------------------------


def test_the_trainers_classes_and_loggers_are_used(monkeypatch):
    class RolloutFnTrainOutput:
        def __init__(self, samples, metrics=None):
            self.samples, self.metrics = samples, metrics

    logged = []
    for name in ("relax", "relax.engine", "relax.engine.rollout", "relax.distributed"):
        install(monkeypatch, name, __path__=[])
    install(monkeypatch, "relax.distributed.ray", __path__=[])
    install(
        monkeypatch,
        "relax.engine.rollout.base_types",
        RolloutFnTrainOutput=RolloutFnTrainOutput,
    )
    install(
        monkeypatch,
        "relax.distributed.ray.rollout",
        _log_rollout_data=lambda *given: logged.append(given),
    )
    args = arguments()
    out = adapter.generate_rollout(args, 0, DataSource(), None)
    assert type(out) is RolloutFnTrainOutput
    ((rollout_id, given, samples, metrics, seconds),) = logged
    assert (rollout_id, given) == (0, args)
    assert [s.index for s in samples] == [1000, 1001, 1002, 1003]
    assert metrics["rollout/raw_reward"] == 1.0
    assert seconds > 0


def test_a_log_function_may_take_the_lines_place(monkeypatch, caplog):
    calls = []

    def log(rollout_id, args, samples, metrics, seconds):
        calls.append(rollout_id)
        return rollout_id == 0

    install(monkeypatch, "trainers_log", log=log)
    args = arguments(custom_rollout_log_function_path="trainers_log.log")
    with caplog.at_level(logging.INFO, "relax_rollout"):
        adapter.generate_rollout(args, 0, DataSource(), None)
        quiet = [r.getMessage() for r in caplog.records]
        adapter.generate_rollout(args, 1, DataSource(), None)
    assert calls == [0, 1]
    assert not [line for line in quiet if line.startswith(("rollout 0:", "perf 0:"))]
    lines = [r.getMessage() for r in caplog.records]
    assert any("AGENTIC ROLLOUT event=accounting_end rollout=0" in line for line in lines)
    assert any(line.startswith("First rollout sample: ") for line in lines)
    assert any(line.startswith("rollout 1: ") and "rollout/raw_reward" in line for line in lines)
    assert any(line.startswith("perf 1: ") and "perf/rollout_time" in line for line in lines)


def test_a_process_ends_with_its_agents():
    script = """
import sys
sys.path.insert(0, ".")
from trainer import DataSource, arguments
from relax_rollout import relax
out = relax.generate_rollout(arguments(agentic_prelaunch=True), 0, DataSource(), None)
print(len(out.samples))
"""
    assert check_script(script) == "2\n"
