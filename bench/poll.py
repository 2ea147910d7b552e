"""How long a finished batch takes from poll to views, and that its size does not matter.

    python bench/poll.py [--smoke]

Two batches, one of 64 MB and one 64 times smaller, are built by real rollouts on the simulator.
Once the batch event waits, the clock runs over poll and a NumPy view of every column.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import relax_rollout as rr

BYTES_A_TOKEN = 9

AGENT = """
import json, os, urllib.request
body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "go"}]}).encode()
request = urllib.request.Request(
    os.environ["RELAX_BASE_URL"] + "v1/chat/completions",
    body,
    {"Authorization": "Bearer " + os.environ["RELAX_SESSION_ID"]},
)
urllib.request.urlopen(request).read()
open(os.environ["RELAX_OUTPUT_JSON"], "w").write('{"reward": 1}')
"""


def poll_to_views(megabytes: float, rounds: int) -> list[float]:
    """Milliseconds from poll to views of all columns, one value a round."""
    sessions = 8
    tokens = int(megabytes * 2**20 / BYTES_A_TOKEN / sessions)
    with tempfile.TemporaryDirectory() as cwd:
        Path(cwd, "agent.py").write_text(AGENT)
        config = rr.Config(
            agent_command="python3 agent.py",
            agent_cwd=cwd,
            n_samples_per_prompt=sessions,
            rollout_max_response_len=tokens + 16,
            simulator={
                "policy": {"default": [{"text": "x" * tokens, "weight": 0.0}]},
                "context_len": tokens + 1024,
            },
        )
        with rr.Engine(config) as engine:
            return [one_round(engine, n) for n in range(rounds)]


def one_round(engine: rr.Engine, rollout: int) -> float:
    engine.submit(["go"])
    engine.start_rollout(rollout)
    while True:
        wait_for_event(engine)
        began = time.perf_counter()
        event = engine.poll(0)
        if event is None or event.batch is None:
            if event is not None and event.kind == rr.EventKind.STEP_END:
                raise SystemExit(f"the step delivered no batch: {event.data}")
            continue
        views = [event.batch.numpy(name) for name in event.batch.names]
        elapsed = (time.perf_counter() - began) * 1e3
        assert int(views[0][-1]) == event.batch.numpy("tokens").size
        drain(engine)
        return elapsed


def wait_for_event(engine: rr.Engine) -> None:
    while not engine.stats()["events"]:
        time.sleep(0.002)


def drain(engine: rr.Engine) -> None:
    while (event := engine.poll(5)) is not None and event.kind != rr.EventKind.STEP_END:
        pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--smoke", action="store_true", help="one round of small batches")
    smoke = parser.parse_args().smoke
    large, rounds = (4.0, 1) if smoke else (64.0, 7)
    big = statistics.median(poll_to_views(large, rounds))
    small = statistics.median(poll_to_views(large / 64, rounds))
    print(f"poll to views: {large:.0f} MB batch {big:.3f} ms, {large / 64:.2f} MB batch {small:.3f} ms")
    print(f"ratio {big / small:.2f} for 64 times the size")


if __name__ == "__main__":
    main()
