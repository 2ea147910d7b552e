"""Columns of samples that the trainer's user wrote into (reference's pipeline, section 6.3)."""

import numpy as np
import pytest
from trainer import Client, DataSource, arguments, install

import relax_rollout as rr
import relax_rollout.relax as adapter
from relax_rollout.relax.samples import Sample
from relax_rollout.transfer_queue import Jagged

pytestmark = pytest.mark.usefixtures("drop_in")


def columns_after(monkeypatch, write):
    """The queue's columns where a post-process function writes into the two samples, and those."""
    seen = []

    def post(args, samples):
        write(samples)
        seen.extend(samples)
        return [0.5] * len(samples)

    install(monkeypatch, "trainers_code", post=post)
    args = arguments(custom_reward_post_process_path="trainers_code.post", rollout_batch_size=1)
    client = Client()
    adapter.generate_rollout(args, 0, DataSource(lambda number: {"turns": 2}), client)
    (put,) = client.puts
    return put.data, seen


def lists(column):
    return [row.tolist() for row in column.rows()]


def test_what_a_post_process_function_writes_is_trained(monkeypatch):
    """Section 6.3: the trainer reads the samples after it."""

    def write(samples):
        for s in samples:
            s.loss_mask = [0] * (s.response_length - 3) + [1] * 3
        samples[0].remove_sample = True

    data, (removed, kept) = columns_after(monkeypatch, write)
    assert lists(data["loss_masks"]) == [[0] * removed.response_length, kept.loss_mask]
    assert data["loss_masks"].values.dtype == np.int64
    assert data["sample_index_mask_sums"].tolist() == [0, 3]


def test_all_that_a_post_process_function_writes_is_trained(monkeypatch):
    def write(samples):
        for s in samples:
            s.index, s.group_index, s.status = 7, 8, Sample.Status.TRUNCATED
            s.tokens = [*s.tokens[:-1], 3, 4]
            s.response_length += 1
            s.loss_mask[:] = [1]  # short ones go on with ones
            s.rollout_log_probs = [-0.5] * s.response_length
        samples[1].loss_mask = None

    data, samples = columns_after(monkeypatch, write)
    lengths = [s.response_length for s in samples]
    assert lists(data["tokens"]) == [s.tokens for s in samples]
    assert data["total_lengths"].tolist() == [len(s.tokens) for s in samples]
    assert data["response_lengths"].tolist() == lengths
    assert lists(data["loss_masks"]) == [[1] * n for n in lengths]
    assert lists(data["rollout_log_probs"]) == [[-0.5] * n for n in lengths]
    assert data["sample_index_mask_sums"].tolist() == [sum(lengths)] * 2
    assert (data["sample_indices"].tolist(), data["group_index"].tolist()) == ([7, 7], [8, 8])
    assert data["truncated"].tolist() == [1, 1]


def test_a_post_process_function_that_only_returns_changes_rewards_alone(monkeypatch):
    data, _ = columns_after(monkeypatch, lambda samples: None)
    adapter.shutdown()
    client = Client()
    source = DataSource(lambda number: {"turns": 2})
    adapter.generate_rollout(arguments(rollout_batch_size=1), 0, source, client)
    (put,) = client.puts
    assert data.keys() == put.data.keys()
    for name in data.keys() - {"rewards"}:
        ours, plain = data[name], put.data[name]
        if isinstance(plain, Jagged):
            assert ours.offsets.tolist() == plain.offsets.tolist(), name
            ours, plain = ours.values, plain.values
        assert (ours.tolist(), ours.dtype) == (plain.tolist(), plain.dtype), name


def test_a_loss_mask_longer_than_the_response_is_named(monkeypatch):
    def write(samples):
        samples[1].loss_mask.append(1)

    with pytest.raises(rr.InvalidError, match=r"sample 1001: a loss_mask of (\d+) for a response"):
        columns_after(monkeypatch, write)


def test_samples_that_the_data_source_removes_are_not_trained():
    class Source(DataSource):
        def get_samples(self, count):
            groups = super().get_samples(count)
            for group in groups:
                group[0].remove_sample = True
            return groups

    client = Client()
    adapter.generate_rollout(arguments(rollout_batch_size=1), 0, Source(), client)
    (put,) = client.puts
    removed, kept = lists(put.data["loss_masks"])
    assert (set(removed), set(kept)) == ({0}, {1})
    assert put.data["sample_index_mask_sums"].tolist() == [0, len(kept)]
