# ruff: noqa: ARG002 - arguments are what clients of the queue take
"""The columns a trainer reads, and how they are handed to its queue.

Section 6.3 of the reference's pipeline and check 20 of its acceptance list.
"""

import numpy as np
import pytest
from conftest import check_script, task
from trainer import Rows

import relax_rollout as rr
from relax_rollout import transfer_queue as tq
from relax_rollout.transfer_queue import Jagged, train_columns

DTYPES = {
    "tokens": "int64",
    "total_lengths": "int64",
    "response_lengths": "int64",
    "rewards": "float32",
    "group_index": "int64",
    "truncated": "int64",
    "sample_indices": "int64",
    "loss_masks": "int64",
    "sample_index_mask_sums": "int64",
    "rollout_log_probs": "float32",
}
JAGGED = {"tokens", "loss_masks", "rollout_log_probs"}


def check_layout(columns, rows, jagged=JAGGED):
    assert {n: (v.values if n in jagged else v).dtype.name for n, v in columns.items()} == DTYPES
    assert {name for name, value in columns.items() if isinstance(value, Jagged)} == set(jagged)
    assert {len(value) for value in columns.values()} == {rows}
    assert [len(r) for r in columns["tokens"].rows()] == columns["total_lengths"].tolist()
    for name in ("loss_masks", "rollout_log_probs"):
        assert [len(r) for r in columns[name].rows()] == columns["response_lengths"].tolist()


@pytest.mark.parametrize("reward", [1, 0.5, True, 0, False])
def test_layout_does_not_depend_on_rewards(open_engine, reward):
    engine = open_engine(n_samples_per_prompt=2, rewards_normalization=False)
    batch = engine.rollout(0, [task(reward=reward)])
    columns = train_columns(batch)
    check_layout(columns, 2)
    assert columns["rewards"].tolist() == [float(reward)] * 2


def test_an_empty_batch_has_the_layout():
    check_layout(train_columns(rr.Batch.empty(0)), 0)


def test_values_are_the_rows(open_engine):
    engine = open_engine(n_samples_per_prompt=2, rollout_batch_size=2)
    batch = engine.rollout(0, [task(turns=1), task(turns=3)])
    order = [3, 0, 2, 1]
    columns = train_columns(batch, order)
    check_layout(columns, 4)
    for i, row in enumerate(batch[r] for r in order):
        assert columns["tokens"].rows()[i].tolist() == row.tokens.tolist()
        assert columns["loss_masks"].rows()[i].tolist() == row.response_loss_mask.tolist()
        logprobs = row.response_logprobs.tolist()
        assert columns["rollout_log_probs"].rows()[i].tolist() == logprobs
        assert columns["response_lengths"][i] == len(row.response_tokens)
        assert columns["rewards"][i] == row.advantage
        assert columns["sample_indices"][i] == row.sample_index
        assert columns["sample_index_mask_sums"][i] == row.loss_mask.sum()
        assert columns["group_index"][i] == row.group_id
    three_turns = [row.turns for row in batch].index(3)
    mask = train_columns(batch)["loss_masks"].rows()[three_turns]
    assert set(mask.tolist()) == {0, 1}, "observations are masked"


def test_the_trainers_numbers_take_the_place_of_the_engines(open_engine):
    batch = open_engine(n_samples_per_prompt=2).rollout(0, [task()])
    columns = train_columns(
        batch, sample_indices=np.array([40, 41]), group_index=np.array([20, 20])
    )
    assert columns["sample_indices"].tolist() == [40, 41]
    assert columns["group_index"].tolist() == [20, 20]
    assert tq.custom_meta(columns) == [
        {"total_lengths": len(batch[0].tokens), "sample_index": 40},
        {"total_lengths": len(batch[1].tokens), "sample_index": 41},
    ]


def test_truncated_rows(open_engine):
    engine = open_engine(rollout_max_response_len=2)
    columns = train_columns(engine.rollout(0, [task()]))
    check_layout(columns, 1)
    assert columns["truncated"].tolist() == [1]


def team(tmp_path):
    return task("team", outcomes=[1.0, 0.0], usefulness=[0.6, 0.2], claims=str(tmp_path))


def test_contexts_of_a_session_share_index_and_mask_sum(open_engine, tmp_path):
    engine = open_engine(
        n_samples_per_prompt=2, advantage=lambda slots: [dict.fromkeys(s, 1.0) for s in slots]
    )
    batch = engine.rollout(0, [team(tmp_path)])
    columns = train_columns(batch)
    check_layout(columns, 4)
    samples = columns["sample_indices"].tolist()
    assert [samples.count(s) for s in samples] == [2] * 4
    masks = [m.sum() for m in columns["loss_masks"].rows()]
    for i, sample in enumerate(samples):
        siblings = sum(m for m, s in zip(masks, samples, strict=True) if s == sample)
        assert columns["sample_index_mask_sums"][i] == siblings > masks[i]


def test_credit_for_each_turn_is_jagged(open_engine):
    def advantage(slots):
        return [{None: [0.25, 0.5, 1.0]}, {None: 2.0}]

    engine = open_engine(n_samples_per_prompt=2, advantage=advantage)
    batch = engine.rollout(0, [task(turns=3)])
    columns = train_columns(batch)
    check_layout(columns, 2, {*JAGGED, "rewards"})
    listed, spread = (columns["rewards"].rows()[batch_row(batch, seq)] for seq in (0, 1))
    row = batch[batch_row(batch, 0)]
    expected = np.zeros(len(row.tokens), np.float32)
    for turn, value in zip(row.turn_table, (0.25, 0.5, 1.0), strict=True):
        expected[turn.start : turn.end] = value
    assert listed.tolist() == expected[row.prompt_len :].tolist()
    assert set(spread.tolist()) == {2.0}, "one number is that of every token, observations too"


def batch_row(batch, seq):
    return next(i for i, row in enumerate(batch) if row.session_seq == seq)


# ---- clients -------------------------------------------------------------------------------------

COLUMNS = {"total_lengths": np.array([3, 4]), "sample_indices": np.array([7, 8])}


@pytest.fixture
def plain_rows(monkeypatch):
    monkeypatch.setattr(tq, "tensordict", Rows)


class Streaming:
    """A client whose put takes meta and knows a last one."""

    async def async_put(
        self, data, metadata=None, partition_id=None, custom_meta=None, is_last=False
    ):
        self.got = (data, partition_id, custom_meta, is_last)


def test_put_to_a_client_that_takes_meta(plain_rows):
    client = Streaming()
    tq.put(client, COLUMNS, "train_3", is_last=True)
    data, partition, meta, last = client.got
    assert (data.columns, partition, last) == (COLUMNS, "train_3", True)
    assert meta == [
        {"total_lengths": 3, "sample_index": 7},
        {"total_lengths": 4, "sample_index": 8},
    ]


class Plain:
    """A client as that of the package on PyPI: meta is a call of its own."""

    def __init__(self):
        self.calls = []

    async def async_get_meta(self, data_fields, batch_size, partition_id, mode):
        self.calls.append(("get_meta", data_fields, batch_size, partition_id, mode))
        return self

    def update_custom_meta(self, rows):
        self.rows = rows

    async def async_set_custom_meta(self, metadata):
        self.calls.append(("set", metadata.rows))

    async def async_put(self, data, metadata=None, partition_id=None, data_parser=None):
        self.calls.append(("put", metadata is self))


def test_meta_is_there_before_the_rows_can_be_read(plain_rows):
    client = Plain()
    tq.put(client, COLUMNS, "train_3")
    assert [c[0] for c in client.calls] == ["get_meta", "set", "put"]
    fields = ["total_lengths", "sample_indices"]
    assert client.calls[0] == ("get_meta", fields, 2, "train_3", "insert")
    assert client.calls[2] == ("put", True)


def test_meta_of_another_length_is_refused(plain_rows):
    with pytest.raises(rr.InvalidError, match="1 meta for the 2 rows of train_3"):
        tq.put(Streaming(), COLUMNS, "train_3", meta=[{}])


def test_what_a_put_raises_reaches_the_caller(plain_rows):
    class Broken:
        async def async_put(self, data, partition_id, custom_meta):
            raise ConnectionError("away")

    with pytest.raises(ConnectionError, match="away"):
        tq.put(Broken(), COLUMNS, "train_0")


FORKING = """
import os
from relax_rollout import transfer_queue

async def work():
    return 3

assert transfer_queue.run(work()) == 3
pid = os.fork()
if pid == 0:
    os._exit(transfer_queue.run(work()))
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3
"""


def test_a_forked_child_puts_by_a_thread_of_its_own():
    check_script(FORKING)


def test_torch_is_named_where_it_is_missing(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "tensordict", None)
    with pytest.raises(ImportError, match="need torch and tensordict"):
        tq.tensordict(COLUMNS)
