"""Steps of a stand-in trainer into the real TransferQueue. Run by test_real_transfer_queue.py in an
environment with torch and Ray; prints "checked N rows" when all that was put was read back."""

import os
import shlex
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

ROWS = 4  # of each partition

# Before Ray is imported. The token is of this run alone, so that nothing is written to the home.
os.environ.setdefault("TQ_PRE_ALLOC_SAMPLE_NUM", str(ROWS))
os.environ.setdefault("RAY_AUTH_MODE", "token")
os.environ.setdefault("RAY_AUTH_TOKEN", os.urandom(24).hex())
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import numpy as np  # noqa: E402
import ray  # noqa: E402
import torch  # noqa: E402
import transfer_queue as tq  # noqa: E402
from omegaconf import OmegaConf  # noqa: E402

from relax_rollout import relax  # noqa: E402

TESTS = Path(__file__).parent
FIELDS = {
    "tokens": torch.int64,
    "total_lengths": torch.int64,
    "response_lengths": torch.int64,
    "rewards": torch.float32,
    "group_index": torch.int64,
    "truncated": torch.int64,
    "sample_indices": torch.int64,
    "loss_masks": torch.int64,
    "sample_index_mask_sums": torch.int64,
    "rollout_log_probs": torch.float32,
}
JAGGED = {"tokens", "loss_masks", "rollout_log_probs"}


class Source:
    """Groups whose metadata the current step says."""

    def __init__(self):
        self.metadata = {}
        self.given = 0

    def get_samples(self, count):
        assert count == 1
        number, self.given = self.given, self.given + 1
        return [
            [
                relax.Sample(
                    group_index=number,
                    index=2 * number + i,
                    prompt="hello",
                    metadata=dict(self.metadata),
                    train_metadata={"of": 2 * number + i, "nothing": {}},
                )
                for i in range(2)
            ]
        ]


def arguments(**more):
    agent = shlex.join([sys.executable, str(TESTS / "agents" / "plain.py")])
    own = {"simulator": {"policy": {"default": [{"text": "fine"}]}}, "agent_kill_grace": 0.3}
    return SimpleNamespace(
        agent_command=f"exec {agent}",
        agent_cwd=str(TESTS / "agents"),
        agent_env=[f"HOME={TESTS}"],  # as in trainer.py
        rollout_batch_size=2,
        n_samples_per_prompt=2,
        num_rollout=10,
        advantage_estimator="grpo",
        relax_rollout=own,
        **more,
    )


def read_back(client, partition):
    """All rows of a partition as a sampler gives them, and what it knew of them."""
    fields = [*FIELDS, "metadata"]
    metadata = client.get_meta(
        data_fields=fields,
        batch_size=ROWS,
        partition_id=partition,
        mode="fetch",
        task_name="train",
    )
    return client.get_data(metadata), metadata.get_all_custom_meta()


def rows_of(column):
    return [r.tolist() for r in column.unbind()]


def check(client, partition, samples, rewards_jagged=False):
    """What is in the queue is what the samples say."""
    assert client.check_production_status(list(FIELDS), partition), partition
    data, meta = read_back(client, partition)
    jagged = JAGGED | ({"rewards"} if rewards_jagged else set())
    for name, dtype in FIELDS.items():
        rows = data[name].unbind()
        assert {r.dtype for r in rows} == {dtype}, name
        assert {r.dim() for r in rows} == {1 if name in jagged else 0}, name
    assert rows_of(data["tokens"]) == [s.tokens for s in samples]
    assert rows_of(data["loss_masks"]) == [s.loss_mask for s in samples]
    np.testing.assert_array_equal(
        np.concatenate(rows_of(data["rollout_log_probs"])),
        np.concatenate([np.float32(s.rollout_log_probs) for s in samples]),
    )
    assert rows_of(data["total_lengths"]) == [len(s.tokens) for s in samples]
    assert rows_of(data["response_lengths"]) == [s.response_length for s in samples]
    assert rows_of(data["sample_indices"]) == [s.index for s in samples]
    assert rows_of(data["group_index"]) == [s.group_index for s in samples]
    assert rows_of(data["truncated"]) == [int(s.status.value == "truncated") for s in samples]
    sums = {s.index: 0 for s in samples}
    for s in samples:
        sums[s.index] += sum(s.loss_mask)
    assert rows_of(data["sample_index_mask_sums"]) == [sums[s.index] for s in samples]
    assert [dict(m) for m in data["metadata"]] == [s.train_metadata for s in samples]
    assert meta == [{"total_lengths": len(s.tokens), "sample_index": s.index} for s in samples]
    assert client.check_consumption_status("train", partition)
    return data


def main():
    client = tq.get_client()
    source, checked = Source(), 0

    def step(number, args, metadata):
        source.metadata = metadata
        out = relax.generate_rollout(args, number, source, client)
        return [s for g in out.samples for s in g]

    plain = arguments(rewards_normalization=False)
    for number, reward in enumerate([1, 0.5, True]):
        samples = step(number, plain, {"reward": reward})
        data = check(client, f"train_{number}", samples)
        assert rows_of(data["rewards"]) == [float(reward)] * ROWS
        checked += len(samples)
    assert not client.check_production_status(["tokens"], "train_3"), "nothing was put there"
    relax.shutdown()

    samples = step(3, arguments(rollout_max_response_len=2), {"turns": 1})
    assert rows_of(check(client, "train_3", samples)["truncated"]) == [1] * ROWS
    checked += len(samples)
    relax.shutdown()

    credit = arguments(agentic_custom_advantage_path="real_transfer_queue.each_turn")
    samples = step(4, credit, {"turns": 2})
    data = check(client, "train_4", samples, rewards_jagged=True)
    for row, sample in zip(rows_of(data["rewards"]), samples, strict=True):
        assert len(row) == sample.response_length
        assert set(row) == {0.0, 0.25, 0.5}
        mask = np.array(sample.loss_mask)
        assert (np.array(row)[mask == 0] == 0).all()
    checked += len(samples)
    relax.shutdown()

    team = arguments(agentic_custom_advantage_path="real_transfer_queue.by_name")
    team.rollout_batch_size = 1
    with tempfile.TemporaryDirectory() as claims:
        metadata = {"mode": "team", "outcomes": [1.0, 0.0], "usefulness": [1, 1], "claims": claims}
        samples = step(5, team, metadata)
    data = check(client, "train_5", samples)
    assert sorted(rows_of(data["rewards"])) == [-1.0, -1.0, 1.0, 1.0]
    checked += len(samples)
    print(f"checked {checked} rows")


def each_turn(slots):
    return [{None: [0.25, 0.5]} for _ in slots]


def by_name(slots):
    return [{name: 1.0 if name == "main" else -1.0 for name in slot} for slot in slots]


def run():
    with tempfile.TemporaryDirectory(prefix="rq") as home:
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, _temp_dir=home)
        storage = {"SimpleStorage": {"num_data_storage_units": 1}}
        tq.init(OmegaConf.create({"backend": storage}))
        try:
            main()
        finally:
            relax.shutdown()
            tq.close()
            ray.shutdown()


if __name__ == "__main__":
    run()
