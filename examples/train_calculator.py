"""The whole job on the embedded simulator: agents, recorded tokens, batches, a policy that learns.

Each step starts one agent process per sample (examples/calculator_agent), serves it a model
endpoint and receives the step's rows without a copy. While the next step is running already, the
trainer takes a policy-gradient step in NumPy, pauses generation, pushes the new weights to the
simulator and sets the weight version; so part of the tokens is one version old, which the column
"staleness" shows, even inside a turn. At the end it checks what it was promised, and says so.

    make demo          or          python examples/train_calculator.py --steps 8
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import sys
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import relax_rollout as rr

HERE = Path(__file__).resolve().parent
CHECKPOINT = HERE.parent / "testdata" / "checkpoints" / "tinychat"

CALL = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "%s"}}\n</tool_call>'


def policy_document() -> dict[str, Any]:
    """What the simulated model can say, with logits that make it bad at first."""
    question = r"What is (?P<a>\d+) (?P<op>[-+*]) (?P<b>\d+)\?"
    return {
        "classes": [
            {
                "name": "ask",
                "match": {"role": "user", "last_regex": question},
                "candidates": [
                    {"text": CALL % "${a} ${op} ${b}", "weight": 0.5},
                    {"text": CALL % "${b} + ${b}", "weight": 0.5},
                    {"text": "It is ${a+b+1}.", "weight": 1.0},
                    {"text": "I do not know.", "weight": 0.5},
                ],
            },
            {
                "name": "answer",
                "match": {
                    "contains": "<tool_response>",
                    "regex": r"<tool_response>\n(?P<r>-?\d+)\n",
                },
                "candidates": [
                    {"text": "The answer is ${r}.", "weight": 0.5},
                    {"text": "The answer is ${r+1}.", "weight": 0.5},
                    {"text": "I lost the result.", "weight": 0.0},
                ],
            },
        ],
        "default": [{"text": "I do not know.", "weight": 0.0}],
    }


def call_json(method: str, url: str, document: dict[str, Any]) -> Any:
    """One JSON request to the simulator."""
    request = urllib.request.Request(
        url,
        data=json.dumps(document).encode(),
        method=method,
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=30) as response:
        return json.load(response)


@dataclass(frozen=True)
class Reply:
    """One sampled turn of a row: which candidate it was, and where it lies in the row."""

    name: str
    chosen: int
    start: int
    end: int
    candidates: dict[int, list[int]]


class Policy:
    """The trainer's copy of the simulator's policy: one logit for each candidate of a class.

    ``version`` counts what was pushed; ``history`` has the logits of every version.
    """

    def __init__(self, url: str, document: dict[str, Any]) -> None:
        self.url = url
        self.logits = {
            c["name"]: np.array([x["weight"] for x in c["candidates"]]) for c in document["classes"]
        }
        self.logits["default"] = np.array([x["weight"] for x in document["default"]])
        self.history = [self._copy()]

    def _copy(self) -> dict[str, npt.NDArray[np.float64]]:
        return {name: values.copy() for name, values in self.logits.items()}

    @property
    def version(self) -> int:
        return len(self.history) - 1

    def probabilities(self, name: str, version: int) -> npt.NDArray[np.float64]:
        """Softmax of a class's logits as they were at a weight version."""
        logits = self.history[version][name]
        weights = np.exp(logits - logits.max())
        return weights / weights.sum()

    def push(self, engine: rr.Engine) -> None:
        """Makes the logits the simulator's weights, while no request is being generated."""
        engine.pause()
        self.history.append(self._copy())
        weights = {name: values.tolist() for name, values in self.logits.items()}
        document = {"weights": weights, "weight_version": str(self.version)}
        call_json("PUT", self.url + "/simulator/weights", document)
        engine.set_weight_version(self.version)
        engine.resume()

    def candidates(self, prompt: npt.NDArray[np.int32]) -> tuple[str, dict[int, list[int]]]:
        """What could follow a prompt: its class, and the ids of each candidate by number."""
        answer = call_json(
            "POST", self.url + "/simulator/distribution", {"input_ids": prompt.tolist()}
        )
        found = answer["candidates"]
        return found[0]["class"], {c["index"]: c["ids"] for c in found}

    def logprobs(self, reply: Reply, version: int) -> npt.NDArray[np.float64]:
        """log p(token | prefix) of a sampled reply: mass below over mass here, token by token."""
        probabilities = self.probabilities(reply.name, version)
        ids = reply.candidates[reply.chosen]
        out = []
        here = 1.0
        for n in range(1, len(ids) + 1):
            below = sum(
                probabilities[i] for i, other in reply.candidates.items() if other[:n] == ids[:n]
            )
            out.append(np.log(below / here))
            here = below
        return np.array(out)


def replies(row: rr.Row, policy: Policy) -> Iterator[Reply]:
    """The turns of a row: the runs of its loss mask."""
    edges = np.flatnonzero(np.diff(row.loss_mask.astype(np.int8), prepend=0, append=0))
    for start, end in zip(edges[::2], edges[1::2], strict=True):
        name, candidates = policy.candidates(row.tokens[:start])
        sampled = row.tokens[start:end].tolist()
        chosen = [i for i, ids in candidates.items() if ids == sampled]
        if not chosen:
            raise AssertionError(f"the policy cannot have said {sampled}")
        yield Reply(name, chosen[0], int(start), int(end), candidates)


class Checks:
    """What the demo promises, checked on every row of every step."""

    def __init__(self) -> None:
        self.turns = self.mixed_turns = 0
        self.worst_logprob = 0.0
        self.started = self.accounted = 0

    def row(self, row: rr.Row, turns: list[Reply], policy: Policy) -> None:
        """Mask and logprobs of one row against the trainer's own recomputation."""
        mask = np.zeros(len(row.tokens), dtype=np.uint8)
        versions = token_versions(row)
        for turn in turns:
            mask[turn.start : turn.end] = 1
            sampled_under = versions[turn.start : turn.end]
            for version in np.unique(sampled_under):
                expected = policy.logprobs(turn, version)
                gaps = np.abs(row.logprobs[turn.start : turn.end] - expected)
                gap = gaps[sampled_under == version].max()
                self.worst_logprob = max(self.worst_logprob, float(gap))
            self.mixed_turns += int(len(np.unique(sampled_under)) > 1)
        check("masks mark exactly the sampled ids", np.array_equal(mask, row.loss_mask))
        check("observations have no logprob", not np.any(row.logprobs[mask == 0]))
        check("one turn for each run of the mask", len(turns) == row.turns)
        self.turns += len(turns)

    def batch(self, batch: rr.Batch) -> None:
        """The arrays lie inside the engine's arena, and the books balance."""
        base, size = batch.address_range
        for name in ("tokens", "loss_mask", "logprobs", "advantage"):
            array = batch.numpy(name)
            at = array.__array_interface__["data"][0]
            check(f"{name} lies in the arena", base <= at and at + array.nbytes <= base + size)
        report = batch.report
        check("the batch has a report", report is not None)
        assert report is not None
        for balance in (report.group_balance, report.session_balance, report.token_balance):
            accounted = balance.delivered + balance.dropped + balance.carried
            check("started = delivered + dropped + carried", balance.started == accounted)
        self.started += report.session_balance.started
        self.accounted += report.session_balance.delivered + report.session_balance.dropped


def check(what: str, holds: bool) -> None:
    """Ends the demo if a promise is broken."""
    if not holds:
        sys.exit(f"FAILED: {what}")


def token_versions(row: rr.Row) -> npt.NDArray[np.int64]:
    """The weight version of each token of a row, -1 before the first that was sampled."""
    versions = np.full(len(row.tokens), -1)
    for start, end, version in row.segments:
        versions[start:end] = version
    return versions


def gradient(policy: Policy, turn: Reply) -> npt.NDArray[np.float64]:
    """d log p(candidate) / d logits of its class, under the weights of now."""
    grad = -policy.probabilities(turn.name, policy.version)
    grad[turn.chosen] += 1.0
    return grad


def learn(batch: rr.Batch, policy: Policy, checks: Checks, rate: float) -> None:
    """One policy-gradient step on the batch's views."""
    sums = {name: np.zeros_like(values) for name, values in policy.logits.items()}
    for row in batch:
        turns = list(replies(row, policy))
        checks.row(row, turns, policy)
        for turn in turns:
            sums[turn.name] += row.advantage * gradient(policy, turn)
    for name, grad in sums.items():
        policy.logits[name] += rate * grad / len(batch)


def staleness(batch: rr.Batch, version: int) -> float:
    """How many weight versions the sampled tokens are behind the one that learns, on average."""
    behind = [version - token_versions(row)[row.loss_mask == 1] for row in batch]
    return float(np.concatenate(behind).mean())


def read_tasks(path: Path) -> Iterator[dict[str, Any]]:
    """The tasks of a JSONL file, over and over."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return itertools.cycle([json.loads(line) for line in lines])


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--steps", type=int, default=8, help="rollout steps (default 8)")
    parser.add_argument("--groups", type=int, default=6, help="prompts a step (default 6)")
    parser.add_argument("--samples", type=int, default=8, help="samples a prompt (default 8)")
    parser.add_argument("--rate", type=float, default=2.0, help="learning rate (default 2.0)")
    args = parser.parse_args()
    if args.steps < 4:
        parser.error(
            "--steps: at least 4, for the mean reward has to rise from the first to the last"
        )
    return args


def main() -> None:
    args = parse_arguments()
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    document = policy_document()
    config = rr.Config(
        agent_command=f"{sys.executable} agent.py",
        agent_cwd=str(HERE / "calculator_agent"),
        hf_checkpoint=str(CHECKPOINT),
        agentic_tool_call_parser="qwen25",
        backend="simulator",
        simulator={"policy": document, "token_delay_ms": 1},
        rollout_batch_size=args.groups,
        n_samples_per_prompt=args.samples,
    )
    tasks = read_tasks(HERE / "calculator_agent" / "tasks.jsonl")
    table = []
    checks = Checks()
    with rr.Engine(config, progress=True) as engine, ThreadPoolExecutor(1) as ahead:
        policy = Policy(engine.stats()["backend"]["url"], document)
        policy.push(engine)
        coming = ahead.submit(engine.rollout, 0, tasks)
        for step in range(args.steps):
            batch = coming.result()
            if step + 1 < args.steps:
                coming = ahead.submit(engine.rollout, step + 1, tasks)
            checks.batch(batch)
            line = (
                step,
                float(batch.numpy("reward").mean()),
                batch.numpy("tokens").size,
                staleness(batch, policy.version),
            )
            table.append(line)
            learn(batch, policy, checks, args.rate)
            policy.push(engine)
    print_table(table)
    conclude(table, checks)


def print_table(table: list[tuple[int, float, int, float]]) -> None:
    print("\nstep | mean reward | tokens | staleness")
    for step, reward, tokens, stale in table:
        print(f"{step:4d} | {reward:11.3f} | {tokens:6d} | {stale:9.2f}")


def conclude(table: list[tuple[int, float, int, float]], checks: Checks) -> None:
    """Says what was verified, or ends with the first promise that was broken."""
    first = np.mean([row[1] for row in table[:2]])
    last = np.mean([row[1] for row in table[-2:]])
    check(
        f"recorded logprobs equal the recomputation (worst gap {checks.worst_logprob:.2e})",
        checks.worst_logprob < 1e-4,
    )
    check(f"mean reward rose ({first:.3f} to {last:.3f})", bool(last > first))
    check("started = delivered + dropped", checks.started == checks.accounted)
    print("\nverified:")
    print(
        f"  masks mark exactly the sampled ids ({checks.turns} turns, "
        f"{checks.mixed_turns} of them sampled across a weight update)"
    )
    print(f"  logprobs equal the trainer's recomputation (worst gap {checks.worst_logprob:.1e})")
    print("  the arrays lie inside the engine's arena: no copy was made")
    print(f"  mean reward rose from {first:.3f} to {last:.3f}")
    print(f"  started = delivered + dropped ({checks.started} sessions)")


if __name__ == "__main__":
    main()
