"""How long a finished batch takes from poll to views, and that its size does not matter.

    python bench/poll.py [--smoke]

Batches of 64 MB and of 1 MB are built by real rollouts on the simulator and left in the queue.
Then the clock runs over each poll and a NumPy view of every column. The first poll of a process
that waited finds cold caches; the ones right behind it do not. Both are printed.
"""

from __future__ import annotations

import argparse
import shlex
import statistics
import sys
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


def poll_to_views(megabytes: float, rounds: int) -> tuple[float, float]:
    """Milliseconds from poll to views of all columns: the first, and the median of the rest."""
    sessions = 8
    tokens = int(megabytes * 2**20 / BYTES_A_TOKEN / sessions)
    with tempfile.TemporaryDirectory() as cwd:
        Path(cwd, "agent.py").write_text(AGENT)
        config = rr.Config(
            agent_command=f"{shlex.quote(sys.executable)} agent.py",
            agent_cwd=cwd,
            n_samples_per_prompt=sessions,
            rollout_max_response_len=tokens + 16,
            simulator={
                "policy": {"default": [{"text": "x" * tokens, "weight": 0.0}]},
                "context_len": tokens + 1024,
            },
        )
        with rr.Engine(config) as engine:
            for rollout in range(rounds):
                engine.submit(["go"])
                engine.start_rollout(rollout)
                while engine.stats()["rollout"] is not None:
                    time.sleep(0.01)
            cold, *warm = [one_poll(engine) for _ in range(rounds)]
            return cold, statistics.median(warm)


def one_poll(engine: rr.Engine) -> float:
    while True:
        began = time.perf_counter()
        event = engine.poll(0)
        if event is None:
            raise SystemExit("a step delivered no batch")
        if event.batch is None:
            continue
        views = [event.batch.numpy(name) for name in event.batch.names]
        elapsed = (time.perf_counter() - began) * 1e3
        assert int(views[0][-1]) == event.batch.numpy("tokens").size
        return elapsed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--smoke", action="store_true", help="one round of small batches")
    smoke = parser.parse_args().smoke
    large, rounds = (4.0, 2) if smoke else (64.0, 12)
    big, small = poll_to_views(large, rounds), poll_to_views(large / 64, rounds)
    for name, a, b in zip(("first", "then"), big, small, strict=True):
        print(
            f"poll to views, {name}: {large:.0f} MB batch {a:.3f} ms, "
            f"{large / 64:.2f} MB batch {b:.3f} ms, ratio {a / b:.2f}"
        )


if __name__ == "__main__":
    main()
