"""A stand-in for the Relax trainer: its arguments, data source and queue client, for tests."""

import sys
from types import ModuleType, SimpleNamespace

import numpy as np
from conftest import AGENTS, CHECKPOINTS, agent_command

from relax_rollout.relax import Sample


def arguments(agent="plain.py", **more):
    """The trainer's args for the simulator, which answers "fine"."""
    own = {
        "simulator": {"policy": {"default": [{"text": "fine"}]}},
        "agent_kill_grace": 0.3,
        **more.pop("relax_rollout", {}),
    }
    settings = {
        "agent_command": agent_command(agent),
        "agent_cwd": str(AGENTS),
        # Agents of the trainer run in a login shell. A profile of this machine's may wait for
        # what a killed one left locked.
        "agent_env": [f"HOME={AGENTS}"],
        "hf_checkpoint": str(CHECKPOINTS / "tinychat"),
        "rollout_batch_size": 2,
        "n_samples_per_prompt": 2,
        "num_rollout": 4,
        "advantage_estimator": "grpo",
        "rollout_global_dataset": True,
        "some_unknown_argument": object(),
        "relax_rollout": own,
        **more,
    }
    return SimpleNamespace(**settings)


class DataSource:
    """Groups of samples with numbers that go up, whose metadata comes from a function."""

    def __init__(self, metadata=lambda number: {}, group_size=2, groups=10_000):
        self.metadata, self.group_size, self.left = metadata, group_size, groups
        self.asked = []
        self.given = 0

    def get_samples(self, count):
        self.asked.append(count)
        out = []
        for _ in range(min(count, self.left)):
            number, self.given, self.left = self.given, self.given + 1, self.left - 1
            out.append(
                [
                    Sample(
                        group_index=100 + number,
                        index=1000 + number * self.group_size + i,
                        prompt="hello",
                        label=f"label {number}",
                        metadata=dict(self.metadata(number)),
                    )
                    for i in range(self.group_size)
                ]
            )
        return out


class Rows:
    """What stands for a TensorDict where torch is not installed: rows and columns."""

    def __init__(self, columns):
        self.columns = columns
        self.batch_size = [len(columns["total_lengths"])]

    def keys(self):
        return self.columns.keys()

    def __getitem__(self, name):
        return self.columns[name]


class Client:
    """The trainer's queue client: keeps what was put, and fails when it is told to."""

    def __init__(self, failures=()):
        self.puts = []
        self.cleared = []
        self.failures = list(failures)

    async def async_put(self, data, partition_id, custom_meta=None, is_last=False):
        if self.failures and self.failures.pop(0):
            raise ConnectionError("the queue is away")
        self.puts.append(
            SimpleNamespace(data=data, id=partition_id, meta=custom_meta, last=is_last)
        )

    async def async_clear_partition(self, partition_id):
        self.cleared.append(partition_id)

    def of(self, partition):
        """The puts into a partition, and all values of a flat column of it."""
        return [p for p in self.puts if p.id == f"train_{partition}"]

    def column(self, partition, name):
        return np.concatenate([p.data[name] for p in self.of(partition)])


def install(monkeypatch, name, **members):
    """A module of the trainer's, or of its user's, that can be imported during the test."""
    module = ModuleType(name)
    vars(module).update(members)
    monkeypatch.setitem(sys.modules, name, module)
    return module
