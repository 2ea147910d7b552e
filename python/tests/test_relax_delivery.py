"""How the drop-in's rows reach the trainer's queue: puts, partitions, steps that leave Groups.

Sections 1.8, 4.3 and 4.5 of the reference's pipeline.
"""

import numpy as np
import pytest
from conftest import eventually
from holding import LONG, SECONDS, SIMULATOR, Gate, Running, end_owing, go_on, hold_after
from trainer import Client, DataSource, arguments, install

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
