"""How the drop-in's rows reach the trainer's queue: puts, partitions, steps that leave Groups.

Sections 1.8, 4.3 and 4.5 of the reference's pipeline.
"""

import numpy as np
import pytest
from conftest import eventually
from holding import LONG, SECONDS, SIMULATOR, Gate, Running, end_owing, go_on, hold_after
from trainer import Client, DataSource, Rows, arguments, install

import relax_rollout as rr
import relax_rollout.relax as adapter
from relax_rollout.relax import delivery
from relax_rollout.relax.delivery import Group, Mailbox
from relax_rollout.relax.samples import Sample

pytestmark = pytest.mark.usefixtures("drop_in")


# ---- puts ----------------------------------------------------------------------------------------


def test_a_failed_put_is_made_again_and_nothing_runs_again():
    source, client = DataSource(), Client(failures=[True])
    with pytest.raises(ConnectionError, match="the queue is away"):
        adapter.generate_rollout(arguments(), 0, source, client)
    with pytest.raises(rr.InvalidError, match="1 puts of the step before failed"):
        adapter.generate_rollout(arguments(), 1, source, client)
    out = adapter.generate_rollout(arguments(), 0, source, client)
    assert source.given == 2
    assert len(out.samples) == 2
    assert [p.id for p in client.puts] == ["train_0"]


def failing_once(work):
    """Raises at its first call and then does its work."""
    calls = []

    def function(args, samples):
        calls.append(len(samples))
        if len(calls) == 1:
            samples[0].metadata["spoiled"] = True
            raise RuntimeError("the judge is away")
        return work(args, samples)

    return function


def converted(args, samples):
    """A converter's rows: the samples in another order, one of them twice."""
    rows = [samples[-1], *samples]
    return Rows(
        {
            "total_lengths": [len(s.tokens) for s in rows],
            "sample_indices": [s.index for s in rows],
            "spoiled": ["spoiled" in s.metadata for s in rows],
        }
    )


@pytest.mark.parametrize(
    ("option", "work"),
    [
        ("custom_reward_post_process_path", lambda args, samples: [0.0] * len(samples)),
        ("custom_convert_samples_to_train_data_path", converted),
    ],
)
def test_a_conversion_that_fails_is_made_again_and_nothing_runs_again(monkeypatch, option, work):
    install(monkeypatch, "trainers_code", function=failing_once(work))
    args = arguments(**{option: "trainers_code.function"})
    source, client = DataSource(), Client()
    with pytest.raises(RuntimeError, match="the judge is away"):
        adapter.generate_rollout(args, 0, source, client)
    with pytest.raises(rr.InvalidError, match="conversion of step 0's rows failed; call again"):
        adapter.generate_rollout(args, 1, source, client)
    out = adapter.generate_rollout(args, 0, source, client)
    assert (len(out.samples), source.given) == (2, 2)
    assert not any("spoiled" in s.metadata for g in out.samples for s in g), "samples are new"
    assert [p.id for p in client.puts] == ["train_0"]
    adapter.generate_rollout(args, 1, source, client)
    assert [p.id for p in client.puts] == ["train_0", "train_1"]


@pytest.mark.usefixtures("deadline")
def test_partitions_of_a_failed_conversion_are_closed(monkeypatch):
    """Else the engine would wait for ever that the trainer takes them."""
    work = failing_once(lambda args, samples: [0.0] * len(samples))
    install(monkeypatch, "trainers_code", function=work)
    args = arguments(
        custom_reward_post_process_path="trainers_code.function",
        fully_async=True,
        global_batch_size=4,
        num_rollout=2,
        max_staleness=1,
    )
    source, client = DataSource(), Client()
    with pytest.raises(RuntimeError, match="the judge is away"):
        adapter.generate_rollout(args, 0, source, client)
    for rollout_id in (0, 1, 2):
        adapter.generate_rollout(args, rollout_id, source, client)
    assert [(p.id, p.last) for p in client.puts] == [("train_0", True), ("train_1", True)]


def test_rows_that_are_given_up_are_a_warning(monkeypatch, caplog):
    work = failing_once(lambda args, samples: [0.0] * len(samples))
    install(monkeypatch, "trainers_code", function=work)
    args = arguments(custom_reward_post_process_path="trainers_code.function")
    with pytest.raises(RuntimeError, match="the judge is away"):
        adapter.generate_rollout(args, 0, DataSource(), Client())
    adapter.shutdown()
    assert "the conversion of step 0's rows failed, and is given up" in caplog.text


def test_a_log_function_that_fails_costs_no_rows(monkeypatch):
    calls = []

    def log(rollout_id, *_):
        calls.append(rollout_id)
        if len(calls) == 1:
            raise RuntimeError("the tracker is away")
        return True

    install(monkeypatch, "trainers_log", log=log)
    args = arguments(custom_rollout_log_function_path="trainers_log.log")
    source, client = DataSource(), Client()
    with pytest.raises(RuntimeError, match="the tracker is away"):
        adapter.generate_rollout(args, 0, source, client)
    adapter.generate_rollout(args, 0, source, client)
    assert (calls, len(client.puts), source.given) == ([0, 0], 1, 2)


def test_debug_rollouts_are_taken_out_of_the_queue():
    client = Client()
    adapter.generate_rollout(arguments(debug_rollout_only=True), 0, DataSource(), client)
    assert client.cleared == ["train_0"]


def test_debug_rollouts_of_the_final_backfill_are_taken_out_where_they_are():
    args = arguments(
        debug_rollout_only=True,
        fully_async=True,
        global_batch_size=4,
        num_rollout=1,
        max_staleness=1,
    )
    source, client = DataSource(), Client()
    for rollout_id in (0, 1):
        adapter.generate_rollout(args, rollout_id, source, client)
    assert client.cleared == ["train_0", "train_0"]


# ---- rows of a converter -------------------------------------------------------------------------


def meta_of(monkeypatch, convert):
    install(monkeypatch, "trainers_code", convert=convert)
    args = arguments(
        custom_convert_samples_to_train_data_path="trainers_code.convert", rollout_batch_size=1
    )
    client = Client()
    adapter.generate_rollout(args, 0, DataSource(), client)
    (put,) = client.puts
    return [(m["total_lengths"], m["sample_index"]) for m in put.meta], put.data


def test_a_converters_rows_have_their_own_numbers(monkeypatch):
    pairs, data = meta_of(monkeypatch, converted)
    assert [index for _, index in pairs] == [1001, 1000, 1001]
    assert pairs == list(zip(data["total_lengths"], data["sample_indices"], strict=True))


def test_a_converters_rows_without_numbers_are_the_samples(monkeypatch):
    def convert(args, samples):
        return Rows({"total_lengths": [len(s.tokens) for s in samples]})

    pairs, _ = meta_of(monkeypatch, convert)
    assert [index for _, index in pairs] == [1000, 1001]


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"total_lengths": [7]}, "1 total_lengths, and 2 samples; add sample_indices"),
        (
            {"total_lengths": [7], "sample_indices": [1, 2]},
            "1 total_lengths, and 2 sample_indices",
        ),
        ({"tokens": [[7]], "mine": [7]}, r"no total_lengths, but \['mine', 'tokens'\]"),
    ],
)
def test_a_converter_that_leaves_numbers_out_is_told(monkeypatch, columns, said):
    def convert(args, samples):
        # Rows asks for total_lengths itself.
        return Rows(columns) if "total_lengths" in columns else columns

    with pytest.raises(
        rr.InvalidError, match=f"custom_convert_samples_to_train_data_path: .*{said}"
    ):
        meta_of(monkeypatch, convert)


def planned(groups, complete, **more):
    """Plans puts of one-row Groups, each with its partition and place."""
    members = [
        Group((i,), [Sample(index=order, group_index=0)], partition)
        for i, (partition, order) in enumerate(groups)
    ]
    args = arguments(rollout_batch_size=4, n_samples_per_prompt=1, **more)
    return delivery.plan(args, FakeBatch(len(groups)), members, complete)


class FakeBatch:
    def __init__(self, rows):
        self.rows = rows


@pytest.fixture
def plain_columns(monkeypatch):
    def columns(args, batch, rows, samples):
        indices = np.array([s.index for s in samples])
        return {"total_lengths": np.ones(len(rows), int), "sample_indices": indices}

    monkeypatch.setattr(delivery, "columns_of", columns)


def test_partitions_go_in_order_and_the_last_put_is_last(plain_columns):
    more = {"fully_async": True, "global_batch_size": 4, "num_iters_per_train_update": 2}
    puts = planned([(6, 9), (5, 3), (6, 8), (5, 1), (5, 2)], [5], **more)
    assert [(p.partition_id, p.is_last) for p in puts] == [
        ("train_5", False),
        ("train_5", True),
        ("train_6", False),
    ]
    assert [p.data["sample_indices"].tolist() for p in puts] == [[1, 2], [3], [8, 9]]


def test_a_closed_partition_takes_no_more(plain_columns):
    box = Mailbox()
    box.add(planned([(5, 0)], [5], fully_async=True, global_batch_size=1))
    with pytest.raises(rr.InvalidError, match="partition train_5: rows after its last"):
        box.add(planned([(5, 1)], []))
    with pytest.raises(rr.InvalidError, match=r"partitions \[7\] are complete without a row"):
        planned([(5, 1)], [7])


# ---- modes ---------------------------------------------------------------------------------------


def test_fully_async_closes_each_partition_once():
    args = arguments(
        fully_async=True,
        rollout_batch_size=4,
        global_batch_size=4,
        num_rollout=3,
        max_staleness=1,
        agentic_concurrency=6,
        over_sampling_batch_size=6,
    )
    source, client = DataSource(), Client()
    for rollout_id in range(4):  # the last is the final backfill
        adapter.generate_rollout(args, rollout_id, source, client)
    for partition in range(3):
        puts = client.of(partition)
        assert [p.last for p in puts] == [False] * (len(puts) - 1) + [True]
        indices = client.column(partition, "sample_indices").tolist()
        assert len(indices) == len(set(indices)) == 8
    assert not client.of(3)
    order = [p.id for p in client.puts]
    assert order == sorted(order)


def test_dynamic_global_batches_are_multiples_of_the_replicas():
    args = arguments(
        partial_rollout=True,
        use_dynamic_global_batch_size=True,
        rollout_batch_size=2,
        over_sampling_batch_size=5,
        actor_num_nodes=1,
        actor_num_gpus_per_node=4,
        tensor_model_parallel_size=2,
    )
    client = Client()
    out = adapter.generate_rollout(args, 0, DataSource(), client)
    groups = {s.group_index for g in out.samples for s in g}
    assert len(groups) % 2 == 0
    indices = client.column(0, "sample_indices").tolist()
    assert sorted(indices) == sorted(s.index for g in out.samples for s in g)


def test_debt_is_paid_by_later_steps(tmp_path):
    """Each step parks one Group, and the next delivers it into the partition it belongs to."""
    gates = [Gate(tmp_path / "first"), Gate(tmp_path / "second")]
    hello, slow = {"ask": "hello"}, {"ask": "a long answer"}
    steps = [[hello], [{"wait": gates[0].path}, slow], [hello], [{"wait": gates[1].path}, slow]]
    source = DataSource(lambda number: {"steps": steps[number]}, group_size=1)
    args = arguments(
        agent="scripted.py",
        hf_checkpoint=None,  # a token is a byte, so that answers take their time
        fully_async=True,
        n_samples_per_prompt=1,
        num_rollout=2,
        max_staleness=1,
        relax_rollout={"simulator": SIMULATOR},
    )
    client = Client()
    engine = adapter._engine_for(args).engine
    outs = []
    for step, gate in enumerate(gates):
        with Running(adapter.generate_rollout, args, step, source, client) as running:
            end_owing(engine, step, gate)
        outs.append(running.result)
        engine.resume()
    outs.append(adapter.generate_rollout(args, 2, source, client))

    assert [(p.id, p.last) for p in client.puts] == [
        ("train_0", False),
        ("train_0", True),
        ("train_1", False),
        ("train_1", True),
    ]
    samples = [s for out in outs for g in out.samples for s in g]
    assert sorted(s.label for s in samples) == [f"label {n}" for n in range(4)]
    assert [len(client.column(partition, "group_index")) for partition in (0, 1)] == [2, 2]
    put = np.concatenate([p.data["group_index"] for p in client.puts])
    assert sorted(put.tolist()) == [100, 101, 102, 103]
    late = next(s for s in samples if s.label == "label 1")
    assert late.abort_count >= 1
    assert late.metadata["start_rollout_id"] == 0
    assert source.given == 4


def test_a_group_is_carried_over_steps(tmp_path):
    gate, never = Gate(tmp_path / "gate"), Gate(tmp_path / "never")
    hello = {"ask": "hello"}
    steps = [[{"ask": "a long answer"}], [hello, {"wait": gate.path}], [{"wait": never.path}]]
    source = DataSource(lambda number: {"steps": steps[number]}, group_size=1)
    args = arguments(
        agent="scripted.py",
        hf_checkpoint=None,  # a token is a byte, so that answers take their time
        partial_rollout=True,
        rollout_batch_size=1,
        over_sampling_batch_size=2,
        n_samples_per_prompt=1,
        relax_rollout={"simulator": SIMULATOR},
    )
    client = Client()
    engine = adapter._engine_for(args).engine
    with Running(adapter.generate_rollout, args, 0, source, client) as running:
        gate.arrived()
        hold_after(engine)
        gate.release()
        assert eventually(lambda: engine.stats()["debt"] == 0, SECONDS), engine.stats()
        go_on(engine)
    soon = running.result.samples[0][0]
    late = adapter.generate_rollout(args, 1, source, client).samples[0][0]
    assert (soon.label, late.label) == ("label 1", "label 0")
    assert late.response_length == len(LONG) + 1, "one answer, from two attempts"
    assert (late.abort_count, late.metadata["start_rollout_id"]) == (1, 0)
    assert client.column(1, "sample_indices").tolist() == [1000]


def test_a_task_that_came_too_late_for_its_step_is_the_next_ones(tmp_path):
    gate, hello = Gate(tmp_path / "gate"), {"ask": "hello"}
    steps = [[{"exit": 1}], [hello, {"wait": gate.path}]]

    class Slow(DataSource):
        def get_samples(self, count):
            if self.given == 2:  # for the dropped Group, and then the step is over without it
                gate.open()
                engine = adapter._resident[1].engine
                assert eventually(lambda: engine.stats()["rollout"] is None, SECONDS)
            return super().get_samples(count)

    source = Slow(lambda n: {"steps": steps[n] if n < 2 else [hello]}, group_size=1)
    args = arguments(
        agent="scripted.py",
        rollout_batch_size=1,
        over_sampling_batch_size=2,
        n_samples_per_prompt=1,
    )
    client = Client()
    for step in range(3):
        adapter.generate_rollout(args, step, source, client)
    assert client.column(0, "sample_indices").tolist() == [1001]
    assert client.column(1, "sample_indices")[0] in (1002, 1003)
    assert len(adapter._resident[1]._sources) == 0, "what is over is forgotten"


def test_samples_of_dropped_groups_are_forgotten_while_others_go_on(tmp_path):
    gate, never = Gate(tmp_path / "gate"), Gate(tmp_path / "never")
    hello = {"ask": "hello"}
    steps = [[hello, {"wait": never.path}], [{"exit": 1}], [hello, {"wait": gate.path}]]
    source = DataSource(lambda number: {"steps": steps[number]}, group_size=1)
    args = arguments(
        agent="scripted.py",
        partial_rollout=True,
        rollout_batch_size=1,
        over_sampling_batch_size=2,
        n_samples_per_prompt=1,
    )
    with Running(adapter.generate_rollout, args, 0, source, None) as running:
        gate.arrived()
        never.arrived()
        gate.release()
    assert running.result.samples[0][0].label == "label 2"
    sources = adapter._resident[1]._sources
    assert (source.given, len(sources)) == (3, 1), "the one that is carried"
    never.open()


def test_samples_of_filtered_groups_are_forgotten(monkeypatch):
    calls = []

    def keep(args, samples):
        calls.append(samples)
        return len(calls) % 4 == 0

    install(monkeypatch, "trainers_filter", keep=keep)
    args = arguments(
        dynamic_sampling_filter_path="trainers_filter.keep",
        agentic_prelaunch=True,
        agentic_concurrency=4,
        num_rollout=100,
    )
    source = DataSource()
    for rollout_id in range(2):
        adapter.generate_rollout(args, rollout_id, source, None)
        assert len(adapter._resident[1]._sources) <= 8, "what is prelaunched"
    assert source.given >= 16
