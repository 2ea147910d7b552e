"""Two agents a Session, each with credit of its own: a group reward model and a custom advantage.

The searcher and the main agent of examples/team_agent share one policy, but not one reward: the
group reward model judges the Session's answer for the metrics, and the advantage function gives
each context its training credit from what the agents wrote into their metadata. Groups of which
every Session fails, or none, teach nothing and are filtered.

    python examples/train_team.py --steps 6
"""

from __future__ import annotations

import argparse
import itertools
import logging
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from train_calculator import CHECKPOINT, Policy, check, gradient, replies

import relax_rollout as rr

HERE = Path(__file__).resolve().parent


def policy_document() -> dict[str, Any]:
    """What the simulated model can say in either role, with logits that make it bad at first."""
    return {
        "classes": [
            {
                "name": "searcher",
                "match": {"role": "user", "last_regex": r"Search: (?P<a>\d+) \+ (?P<b>\d+)"},
                "candidates": [
                    {"text": "Found ${a+b}.", "weight": 0.0},
                    {"text": "Found ${a}.", "weight": 0.5},
                    {"text": "Found nothing.", "weight": 0.5},
                ],
            },
            {
                "name": "main",
                "match": {"role": "user", "last_regex": r"says: Found (?P<r>\d+)\."},
                "candidates": [
                    {"text": "It is ${r}.", "weight": 0.0},
                    {"text": "It is ${r+1}.", "weight": 0.5},
                ],
            },
        ],
        "default": [{"text": "I do not know.", "weight": 0.0}],
    }


async def judge(sessions: list[dict[str, Any]]) -> list[dict[str, float]]:
    """The group reward model: whether the main agent's answer is right. For the metrics."""
    return [
        {"score": float(s["metadata"]["answer"] == sum(s["metadata"]["terms"]))} for s in sessions
    ]


def credit(slots: list[dict[str, dict[str, Any]]]) -> list[dict[str, float]]:
    """Each role against the same role of the Group's other Sessions.

    The main agent is paid for using what was found, the searcher for finding the sum.
    """
    paid = {
        "main": [float(s["main"]["answer"] == s["searcher"]["found"]) for s in slots],
        "searcher": [float(s["searcher"]["found"] == sum(s["searcher"]["terms"])) for s in slots],
    }
    centred = {role: np.array(values) - np.mean(values) for role, values in paid.items()}
    return [{role: float(values[i]) for role, values in centred.items()} for i in range(len(slots))]


def worth_training(sessions: list[dict[str, Any]]) -> tuple[bool, str]:
    """The filter: some context has credit."""
    flat = all(c["advantage"] == 0 for s in sessions for c in s["contexts"])
    return not flat, "no_credit"


def tasks() -> Iterator[dict[str, Any]]:
    """Sums without end. The agents find the terms in their metadata."""
    draw = random.Random(0)
    while True:
        yield {"metadata": {"terms": [draw.randint(10, 40), draw.randint(10, 40)]}}


def verify(batch: rr.Batch) -> None:
    """Two contexts a Session, with credit of their own, that count as one sample."""
    for _, rows in itertools.groupby(batch, key=lambda row: row.sample_index):
        pair = {row.meta["name"]: row for row in rows}
        check("a session has its two contexts", set(pair) == {"main", "searcher"})
        main, searcher = pair["main"], pair["searcher"]
        trained = int(main.loss_mask.sum() + searcher.loss_mask.sum())
        check("both count their tokens together", main.mask_sum == searcher.mask_sum == trained)
        check("the outcome is the session's", main.raw_reward == searcher.raw_reward)
    for _, rows in itertools.groupby(batch, key=lambda row: row.group_id):
        by_role: dict[str, list[rr.Row]] = {"main": [], "searcher": []}
        for row in rows:
            by_role[row.meta["name"]].append(row)
        for role in by_role.values():
            check("credit is centred", abs(sum(row.advantage for row in role)) < 1e-5)


def learn(batch: rr.Batch, policy: Policy, rate: float) -> None:
    """One policy-gradient step on the batch's views."""
    sums = {name: np.zeros_like(values) for name, values in policy.logits.items()}
    for row in batch:
        for turn in replies(row, policy):
            sums[turn.name] += row.advantage * gradient(policy, turn)
    for name, grad in sums.items():
        policy.logits[name] += rate * grad / len(batch)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--steps", type=int, default=6, help="rollout steps (default 6)")
    parser.add_argument("--rate", type=float, default=6.0, help="learning rate (default 6.0)")
    args = parser.parse_args()
    if args.steps < 4:
        parser.error("--steps: at least 4, for the outcome has to rise from the first to the last")
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    document = policy_document()
    config = rr.Config(
        agent_command=f"{sys.executable} agent.py",
        agent_cwd=str(HERE / "team_agent"),
        hf_checkpoint=str(CHECKPOINT),
        backend="simulator",
        simulator={"policy": document},
        rollout_batch_size=4,
        n_samples_per_prompt=8,
        reward_key="score",
        log_passrate=True,
    )
    hooks = rr.Hooks(group_reward=judge, advantage=credit, filter=worth_training)
    outcomes = []
    source = tasks()
    with rr.Engine(config, hooks=hooks) as engine:
        policy = Policy(engine.stats()["backend"]["url"], document)
        policy.push(engine)
        for step in range(args.steps):
            batch = engine.rollout(step, source)
            verify(batch)
            assert batch.report is not None
            outcomes.append(batch.report.metrics["rollout/raw_reward"])
            learn(batch, policy, args.rate)
            policy.push(engine)
    print("\nmean outcome of each step:", " ".join(f"{x:.2f}" for x in outcomes))
    first, last = np.mean(outcomes[:2]), np.mean(outcomes[-2:])
    check(f"the outcome rose ({first:.3f} to {last:.3f})", bool(last > first))
    print(f"verified: contexts, credit and sums of every row; the outcome rose to {last:.2f}")


if __name__ == "__main__":
    main()
