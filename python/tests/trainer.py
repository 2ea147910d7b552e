"""A stand-in for the Relax trainer: its arguments, samples, data source and queue client."""

import enum
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


class TrainersSample:
    """What the trainer's class of samples has, and nothing that only ours has."""

    class Status(enum.Enum):
        PENDING, COMPLETED, TRUNCATED = "pending", "completed", "truncated"

    def __init__(self, group_index=None, index=None, prompt="", label=None, metadata=None):
        self.group_index, self.index, self.prompt, self.label = group_index, index, prompt, label
        self.metadata = {} if metadata is None else metadata
        self.tokens, self.loss_mask = [], None
        self.response, self.response_length = "", 0
        self.reward = self.custom_advantage = self.train_metadata = None
        self.status = self.Status.PENDING

    @property
    def effective_response_length(self):
        return self.response_length if self.loss_mask is None else sum(self.loss_mask)

    def get_reward_value(self, args):
        return self.reward[args.reward_key] if args.reward_key else self.reward

    def to_dict(self):
        return {**vars(self), "status": self.status.value}


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


def install_trainer(monkeypatch, name, **members):
    """A module of the trainer's package, with the packages it is in."""
    parts = name.split(".")
    for i in range(1, len(parts)):
        if (package := ".".join(parts[:i])) not in sys.modules:
            install(monkeypatch, package, __path__=[])
    return install(monkeypatch, name, **members)


def install(monkeypatch, name, **members):
    """A module of the trainer's, or of its user's, that can be imported during the test."""
    module = ModuleType(name)
    vars(module).update(members)
    monkeypatch.setitem(sys.modules, name, module)
    return module
